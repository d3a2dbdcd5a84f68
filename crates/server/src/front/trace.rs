//! The trace that a request belongs to: W3C Trace Context, `traceparent`. The audit log has it with each
//! line about the request, and the header goes on to the sandbox's ports as it came.

use std::future::Future;

use axum::http::HeaderMap;
use tokio::task_local;

use crate::wire::headers::{TRACE, text};

task_local! {
    static CURRENT: Option<String>;
}

/// The id of the trace that a request's headers name.
pub(crate) fn of(headers: &HeaderMap) -> Option<String> {
    text(headers, TRACE).and_then(trace_id).map(str::to_owned)
}

/// Answers a request as a part of that trace.
pub(crate) async fn within<F: Future>(trace: Option<String>, answer: F) -> F::Output {
    CURRENT.scope(trace, answer).await
}

/// The trace of the request that this task answers.
pub(crate) fn current() -> Option<String> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

/// The trace's id of `VERSION-TRACE-PARENT-FLAGS`. Later versions may add fields.
fn trace_id(parent: &str) -> Option<&str> {
    let fields: Vec<_> = parent.split('-').collect();
    let is_hex = |field: &str, length: usize| {
        field.len() == length && field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_number = |field: &str, length| is_hex(field, length) && field.bytes().any(|byte| byte != b'0');
    match fields[..] {
        [version, trace, parent, flags, ref later @ ..]
            if is_hex(version, 2)
                && version != "ff"
                && is_number(trace, 32)
                && is_number(parent, 16)
                && is_hex(flags, 2)
                && (later.is_empty() || version != "00") =>
        {
            Some(trace)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_known_by_its_id_alone() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for good in ["00-{}-00f067aa0ba902b7-01", "01-{}-00f067aa0ba902b7-01-later"] {
            assert_eq!(trace_id(&good.replace("{}", trace)), Some(trace));
        }
        for bad in [
            "",
            "{}",
            "ff-{}-00f067aa0ba902b7-01",
            "00-{}-0000000000000000-01",
            "00-{}-00f067aa0ba902b7-01-later",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-{}\",\"a\":\"-00f067aa0ba902b7-01",
        ] {
            assert_eq!(trace_id(&bad.replace("{}", trace)), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn outside_a_request_there_is_none() {
        assert_eq!(current(), None);
        let trace = of(&HeaderMap::new());
        assert_eq!(within(trace, async { current() }).await, None);
        assert_eq!(within(Some("trace".into()), async { current() }).await.as_deref(), Some("trace"));
    }
}
