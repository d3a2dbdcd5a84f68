//! A job as it comes from the queue: its id, its body, and how often it came.

use async_nats::header::{HeaderMap, NATS_MESSAGE_ID};
use async_nats::jetstream::message::{AckKind, Acker};
use async_nats::jetstream::{Context, Message};
use bytes::Bytes;

use crate::http::request::MOST_RUN;
use crate::queue::Trouble;
use crate::queue::objects::{Object, Objects};
use crate::queue::places::subject;

/// The id of a job that was published once more: then `Nats-Msg-Id` is another one.
pub(crate) const JOB_ID: &str = "Kennel-Job";

/// Says that the body is the object `job-ID`.
const BODY: &str = "Kennel-Body";

/// The name under which a client waits: it is told on the subject `PREFIX.done.NAME`.
const NOTIFY: &str = "Kennel-Notify";

/// A job that was delivered.
pub(crate) struct Job {
    /// `Err`: a name for it, and what is wrong with its id.
    pub(crate) id: Result<String, (String, &'static str)>,
    /// Its number in the stream.
    pub(crate) sequence: u64,
    /// How often it was delivered, counted from 1.
    pub(crate) delivery: i64,
    /// The subject on which it is acknowledged.
    pub(crate) reply: String,
    /// The subject on which the client is told.
    pub(crate) notify: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
    pub(crate) is_object: bool,
    acker: Acker,
}

impl Job {
    /// `None` if it is no message of a stream.
    pub(crate) fn of(message: Message, prefix: &str) -> Option<Self> {
        let (sequence, delivery) = message.info().ok().map(|info| (info.stream_sequence, info.delivered))?;
        let reply = message.reply.as_ref()?.to_string();
        let (message, acker) = message.split();
        let headers = message.headers.unwrap_or_default();
        let is_object = headers.get(BODY).is_some_and(|body| body.as_str() == "object");
        let notify = notify_of(&headers, prefix);
        let id = id_of(&headers).ok_or((
            format!("sequence-{sequence}"),
            "Nats-Msg-Id: 1 to 128 letters, digits, `-` and `_` are expected",
        ));
        Some(Self {
            id,
            sequence,
            delivery,
            reply,
            notify,
            headers,
            payload: message.payload,
            is_object,
            acker,
        })
    }

    /// Its id, or the name of one that has none.
    pub(crate) fn name(&self) -> &str {
        match &self.id {
            Ok(id) | Err((id, _)) => id,
        }
    }

    /// Its body, from wherever it is.
    pub(crate) async fn body(&self, bodies: &Objects) -> Result<Object, Trouble> {
        if !self.is_object {
            return Ok(Object::There(self.payload.clone()));
        }
        bodies.read(&object_of(self.name()), MOST_RUN).await
    }

    /// Says that it is still being worked on.
    pub(crate) async fn progress(&self) {
        // Without a connection another worker may begin it, too.
        let _ = self.acker.ack_with(AckKind::Progress).await;
    }

    /// Gives it back.
    pub(crate) async fn give_back(&self, after: Option<std::time::Duration>) {
        // It comes again in any case.
        let _ = self.acker.ack_with(AckKind::Nak(after)).await;
    }
}

/// The object with the body of a job.
pub(crate) fn object_of(id: &str) -> String {
    format!("job-{id}")
}

/// The id of a job, if it has a good one.
pub(crate) fn id_of(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(JOB_ID).or_else(|| headers.get(NATS_MESSAGE_ID))?.as_str();
    is_id(id).then(|| id.to_owned())
}

/// The subject on which the client of a job is told, if it wants to be.
pub(crate) fn notify_of(headers: &HeaderMap, prefix: &str) -> Option<String> {
    let name = headers.get(NOTIFY).map(|name| name.as_str()).filter(|name| is_id(name))?;
    Some(format!("{prefix}.done.{name}"))
}

fn is_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=128).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Publishes a job once more, so that its deliveries count from 1 again. The caller removes the old message.
pub(crate) async fn publish_again(
    context: &Context,
    prefix: &str,
    sequence: u64,
    headers: &HeaderMap,
    payload: Bytes,
) -> Result<(), Trouble> {
    let mut headers = headers.clone();
    if let Some(id) = id_of(&headers) {
        // With the old one, the stream would take it for the same message.
        headers.insert(NATS_MESSAGE_ID, format!("{id}.{sequence}"));
        headers.insert(JOB_ID, id);
    }
    context.publish_with_headers(subject(prefix), headers, payload).await?.await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_plain_words() {
        for good in ["a", "A-b_9", &"a".repeat(128)] {
            assert!(is_id(good), "{good}");
        }
        for wrong in ["", "a.b", "a b", "a/b", "../a", ">", "*", "ä", &"a".repeat(129)] {
            assert!(!is_id(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_job_that_was_published_again_keeps_its_id() {
        let mut headers = HeaderMap::new();
        assert_eq!(id_of(&headers), None);
        headers.insert(NATS_MESSAGE_ID, "a.7");
        assert_eq!(id_of(&headers), None);
        headers.insert(JOB_ID, "a");
        assert_eq!(id_of(&headers).as_deref(), Some("a"));
    }
}
