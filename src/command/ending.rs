//! Decides how a command ended, for every way to run one: facts in, a verdict out.
//!
//! It names a limit only if the kernel or Kennel reported it, or by a rule that [`Limit`] documents. It never
//! guesses, and it never names a limit for a command that succeeded.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use kennel_helper::control;
use kennel_helper::control::{request, section};

use crate::command::cause::Cause;
use crate::command::running::Running;
use crate::launch::cgroup::leaf::{CgroupUsage, Leaf};
use crate::launch::inside::Leftover;
use crate::launch::prepared::FailedStep;
use crate::network::serving::DenialCursor;
use crate::policy::limits::Limits;
use crate::policy::units::{Size, Span};
use crate::protect::recheck::Undone;
use crate::report::denial::Denial;
use crate::report::enforcement::{Enforcement, Note, Protection};
use crate::report::error::{Error, NOT_PERMITTED, TERMINAL, WORKING_DIRECTORY};
use crate::report::failure;
use crate::report::failure::Limit;
use crate::report::outcome::{Ended, Outcome, Usage};
use crate::report::remedy::{SettingKey, remedy};
use crate::view::node::TmpfsSize;

/// A private file system that was full when the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// No space was left; the size in bytes.
    Bytes(u64),
    /// No inode was left; the number of inodes.
    Inodes(u64),
}

/// What is known about an end.
pub(crate) struct Facts<'f> {
    pub(crate) status: ExitStatus,
    /// Why Kennel killed it, if it did.
    pub(crate) cause: Option<Cause>,
    pub(crate) duration: Duration,
    pub(crate) usage: &'f Usage,
    pub(crate) limits: &'f Limits,
    /// The wall time that it had.
    pub(crate) timeout: Option<Duration>,
    pub(crate) full: Option<Full>,
    /// The counters of its cgroup; all zero without one.
    pub(crate) group: &'f CgroupUsage,
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) ended: Ended,
    pub(crate) hit: Option<Hit>,
}

impl Ending {
    /// The outcome so far, still without enforcement, denials, output and audit.
    pub(crate) fn outcome(self, facts: &Facts<'_>) -> Outcome {
        let limit = self.hit.as_ref().map(|hit| hit.limit);
        let (configured, used) = self.hit.map(|hit| (hit.configured, hit.used)).unwrap_or_default();
        Outcome {
            status: facts.status,
            ended: self.ended,
            limit,
            duration: facts.duration,
            usage: *facts.usage,
            stdout_bytes: None,
            stderr_bytes: None,
            truncated: false,
            unwritten: None,
            enforcement: Enforcement::default(),
            denials: Vec::new(),
            network_failures: Vec::new(),
            hints: Vec::new(),
            observed: None,
            is_left: false,
            published: Vec::new(),
            audit_id: None,
            unaudited: None,
            explains: false,
            configured,
            used,
            timeout: facts.timeout,
        }
    }
}

/// The limit that ended a command, its value and how much was used, written as in a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) limit: Limit,
    pub(crate) configured: Option<String>,
    pub(crate) used: Option<String>,
}

/// Whether the status is that of a kill. With any other status the command ended by itself, before the order
/// to kill it took effect.
pub(crate) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGKILL)
}

/// Decides how the command ended.
pub(crate) fn ending(facts: &Facts<'_>) -> Ending {
    let by_itself = if facts.status.signal().is_some() { Ended::Signaled } else { Ended::Exited };
    let (ended, hit) = match facts.cause.filter(|_| was_killed(facts.status)) {
        Some(Cause::TimedOut) => (Ended::TimedOut, Some(timed_out(facts))),
        Some(Cause::Killed) => (Ended::Killed, None),
        Some(Cause::Flooded { seen, cap }) => (by_itself, Some(flooded(seen, cap))),
        None if facts.status.success() => (by_itself, None),
        None => {
            let hit = out_of_memory(facts).or_else(|| by_signal(facts)).or_else(|| facts.full.map(full));
            (by_itself, hit.or_else(|| out_of_pids(facts)))
        }
    };
    Ending { ended, hit }
}

/// How a call of a shell ended. Kennel interrupts a snippet and does not kill it, so any status may follow.
pub(crate) fn ending_of_call(facts: &Facts<'_>) -> Ending {
    match facts.cause {
        Some(Cause::TimedOut) => Ending { ended: Ended::TimedOut, hit: Some(timed_out(facts)) },
        Some(Cause::Killed) => Ending { ended: Ended::Killed, hit: None },
        Some(Cause::Flooded { seen, cap }) => Ending { ended: Ended::Exited, hit: Some(flooded(seen, cap)) },
        None => ending(facts),
    }
}

