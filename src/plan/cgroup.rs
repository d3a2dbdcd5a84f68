//! Limits of the policy → files of cgroups, and where the cgroups are made.
//!
//! It decides by facts ([`Cgroups`]), so that tests can describe any host. It makes no cgroup.

pub(crate) mod place;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use kennel_helper::plan::Step;

use crate::caller::Caller;
use crate::host::cgroups::{CPUS, CgroupSetting, Cgroups, Controller};
use crate::host::{Host, mounts};
use crate::plan::cgroup::place::{CgroupPlace, MissingCgroup, delegated, missing, named};
use crate::plan::{Section, namespaces, seccomp};
use crate::policy::Policy;
use crate::policy::cgroup::Cgroup;
use crate::policy::limits::Limits;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::remedy::Remedy;
use crate::sys::file_system::FileSystem;
use crate::view::inputs::SandboxKind;

/// The cgroup of a command counts its init too.
const INIT: u64 = 1;

/// The cgroups of a session, or of the one-shots of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct CgroupTree {
    /// The cgroup in which they are made.
    pub(crate) parent: PathBuf,
    /// Controllers that `parent` does not yet enable for its children.
    pub(crate) enable: Vec<Controller>,
    /// Controllers of the children.
    pub(crate) controllers: Vec<Controller>,
    /// Whether the embedding program is alone in `parent` and has to move out of it first.
    pub(crate) leave: bool,
    /// Limits of all commands together.
    pub(crate) shared: Vec<CgroupSetting>,
    /// Limits of each command.
    pub(crate) leaf: Vec<CgroupSetting>,
    /// The protection that an error of the kernel is reported under.
    pub(crate) protection: Protection,
    /// Steps of the reaper.
    pub(crate) reaper: Section,
}

/// The plan of the cgroups, or why there are none.
#[derive(Clone, Debug, Default)]
pub(crate) struct CgroupPlan {
    pub(crate) plan: Option<Arc<CgroupTree>>,
    lack: Option<MissingCgroup>,
    /// Device numbers of the disks that commands read and write.
    disks: Vec<(u64, u64)>,
}

impl CgroupPlan {
    /// The controllers of the cgroups; `None` if there are no cgroups.
    pub(crate) fn controllers(&self) -> Option<&[Controller]> {
        self.plan.as_ref().map(|plan| &plan.controllers[..])
    }

    /// Whether the cgroups can enforce the limits of `controller`.
    pub(crate) fn enforces(&self, controller: Controller) -> bool {
        self.means().enforces(controller)
    }

    fn means(&self) -> Means<'_> {
        let controllers = self.plan.as_ref().map_or(&[][..], |plan| &plan.controllers);
        Means { controllers, disks: &self.disks }
    }

    /// Why they cannot. `None` if the policy wants no cgroup.
    pub(crate) fn lack(&self, controller: Controller) -> Option<MissingCgroup> {
        match (&self.plan, &self.lack) {
            (Some(plan), _) if plan.controllers.contains(&controller) => Some(MissingCgroup::new(
                "the workspace, or the overlay's directory, lies on a file system without a block device",
                "have the workspace on a disk, or do without the limit",
            )),
            (Some(plan), _) => Some(missing(&plan.parent.display().to_string(), controller)),
            (None, lack) => lack.clone(),
        }
    }

    /// Why there are no cgroups, and what the caller can do.
    pub(crate) fn why(&self) -> Option<(String, Remedy)> {
        self.lack.clone().map(|MissingCgroup { reason, remedy }| (reason, remedy))
    }

    /// The files for the limits of one command: those of `wanted` that a cgroup enforces.
    pub(crate) fn for_command(&self, session: &Limits, wanted: &Limits) -> Vec<CgroupSetting> {
        let Limits { memory, pids, cpus, .. } = *wanted;
        settings(&Limits { memory, swap: session.swap, pids, cpus, ..Limits::default() }, self.means(), INIT)
    }
}

/// What cgroups enforce limits with.
#[derive(Clone, Copy)]
struct Means<'m> {
    controllers: &'m [Controller],
    disks: &'m [(u64, u64)],
}

