//! What a command's end was: why it did not start, or its outcome.

use std::{io, process::ExitStatus};

use kennel_helper::control::{self, request, section};

use super::Running;
use crate::{
    Error, Outcome, Usage,
    cgroup::{Leaf, Used},
    ending::{Facts, Full, ending, was_killed},
    error::{NOT_PERMITTED, TERMINAL, WORKING_DIRECTORY},
    explain, failure,
    proxy::Witness,
    watch::Undone,
};

impl Running {
    /// The error for a failed start.
    pub(crate) fn failure(&mut self, section: u32, index: u32, errno: i32) -> Error {
        let error = self.why(section, index, errno);
        self.exec.failed(&error);
        error
    }

    fn why(&self, section: u32, index: u32, errno: i32) -> Error {
        let source = io::Error::from_raw_os_error(errno);
        let program = || self.asked.program.to_string_lossy().into_owned();
        match (section, index, errno) {
            (section::REQUEST, request::EXEC, libc::ENOENT) => Error::NotFound { program: program() },
            (section::REQUEST, request::EXEC, _) => Error::NotExecutable { program: program(), source },
            (section::REQUEST, request::CWD, _) => Error::Command {
                what: WORKING_DIRECTORY,
                value: self.asked.directory.display().to_string(),
                reason: match errno {
                    libc::EACCES => format!("cannot be entered in the sandbox: {NOT_PERMITTED}"),
                    _ => format!("cannot be entered in the sandbox: {}", failure::words(&source)),
                },
            },
            (section::REQUEST, request::TERMINAL, _) => Error::Io { what: TERMINAL, source },
            (section::REQUEST, _, _) => Error::Io { what: "hand the command over", source },
            (section::LIMITS, _, _) => Error::Io { what: "set the command's limits", source },
            _ => self.prepared.step_failed(self.asked.narrow.as_ref(), (section, index), errno),
        }
    }

    /// What its cgroup says that was used, where it has one.
    fn used(&self) -> Used {
        self.inside.get_ref().leaf().map(Leaf::used).unwrap_or_default()
    }

    /// Whether the kernel killed processes of it for want of memory, which takes everything of its cgroup.
    pub(crate) fn was_killed_for_memory(&self) -> bool {
        self.used().was_killed_for_memory()
    }

    /// What became of the command; `full` is a private file system of it in which nothing was left.
    pub(crate) fn outcome(&mut self, status: ExitStatus, mut usage: Usage, full: Option<Full>) -> Outcome {
        let duration = self.born.elapsed();
        self.killed = self.killed.filter(|_| was_killed(status));
        let group = self.used();
        group.enter(&mut usage);
        let facts = Facts {
            status,
            cause: self.killed,
            duration,
            usage: &usage,
            limits: &self.asked.limits,
            timeout: self.asked.timeout,
            full,
            group: &group,
        };
        let ended = ending(&facts).outcome(&facts);
        let (user_us, system_us) = (usage.user_us, usage.system_us);
        tracing::debug!(parent: &self.span, %status, user_us, system_us, killed = usage.killed, "ended");
        let inside = self.inside.get_ref();
        let Undone { mut denials, is_left } =
            if self.is_stuck { inside.undo_so_far() } else { inside.undo() };
        denials.extend(self.refusals.iter().flat_map(|refusals| refusals.denials(!status.success())));
        if let (Some(limit), Some(judge)) = (ended.limit, &self.asked.judge) {
            denials.extend(explain::of_end(&judge.limits, limit));
        }
        self.exec.denied(&denials);
        denials.extend(self.witness.iter().flat_map(Witness::denials));
        let mut outcome = Outcome {
            enforcement: std::mem::take(&mut self.enforcement),
            denials,
            is_left,
            audit_id: self.exec.id().map(str::to_owned),
            ..ended
        };
        self.exec.ended(&mut outcome);
        outcome
    }

    /// The private file system that init found full, as it says which.
    pub(crate) fn full(&self, which: u32) -> Option<Full> {
        let (room, lacks_inodes) = control::full::read(which)?;
        let room = self.prepared.compiled.rooms.get(room)?;
        Some(if lacks_inodes { Full::Inodes(room.inodes) } else { Full::Bytes(room.size) })
    }
}
