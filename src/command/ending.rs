//! What ended a command, decided in one place for every way in which commands are run. Pure: facts in, a verdict out.
//!
//! A limit is named where the kernel or Kennel said so, or by a rule that [`Limit`] tells beside its name; never on a
//! guess, and never for a command that succeeded.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use kennel_helper::control;
use kennel_helper::control::{request, section};

use crate::command::explain;
use crate::command::running::Running;
use crate::launch::cgroup::leaf::{CgroupUsage, Leaf};
use crate::network::serving::Witness;
use crate::policy::limits::Limits;
use crate::policy::units::{Size, Span};
use crate::protect::recheck::Undone;
use crate::report::enforcement::Enforcement;
use crate::report::error::{Error, NOT_PERMITTED, TERMINAL, WORKING_DIRECTORY};
use crate::report::failure;
use crate::report::outcome::{Ended, Limit, Outcome, Usage};

/// Why Kennel ordered the end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its wall time was up.
    TimedOut,
    /// The caller wanted it.
    Killed,
    /// It wrote more than the policy lets it: how many bytes of one stream were seen by then, and how many are kept.
    Flooded { seen: u64, cap: u64 },
}

/// A private file system in which nothing was left when a command ended: its size, and how many inodes it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// No bytes.
    Bytes(u64),
    /// No inodes.
    Inodes(u64),
}

/// What is known of an end.
pub(crate) struct Facts<'f> {
    pub(crate) status: ExitStatus,
    /// Why Kennel ordered its end, if it did.
    pub(crate) cause: Option<Cause>,
    pub(crate) duration: Duration,
    pub(crate) usage: &'f Usage,
    /// What held for it.
    pub(crate) limits: &'f Limits,
    /// The wall time that held for it.
    pub(crate) timeout: Option<Duration>,
    /// A private file system that was full at its end.
    pub(crate) full: Option<Full>,
    /// What its cgroup says; nothing where it has none.
    pub(crate) group: &'f CgroupUsage,
}

/// What it comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) ended: Ended,
    pub(crate) hit: Option<Hit>,
}

impl Ending {
    /// The outcome of a command that ended so; nothing was enforced, refused, counted or recorded yet.
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
            is_left: false,
            audit_id: None,
            unaudited: None,
            configured,
            used,
            timeout: facts.timeout,
        }
    }
}

/// The limit that ended a command, its value and what was used of it, in the words of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) limit: Limit,
    pub(crate) configured: Option<String>,
    pub(crate) used: Option<String>,
}

/// Whether a command has the status of a kill. With any other it ended by itself, and what was ordered meanwhile came too late.
pub(crate) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGKILL)
}

/// Decides.
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

/// A cgroup was at its limit of memory, and processes of this command were killed for it.
fn out_of_memory(facts: &Facts<'_>) -> Option<Hit> {
    let words = |bytes: u64| Size::from_bytes(bytes).to_string();
    facts.group.ran_out_of_memory().then(|| Hit {
        limit: Limit::Memory,
        configured: facts.limits.memory.map(|size| size.to_string()),
        used: facts.usage.peak_memory_bytes.map(words),
    })
}

/// A cgroup refused the command a process or thread.
fn out_of_pids(facts: &Facts<'_>) -> Option<Hit> {
    facts.group.refused_pids.then(|| Hit {
        limit: Limit::Pids,
        configured: facts.limits.pids.map(|count| count.to_string()),
        // Without its init.
        used: facts.usage.peak_pids.map(|count| count.saturating_sub(1).to_string()),
    })
}

