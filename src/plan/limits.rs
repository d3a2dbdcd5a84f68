//! Resource limits by prlimit(2), which every kernel has. If such a limit is weaker than a cgroup's, the
//! report says how.

#[cfg(test)]
mod tests;
pub(crate) mod tightened;

use kennel_helper::plan::Step;

use crate::host::cgroups::Controller;
use crate::host::scheduling::SchedulingPrivileges;
use crate::host::{Host, Version};
use crate::plan::Section;
use crate::plan::cgroup::place::MissingCgroup;
use crate::plan::cgroup::{CgroupPlan, own_processes};
use crate::policy::cgroup::Cgroup;
use crate::policy::limits::Limits;
use crate::policy::require::Requirement;
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::report::error::Error;
use crate::report::remedy::{Remedy, SettingKey, remedy};
use crate::view::inputs::{Inputs, SandboxKind};

/// RLIMIT_CORE is 1. With 0, the kernel would still start a core handler behind a pipe; 1 tells it not to
/// (fs/coredump.c), and is too small for a core file. The seccomp filter keeps the limit at 1.
pub(crate) const NO_CORE: u64 = 1;

/// Soft and hard limit of open descriptors, for commands whose policy sets none.
///
/// The kernel counts descriptors in flight by user, and a process cannot send more of them while the count is
/// above its own limit (unix(7), `ETOOMANYREFS`). Commands therefore get a lower limit than Kennel. With an
/// equal one, a command could keep Kennel from starting further commands of the same user.
pub(crate) fn descriptors(inputs: &Inputs<'_>) -> [u64; 2] {
    let [few, most] = inputs.caller.descriptors;
    let most = most - most / 4;
    [few.min(most), most]
}

/// Appends first steps of PID 1, which its children inherit. They take away the scheduling privileges that
/// the caller has and other processes lack; most callers have none. They also raise the descriptor limit of
/// PID 1, so that a zygote can send descriptors whatever commands do.
pub(crate) fn drop_caller_scheduling(inputs: &Inputs<'_>, namespaces: &mut Section) {
    let SchedulingPrivileges { scheduling: [policy, nice, io], oom, may_be } = inputs.host.ahead;
    if policy || nice || io {
        let step = Step::Ordinary { policy: policy.into(), nice: nice.into(), io: io.into() };
        namespaces.push(Protection::Cpus, &step);
    }
    if may_be {
        for resource in [libc::RLIMIT_RTPRIO, libc::RLIMIT_NICE] {
            namespaces.push(Protection::Cpus, &rlimit(resource, 0));
        }
    }
    let [few, most] = inputs.caller.descriptors;
    if few < most {
        let step = Step::Limit { resource: libc::RLIMIT_NOFILE, soft: most, hard: most };
        namespaces.push(Protection::OpenFiles, &step);
    }
    if oom {
        let step = Step::Write { path: c"/proc/self/oom_score_adj", bytes: b"0" };
        namespaces.push(Protection::Memory, &step);
    }
}

/// Appends a first step of PID 1, which its children inherit: no core files. Workers could not set this limit
/// later, because their filter forbids it.
pub(crate) fn no_core(inputs: &Inputs<'_>, namespaces: &mut Section) {
    namespaces.push_by(inputs.policy, Protection::CoreDumps, &rlimit(libc::RLIMIT_CORE, NO_CORE));
}

/// Appends the limits that the policy asks for, and those that always hold.
///
/// # Errors
/// A limit that the policy sets and this host does not enforce at all; or not in full, if the policy requires
/// that.
pub(crate) fn limits(
    inputs: &Inputs<'_>,
    groups: &CgroupPlan,
    payload: &mut Section,
    enforcement: &mut Enforcement,
) -> Result<(), Error> {
    let mut limit = Limiter { inputs: *inputs, groups, payload, enforcement };
    limit.cores()?;
    limit.memory()?;
    limit.pids()?;
    limit.cgroup_only()?;
    limit.per_process()
}

