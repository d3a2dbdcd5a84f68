//! The error of audit logs.

use std::io;
use std::path::PathBuf;

use crate::report::failure;
use crate::report::failure::{Boundary, Class, Details, Failure, failure_of, shown};

/// Why an audit log cannot be written, read or trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// Kennel could not write a record, and the policy lets nothing happen without one; or the default log
    /// has no place.
    #[error("write to audit log {}", shown(path))]
    Write {
        /// The log, as the policy names it.
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
    /// A line is not the one that Kennel wrote.
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

failure_of!(AuditError);

impl AuditError {
    /// What a person can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Write { source, .. } if source.kind() == io::ErrorKind::WouldBlock => {
                Some("end the process that holds the lock of the log, or let the policy's audit fail open")
            }
            Self::Write { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("set HOME, or XDG_STATE_HOME to a directory of yours")
            }
            Self::Write { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("let only yourself write to that directory and those above it")
            }
            Self::Write { .. } => Some("make room on the disk, or let the policy's audit fail open"),
            Self::Read { .. } => None,
            Self::Broken { .. } => Some(
                "do not trust this and the following lines; compare with a copy that nobody could change",
            ),
        }
    }

    /// The failure class that machines read.
    #[must_use]
    pub fn failure(&self) -> Failure {
        Failure::new(Class::RuntimeError, Boundary::Runtime, failure::chain(self), Details::None)
    }
}
