//! What a session that does not do what it is asked has said instead.

use std::io;

use crate::{Error, ListenError};

/// Where nobody is left to receive it, what it said last is still to be read, and says why.
pub(super) fn heard(sent: Result<(), Error>) -> Result<(), Error> {
    match sent {
        Err(Error::Listen(ListenError::Io { source, .. })) if is_end(&source) => Ok(()),
        sent => sent,
    }
}

/// The error for what a session says instead of an answer: the first line of it.
pub(super) fn refused(message: &[u8]) -> Error {
    let text = String::from_utf8_lossy(message);
    let line = text.lines().next().unwrap_or_default();
    let message = line.strip_prefix("kennel: ").unwrap_or(line).to_owned();
    ListenError::Refused { message }.into()
}

/// Whether the other side is gone.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