/// Tests showed what RLIMIT_DATA does not count: shared mappings, memfd_create(2), System V shared memory,
/// tmpfs. RLIMIT_AS would count the mapped ones, but it breaks programs that reserve more than they use, such
/// as node.
const MEMORY_BY_RLIMIT: &str = "RLIMIT_DATA: private writable memory of each process, not of all together; shared memory and \
                                files in private places are not counted";
const SWAP_BY_NOTHING: &str = "what is swapped out of it is not limited";

const NEEDS_CGROUP: &str = "needs a delegated cgroup v2";
const CPU_TIME: &str = "RLIMIT_CPU: of each process, in whole seconds";
const OPEN_FILES: &str = "RLIMIT_NOFILE, of each process";
const FILE_SIZE: &str = "RLIMIT_FSIZE, of each file";

pub(crate) fn rlimit(resource: libc::__rlimit_resource_t, soft: u64) -> Step<'static> {
    // SIGXCPU comes at the soft limit, SIGKILL one second later at the hard limit.
    let hard = if resource == libc::RLIMIT_CPU { soft.saturating_add(1) } else { soft };
    Step::Limit { resource, soft, hard }
}

struct Limiter<'l> {
    inputs: Inputs<'l>,
    groups: &'l CgroupPlan,
    payload: &'l mut Section,
    enforcement: &'l mut Enforcement,
}

