//! Resource limits by prlimit(2): what every kernel has. Where a limit is weaker than a cgroup's would be, the
//! report says how.

use kennel_helper::plan::Step;

use super::{
    Parts, Shape,
    cgroup::{Groups, Lack},
    section::Section,
};
use crate::{
    Enforcement, Error, Version,
    cgroup::{Controller, Setting},
    enforcement::State,
    host::Host,
    policy::{Cgroup, Limits, Policy, Protection, Requirement, Size, Span},
};

/// RLIMIT_CORE of 1: with 0 a core handler behind a pipe would still be started; 1 is its sign to stop
/// (fs/coredump.c), and too small for a file.
pub(super) const NO_CORE: u64 = 1;

/// From here on RLIMIT_NPROC counts the processes of a user namespace.
const COUNTS_BY_NAMESPACE: Version = Version(5, 14);

/// From here on each pid namespace has a `kernel.pid_max` of its own. Before, there is one for the whole host, which
/// real root could write from inside.
const PID_MAX_BY_NAMESPACE: Version = Version(6, 14);

/// Numbers that the kernel does not give out again (RESERVED_PIDS of kernel/pid.c): a namespace that has once used them up
/// has so many fewer.
const RESERVED_PIDS: u64 = 300;

/// The kernel takes no lower `kernel.pid_max` than so many for each processor that there can be (PIDS_PER_CPU_MIN).
const PIDS_PER_CPU: u64 = 8;

/// The most that `kernel.pid_max` can be.
const PID_MAX_LIMIT: u64 = 1 << 22;

/// Appends to the first steps of PID 1 what limits the processes of a sandbox where rlimits do not.
pub(super) fn pid_max(parts: &Parts<'_>, namespaces: &mut Section) {
    if let Some(Pids { by: By::PidMax(most), .. }) = pids_kept(parts) {
        let (path, bytes) = (c"/proc/sys/kernel/pid_max", &*format!("{most}\n").into_bytes());
        namespaces.push_by(parts.policy, Protection::Pids, &Step::Write { path, bytes });
    }
}

/// Appends to the first steps of PID 1, whose children inherit it, what takes from commands what their caller is ahead of
/// others by. For most callers that is nothing.
pub(super) fn ordinary(parts: &Parts<'_>, namespaces: &mut Section) {
    let crate::caller::Ahead { scheduling: [policy, nice, io], oom, may_be } = parts.caller.ahead;
    if policy || nice || io {
        let step = Step::Ordinary { policy: policy.into(), nice: nice.into(), io: io.into() };
        namespaces.push(Protection::Cpus, &step);
    }
    if may_be {
        for resource in [libc::RLIMIT_RTPRIO, libc::RLIMIT_NICE] {
            namespaces.push(Protection::Cpus, &rlimit(resource, 0));
        }
    }
    if oom {
        let step = Step::Write { path: c"/proc/self/oom_score_adj", bytes: b"0" };
        namespaces.push(Protection::Memory, &step);
    }
}

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
    let groups = parts.groups;
    let whose = match parts.shape {
        Shape::OneShot => "with all that the command starts",
        Shape::Session { .. } => "all commands of the session together",
    };
    if let Some(memory) = wanted.memory {
        if groups.hold(Controller::Memory) {
            let swap = wanted.swap.map_or_else(|| "none".to_owned(), |size| size.to_string());
            limit.hold(Protection::Memory, &format!("memory.max {memory}, swap {swap}, {whose}"));
        } else {
            limit.set(Protection::Memory, libc::RLIMIT_DATA, memory.bytes());
            let lack = groups.lack(Controller::Memory);
            let swapped = if wanted.swap.is_some() { SWAP_BY_NOTHING } else { "" };
            let detail = format!("{MEMORY_BY_RLIMIT}{swapped}");
            limit.fall_back(Protection::Memory, State::Degraded, &detail, lack)?;
        }
    }
    if let Some(pids) = wanted.pids.filter(|_| groups.hold(Controller::Pids)) {
        limit.hold(Protection::Pids, &format!("pids.max {pids}, {whose}"));
    }
    if let Some(Pids { by, state, how }) = pids_kept(parts) {
        if let By::Rlimit(most) = by {
            limit.set(Protection::Pids, libc::RLIMIT_NPROC, most);
        }
        match state {
            State::Enforced => limit.say(Protection::Pids, state, &how)?,
            _ => limit.fall_back(Protection::Pids, state, &how, groups.lack(Controller::Pids))?,
        }
    }
    let of_groups_alone = [
        (wanted.cpus.map(|cpus| format!("cpu.max {cpus}")), Controller::Cpu, Protection::Cpus),
        (
            wanted.cpuset.as_ref().map(|list| format!("cpuset.cpus {list}")),
            Controller::Cpuset,
            Protection::Cpuset,
        ),
        (wanted.io.map(|io| format!("io.max {io}")), Controller::Io, Protection::Io),
    ];
    for (wanted, controller, protection) in of_groups_alone {
        match wanted {
            Some(how) if groups.hold(controller) => limit.hold(protection, &format!("{how}, {whose}")),
            Some(_) => limit.fall_back(
                protection,
                State::Off,
                "needs a delegated cgroup v2",
                groups.lack(controller),
            )?,
            None => {}
        }
    }
    if let Some(span) = wanted.cpu_time {
        limit.set(Protection::CpuTime, libc::RLIMIT_CPU, seconds(span));
        limit.say(Protection::CpuTime, State::Degraded, "RLIMIT_CPU: of each process, in whole seconds")?;
    }
    if wanted.open_files.is_some() {
        // Set with the limits of the command, when all its descriptors have come.
        limit.say(Protection::OpenFiles, State::Enforced, "RLIMIT_NOFILE, of each process")?;
    }
    if let Some(size) = wanted.file_size {
        limit.set(Protection::FileSize, libc::RLIMIT_FSIZE, size.bytes());
        limit.say(Protection::FileSize, State::Enforced, "RLIMIT_FSIZE, of each file")?;
    }
    Ok(())
}

