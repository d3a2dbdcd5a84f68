//! How a command ended, what it used, what was refused. Plain data.

use std::{ops::Deref, process::ExitStatus, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    ChildOutput, Enforcement, Failure,
    failure::{Boundary, Class, Details},
    policy::Protection,
};

/// What ended a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It exited by itself.
    Exited,
    /// A signal ended it.
    Signaled,
    /// Its wall time was up and Kennel killed it.
    TimedOut,
    /// The caller killed it.
    Killed,
}

/// The limit that ended a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// [`Limits::timeout`](crate::Limits::timeout).
    WallTime,
    /// [`Limits::cpu_time`](crate::Limits::cpu_time).
    CpuTime,
    /// [`Limits::file_size`](crate::Limits::file_size).
    FileSize,
}

/// What a command and all its descendants used together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// CPU time in user mode, in microseconds.
    pub user_us: u64,
    /// CPU time in the kernel, in microseconds.
    pub system_us: u64,
    /// Largest resident set of any one process, in bytes.
    pub max_rss_bytes: u64,
    /// Processes that outlived the command and were killed with the sandbox.
    pub killed: u32,
}

/// Something that the sandbox did not let stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Denial {
    /// The protection that refused it.
    pub protection: Protection,
    /// What was refused: a path, a destination.
    pub subject: String,
    /// Why, and what was done about it.
    pub reason: String,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The status as wait(2) gives it; after a timeout that of the kill.
    pub status: ExitStatus,
    /// What ended it.
    pub ended: Ended,
    /// The limit that ended it, if one did.
    pub limit: Option<Limit>,
    /// From the start to the end of the command.
    pub duration: Duration,
    /// What it used.
    pub usage: Usage,
    /// Bytes it wrote to stdout, also those beyond the cap, where Kennel collected them. Who reads a pipe by
    /// himself finds them in [`ChildOutput::seen`](crate::ChildOutput::seen) and puts them here with
    /// [`count`](Self::count).
    pub stdout_bytes: Option<u64>,
    /// As `stdout_bytes`, for stderr.
    pub stderr_bytes: Option<u64>,
    /// Whether output beyond the cap was dropped.
    pub truncated: bool,
    /// What was enforced.
    pub enforcement: Enforcement,
    /// What was refused, as far as Kennel knows.
    pub denials: Vec<Denial>,
    /// The record of the command in the audit log, where there is one.
    pub audit_id: Option<String>,
    /// The configured value of the limit that ended it, in words.
    pub(crate) configured: Option<String>,
}

impl Outcome {
    /// Enters what was read from the command's pipes, once they are at their ends.
    pub fn count(&mut self, stdout: Option<&ChildOutput>, stderr: Option<&ChildOutput>) {
        self.stdout_bytes = stdout.map(ChildOutput::seen);
        self.stderr_bytes = stderr.map(ChildOutput::seen);
        self.truncated = [stdout, stderr].into_iter().flatten().any(|stream| stream.dropped() > 0);
    }

    /// The status a shell would report: the command's own, 128 + n after signal n, 124 after a timeout.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        use std::os::unix::process::ExitStatusExt;
        if self.ended == Ended::TimedOut {
            return 124;
        }
        let code = self.status.code().or_else(|| self.status.signal().map(|signal| 128 + signal));
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255)
    }

    /// The lines that people are told besides the exit status: what was refused, and why it did not end by itself.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let denials = self.denials.iter().map(|denial| {
            format!("kennel: denied by {}: {}: {}", denial.protection, denial.subject, denial.reason)
        });
        denials.chain(self.failure().map(|failure| format!("kennel: {}", failure.message))).collect()
    }

    /// The failure class, when Kennel or a limit ended the command.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        let details = self
            .limit
            .map_or(Details::None, |limit| Details::Limit { limit, configured: self.configured.clone() });
        let (class, boundary, message) = match (self.ended, self.limit) {
            (Ended::TimedOut, _) => {
                let message = format!("command timed out after {}ms", self.duration.as_millis());
                (Class::Timeout, Boundary::Sandbox, message)
            }
            (Ended::Killed, _) => {
                (Class::Cancelled, Boundary::Action, "the caller killed the command".to_owned())
            }
            (_, Some(_)) => {
                (Class::ResourceLimitExceeded, Boundary::Sandbox, "a limit ended the command".to_owned())
            }
            _ => return None,
        };
        Some(Failure::new(class, boundary, message, details).recorded(self.audit_id.clone()))
    }
}

/// The outcome of a command whose output was collected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// How it ended.
    pub outcome: Outcome,
    /// What it wrote to stdout, with a marker at the end where the cap cut it.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr, likewise.
    pub stderr: Vec<u8>,
}

impl Deref for Output {
    type Target = Outcome;

    fn deref(&self) -> &Outcome {
        &self.outcome
    }
}
