//! Resource limits by prlimit(2): what every kernel has. Where a limit is weaker than a cgroup's would be, the
//! report says how.

use kennel_helper::plan::Step;

use super::{Parts, section::Section};
use crate::{
    Enforcement, Error, Version,
    enforcement::State,
    policy::{Policy, Protection, Requirement},
};

/// RLIMIT_CORE of 1: with 0 a core handler behind a pipe would still be started; 1 is its sign to stop
/// (fs/coredump.c), and too small for a file.
const NO_CORE: u64 = 1;

/// From here on RLIMIT_NPROC counts the processes of a user namespace.
const COUNTS_BY_NAMESPACE: Version = Version(5, 14);

/// Appends the limits that the policy asks for, and those it always has.
///
/// # Errors
/// A limit that is required and cannot be kept in full here.
pub(super) fn limits(
    parts: &Parts<'_>,
    payload: &mut Section,
    enforcement: &mut Enforcement,
) -> Result<(), Error> {
    let policy = parts.policy;
    let wanted = &policy.limits;
    let mut limit = Limiter { policy, payload, enforcement };
    limit.set(Protection::CoreDumps, libc::RLIMIT_CORE, NO_CORE);
    limit.say(Protection::CoreDumps, State::Enforced, "no core file, no core handler")?;
    if let Some(memory) = wanted.memory {
        limit.set(Protection::Memory, libc::RLIMIT_DATA, memory.bytes());
        let weaker = "RLIMIT_DATA: private writable memory of each process, not of all together";
        limit.say(Protection::Memory, State::Degraded, weaker)?;
    }
    if let Some(pids) = wanted.pids {
        if parts.caller.is_root() {
            limit.say(Protection::Pids, State::Off, "the kernel never applies RLIMIT_NPROC to real root")?;
        } else {
            // Init is a process of the same user in the same namespace.
            limit.set(Protection::Pids, libc::RLIMIT_NPROC, pids.saturating_add(1));
            let (state, how) = if parts.host.kernel >= COUNTS_BY_NAMESPACE {
                (State::Enforced, "RLIMIT_NPROC, counted in this user namespace")
            } else {
                (State::Degraded, "RLIMIT_NPROC, counted over all processes of the user")
            };
            limit.say(Protection::Pids, state, how)?;
        }
    }
    if wanted.cpus.is_some() {
        limit.say(Protection::Cpus, State::Off, "needs a delegated cgroup v2")?;
    }
    if let Some(span) = wanted.cpu_time {
        let seconds = span.duration().as_secs_f64().ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a span is positive and below a year"
        )]
        limit.set(Protection::CpuTime, libc::RLIMIT_CPU, seconds as u64);
        limit.say(Protection::CpuTime, State::Degraded, "RLIMIT_CPU: of each process, in whole seconds")?;
    }
    if let Some(files) = wanted.open_files {
        limit.set(Protection::OpenFiles, libc::RLIMIT_NOFILE, files);
        limit.say(Protection::OpenFiles, State::Enforced, "RLIMIT_NOFILE, of each process")?;
    }
    if let Some(size) = wanted.file_size {
        limit.set(Protection::FileSize, libc::RLIMIT_FSIZE, size.bytes());
        limit.say(Protection::FileSize, State::Enforced, "RLIMIT_FSIZE, of each file")?;
    }
    Ok(())
}

struct Limiter<'l> {
    policy: &'l Policy,
    payload: &'l mut Section,
    enforcement: &'l mut Enforcement,
}

impl Limiter<'_> {
    fn set(&mut self, protection: Protection, resource: libc::__rlimit_resource_t, value: u64) {
        // SIGXCPU comes at the soft limit; the hard limit a second later is SIGKILL.
        let hard = if resource == libc::RLIMIT_CPU { value.saturating_add(1) } else { value };
        self.payload.push_by(self.policy, protection, &Step::Limit { resource, soft: value, hard });
    }

    fn say(&mut self, protection: Protection, state: State, detail: &str) -> Result<(), Error> {
        let required = self.policy.effective_requirement(protection) == Requirement::Required;
        if state != State::Enforced && required {
            return Err(Error::Unavailable {
                protection,
                reason: format!("cannot be kept in full: {detail}"),
                remedy: Some(format!(
                    "set [require] {protection} = \"if_available\", or do without the limit"
                )),
            });
        }
        self.enforcement.set(protection, state, detail);
        Ok(())
    }
}
