//! Decides how a command ended, for every way to run one: facts in, a verdict out.
//!
//! It names a limit only if the kernel or Kennel reported it, or by a rule that [`Limit`] documents. It never
//! guesses, and it never names a limit for a command that succeeded.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use crate::policy::limits::Limits;
use crate::policy::units::{Size, Span};
use crate::process::cause::Cause;
use crate::report::enforcement::Enforcement;
use crate::report::failure::Limit;
use crate::report::outcome::{Ended, Outcome, Start, Usage};

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
    /// What its cgroup refused it.
    pub(crate) refused: Refused,
}

/// What a cgroup refused a command; nothing without one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refused {
    /// Memory: the kernel killed processes of the command at its limit.
    pub(crate) memory: bool,
    /// A new process or thread.
    pub(crate) pids: bool,
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
            start: Start::default(),
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
    facts.refused.memory.then(|| Hit {
        limit: Limit::Memory,
        configured: facts.limits.memory.map(|size| size.to_string()),
        used: facts.usage.peak_memory_bytes.map(words),
    })
}

/// A cgroup refused a new process or thread.
fn out_of_pids(facts: &Facts<'_>) -> Option<Hit> {
    facts.refused.pids.then(|| Hit {
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
        // too, so the used time decides. It need not have come to that second: the kernel counts for the
        // limit in ticks, and charges a whole one to whom it meets at its end. Beside many short processes
        // that was a quarter more than the usage reported at the end.
        if is(libc::SIGXCPU) || is(libc::SIGKILL) && used >= Duration::from_secs(span.whole_seconds()) {
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
            refused: Refused::default(),
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
    fn a_kill_before_the_limit_is_used_names_no_limit() {
        for raw in [libc::SIGKILL, exit(128 + libc::SIGKILL)] {
            assert_eq!(judged(raw, None, 1_999_999, &limits(), None).hit, None);
            let short = Limits { cpu_time: Some(Duration::from_millis(100).into()), ..Limits::default() };
            assert_eq!(judged(raw, None, 900_000, &short, None).hit, None, "the kernel counts whole seconds");
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