impl Limiter<'_> {
    /// Reports on core files. The limit itself is set by [`no_core`].
    fn cores(&mut self) -> Result<(), Error> {
        if self.inputs.host.core_socket {
            let detail = "no core file; kernel.core_pattern names a socket, whose handler gets cores whatever the limit is: sysctl \
                          kernel.core_pattern=core";
            return self.report(Protection::CoreDumps, State::Degraded, detail, None);
        }
        self.report(Protection::CoreDumps, State::Enforced, "no core file, no core handler", None)
    }

    fn memory(&mut self) -> Result<(), Error> {
        let (Inputs { policy, .. }, groups) = (self.inputs, self.groups);
        let Some(memory) = policy.limits.memory else { return Ok(()) };
        let swap = policy.limits.swap;
        if groups.enforces(Controller::Memory) {
            let swap = swap.map_or_else(|| "none".to_owned(), |size| size.to_string());
            let detail = format!("memory.max {memory}, swap {swap}, {}", self.shared_by());
            self.report_cgroup(Protection::Memory, &detail);
            return Ok(());
        }
        let lack = groups.lack(Controller::Memory);
        if swap.is_some() {
            self.check(Protection::Memory, State::Off, SWAP_BY_NOTHING, lack.as_ref())?;
        }
        self.set(Protection::Memory, libc::RLIMIT_DATA, memory.bytes());
        let swapped = if swap.is_some() { SWAP_BY_NOTHING } else { "" };
        let separator = if swap.is_some() { "; " } else { "" };
        let detail = format!("{MEMORY_BY_RLIMIT}{separator}{swapped}");
        self.report(Protection::Memory, State::Degraded, &detail, lack)
    }

    fn pids(&mut self) -> Result<(), Error> {
        let (Inputs { policy, .. }, groups) = (self.inputs, self.groups);
        if let Some(pids) = policy.limits.pids.filter(|_| groups.enforces(Controller::Pids)) {
            let detail = format!("pids.max {pids}, {}", self.shared_by());
            self.report_cgroup(Protection::Pids, &detail);
        }
        let Some(PidLimit { by, state, detail, is_default }) = pid_limit(&self.inputs) else { return Ok(()) };
        if is_default {
            if let PidMeans::Rlimit(most) = by {
                self.payload.push_optional(Protection::Pids, &rlimit(libc::RLIMIT_NPROC, most));
            }
            let detail = format!("{} by default: {detail}", Limits::SESSION_PIDS);
            self.enforcement.set_by_default(Protection::Pids, &detail);
            return Ok(());
        }
        if let PidMeans::Rlimit(most) = by {
            self.set(Protection::Pids, libc::RLIMIT_NPROC, most);
        }
        let lack = if state == State::Enforced { None } else { groups.lack(Controller::Pids) };
        self.report(Protection::Pids, state, &detail, lack)
    }

    fn cgroup_only(&mut self) -> Result<(), Error> {
        let (Inputs { policy, .. }, groups) = (self.inputs, self.groups);
        let wanted = &policy.limits;
        let cpus = wanted.cpus.map(|cpus| format!("cpu.max {cpus}"));
        let cpuset = wanted.cpuset.as_ref().map(|list| format!("cpuset.cpus {list}"));
        let io = wanted.io.map(|io| format!("io.max {io}"));
        for (how, controller, protection) in [
            (cpus, Controller::Cpu, Protection::Cpus),
            (cpuset, Controller::Cpuset, Protection::Cpuset),
            (io, Controller::Io, Protection::Io),
        ] {
            let Some(how) = how else { continue };
            if groups.enforces(controller) {
                let detail = format!("{how}, {}", self.shared_by());
                self.report_cgroup(protection, &detail);
            } else {
                let lack = groups.lack(controller);
                self.report(protection, State::Off, NEEDS_CGROUP, lack)?;
            }
        }
        Ok(())
    }

    fn per_process(&mut self) -> Result<(), Error> {
        let wanted = &self.inputs.policy.limits;
        if let Some(span) = wanted.cpu_time {
            self.set(Protection::CpuTime, libc::RLIMIT_CPU, span.whole_seconds());
            self.report(Protection::CpuTime, State::Degraded, CPU_TIME, None)?;
        }
        if wanted.open_files.is_some() {
            // The payload sets it with the command's own limits, once it has received all descriptors.
            self.report(Protection::OpenFiles, State::Enforced, OPEN_FILES, None)?;
        }
        if let Some(size) = wanted.file_size {
            self.set(Protection::FileSize, libc::RLIMIT_FSIZE, size.bytes());
            self.report(Protection::FileSize, State::Enforced, FILE_SIZE, None)?;
        }
        Ok(())
    }

    /// What shares the cgroup's limit.
    fn shared_by(&self) -> &'static str {
        match self.inputs.kind {
            SandboxKind::Once | SandboxKind::OneShot => "with all that the command starts",
            SandboxKind::Session { .. } => "all commands of the session together",
        }
    }

    fn set(&mut self, protection: Protection, resource: libc::__rlimit_resource_t, value: u64) {
        self.payload.push_by(self.inputs.policy, protection, &rlimit(resource, value));
    }

    /// Reports a limit that a cgroup enforces.
    fn report_cgroup(&mut self, protection: Protection, detail: &str) {
        self.enforcement.set(protection, State::Enforced, detail);
    }

    /// Reports how a limit is enforced. `lack` says why no cgroup enforces it.
    fn report(
        &mut self,
        protection: Protection,
        state: State,
        detail: &str,
        lack: Option<MissingCgroup>,
    ) -> Result<(), Error> {
        self.check(protection, state, detail, lack.as_ref())?;
        match lack {
            Some(MissingCgroup { reason, remedy }) => {
                self.enforcement.set_without_cgroup(protection, state, detail, &reason, remedy);
            }
            None => self.enforcement.set(protection, state, detail),
        }
        Ok(())
    }

    /// Refuses a limit that the policy does not let be in this state. As with every protection, what is
    /// required must not be off. What is required in full must not be weaker either.
    fn check(
        &self,
        protection: Protection,
        state: State,
        detail: &str,
        lack: Option<&MissingCgroup>,
    ) -> Result<(), Error> {
        let policy = self.inputs.policy;
        let how = match state {
            State::Enforced => return Ok(()),
            _ if policy.requires_in_full(protection) => "cannot be kept in full",
            State::Off if policy.effective_requirement(protection) == Requirement::Required => {
                "cannot be kept here"
            }
            _ => return Ok(()),
        };
        let why = lack.map(|lack| format!("; {}", lack.reason)).unwrap_or_default();
        let reason = format!("{how}: {detail}{why}");
        let remedy = Some(self.remedy(protection, lack));
        Err(Error::Unavailable { protection, reason, remedy })
    }

    /// What the caller can do. `lack` says how to get a cgroup that enforces the limit.
    fn remedy(&self, protection: Protection, lack: Option<&MissingCgroup>) -> Remedy {
        let policy = self.inputs.policy;
        let could_be_held = !matches!(
            protection,
            Protection::CpuTime | Protection::CoreDumps | Protection::FileSize | Protection::OpenFiles
        );
        let by_cgroup = if could_be_held && policy.limits.cgroup == Cgroup::Off {
            let off = SettingKey::Cgroup.to("off");
            remedy!["leave out cgroup = \"off\" (", off, "), so that a cgroup can hold it, or "]
        } else {
            Remedy::default()
        };
        let is_strict = policy.profile.meaning().is_strict;
        if protection == Protection::CoreDumps {
            // Nobody sets it as a limit.
            let otherwise = if is_strict { "choose another profile" } else { "do not require core_dumps" };
            return format!("run sysctl -w kernel.core_pattern=core, or {otherwise}").into();
        }
        let otherwise = match (is_strict, policy.requires_in_full(protection)) {
            (true, _) => "choose another profile: ci-only keeps all of a policy in full".into(),
            (false, true) => format!("set [require] {protection} = \"if_available\"").into(),
            (false, false) => remedy![
                "run without what the host lacks: ",
                SettingKey::OnUnavailable.to("degrade"),
                format!(", or for this limit alone [require] {protection} = \"if_available\""),
            ],
        };
        match lack {
            Some(lack) => remedy![lack.remedy.clone(), "; or ", otherwise],
            None => remedy![by_cgroup, "do without the limit, or ", otherwise],
        }
    }
}