fn timed_out(facts: &Facts<'_>) -> Hit {
    let configured = facts.timeout.map(|span| Span::from(span).to_string());
    let used = format!("{}ms", facts.duration.as_millis());
    Hit { limit: Limit::WallTime, configured, used: Some(used) }
}

fn flooded(seen: u64, cap: u64) -> Hit {
    let words = |bytes| Some(Size::from_bytes(bytes).to_string());
    Hit { limit: Limit::Output, configured: words(cap), used: words(seen) }
}

fn full(full: Full) -> Hit {
    let words = match full {
        Full::Bytes(bytes) => Size::from_bytes(bytes).to_string(),
        Full::Inodes(count) => format!("{count} inodes"),
    };
    Hit { limit: Limit::Tmpfs, configured: Some(words.clone()), used: Some(words) }
}

/// A cgroup reached its memory limit, and the kernel killed processes of this command.
fn out_of_memory(facts: &Facts<'_>) -> Option<Hit> {
    let words = |bytes: u64| Size::from_bytes(bytes).to_string();
    facts.group.ran_out_of_memory().then(|| Hit {
        limit: Limit::Memory,
        configured: facts.limits.memory.map(|size| size.to_string()),
        used: facts.usage.peak_memory_bytes.map(words),
    })
}

/// A cgroup refused a new process or thread.
fn out_of_pids(facts: &Facts<'_>) -> Option<Hit> {
    facts.group.refused_pids.then(|| Hit {
        limit: Limit::Pids,
        configured: facts.limits.pids.map(|count| count.to_string()),
        // Init does not count.
        used: facts.usage.peak_pids.map(|count| count.saturating_sub(1).to_string()),
    })
}

/// Limits with their own signal. A shell reports such a signal of its child as status 128 + signal.
fn by_signal(facts: &Facts<'_>) -> Option<Hit> {
    let by_shell = facts.status.code().map(|code| code - 128);
    let is = |signal| facts.status.signal() == Some(signal) || by_shell == Some(signal);
    let used = Duration::from_micros(facts.usage.user_us.saturating_add(facts.usage.system_us));
    if let Some(span) = facts.limits.cpu_time {
        // If a process ignores SIGXCPU, the kernel sends SIGKILL a second later. Other senders use SIGKILL
        // too, so the used time decides.
        if is(libc::SIGXCPU) || is(libc::SIGKILL) && used >= hard_limit(span) {
            let millis = Duration::from_millis(u64::try_from(used.as_millis()).unwrap_or(u64::MAX));
            return Some(Hit {
                limit: Limit::CpuTime,
                configured: Some(span.to_string()),
                used: Some(Span::from(millis).to_string()),
            });
        }
    }
    let size = facts.limits.file_size.filter(|_| is(libc::SIGXFSZ))?;
    Some(Hit { limit: Limit::FileSize, configured: Some(size.to_string()), used: None })
}

/// The CPU time at which the kernel sends SIGKILL. It counts whole seconds in ticks. On a busy machine, the
/// ticks add up to some hundred milliseconds more than the usage that the kernel reports at the end.
fn hard_limit(span: Span) -> Duration {
    const TICKS: Duration = Duration::from_millis(500);
    Duration::from_secs(span.whole_seconds() + 1).saturating_sub(TICKS)
}

