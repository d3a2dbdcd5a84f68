//! The stream of a command's events: output as it comes, signs of life, and the end.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use futures_util::stream;
use kennel::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use crate::e2b::STREAMED;
use crate::e2b::frames;
use crate::sandboxes::output::{End, Piece, Reader, Stream};
use crate::sandboxes::process::Process;
use crate::sandboxes::sandbox::Sandbox;
use crate::wire::failure::{Failure, Reason};
use crate::wire::headers::{KEEPALIVE, text};

/// Output that goes out as one piece of a body.
const CHUNK: usize = 64 << 10;

/// Silence after which a stream says that it lives, if the client names no time.
const USUAL_KEEPALIVE: Duration = Duration::from_secs(90);

pub(crate) fn keepalive(headers: &HeaderMap) -> Duration {
    let seconds = text(headers, KEEPALIVE).and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
    seconds.map_or(USUAL_KEEPALIVE, Duration::from_secs)
}

/// A stream that only says why there is none.
pub(crate) fn failed(failure: &Failure) -> Response {
    let mut frames = BytesMut::new();
    frames::put_end(&mut frames, Some(failure));
    ([(CONTENT_TYPE, STREAMED)], frames.freeze()).into_response()
}

/// The stream of a command's events.
pub(crate) fn events(
    sandbox: &Arc<Sandbox>,
    process: &Process,
    keepalive: Duration,
    deadline: Option<Instant>,
) -> Response {
    let begun = format!(r#"{{"event":{{"start":{{"pid":{}}}}}}}"#, process.pid);
    let reader = Some(process.output.reader());
    let events = Events { sandbox: Arc::clone(sandbox), begun: Some(begun), reader, keepalive, deadline };
    let body = Body::from_stream(stream::unfold(events, |mut events| async {
        let chunk = events.next().await?;
        Some((Ok::<_, Infallible>(chunk), events))
    }));
    ([(CONTENT_TYPE, STREAMED)], body).into_response()
}

struct Events {
    sandbox: Arc<Sandbox>,
    begun: Option<String>,
    /// `None` after the end.
    reader: Option<Reader>,
    keepalive: Duration,
    deadline: Option<Instant>,
}

impl Events {
    /// The next piece of the body.
    async fn next(&mut self) -> Option<Bytes> {
        let reader = self.reader.as_mut()?;
        let mut chunk = BytesMut::new();
        if let Some(begun) = self.begun.take() {
            frames::put(&mut chunk, begun.as_bytes());
            return Some(chunk.freeze());
        }
        let over = async {
            match self.deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => pending().await,
            }
        };
        let mut piece = tokio::select! {
            piece = reader.next() => Some(piece),
            () = sleep(self.keepalive) => {
                frames::put(&mut chunk, br#"{"event":{"keepalive":{}}}"#);
                return Some(chunk.freeze());
            }
            () = over => {
                let failure = Failure::new(StatusCode::GATEWAY_TIMEOUT, "the time of this stream is over");
                frames::put_end(&mut chunk, Some(&failure));
                self.reader = None;
                return Some(chunk.freeze());
            }
        };
        while let Some(found) = piece {
            match found {
                Piece::Data(stream, bytes) => put_data(&mut chunk, stream, &bytes),
                Piece::End(end) => {
                    put_end(&mut chunk, &end, self.sandbox.over());
                    self.reader = None;
                    return Some(chunk.freeze());
                }
            }
            piece = if chunk.len() < CHUNK { reader.take() } else { None };
        }
        Some(chunk.freeze())
    }
}

fn put_data(chunk: &mut BytesMut, stream: Stream, bytes: &[u8]) {
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
        Stream::Terminal => "pty",
    };
    let mut json = format!(r#"{{"event":{{"data":{{"{name}":""#);
    STANDARD.encode_string(bytes, &mut json);
    json.push_str(r#""}}}"#);
    frames::put(chunk, json.as_bytes());
}

/// An `end` event stands only for a real end; everything else is an error of the stream.
fn put_end(chunk: &mut BytesMut, end: &End, over: Option<Reason>) {
    let failure = match end {
        End::Exited { code, signal, message } => {
            let status = match signal {
                Some(number) => format!("signal: {}", signal_name(*number)),
                None => format!("exit status {code}"),
            };
            let error = message.clone().or_else(|| signal.map(|_| status.clone()));
            let mut end =
                serde_json::json!({ "exitCode": code, "exited": signal.is_none(), "status": status });
            if let (Some(error), Some(end)) = (error, end.as_object_mut()) {
                end.insert("error".into(), error.into());
            }
            let event = serde_json::json!({ "event": { "end": end } });
            frames::put(chunk, event.to_string().as_bytes());
            None
        }
        End::TimedOut => {
            Some(Failure::new(StatusCode::GATEWAY_TIMEOUT, "the command's time was over, and it was killed"))
        }
        End::Lost => {
            let why = match over {
                Some(Reason::Ended) | None => "the sandbox has ended",
                Some(Reason::Expired) => "the time of the sandbox is over",
                Some(Reason::Memory) => "memory ran out, and the sandbox was ended, which used the most",
                Some(Reason::SessionLost) => "the sandbox was killed from outside",
            };
            let words = format!("{why}, and the command with it: nobody knows how it would have ended");
            Some(Failure::new(StatusCode::BAD_GATEWAY, words))
        }
    };
    frames::put_end(chunk, failure.as_ref());
}

/// As Go names it, which E2B's clients show: `killed`, or the number.
fn signal_name(number: i32) -> String {
    match number {
        nix::libc::SIGKILL => "killed".into(),
        nix::libc::SIGTERM => "terminated".into(),
        nix::libc::SIGINT => "interrupt".into(),
        nix::libc::SIGSEGV => "segmentation fault".into(),
        nix::libc::SIGABRT => "aborted".into(),
        number => Signal::new(number).map_or_else(|| number.to_string(), |signal| signal.to_string()),
    }
}
