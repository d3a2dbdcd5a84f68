//! How many processes there may be, where no cgroup counts them: by RLIMIT_NPROC, or `kernel.pid_max` of the sandbox's pid
//! namespace for real root, whom the kernel holds to no RLIMIT_NPROC.

use kennel_helper::plan::Step;

use crate::{
    Version,
    cgroup::Controller,
    compile::{Parts, Shape, section::Section},
    enforcement::State,
    host::Host,
    policy::Protection,
};

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
pub(in crate::compile) fn pid_max(parts: &Parts<'_>, namespaces: &mut Section) {
    if let Some(Pids { by: By::PidMax(most), .. }) = kept(parts) {
        let (path, bytes) = (c"/proc/sys/kernel/pid_max", &*format!("{most}\n").into_bytes());
        namespaces.push_by(parts.policy, Protection::Pids, &Step::Write { path, bytes });
    }
}

/// How the number of processes is kept, without a cgroup.
pub(super) struct Pids {
    pub(super) by: By,
    pub(super) state: State,
    pub(super) how: String,
}

pub(super) enum By {
    /// That many for the user in the namespace, ours among them.
    Rlimit(u64),
    /// That many numbers in the pid namespace of PID 1.
    PidMax(u64),
    Nothing,
}

/// How well the number of processes can be kept; `None` where nobody asks for it, or a cgroup holds it.
pub(super) fn kept(parts: &Parts<'_>) -> Option<Pids> {
    let pids = parts.policy.limits.pids.filter(|_| !parts.groups.hold(Controller::Pids))?;
    let (own, whose) = match parts.shape {
        // Init is a process of the same user in the same namespace.
        Shape::Once | Shape::OneShot => (1, String::new()),
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
pub(super) fn by_pid_max(host: &Host, most: u64, whose: &str) -> (By, State, String) {
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
        "{NEVER}; kernel.pid_max of the pid namespace is used instead, which allows up to {more} more{whose}"
    );
    (By::PidMax(numbers), State::Degraded, how)
}

/// Processes of a session besides those of its commands: the zygote, init and payload of each worker that waits or is
/// just being made, and the command's own init.
pub(in crate::compile) fn own_processes(ready: usize) -> u64 {
    2 * (ready as u64 + 1) + 2
}
