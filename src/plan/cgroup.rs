//! Limits → files of cgroups, and where the cgroups are made. Decides by facts (`Cgroups`), so that hosts that we do not
//! have can be written down; makes nothing.

pub(crate) mod place;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use kennel_helper::plan::Step;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use crate::host::caller::Caller;
use crate::host::cgroups::{CPUS, Cgroups, Controller, Setting};
use crate::host::{Host, mounts};
use crate::plan::cgroup::place::{CgroupPlace, MissingCgroup, delegated, missing, named};
use crate::plan::{Section, limits, namespaces, seccomp};
use crate::policy::Policy;
use crate::policy::cgroup::Cgroup;
use crate::policy::limits::Limits;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::view::inputs::SandboxKind;

/// The group of one command counts its init too.
const INIT: u64 = 1;

/// The groups of a session, or of the one-shots of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct CgroupTree {
    /// Where they are made.
    pub(crate) parent: PathBuf,
    /// Controllers that it does not give to groups in it yet.
    pub(crate) enable: Vec<Controller>,
    /// Controllers that they have.
    pub(crate) controllers: Vec<Controller>,
    /// Whether the embedding program, alone in it, has to leave it first.
    pub(crate) leave: bool,
    /// Limits of all commands together.
    pub(crate) shared: Vec<Setting>,
    /// Limits of each.
    pub(crate) leaf: Vec<Setting>,
    /// What to call it when the kernel refuses any of it.
    pub(crate) protection: Protection,
    /// Steps of the reaper.
    pub(crate) reaper: Section,
}

/// Whether there are groups, or why not.
#[derive(Clone, Debug, Default)]
pub(crate) struct CgroupPlan {
    pub(crate) plan: Option<Arc<CgroupTree>>,
    lack: Option<MissingCgroup>,
    /// Disks that what commands write and read lies on.
    disks: Vec<(u64, u64)>,
}

impl CgroupPlan {
    /// The controllers that the groups have; `None` where there are no groups.
    pub(crate) fn controllers(&self) -> Option<&[Controller]> {
        self.plan.as_ref().map(|plan| &plan.controllers[..])
    }

    /// Whether groups hold what `controller` can.
    pub(crate) fn hold(&self, controller: Controller) -> bool {
        self.means().hold(controller)
    }

    fn means(&self) -> Means<'_> {
        let controllers = self.plan.as_ref().map_or(&[][..], |plan| &plan.controllers);
        Means { controllers, disks: &self.disks }
    }

    /// Why they do not, where somebody wanted them.
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

    /// Why there are none, and what can be done.
    pub(crate) fn why(&self) -> Option<(String, String)> {
        self.lack.clone().map(|MissingCgroup { reason, remedy }| (reason, remedy))
    }

    /// The limits of one command alone: those of `wanted` that a group holds.
    pub(crate) fn of_command(&self, session: &Limits, wanted: &Limits) -> Vec<Setting> {
        let Limits { memory, pids, cpus, .. } = *wanted;
        settings(&Limits { memory, swap: session.swap, pids, cpus, ..Limits::default() }, self.means(), INIT)
    }
}

/// What groups hold processes with.
#[derive(Clone, Copy)]
struct Means<'m> {
    controllers: &'m [Controller],
    disks: &'m [(u64, u64)],
}

impl Means<'_> {
    fn hold(self, controller: Controller) -> bool {
        self.controllers.contains(&controller) && (controller != Controller::Io || !self.disks.is_empty())
    }
}

/// Controllers that the limits of a policy ask for.
fn asked(limits: &Limits) -> Vec<(Controller, Protection)> {
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

/// Whether there shall be groups, and where.
///
/// # Errors
/// A path of the policy's where no cgroup is.
pub(crate) fn groups(
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    shape: SandboxKind,
) -> Result<CgroupPlan, Error> {
    let limits = &policy.limits;
    let asked = asked(limits);
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
                remedy: Some(
                    "name a directory of the cgroup v2 file system that you may write to".to_owned(),
                ),
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
    Ok(plan(policy, host, place, shape, disks))
}

/// The disks below the workspace, and below the directory that an overlay writes to instead. None where one of the two
/// has a disk that nobody knows: the limit would not hold there.
fn disks(policy: &Policy, caller: &Caller) -> Vec<(u64, u64)> {
    let upper = policy.overlay.as_ref().and_then(|overlay| overlay.upper.as_deref());
    let mut disks = Vec::new();
    for place in [Some(&*policy.workspace), upper].into_iter().flatten() {
        let place = caller.absolute(place);
        match mounts::of(&place) {
            Some(disk) if disks.contains(&disk) => {}
            Some(disk) => disks.push(disk),
            None if statfs(&place).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC) => {}
            None => return Vec::new(),
        }
    }
    disks
}

