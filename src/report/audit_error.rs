//! Why a log cannot be opened, written or trusted.

use std::io;
use std::path::PathBuf;

use crate::policy::audit::Audit;
use crate::report::error::Error;
use crate::report::failure;
use crate::report::failure::{Boundary, Class, Details, Failure, shown};
use crate::report::shortage::of_path;

/// Why a log cannot be written, or not be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// A record could not be written, and the policy says that nothing happens that is not written down.
    #[error("write to audit log {}", shown(path))]
    Write {
        /// The log, as the policy has it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The log cannot be read.
    #[error("read audit log {}", shown(path))]
    Read {
        /// The log.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A line is not what was written there.
    #[error("audit log {}: line {line}: {reason}", shown(path))]
    Broken {
        /// The log.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl AuditError {
    /// What a person can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Write { source, .. } if source.kind() == io::ErrorKind::WouldBlock => {
                Some("end the process that holds the lock of the log, or let the policy's audit fail open")
            }
            Self::Write { .. } => Some("make room on the disk, or let the policy's audit fail open"),
            Self::Read { .. } => None,
            Self::Broken { .. } => {
                Some("lines from there on cannot be trusted; compare with a copy that could not be changed")
            }
        }
    }

    /// The failure class that machines read.
    #[must_use]
    pub fn failure(&self) -> Failure {
        Failure::new(Class::RuntimeError, Boundary::Runtime, failure::chain(self), Details::None)
    }
}

/// For a log that cannot be opened.
pub(crate) fn not_opened(audit: &Audit, source: io::Error) -> Error {
    let otherwise = match source.kind() {
        _ if source.raw_os_error() == Some(libc::ELOOP) => {
            "name the file itself: links to one are not followed; of /dev/fd, descriptors from 3 on are taken"
        }
        io::ErrorKind::InvalidData => {
            "name another file: this one is not a log, or something else wrote to it"
        }
        io::ErrorKind::InvalidInput => "name a file that is not there yet, or a log",
        _ => "name a file in a directory that you can write",
    };
    let remedy = Some(of_path(&source, otherwise, otherwise).to_owned());
    Error::Grant { what: "audit log", path: audit.path.clone(), source, remedy }
}