/// Limits that end a process by a signal of their own. A shell tells of a child that ended so by a status of its own.
fn by_signal(facts: &Facts<'_>) -> Option<Hit> {
    let by_shell = facts.status.code().map(|code| code - 128);
    let is = |signal| facts.status.signal() == Some(signal) || by_shell == Some(signal);
    let used = Duration::from_micros(facts.usage.user_us.saturating_add(facts.usage.system_us));
    if let Some(span) = facts.limits.cpu_time {
        // SIGKILL comes a second after SIGXCPU, to who does not heed that; others send it as well.
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

/// From when on the kernel kills for a limit in whole seconds. It counts ticks there, which on a busy machine are some
/// hundred milliseconds more than the time that it tells of afterwards.
fn hard_limit(span: Span) -> Duration {
    const TICKS: Duration = Duration::from_millis(500);
    Duration::from_secs(span.whole_seconds() + 1).saturating_sub(TICKS)
}

// What a command's end was: why it did not start, or its outcome.

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
    fn used(&self) -> CgroupUsage {
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
    fn signals_of_limits_name_them_where_there_is_one() {
        let of = |raw| judged(raw, None, 3_100_000, &limits(), None).hit;
        let cpu = hit(Limit::CpuTime, "2s", Some("3100ms"));
        assert_eq!(of(libc::SIGXCPU), cpu);
        assert_eq!(of(exit(128 + libc::SIGXCPU)), cpu, "as a shell tells of its child");
        assert_eq!(of(libc::SIGKILL), cpu, "the hard limit");
        let size = hit(Limit::FileSize, "4K", None);
        assert_eq!(of(libc::SIGXFSZ), size);
        assert_eq!(of(exit(128 + libc::SIGXFSZ)), size);
        for raw in [libc::SIGXCPU, libc::SIGXFSZ, libc::SIGKILL, exit(152), exit(153), exit(137)] {
            assert_eq!(judged(raw, None, 9_000_000, &Limits::default(), None).hit, None, "no limit: {raw}");
        }
    }

    /// An out-of-memory killer of the host's, or anybody else.
    #[test]
    fn a_kill_before_the_time_is_up_is_no_limit_s() {
        for raw in [libc::SIGKILL, exit(128 + libc::SIGKILL)] {
            assert_eq!(judged(raw, None, 2_400_000, &limits(), None).hit, None);
            let short = Limits { cpu_time: Some(Duration::from_millis(100).into()), ..Limits::default() };
            assert_eq!(judged(raw, None, 1_400_000, &short, None).hit, None, "one second, and one more");
            let expected = hit(Limit::CpuTime, "100ms", Some("2s"));
            assert_eq!(judged(raw, None, 2_000_000, &short, None).hit, expected);
        }
    }

    #[test]
    fn what_kennel_ended_it_for_comes_first() {
        let room = Some(Full::Bytes(1 << 20));
        let wall = judged(libc::SIGKILL, Some(Cause::TimedOut), 9_000_000, &limits(), room);
        let expected = hit(Limit::WallTime, "2s", Some("2250ms"));
        assert_eq!(wall, Ending { ended: Ended::TimedOut, hit: expected });
        let killed = judged(libc::SIGKILL, Some(Cause::Killed), 9_000_000, &limits(), room);
        assert_eq!(killed, Ending { ended: Ended::Killed, hit: None });
        let flood = Some(Cause::Flooded { seen: 1500, cap: 1024 });
        let flooded = judged(libc::SIGKILL, flood, 0, &limits(), room);
        assert_eq!(flooded.hit, hit(Limit::Output, "1K", Some("1500")));
        assert_eq!(judged(0, flood, 0, &limits(), room).hit, None, "it was over before");
        assert_eq!(judged(exit(3), flood, 0, &limits(), None).hit, None, "so it was");
    }

    #[test]
    fn who_ended_before_the_kill_ended_by_itself() {
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
    fn full_places_count_for_who_failed() {
        let of = |raw, full| judged(raw, None, 0, &limits(), Some(full)).hit;
        assert_eq!(of(exit(1), Full::Bytes(4 << 20)), hit(Limit::Tmpfs, "4M", Some("4M")));
        assert_eq!(of(libc::SIGBUS, Full::Bytes(4 << 20)), hit(Limit::Tmpfs, "4M", Some("4M")));
        assert_eq!(of(exit(1), Full::Inodes(64)), hit(Limit::Tmpfs, "64 inodes", Some("64 inodes")));
        assert_eq!(of(0, Full::Bytes(4 << 20)), None);
    }

    proptest! {
        #[test]
        fn who_succeeds_by_itself_hit_no_limit(used: u64, seen: u64, cap: u64, room: u64, floods: bool) {
            let cause = if floods { Cause::Flooded { seen, cap } } else { Cause::TimedOut };
            let ending = judged(0, Some(cause), used, &limits(), Some(Full::Bytes(room)));
            prop_assert_eq!(ending, Ending { ended: Ended::Exited, hit: None });
        }

        #[test]
        fn what_the_policy_does_not_limit_is_never_named(raw in 0..0x8000_i32, used: u64) {
            let ending = judged(raw, None, used, &Limits::default(), None);
            prop_assert_eq!(ending.hit, None);
        }
    }
}