/// What is not counted was tried: shared mappings, memfd_create(2), System V shared memory, tmpfs. RLIMIT_AS would count
/// those that are mapped, but ends programs that reserve more than they use, such as node.
const MEMORY_BY_RLIMIT: &str = "RLIMIT_DATA: private writable memory of each process, not of all together; shared memory and \
                                files in private places are not counted";
const SWAP_BY_NOTHING: &str = "; what is swapped out of it is not limited";

/// How the number of processes is kept, without a cgroup.
struct Pids {
    by: By,
    state: State,
    how: String,
}

enum By {
    /// That many for the user in the namespace, ours among them.
    Rlimit(u64),
    /// That many numbers in the pid namespace of PID 1.
    PidMax(u64),
    Nothing,
}

/// How well the number of processes can be kept; `None` where nobody asks for it, or a cgroup holds it.
fn pids_kept(parts: &Parts<'_>) -> Option<Pids> {
    let pids = parts.policy.limits.pids.filter(|_| !parts.groups.hold(Controller::Pids))?;
    let (own, whose) = match parts.shape {
        // Init is a process of the same user in the same namespace.
        Shape::OneShot => (1, String::new()),
        Shape::Session { ready } => {
            let own = own_processes(ready);
            (own, format!(" over all commands of the session and {own} of its own"))
        }
    };
    let most = pids.saturating_add(own);
    let (by, state, how) = if parts.caller.is_root() {
        by_pid_max(parts.host, most, &whose)
    } else if parts.host.kernel < COUNTS_BY_NAMESPACE {
        (
            By::Rlimit(pids.saturating_add(1)),
            State::Degraded,
            "RLIMIT_NPROC, counted over all processes of the user".to_owned(),
        )
    } else if whose.is_empty() {
        (By::Rlimit(most), State::Enforced, "RLIMIT_NPROC, counted in this user namespace".to_owned())
    } else {
        (By::Rlimit(most), State::Degraded, format!("RLIMIT_NPROC, counted{whose}"))
    };
    Some(Pids { by, state, how })
}

/// For real root, to whom the kernel never applies RLIMIT_NPROC.
fn by_pid_max(host: &Host, most: u64, whose: &str) -> (By, State, String) {
    const NEVER: &str = "the kernel never applies RLIMIT_NPROC to real root";
    if host.kernel < PID_MAX_BY_NAMESPACE {
        let how = format!(
            "{NEVER}, and before Linux {PID_MAX_BY_NAMESPACE} pid namespaces have no limit of their own"
        );
        return (By::Nothing, State::Off, how);
    }
    let least = u64::from(host.possible_cpus).saturating_mul(PIDS_PER_CPU);
    let numbers = most.saturating_add(RESERVED_PIDS).max(least).min(PID_MAX_LIMIT);
    let more = numbers.saturating_sub(most).max(RESERVED_PIDS);
    let how = format!(
        "{NEVER}; instead kernel.pid_max of the pid namespace: as many{whose}, and up to {more} more"
    );
    (By::PidMax(numbers), State::Degraded, how)
}

/// Processes of a session besides those of its commands: the zygote, init and payload of each worker that waits or is
/// just being made, and the command's own init.
pub(super) fn own_processes(ready: usize) -> u64 {
    2 * (ready as u64 + 1) + 2
}

pub(super) fn rlimit(resource: libc::__rlimit_resource_t, soft: u64) -> Step<'static> {
    // SIGXCPU comes at the soft limit; the hard limit a second later is SIGKILL.
    let hard = if resource == libc::RLIMIT_CPU { soft.saturating_add(1) } else { soft };
    Step::Limit { resource, soft, hard }
}

/// Whole seconds, as RLIMIT_CPU counts.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a span is positive and below a year"
)]
fn seconds(span: Span) -> u64 {
    span.duration().as_secs_f64().ceil() as u64
}

