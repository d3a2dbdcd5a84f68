//! The error of sessions that listen, and of their clients.

use std::io;
use std::path::PathBuf;

use crate::report::escape::harmless;
use crate::report::failure;
use crate::report::failure::{Boundary, Class, Details, Failure, failure_of, shown};
use crate::report::remedy::{Remedy, SettingKey, remedy};
use crate::report::shortage::{of_call, of_session};

/// The remedy if no session of that name is running.
fn start() -> Remedy {
    remedy![
        "start it with ",
        SettingKey::StartSession,
        "; ",
        SettingKey::ListSessions,
        " shows those that run"
    ]
}

/// Why a session cannot listen, or a client cannot use it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The name is not a valid session name.
    #[error("session name `{}`: {reason}", harmless(name))]
    Name {
        /// The name, shortened.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// Other users can write to the directory for sockets.
    #[error("runtime directory {}: {reason}", shown(path))]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What can be done.
        remedy: Remedy,
    },
    /// Another session of that name is running.
    #[error("session {name} is running")]
    Running {
        /// Its name.
        name: String,
    },
    /// No session of that name is running.
    #[error("session {name}: no session of that name is running")]
    NotRunning {
        /// The name.
        name: String,
    },
    /// A session of that name is running, but its socket was removed, and it has not created a new one yet.
    #[error("session {name}: it is running, but its socket was removed")]
    Unreachable {
        /// Its name.
        name: String,
    },
    /// The process that listens on the socket belongs to another user.
    #[error("session {name}: its socket belongs to user {user}")]
    Stranger {
        /// The session's name.
        name: String,
        /// The user of that process.
        user: u32,
    },
    /// The session refused this client or its call.
    #[error("{message}")]
    Refused {
        /// The session's message.
        message: String,
        /// What a person can do, as the session says.
        hint: Option<Remedy>,
    },
    /// The session ended before it answered, or its answer is invalid.
    #[error("session {name}: it ended before it answered")]
    Gone {
        /// Its name.
        name: String,
    },
    /// The session has not answered, although the command's timeout has passed.
    #[error("session {name}: it does not answer, although the command's time is up")]
    Silent {
        /// Its name.
        name: String,
    },
    /// A call failed.
    #[error("{what} {}", shown(path))]
    Io {
        /// What was being done.
        what: &'static str,
        /// The path that it was done with.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

failure_of!(ListenError);

impl ListenError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// Whether a session that recreates its socket must give up: the directory is gone, or another session
    /// has the name.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Running { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// The failure class that machines read.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let (class, boundary) = match self {
            Self::Name { .. } | Self::Stranger { .. } => (Class::CapabilityDenied, Boundary::Action),
            Self::Directory { .. }
            | Self::Running { .. }
            | Self::NotRunning { .. }
            | Self::Unreachable { .. }
            | Self::Gone { .. }
            | Self::Silent { .. }
            | Self::Refused { .. }
            | Self::Io { .. } => (Class::RuntimeError, Boundary::Runtime),
        };
        Failure::new(class, boundary, failure::chain(self), Details::None)
    }

    pub(crate) fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Directory { remedy, .. } => Some(remedy.clone()),
            Self::Running { .. } => Some(remedy![
                "use it with ",
                SettingKey::Exec,
                ", end it with ",
                SettingKey::StopSession,
                ", or take another name",
            ]),
            Self::NotRunning { .. } => Some(of_session().unwrap_or_else(start)),
            Self::Gone { .. } => Some(start()),
            Self::Refused { hint, .. } => hint.clone().or_else(of_session),
            _ => self.plain_remedy().map(Remedy::from),
        }
    }

    /// A remedy without settings.
    fn plain_remedy(&self) -> Option<&'static str> {
        Some(match self {
            Self::Name { .. } => {
                "use 1 to 64 of the characters A-Z a-z 0-9 _ . - and begin with a letter or digit"
            }
            Self::Unreachable { .. } => {
                "the session recreates its socket within a second, unless its program is stopped or busy: continue the program, or end it"
            }
            Self::Silent { .. } => {
                "its program is stopped or busy: continue it, or end it. Both kill what is left of the command"
            }
            Self::Stranger { .. } => "set XDG_RUNTIME_DIR to a directory of your own",
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::WouldBlock => {
                    "it does not answer: check whether its program is stopped or busy, or end the program"
                }
                io::ErrorKind::NotFound
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::ReadOnlyFilesystem => {
                    "set XDG_RUNTIME_DIR to a directory that exists and that you can write to"
                }
                _ => of_call(source)?,
            },
            _ => return None,
        })
    }
}