impl Means<'_> {
    fn enforces(self, controller: Controller) -> bool {
        self.controllers.contains(&controller) && (controller != Controller::Io || !self.disks.is_empty())
    }
}

/// The controllers that the limits of a policy need.
fn needed(limits: &Limits) -> Vec<(Controller, Protection)> {
    let asked = [
        (limits.memory.is_some(), Controller::Memory, Protection::Memory),
        (limits.pids.is_some(), Controller::Pids, Protection::Pids),
        (limits.cpus.is_some(), Controller::Cpu, Protection::Cpus),
        (limits.io.is_some(), Controller::Io, Protection::Io),
        (limits.cpuset.is_some(), Controller::Cpuset, Protection::Cpuset),
    ];
    asked
        .into_iter()
        .filter(|(asked, ..)| *asked)
        .map(|(_, controller, protection)| (controller, protection))
        .collect()
}

/// Decides whether there are cgroups, and where.
///
/// # Errors
/// The policy names a path that is no cgroup.
pub(crate) fn groups(
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    kind: SandboxKind,
) -> Result<CgroupPlan, Error> {
    let limits = &policy.limits;
    let asked = needed(limits);
    let is_named = matches!(limits.cgroup, Cgroup::At(_));
    if limits.cgroup == Cgroup::Off || asked.is_empty() && !is_named {
        return Ok(CgroupPlan::default());
    }
    let facts = Cgroups::look();
    let found = match &limits.cgroup {
        Cgroup::At(path) => {
            let spot = facts.at(path).map_err(|source| Error::Grant {
                what: "limits.cgroup",
                path: path.clone(),
                source,
                remedy: Some("name a directory of the cgroup v2 file system that you may write to".into()),
            })?;
            named(&spot, caller.is_root())
        }
        _ => delegated(&facts, caller.is_root(), &asked.iter().map(|(asked, _)| *asked).collect::<Vec<_>>()),
    };
    let place = match found {
        Ok(place) => place,
        Err(lack) => return Ok(CgroupPlan { lack: Some(lack), ..CgroupPlan::default() }),
    };
    let disks = if limits.io.is_some() { disks(policy, caller) } else { Vec::new() };
    Ok(plan(policy, host, place, kind, disks))
}

/// The disks of the workspace and of the overlay's directory. Empty if one of the two has an unknown disk,
/// because the limit would not hold there.
fn disks(policy: &Policy, caller: &Caller) -> Vec<(u64, u64)> {
    let upper = policy.overlay.as_ref().and_then(|overlay| overlay.upper.as_deref());
    let mut disks = Vec::new();
    for place in [Some(&*policy.workspace), upper].into_iter().flatten() {
        let place = caller.absolute(place);
        match mounts::of(&place) {
            Some(disk) if disks.contains(&disk) => {}
            Some(disk) => disks.push(disk),
            None if FileSystem::at(&place).is_ok_and(FileSystem::is_tmpfs) => {}
            None => return Vec::new(),
        }
    }
    disks
}

fn plan(
    policy: &Policy,
    host: &Host,
    place: CgroupPlace,
    kind: SandboxKind,
    disks: Vec<(u64, u64)>,
) -> CgroupPlan {
    let limits = &policy.limits;
    // Without a limit of its own, a cpuset would only hinder programs that move tasks between processors.
    let is_asked = |controller: &Controller| *controller != Controller::Cpuset || limits.cpuset.is_some();
    let CgroupPlace { path: parent, mut enable, mut controllers, leave } = place;
    enable.retain(is_asked);
    controllers.retain(is_asked);
    let protection = needed(limits).first().map_or(Protection::Memory, |(_, protection)| *protection);
    let means = Means { controllers: &controllers, disks: &disks };
    let mut leaf = Vec::new();
    if means.enforces(Controller::Memory) {
        // A killed process makes the rest of its command useless. Init is killed too, so the kernel reports
        // the end.
        leaf.push(CgroupSetting::new("memory.oom.group", 1));
    }
    let (shared, leaf) = match kind {
        SandboxKind::Once | SandboxKind::OneShot => {
            leaf.extend(settings(limits, means, INIT));
            (Vec::new(), leaf)
        }
        SandboxKind::Session { ready } => {
            // Each command has the limit of the session too. A command that starts too many processes then
            // meets its own limit first.
            let of_each = Limits { pids: limits.pids, ..Limits::default() };
            leaf.extend(settings(&of_each, means, INIT));
            (settings(limits, means, own_processes(policy, ready)), leaf)
        }
    };
    let reaper = reaper(host);
    let plan = CgroupTree { parent, enable, controllers, leave, shared, leaf, protection, reaper };
    CgroupPlan { plan: Some(Arc::new(plan)), lack: None, disks }
}