// How many processes there may be, without a cgroup: by RLIMIT_NPROC, or by `kernel.pid_max` of the sandbox's
// pid namespace for real root, because the kernel does not apply RLIMIT_NPROC to it.

/// First kernel whose RLIMIT_NPROC counts the processes of a user namespace.
const COUNTS_BY_NAMESPACE: Version = Version(5, 14);

/// First kernel with a `kernel.pid_max` for each pid namespace. Older kernels have one for the whole host,
/// and real root could write it from inside.
const PID_MAX_BY_NAMESPACE: Version = Version(6, 14);

/// Numbers that the kernel keeps back (RESERVED_PIDS of kernel/pid.c). After its numbers have wrapped around
/// once, a namespace has so many fewer.
const RESERVED_PIDS: u64 = 300;

/// The lowest `kernel.pid_max` that the kernel takes, for each possible processor (PIDS_PER_CPU_MIN).
const PIDS_PER_CPU: u64 = 8;

/// The highest `kernel.pid_max`.
const PID_MAX_LIMIT: u64 = 1 << 22;

/// Appends the step that limits the processes of a sandbox where rlimits do not: `kernel.pid_max`.
pub(crate) fn pid_max(inputs: &Inputs<'_>, namespaces: &mut Section) {
    if let Some(PidLimit { by: PidMeans::PidMax(most), is_default, .. }) = pid_limit(inputs) {
        let (path, bytes) = (c"/proc/sys/kernel/pid_max", &*format!("{most}\n").into_bytes());
        let step = Step::Write { path, bytes };
        match is_default {
            true => namespaces.push_optional(Protection::Pids, &step),
            false => namespaces.push_by(inputs.policy, Protection::Pids, &step),
        }
    }
}

