//! The error of overlays.

use std::io;
use std::path::{Path, PathBuf};

use crate::report::failure::shown;
use crate::report::remedy::{Remedy, SettingKey, remedy};

/// Why an overlay's changes cannot be kept, listed, committed or discarded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// The policy has no overlay, or its changes were discarded.
    #[error("the session has no overlay")]
    None,
    /// A command of the session is running.
    #[error("changes are not taken while a command of the session runs")]
    Running,
    /// Changes are being committed.
    #[error("no command starts while changes are being committed or stored")]
    Committing,
    /// There are more changes than Kennel lists.
    #[error("there are too many changes to list")]
    TooMany,
    /// Another session keeps its changes there.
    #[error("overlay directory {}: another session uses it", shown(path))]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A session keeps its changes there and runs.
    #[error("changes of session {name}: the session is running")]
    InSession {
        /// The session.
        name: String,
    },
    /// The directory for changes contains something already.
    #[error("overlay directory {}: it is not empty, or belongs to another user", shown(path))]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// Kept changes belong to a directory that is not at its path any more.
    #[error("kept changes of {}: another directory is there now, or none", shown(path))]
    Replaced {
        /// The path of the directory.
        path: PathBuf,
    },
    /// The workspace was moved, and its kept changes are known under its old path.
    #[error("kept changes of {}: the directory was moved to {}", shown(from), shown(to))]
    Moved {
        /// The old path.
        from: PathBuf,
        /// The path now.
        to: PathBuf,
    },
    /// The directory's mode lets other users read or forge changes.
    #[error("overlay directory {}: accessible to other users", shown(path))]
    Reachable {
        /// The directory.
        path: PathBuf,
    },
    /// Each command of a [`Sandbox`](crate::session::sandbox::Sandbox) has its own overlay in memory.
    #[error("an overlay directory belongs to a session")]
    NeedsSession,
    /// The file system for changes has no user extended attributes.
    #[error("the changes of an overlay cannot be kept: no user extended attributes")]
    Attributes {
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("{what} {}", shown(path))]
    Io {
        /// What was being done.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The changes could not be read.
    #[error("read the changes of the session")]
    Read {
        /// The kernel's answer.
        source: io::Error,
    },
}

impl OverlayError {
    pub(crate) fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }

    pub(crate) fn list(source: io::Error) -> Self {
        if source.raw_os_error() == Some(libc::E2BIG) { Self::TooMany } else { Self::Read { source } }
    }

    /// What a person can do about it, if anything is known.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        use SettingKey::{DropChanges, OverlayUpper, StopSession};
        Some(match self {
            Self::None => remedy!["prepare the session with Policy::overlay, or ", SettingKey::Overlay],
            Self::Running => "wait until the command has ended, or end it".into(),
            Self::InSession { .. } => remedy!["stop it first: ", StopSession],
            Self::Committing => "start the command when that is done".into(),
            Self::InUse { .. } => remedy![
                "wait until that command has ended, stop that session (",
                StopSession,
                "), or name another directory",
            ],
            Self::NotEmpty { .. } => {
                "empty it (chmod -R u+rwX on it first), or name another: a killed session leaves its changes there".into()
            }
            Self::Replaced { .. } => {
                remedy!["put the directory back, or drop the changes: ", DropChanges, " with that path"]
            }
            Self::Moved { .. } => remedy!["move it back, or drop the changes: ", DropChanges, " with the old path"],
            Self::Reachable { .. } => "chmod 700 it, or name another directory".into(),
            Self::NeedsSession => "prepare a Session, or keep the changes in memory".into(),
            Self::Attributes { .. } => remedy![
                "keep the changes in a directory on ext4, XFS or btrfs (",
                OverlayUpper,
                "), or use Linux 6.6 or later",
            ],
            Self::TooMany => remedy![
                "let the command change fewer files, or keep the changes in a directory (",
                OverlayUpper,
                "), where they stay",
            ],
            Self::Io { .. } | Self::Read { .. } => return None,
        })
    }
}
