//! What can go wrong between a program and its sandboxes: small, by what the caller can do about it.

use std::fmt;
use std::io;
use std::time::Duration;

/// Why a call failed. A command that runs and fails is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller gave something that cannot be sent. Nothing was.
    #[error("{what}: {reason}")]
    Invalid {
        /// What was given.
        what: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No connection to the server. Nothing was sent.
    #[error("reach the server at {server}")]
    Unreachable {
        /// The address of the server.
        server: String,
        /// Why, at the last attempt.
        source: io::Error,
    },
    /// The connection broke while the server worked. Nobody knows what it has done: a command may still run,
    /// and has no status.
    #[error("the connection broke before the end of the answer")]
    Cut {
        /// Why.
        source: io::Error,
    },
    /// The call took longer than [`Server::deadline`](crate::Server::deadline), or a stream was silent for
    /// too long. As with [`Error::Cut`], nobody knows what the server has done.
    #[error("no answer within {after:?}")]
    Deadline {
        /// That long.
        after: Duration,
    },
    /// The server refuses the call, in its own words.
    #[error("{message}")]
    Refused {
        /// The status of HTTP: 400 for what makes no sense, 401 for a wrong key, 403 for what may not be
        /// done, 404 for a file or program that is not there, 409 for one that is, 429 or 503 for no room,
        /// 501 for what the server cannot do, 507 for a full disk.
        status: u16,
        /// Why. One line, without control characters.
        message: String,
        /// When to try again, if the server says so.
        retry_after: Option<Duration>,
    },
    /// The session is gone, with its commands and files.
    #[error("the session is gone: {reason}")]
    SessionLost {
        /// Why.
        reason: Loss,
    },
    /// An answer, a file or an output is larger than it may be.
    #[error("{what}: more than {most} bytes")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit, in bytes.
        most: u64,
    },
    /// What answers speaks another protocol than `kennel serve`.
    #[error("the server does not keep to the protocol: {reason}")]
    Protocol {
        /// What is wrong.
        reason: &'static str,
    },
}

/// Why a session is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// A client ended it.
    Ended,
    /// Its time was over.
    Expired,
    /// The server ran out of memory, and this session used the most.
    Memory,
    /// The part of the server in which it lived has died, or somebody there killed it.
    Killed,
    /// The server does not know it, or not any more.
    Unknown,
}

impl Loss {
    /// Reads the header `x-kennel-reason`.
    pub(crate) fn of(word: Option<&str>) -> Self {
        match word {
            Some("ended") => Self::Ended,
            Some("expired") => Self::Expired,
            Some("memory") => Self::Memory,
            Some("session_lost") => Self::Killed,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended => "a client ended it",
            Self::Expired => "its time was over",
            Self::Memory => "the server ran out of memory",
            Self::Killed => "it was killed on the server",
            Self::Unknown => "the server does not know it",
        })
    }
}

impl Error {
    pub(crate) fn cut(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Cut { source: io::Error::other(cause) }
    }

    pub(crate) fn invalid(what: impl Into<String>, reason: &'static str) -> Self {
        Self::Invalid { what: what.into(), reason }
    }

    pub(crate) fn protocol(reason: &'static str) -> Self {
        Self::Protocol { reason }
    }
}