// The error of a failed start, and the outcome of a command that ran.

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
            group: &group,
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> Limits {
        Limits {
            cpu_time: Some(Duration::from_secs(2).into()),
            file_size: Some(Size::from_bytes(4096)),
            ..Limits::default()
        }
    }

    fn judged(raw: i32, cause: Option<Cause>, user_us: u64, limits: &Limits, full: Option<Full>) -> Ending {
        ending(&Facts {
            status: ExitStatus::from_raw(raw),
            cause,
            duration: Duration::from_millis(2250),
            usage: &Usage { user_us, ..Usage::default() },
            limits,
            timeout: Some(Duration::from_secs(2)),
            full,
            group: &CgroupUsage::default(),
        })
    }

    fn hit(limit: Limit, configured: &str, used: Option<&str>) -> Option<Hit> {
        Some(Hit { limit, configured: Some(configured.to_owned()), used: used.map(str::to_owned) })
    }

    const fn exit(code: i32) -> i32 {
        code << 8
    }

    #[test]
    fn a_signal_names_the_limit_that_sends_it_if_the_command_has_one() {
        let of = |raw| judged(raw, None, 3_100_000, &limits(), None).hit;
        let cpu = hit(Limit::CpuTime, "2s", Some("3100ms"));
        assert_eq!(of(libc::SIGXCPU), cpu);
        assert_eq!(of(exit(128 + libc::SIGXCPU)), cpu, "as a shell reports its child");
        assert_eq!(of(libc::SIGKILL), cpu, "the hard limit");
        let size = hit(Limit::FileSize, "4K", None);
        assert_eq!(of(libc::SIGXFSZ), size);
        assert_eq!(of(exit(128 + libc::SIGXFSZ)), size);
        for raw in [libc::SIGXCPU, libc::SIGXFSZ, libc::SIGKILL, exit(152), exit(153), exit(137)] {
            assert_eq!(judged(raw, None, 9_000_000, &Limits::default(), None).hit, None, "no limit: {raw}");
        }
    }

    /// The out-of-memory killer of the host sends SIGKILL, and so may anybody else.
    #[test]
    fn a_kill_before_the_hard_limit_names_no_limit() {
        for raw in [libc::SIGKILL, exit(128 + libc::SIGKILL)] {
            assert_eq!(judged(raw, None, 2_400_000, &limits(), None).hit, None);
            let short = Limits { cpu_time: Some(Duration::from_millis(100).into()), ..Limits::default() };
            assert_eq!(judged(raw, None, 1_400_000, &short, None).hit, None, "one second, and one more");
            let expected = hit(Limit::CpuTime, "100ms", Some("2s"));
            assert_eq!(judged(raw, None, 2_000_000, &short, None).hit, expected);
        }
    }

    #[test]
    fn the_cause_of_kennels_kill_comes_first() {
        let room = Some(Full::Bytes(1 << 20));
        let wall = judged(libc::SIGKILL, Some(Cause::TimedOut), 9_000_000, &limits(), room);
        let expected = hit(Limit::WallTime, "2s", Some("2250ms"));
        assert_eq!(wall, Ending { ended: Ended::TimedOut, hit: expected });
        let killed = judged(libc::SIGKILL, Some(Cause::Killed), 9_000_000, &limits(), room);
        assert_eq!(killed, Ending { ended: Ended::Killed, hit: None });
        let flood = Some(Cause::Flooded { seen: 1500, cap: 1024 });
        let flooded = judged(libc::SIGKILL, flood, 0, &limits(), room);
        assert_eq!(flooded.hit, hit(Limit::Output, "1K", Some("1500")));
        assert_eq!(judged(0, flood, 0, &limits(), room).hit, None, "it had ended before");
        assert_eq!(judged(exit(3), flood, 0, &limits(), None).hit, None, "it had ended before");
    }

    #[test]
    fn a_command_that_ended_before_the_kill_ended_by_itself() {
        for cause in [Cause::TimedOut, Cause::Killed] {
            for (raw, ended) in
                [(0, Ended::Exited), (exit(3), Ended::Exited), (libc::SIGTERM, Ended::Signaled)]
            {
                let ending = judged(raw, Some(cause), 0, &limits(), None);
                assert_eq!(ending, Ending { ended, hit: None }, "{cause:?}, {raw}");
            }
        }
    }

    #[test]
    fn a_full_file_system_counts_only_if_the_command_failed() {
        let of = |raw, full| judged(raw, None, 0, &limits(), Some(full)).hit;
        assert_eq!(of(exit(1), Full::Bytes(4 << 20)), hit(Limit::Tmpfs, "4M", Some("4M")));
        assert_eq!(of(libc::SIGBUS, Full::Bytes(4 << 20)), hit(Limit::Tmpfs, "4M", Some("4M")));
        assert_eq!(of(exit(1), Full::Inodes(64)), hit(Limit::Tmpfs, "64 inodes", Some("64 inodes")));
        assert_eq!(of(0, Full::Bytes(4 << 20)), None);
    }

    proptest! {
        #[test]
        fn a_command_that_succeeds_hit_no_limit(used: u64, seen: u64, cap: u64, room: u64, floods: bool) {
            let cause = if floods { Cause::Flooded { seen, cap } } else { Cause::TimedOut };
            let ending = judged(0, Some(cause), used, &limits(), Some(Full::Bytes(room)));
            prop_assert_eq!(ending, Ending { ended: Ended::Exited, hit: None });
        }

        #[test]
        fn a_limit_that_the_policy_does_not_set_is_never_named(raw in 0..0x8000_i32, used: u64) {
            let ending = judged(raw, None, used, &Limits::default(), None);
            prop_assert_eq!(ending.hit, None);
        }
    }
}