/// Steps of the reaper: a process beside the embedding program, in no namespace of its own, that makes few
/// system calls. A signal to the program's process group does not reach it.
fn reaper(host: &Host) -> Section {
    let mut steps = Section::default();
    steps.push(Protection::PidNamespace, &Step::NewSession {});
    namespaces::no_tracing(&mut steps);
    if host.seccomp {
        let program = &seccomp::bytes(&seccomp::for_reaper());
        steps.push(Protection::Seccomp, &Step::Seccomp { program });
    }
    steps
}

// The contents of a cgroup's files.

/// Period and smallest quota of cpu.max, in microseconds.
const PERIOD: u64 = 100_000;
const LONGEST_PERIOD: u64 = 1_000_000;
pub(crate) const SHORTEST_QUOTA: u64 = 1_000;

/// The files that enforce `limits` with these `means`. `own` is the number of Kennel's processes in the
/// cgroup.
fn settings(limits: &Limits, means: Means<'_>, own: u64) -> Vec<CgroupSetting> {
    let mut settings = Vec::new();
    if let Some(memory) = limits.memory.filter(|_| means.enforces(Controller::Memory)) {
        // First, because the command could otherwise swap its way past memory.max.
        let swap = limits.swap.map_or(0, |size| size.bytes());
        settings.push(CgroupSetting::where_there("memory.swap.max", swap));
        settings.push(CgroupSetting::new("memory.max", memory.bytes()));
    }
    if let Some(pids) = limits.pids.filter(|_| means.enforces(Controller::Pids)) {
        settings.push(CgroupSetting::new("pids.max", pids.saturating_add(own).min(u64::from(u32::MAX >> 1))));
    }
    if let Some(cpus) = limits.cpus.filter(|_| means.enforces(Controller::Cpu)) {
        let (quota, period) = quota(cpus);
        settings.push(CgroupSetting::new("cpu.max", format!("{quota} {period}")));
    }
    if let Some(list) = limits.cpuset.as_ref().filter(|_| means.enforces(Controller::Cpuset)) {
        settings.push(CgroupSetting::new(CPUS, list));
    }
    if let Some(io) = limits.io.filter(|_| means.enforces(Controller::Io)) {
        let parts = [
            io.read.map(|size| format!(" rbps={}", size.bytes())),
            io.write.map(|size| format!(" wbps={}", size.bytes())),
            io.read_ops.map(|count| format!(" riops={count}")),
            io.write_ops.map(|count| format!(" wiops={count}")),
        ];
        let parts: String = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            let of_disk = |(major, minor)| CgroupSetting::new("io.max", format!("{major}:{minor}{parts}"));
            settings.extend(means.disks.iter().copied().map(of_disk));
        }
    }
    settings
}

/// Quota and period of cpu.max, in microseconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a policy has 4096 processors at most, and more than none"
)]
pub(crate) fn quota(cpus: f64) -> (u64, u64) {
    let of = |period: u64| (cpus * period as f64).round() as u64;
    let period = if of(PERIOD) < SHORTEST_QUOTA { LONGEST_PERIOD } else { PERIOD };
    (of(period).max(SHORTEST_QUOTA), period)
}

/// Kennel's processes in a session: the zygote, init and payload of each worker that waits or is being made,
/// and the init of a command. If commands share their processes, also their common init.
pub(crate) fn own_processes(policy: &Policy, ready: usize) -> u64 {
    2 * (ready as u64 + 1) + 2 + u64::from(policy.shares_processes())
}
