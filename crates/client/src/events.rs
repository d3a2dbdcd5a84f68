//! The stream of a command's events: frames of the Connect protocol with JSON in them. A stream that is cut
//! has no end, whatever it carried before.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use crate::error::{Error, Loss};
use crate::server::{GONE, harmless};

/// The longest message, in bytes. The server sends output in pieces of 32 KiB.
const LONGEST: usize = 1 << 20;

/// Silence after which the server says that it lives, in seconds.
pub(crate) const KEEPALIVE: u64 = 10;

/// Silence after which nobody is there any more.
const SILENCE: Duration = Duration::from_secs(3 * KEEPALIVE);

/// How long the last bytes of a stream may take, so that its connection can be used again.
const LAST: Duration = Duration::from_millis(100);

const HEAD: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;

/// What a stream says.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Event {
    Start { pid: u32 },
    Data(Data),
    End(End),
    Keepalive {},
}

/// A piece of output, in base64.
#[derive(Debug, Deserialize)]
pub(crate) struct Data {
    stdout: Option<String>,
    stderr: Option<String>,
}

impl Data {
    pub(crate) fn stdout(&self) -> Result<Vec<u8>, Error> {
        decoded(self.stdout.as_deref())
    }

    pub(crate) fn stderr(&self) -> Result<Vec<u8>, Error> {
        decoded(self.stderr.as_deref())
    }
}

/// How a command ended.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct End {
    #[serde(default)]
    pub(crate) exit_code: i32,
    pub(crate) exited: bool,
    /// `exit status N`, or `signal: NAME`.
    #[serde(default)]
    pub(crate) status: String,
}

#[derive(Deserialize)]
struct Message {
    event: Event,
}

/// What the last message says if the stream ends before its command.
#[derive(Deserialize)]
struct Last {
    error: Option<Words>,
}

#[derive(Deserialize)]
struct Words {
    code: String,
    #[serde(default)]
    message: String,
}

/// Why a stream has no more events.
#[derive(Debug)]
pub(crate) enum Over {
    /// The server killed the command: its time was over.
    TimedOut,
    /// In the server's words: the session ended, or the server is in trouble.
    Lost(String),
    Failed(Error),
}

impl From<Error> for Over {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Events as they arrive.
#[derive(Debug)]
pub(crate) struct Events {
    body: Incoming,
    buffer: BytesMut,
    begun: Instant,
    /// How long somebody waits for the end.
    longest: Option<Duration>,
}

impl Events {
    pub(crate) fn new(body: Incoming, longest: Option<Duration>) -> Self {
        Self { body, buffer: BytesMut::new(), begun: Instant::now(), longest }
    }

    /// The next event.
    pub(crate) async fn next(&mut self) -> Result<Event, Over> {
        let (flags, message) = loop {
            if let Some(message) = take(&mut self.buffer)? {
                break message;
            }
            let piece = self.piece().await?;
            let piece = piece.ok_or_else(|| Error::cut("the stream ends without its last message"))?;
            self.buffer.extend_from_slice(&piece);
        };
        if flags & END != 0 {
            return Err(last(&message));
        }
        let message: Result<Message, _> = serde_json::from_slice(&message);
        message.map(|message| message.event).map_err(|_| Error::protocol("an event that nobody knows").into())
    }

    /// The next bytes; `None` at the end.
    async fn piece(&mut self) -> Result<Option<bytes::Bytes>, Error> {
        let left = self.longest.map(|longest| longest.saturating_sub(self.begun.elapsed()));
        let (wait, after) = match (left, self.longest) {
            (Some(left), Some(longest)) if left < SILENCE => (left, longest),
            _ => (SILENCE, SILENCE),
        };
        let frame = timeout(wait, self.body.frame()).await.map_err(|_| Error::Deadline { after })?;
        match frame {
            None => Ok(None),
            Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
            Some(Err(error)) => Err(Error::cut(error)),
        }
    }

    /// Reads what comes after the end, so that the connection can be used again.
    pub(crate) async fn finish(mut self) {
        let rest = async { while let Ok(Some(_)) = self.piece().await {} };
        let _ = timeout(LAST, rest).await;
    }
}

/// Takes a whole message out of what has arrived.
fn take(buffer: &mut BytesMut) -> Result<Option<(u8, BytesMut)>, Error> {
    let Some((head, _)) = buffer.split_first_chunk::<HEAD>() else { return Ok(None) };
    let [flags, length @ ..] = *head;
    let length = u32::from_be_bytes(length) as usize;
    if length > LONGEST {
        return Err(Error::TooLarge { what: "a message of the server", most: LONGEST as u64 });
    }
    if flags & COMPRESSED != 0 {
        return Err(Error::protocol("a compressed message, which nobody asked for"));
    }
    if buffer.len() < HEAD + length {
        return Ok(None);
    }
    buffer.advance(HEAD);
    Ok(Some((flags, buffer.split_to(length))))
}

fn last(message: &[u8]) -> Over {
    let last: Result<Last, _> = serde_json::from_slice(message);
    let Ok(Last { error: Some(Words { code, message }) }) = last else {
        return Error::protocol("the stream ends before its command").into();
    };
    let message = harmless(&message);
    let status = match &*code {
        "deadline_exceeded" => return Over::TimedOut,
        "unavailable" => return Over::Lost(message),
        "invalid_argument" => 400,
        "unauthenticated" => 401,
        "permission_denied" => 403,
        "not_found" => 404,
        "already_exists" => 409,
        "resource_exhausted" => 429,
        "unimplemented" => 501,
        _ => 500,
    };
    Error::Refused { status, message, retry_after: None }.into()
}

impl Over {
    /// As an error, where a time that is over is one.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::TimedOut => Error::protocol("a time is over that nobody set"),
            Self::Lost(message) if message == GONE => Error::SessionLost { reason: Loss::Unknown },
            Self::Lost(message) => Error::Refused { status: 502, message, retry_after: None },
            Self::Failed(error) => error,
        }
    }
}

fn decoded(text: Option<&str>) -> Result<Vec<u8>, Error> {
    let text = text.unwrap_or_default();
    STANDARD.decode(text).map_err(|_| Error::protocol("output that is no base64"))
}

/// A message as the protocol frames it.
pub(crate) fn framed(message: &serde_json::Value) -> Result<Vec<u8>, Error> {
    let json = message.to_string();
    let length = u32::try_from(json.len()).map_err(|_| Error::invalid("the command", "more than 4 GiB"))?;
    Ok([&[0], &length.to_be_bytes()[..], json.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_whole_and_in_order() {
        let whole = [framed(&1.into()).expect("short"), framed(&"two".into()).expect("short")].concat();
        let mut buffer = BytesMut::new();
        let mut found = Vec::new();
        for byte in whole {
            buffer.extend_from_slice(&[byte]);
            found.extend(take(&mut buffer).expect("whole").map(|(_, message)| message.to_vec()));
        }
        assert_eq!(found, [b"1".to_vec(), b"\"two\"".to_vec()]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_message_beyond_the_limit_is_refused_before_it_arrives() {
        let mut buffer = BytesMut::from(&[0, 0xff, 0xff, 0xff, 0xff][..]);
        assert!(matches!(take(&mut buffer), Err(Error::TooLarge { .. })));
        let mut buffer = BytesMut::from(&[1, 0, 0, 0, 0][..]);
        assert!(matches!(take(&mut buffer), Err(Error::Protocol { .. })));
    }
}