/// How the number of processes is limited without a cgroup.
pub(crate) struct PidLimit {
    pub(crate) by: PidMeans,
    pub(crate) state: State,
    pub(crate) detail: String,
    /// Whether the policy sets none. Then it holds as well as the host can.
    pub(crate) is_default: bool,
}

pub(crate) enum PidMeans {
    /// RLIMIT_NPROC: that many processes of the user in the namespace, Kennel's included.
    Rlimit(u64),
    /// `kernel.pid_max`: that many numbers in the pid namespace of PID 1.
    PidMax(u64),
    Nothing,
}

/// How well the number of processes can be limited. `None` if a cgroup enforces the limit of the policy, or
/// if the policy sets none and there is no default: commands that share no processes are killed all at once,
/// however many they are.
pub(crate) fn pid_limit(inputs: &Inputs<'_>) -> Option<PidLimit> {
    if let Some(pids) = inputs.policy.limits.pids {
        let is_held = inputs.controllers.is_some_and(|held| held.contains(&Controller::Pids));
        return (!is_held).then(|| limit_of(inputs, pids));
    }
    let limit = inputs.are_shared().then(|| limit_of(inputs, Limits::SESSION_PIDS))?;
    // Before Linux 5.14, everything that the user runs on the host would count.
    let counts_others = !inputs.caller.is_root() && inputs.host.kernel < COUNTS_BY_NAMESPACE;
    let is_held = !counts_others && !matches!(limit.by, PidMeans::Nothing);
    is_held.then_some(PidLimit { is_default: true, ..limit })
}

/// How a limit of so many processes can be held.
fn limit_of(inputs: &Inputs<'_>, pids: u64) -> PidLimit {
    let (own, whose) = match inputs.kind {
        // Init is a process of the same user in the same namespace.
        SandboxKind::Once | SandboxKind::OneShot => (1, String::new()),
        SandboxKind::Session { ready } => {
            let own = own_processes(inputs.policy, ready);
            (own, format!(" over all commands of the session and {own} of its own"))
        }
    };
    let most = pids.saturating_add(own);
    let limit = |by, state, detail| PidLimit { by, state, detail, is_default: false };
    if inputs.caller.is_root() {
        by_pid_max(inputs.host, most, &whose)
    } else if inputs.host.kernel < COUNTS_BY_NAMESPACE {
        let detail = "RLIMIT_NPROC, counted over all processes of the user".to_owned();
        limit(PidMeans::Rlimit(pids.saturating_add(1)), State::Degraded, detail)
    } else if whose.is_empty() {
        let detail = "RLIMIT_NPROC, counted in this user namespace".to_owned();
        limit(PidMeans::Rlimit(most), State::Enforced, detail)
    } else {
        limit(PidMeans::Rlimit(most), State::Degraded, format!("RLIMIT_NPROC, counted{whose}"))
    }
}

/// For real root: the kernel never applies RLIMIT_NPROC to it.
pub(crate) fn by_pid_max(host: &Host, most: u64, whose: &str) -> PidLimit {
    const NEVER: &str = "the kernel never applies RLIMIT_NPROC to real root";
    if host.kernel < PID_MAX_BY_NAMESPACE {
        let detail = format!(
            "{NEVER}, and before Linux {PID_MAX_BY_NAMESPACE} pid namespaces have no limit of their own"
        );
        return PidLimit { by: PidMeans::Nothing, state: State::Off, detail, is_default: false };
    }
    let least = u64::from(host.possible_cpus).saturating_mul(PIDS_PER_CPU);
    let numbers = most.saturating_add(RESERVED_PIDS).max(least).min(PID_MAX_LIMIT);
    let more = numbers.saturating_sub(most).max(RESERVED_PIDS);
    let detail = format!(
        "{NEVER}; kernel.pid_max of the pid namespace is used instead, which allows up to {more} more{whose}"
    );
    PidLimit { by: PidMeans::PidMax(numbers), state: State::Degraded, detail, is_default: false }
}