struct Limiter<'l> {
    policy: &'l Policy,
    payload: &'l mut Section,
    enforcement: &'l mut Enforcement,
}

impl Limiter<'_> {
    fn set(&mut self, protection: Protection, resource: libc::__rlimit_resource_t, value: u64) {
        self.payload.push_by(self.policy, protection, &rlimit(resource, value));
    }

    /// A cgroup holds it.
    fn hold(&mut self, protection: Protection, detail: &str) {
        self.enforcement.set(protection, State::Enforced, detail);
    }

    /// No cgroup holds it; `lack` says why.
    fn fall_back(
        &mut self,
        protection: Protection,
        state: State,
        detail: &str,
        lack: Option<Lack>,
    ) -> Result<(), Error> {
        let Some(Lack { reason, remedy }) = lack else { return self.say(protection, state, detail) };
        if self.policy.effective_requirement(protection) == Requirement::Required {
            let reason = format!("cannot be kept in full: {detail}; {reason}");
            return Err(Error::Unavailable { protection, reason, remedy: Some(remedy) });
        }
        self.enforcement.set(protection, state, format!("{detail}; {reason}: {remedy}"));
        Ok(())
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

/// Limits of one command, at most those of its policy.
pub(crate) struct Tightened {
    /// What the payload sets right before its program.
    pub(crate) steps: Vec<u8>,
    /// All that hold for it.
    pub(crate) limits: Limits,
    /// What its cgroup is to say.
    pub(crate) settings: Vec<Setting>,
}

/// The limits of a command that asks for `wanted` under a policy with `session`'s.
///
/// # Errors
/// A limit above the policy's, or one that a single command cannot have.
pub(crate) fn tightened(
    session: &Limits,
    groups: &Groups,
    wanted: Option<&Limits>,
) -> Result<Tightened, Error> {
    let none = Limits::default();
    let wanted = wanted.unwrap_or(&none);
    // Whether there is an output to end by is a matter of both.
    Limits { output_ends: false, ..wanted.clone() }.check()?;
    let for_all = [
        ("pids", wanted.pids.is_some() && !groups.hold(Controller::Pids)),
        ("cpus", wanted.cpus.is_some() && !groups.hold(Controller::Cpu)),
        ("cpuset", wanted.cpuset.is_some()),
        ("io", wanted.io.is_some()),
        ("swap", wanted.swap.is_some()),
        ("cgroup", wanted.cgroup != Cgroup::default() && wanted.cgroup != session.cgroup),
        ("tmp_size", wanted.tmp_size.is_some()),
        ("tmp_inodes", wanted.tmp_inodes.is_some()),
    ];
    if let Some((name, _)) = for_all.into_iter().find(|(_, wanted)| *wanted) {
        return Err(refused(name, "is one of the policy, not of a single command"));
    }
    let mut limits = session.clone();
    lower("memory", wanted.memory, &mut limits.memory)?;
    lower("pids", wanted.pids, &mut limits.pids)?;
    lower("cpus", wanted.cpus, &mut limits.cpus)?;
    lower("cpu_time", wanted.cpu_time, &mut limits.cpu_time)?;
    lower("open_files", wanted.open_files, &mut limits.open_files)?;
    lower("file_size", wanted.file_size, &mut limits.file_size)?;
    lower("output", wanted.output, &mut limits.output)?;
    lower("timeout", wanted.timeout, &mut limits.timeout)?;
    limits.output_ends |= wanted.output_ends;
    limits.check()?;
    let mut steps = Section::default();
    let mut limit = |protection, resource, value: Option<u64>| {
        if let Some(value) = value {
            steps.push(protection, &rlimit(resource, value));
        }
    };
    let of_process = wanted.memory.filter(|_| !groups.hold(Controller::Memory));
    limit(Protection::Memory, libc::RLIMIT_DATA, of_process.map(Size::bytes));
    limit(Protection::FileSize, libc::RLIMIT_FSIZE, wanted.file_size.map(Size::bytes));
    limit(Protection::OpenFiles, libc::RLIMIT_NOFILE, limits.open_files);
    limit(Protection::CpuTime, libc::RLIMIT_CPU, wanted.cpu_time.map(seconds));
    Ok(Tightened { steps: steps.bytes, limits, settings: groups.of_command(session, wanted) })
}

/// Puts what is wanted in the place of what the policy has, if it is not above it.
fn lower<T: PartialOrd + Copy>(name: &str, wanted: Option<T>, kept: &mut Option<T>) -> Result<(), Error> {
    if wanted.is_some() && kept.is_some() && wanted > *kept {
        return Err(refused(name, "is above that of the policy"));
    }
    *kept = wanted.or(*kept);
    Ok(())
}

fn refused(name: &str, reason: &str) -> Error {
    Error::Command { what: "limit", value: name.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests;
