//! The error of a failed start, and the outcome of a command that ran.

use std::io;
use std::process::ExitStatus;

use kennel_helper::control;
use kennel_helper::control::{request, section};

use crate::command::running::Running;
use crate::launch::cgroup::leaf::{CgroupUsage, Leaf};
use crate::launch::inside::Leftover;
use crate::launch::prepared::FailedStep;
use crate::network::serving::DenialCursor;
use crate::process::ending::{Facts, Full, Refused, ending, was_killed};
use crate::protect::recheck::Undone;
use crate::report::denial::Denial;
use crate::report::enforcement::{Note, Protection};
use crate::report::error::{Error, NOT_PERMITTED, TERMINAL, WORKING_DIRECTORY};
use crate::report::failure;
use crate::report::outcome::{Outcome, Usage};
use crate::report::remedy::{SettingKey, remedy};
use crate::view::node::TmpfsSize;

impl Running {
    /// The error of a failed start.
    pub(crate) fn failure(&mut self, section: u32, index: u32, errno: i32) -> Error {
        let error = self.start_error(section, index, errno);
        self.log.exec.record_failure(&error);
        error
    }

    fn start_error(&self, section: u32, index: u32, errno: i32) -> Error {
        let source = io::Error::from_raw_os_error(errno);
        let program = || self.spec.program.to_string_lossy().into_owned();
        match (section, index, errno) {
            (section::REQUEST, request::EXEC, libc::ENOENT) => Error::NotFound { program: program() },
            (section::REQUEST, request::EXEC, libc::ELIBACC) => Error::NoInterpreter { program: program() },
            (section::REQUEST, request::EXEC, _) => Error::NotExecutable { program: program(), source },
            (section::REQUEST, request::CWD, _) => Error::Command {
                what: WORKING_DIRECTORY,
                value: self.spec.directory.display().to_string(),
                reason: match errno {
                    libc::EACCES => format!("cannot be entered in the sandbox: {NOT_PERMITTED}"),
                    _ => format!("cannot be entered in the sandbox: {}", failure::words(&source)),
                },
            },
            (section::REQUEST, request::TERMINAL, _) => Error::Io { what: TERMINAL, source },
            (section::REQUEST, _, _) => Error::Io { what: "hand the command over", source },
            (section::LIMITS, _, _) => Error::Io { what: "set the command's limits", source },
            _ => {
                let own_steps = self.spec.own_steps.as_ref();
                self.prepared.step_failed(own_steps, FailedStep { section, index, errno })
            }
        }
    }

    /// The counters of its cgroup; all zero without one.
    fn used(&self) -> CgroupUsage {
        self.init.get_ref().leaf().map(Leaf::used).unwrap_or_default()
    }

    /// Whether the kernel killed processes because memory ran out. That kills everything in the cgroup, init
    /// included.
    pub(crate) fn was_killed_for_memory(&self) -> bool {
        self.used().was_killed_for_memory()
    }

    /// The outcome of the command. `full` is a private file system that was full at the end.
    pub(crate) fn outcome(&mut self, status: ExitStatus, mut usage: Usage, full: Option<Full>) -> Outcome {
        let duration = self.started_at.elapsed();
        self.stop.cause = self.stop.cause.filter(|_| was_killed(status));
        let group = self.used();
        group.enter(&mut usage);
        let facts = Facts {
            status,
            cause: self.stop.cause,
            duration,
            usage: &usage,
            limits: &self.spec.limits,
            timeout: self.spec.timeout,
            full,
            refused: Refused { memory: group.ran_out_of_memory(), pids: group.refused_pids },
        };
        let ended = ending(&facts).outcome(&facts);
        let (user_us, system_us) = (usage.user_us, usage.system_us);
        tracing::debug!(parent: &self.log.span, %status, user_us, system_us, killed = usage.killed, "ended");
        let init = self.init.get_ref();
        let Undone { mut denials, is_left } =
            if self.stop.leftover == Leftover::None { init.undo() } else { init.undo_so_far() };
        self.enforcement.add_notes(leftover_note(self.stop.leftover));
        denials.extend(self.explained(status.success()));
        if let (Some(limit), Some(context)) =
            (ended.limit, self.spec.context.as_ref().filter(|_| self.spec.explains))
        {
            let is_full = |tmpfs: &TmpfsSize| match full {
                Some(Full::Bytes(size)) => tmpfs.bytes == size,
                Some(Full::Inodes(inodes)) => tmpfs.inodes == inodes,
                None => false,
            };
            denials.extend(context.limit_denial(limit, is_full));
        }
        self.log.exec.record_denials(&denials);
        // The proxy has already recorded its own.
        denials.extend(self.refusals.proxy.iter().flat_map(DenialCursor::denials));
        let mut outcome = Outcome {
            start: self.start.clone(),
            enforcement: std::mem::take(&mut self.enforcement),
            denials,
            network_failures: self.refusals.network_failures(),
            explains: self.spec.explains,
            observed: self.observed(),
            is_left,
            published: self.published(),
            audit_id: self.log.exec.id().map(str::to_owned),
            ..ended
        };
        self.log.exec.record_outcome(&mut outcome);
        if let Some(context) = self.spec.context.as_ref().filter(|_| self.spec.wants_hints) {
            let registries: Vec<_> = self.refusals.proxy.iter().flat_map(DenialCursor::registries).collect();
            outcome.hints = context.hints(&outcome, &registries);
        }
        outcome
    }

    /// What the filter and the view refused, if the policy asks for that. Of a command that succeeded, of the
    /// paths only protected ones count: git goes on if it cannot write its configuration.
    pub(crate) fn explained(&self, has_succeeded: bool) -> Vec<Denial> {
        let (Some(refusals), Some(context)) = (self.refusals(), &self.spec.context) else {
            return Vec::new();
        };
        let mut paths = context.denials(&refusals.uses());
        paths.retain(|denial| !has_succeeded || denial.protection == Protection::ProtectedPaths);
        let mut denials = refusals.denials(!has_succeeded);
        denials.extend(paths);
        denials
    }

    /// The private file system that init reported as full. `code` is the field of the report.
    pub(crate) fn full(&self, code: u32) -> Option<Full> {
        let (index, lacks_inodes) = control::full::read(code)?;
        let tmpfs = self.prepared.compiled.commands.tmpfs_sizes.get(index)?;
        Some(if lacks_inodes { Full::Inodes(tmpfs.inodes) } else { Full::Bytes(tmpfs.bytes) })
    }
}

/// What the report of a killed command says of processes that are left.
fn leftover_note(leftover: Leftover) -> Option<Note> {
    let text = match leftover {
        Leftover::None => return None,
        Leftover::Stuck => "a killed process is stuck in a system call, which the kernel may still finish",
        Leftover::Unknown => "Kennel has ordered the kill, but processes of the command may still run",
    };
    let remedy = remedy!["the end of the session ends them: ", SettingKey::StopSession];
    Some(Note::new("processes", text, Some(remedy)))
}