fn plan(
    policy: &Policy,
    host: &Host,
    place: CgroupPlace,
    shape: SandboxKind,
    disks: Vec<(u64, u64)>,
) -> CgroupPlan {
    let limits = &policy.limits;
    // Where nobody asks for it, it would only be in the way of whatever moves tasks between processors.
    let is_asked = |controller: &Controller| *controller != Controller::Cpuset || limits.cpuset.is_some();
    let CgroupPlace { path: parent, mut enable, mut controllers, leave } = place;
    enable.retain(is_asked);
    controllers.retain(is_asked);
    let protection = asked(limits).first().map_or(Protection::Memory, |(_, protection)| *protection);
    let means = Means { controllers: &controllers, disks: &disks };
    let mut leaf = Vec::new();
    if means.hold(Controller::Memory) {
        // Half of a command is of no use to anybody, and init goes with it, so that the end is told by the kernel.
        leaf.push(Setting::new("memory.oom.group", 1));
    }
    let (shared, leaf) = match shape {
        SandboxKind::Once | SandboxKind::OneShot => {
            leaf.extend(settings(limits, means, INIT));
            (Vec::new(), leaf)
        }
        SandboxKind::Session { ready } => {
            // Whoever hits it first shall be the one who made them.
            let of_each = Limits { pids: limits.pids, ..Limits::default() };
            leaf.extend(settings(&of_each, means, INIT));
            (settings(limits, means, limits::own_processes(ready)), leaf)
        }
    };
    let reaper = reaper(host);
    let plan = CgroupTree { parent, enable, controllers, leave, shared, leaf, protection, reaper };
    CgroupPlan { plan: Some(Arc::new(plan)), lack: None, disks }
}

/// A reaper lies beside the embedding program, in no namespace of its own, and makes few calls. What is sent to the
/// program's process group does not reach it.
fn reaper(host: &Host) -> Section {
    let mut steps = Section::default();
    steps.push(Protection::PidNamespace, &Step::NewSession {});
    namespaces::untouchable(&mut steps);
    if host.seccomp {
        let program = &seccomp::bytes(&seccomp::of_reaper());
        steps.push(Protection::Seccomp, &Step::Seccomp { program });
    }
    steps
}

// Limits → what files of a group are to say. Pure.

/// cpu.max counts in periods of that many microseconds, and in quotas of this at least.
const PERIOD: u64 = 100_000;
const LONGEST_PERIOD: u64 = 1_000_000;
pub(crate) const SHORTEST_QUOTA: u64 = 1_000;

/// The files that hold processes to `limits`, of those that there are `means` for. `own` are processes of ours.
fn settings(limits: &Limits, means: Means<'_>, own: u64) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(memory) = limits.memory.filter(|_| means.hold(Controller::Memory)) {
        // First, or the limit could be met by swapping.
        let swap = limits.swap.map_or(0, |size| size.bytes());
        settings.push(Setting::where_there("memory.swap.max", swap));
        settings.push(Setting::new("memory.max", memory.bytes()));
    }
    if let Some(pids) = limits.pids.filter(|_| means.hold(Controller::Pids)) {
        settings.push(Setting::new("pids.max", pids.saturating_add(own).min(u64::from(u32::MAX >> 1))));
    }
    if let Some(cpus) = limits.cpus.filter(|_| means.hold(Controller::Cpu)) {
        let (quota, period) = quota(cpus);
        settings.push(Setting::new("cpu.max", format!("{quota} {period}")));
    }
    if let Some(list) = limits.cpuset.as_ref().filter(|_| means.hold(Controller::Cpuset)) {
        settings.push(Setting::new(CPUS, list));
    }
    if let Some(io) = limits.io.filter(|_| means.hold(Controller::Io)) {
        let parts = [
            io.read.map(|size| format!(" rbps={}", size.bytes())),
            io.write.map(|size| format!(" wbps={}", size.bytes())),
            io.read_ops.map(|count| format!(" riops={count}")),
            io.write_ops.map(|count| format!(" wiops={count}")),
        ];
        let parts: String = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            let of_disk = |(major, minor)| Setting::new("io.max", format!("{major}:{minor}{parts}"));
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
