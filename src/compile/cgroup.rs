//! Limits → files of cgroups, and where the cgroups are made. Decides by facts (`Cgroups`), so that hosts that we do not
//! have can be written down; makes nothing.

use std::{path::PathBuf, sync::Arc};

use super::{Shape, identity, limits, seccomp, section::Section};
use crate::{
    Error,
    caller::Caller,
    cgroup::{self, Cgroups, Controller, HOST, Setting, Spot},
    host::Host,
    host::remedy::{self, DELEGATE},
    policy::{Cgroup, Limits, Policy, Protection},
};

use kennel_helper::plan::Step;

/// The group of one command counts its init too.
const INIT: u64 = 1;

/// cpu.max counts in periods of that many microseconds, and in quotas of this at least.
const PERIOD: u64 = 100_000;
const LONGEST_PERIOD: u64 = 1_000_000;
const SHORTEST_QUOTA: u64 = 1_000;

/// The groups of a session, or of the one-shots of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct GroupPlan {
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
pub(crate) struct Groups {
    pub(crate) plan: Option<Arc<GroupPlan>>,
    lack: Option<Lack>,
    device: Option<(u64, u64)>,
}

/// Why something cannot be held by a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    pub(super) reason: String,
    pub(super) remedy: String,
}

impl Lack {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { reason: reason.into(), remedy: remedy.into() }
    }
}

impl Groups {
    /// What there is without groups, where nobody asks.
    pub(crate) const NONE: &'static Self = &Self { plan: None, lack: None, device: None };

    /// Whether groups hold what `controller` can.
    pub(crate) fn hold(&self, controller: Controller) -> bool {
        let plan = self.plan.as_ref().filter(|plan| plan.controllers.contains(&controller));
        plan.is_some() && (controller != Controller::Io || self.device.is_some())
    }

    /// Why they do not, where somebody wanted them.
    pub(super) fn lack(&self, controller: Controller) -> Option<Lack> {
        match (&self.plan, &self.lack) {
            (Some(plan), _) if plan.controllers.contains(&controller) => Some(Lack::new(
                "the workspace lies on a file system without a block device",
                "have the workspace on a disk, or do without the limit",
            )),
            (Some(plan), _) => Some(missing(&plan.parent.display().to_string(), controller)),
            (None, lack) => lack.clone(),
        }
    }

    /// The limits of one command alone: those of `wanted` that a group holds.
    pub(super) fn of_command(&self, session: &Limits, wanted: &Limits) -> Vec<Setting> {
        if self.plan.is_none() {
            return Vec::new();
        }
        let Limits { memory, pids, cpus, .. } = *wanted;
        settings(&Limits { memory, swap: session.swap, pids, cpus, ..Limits::default() }, self, INIT)
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
    asked.into_iter().filter(|(asked, ..)| *asked).map(|(_, controller, protection)| (controller, protection)).collect()
}

/// Whether there shall be groups, and where.
///
/// # Errors
/// A path of the policy's where no cgroup is.
pub(super) fn groups(policy: &Policy, host: &Host, caller: &Caller, shape: Shape) -> Result<Groups, Error> {
    let limits = &policy.limits;
    let asked = asked(limits);
    let is_named = matches!(limits.cgroup, Cgroup::At(_));
    if limits.cgroup == Cgroup::Off || asked.is_empty() && !is_named {
        return Ok(Groups::default());
    }
    let facts = Cgroups::look();
    let found = match &limits.cgroup {
        Cgroup::At(path) => {
            let spot = facts.at(path).map_err(|source| Error::Grant {
                what: "limits.cgroup",
                path: path.clone(),
                source,
                remedy: Some("name a directory of the cgroup v2 file system that you may write to".to_owned()),
            })?;
            named(&spot, caller.is_root())
        }
        _ => delegated(&facts, caller.is_root(), &asked.iter().map(|(asked, _)| *asked).collect::<Vec<_>>()),
    };
    let place = match found {
        Ok(place) => place,
        Err(lack) => return Ok(Groups { lack: Some(lack), ..Groups::default() }),
    };
    let device = limits.io.and_then(|_| cgroup::device::of(&caller.absolute(&policy.workspace)));
    Ok(plan(policy, host, place, shape, device))
}

/// Where groups can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    path: PathBuf,
    enable: Vec<Controller>,
    controllers: Vec<Controller>,
    leave: bool,
}

impl Place {
    /// In `spot`, whose groups get all of `controllers`.
    fn of(spot: &Spot, controllers: &[Controller], leave: bool) -> Self {
        Self {
            path: spot.path.clone(),
            enable: controllers.iter().copied().filter(|controller| !spot.gives.contains(controller)).collect(),
            controllers: controllers.to_vec(),
            leave,
        }
    }
}

/// The group that the policy names: whoever names it vouches for it.
fn named(spot: &Spot, is_root: bool) -> Result<Place, Lack> {
    let at = spot.path.display();
    if !spot.writable {
        return Err(Lack::new(format!("{at} is not writable"), DELEGATE));
    }
    if !spot.reachable && !is_root {
        let reason = format!("processes cannot be moved to {at} from the caller's cgroup");
        return Err(Lack::new(reason, DELEGATE));
    }
    usable(spot)
}

/// One that is delegated to the caller: its own, the one above, or for real root that of the whole hierarchy.
fn delegated(facts: &Cgroups, is_root: bool, asked: &[Controller]) -> Result<Place, Lack> {
    let (Some(own), Some(top)) = (&facts.own, &facts.top) else {
        return Err(Lack::new("no cgroup v2 hierarchy is mounted here", remedy::UNIFIED));
    };
    let is_own = |spot: &Spot| {
        spot.writable && spot.reachable && !spot.is_root && (spot.marked || !is_root || spot.path == top.path)
    };
    let is_above = |spot: &Spot| {
        let ours = own.path.ends_with(HOST);
        spot.writable && spot.reachable && !spot.is_root && (spot.marked || ours || !is_root && spot.is_edge)
    };
    let mut lack = None;
    if is_own(own) {
        match usable(own).and_then(|place| offering(facts, own, place, asked)) {
            Ok(place) => return Ok(place),
            Err(reason) => lack = Some(reason),
        }
    }
    if let Some(parent) = facts.parent.as_ref().filter(|parent| is_above(parent)) {
        match usable(parent).and_then(|place| offering(facts, parent, place, asked)) {
            Ok(place) => return Ok(place),
            Err(reason) => lack = lack.or(Some(reason)),
        }
    }
    // As container engines do that have no service manager to ask. What it gives to groups is left as it is.
    if is_root && top.is_root && top.writable && lack.is_none() {
        return offering(facts, top, Place::of(top, &wanted(&top.gives), false), asked);
    }
    Err(lack.unwrap_or_else(|| {
        Lack::new(format!("{} is not delegated to the caller", own.path.display()), DELEGATE)
    }))
}

/// What groups in a cgroup get of what it offers.
fn wanted(offers: &[Controller]) -> Vec<Controller> {
    Controller::ALL.into_iter().filter(|controller| offers.contains(controller)).collect()
}

/// A group that may hold no process but this one, which can leave.
fn usable(spot: &Spot) -> Result<Place, Lack> {
    if spot.others > 0 && !spot.is_root {
        let reason = format!(
            "{} holds {} other processes, so it can give no limits to groups in it",
            spot.path.display(),
            spot.others
        );
        return Err(Lack::new(reason, DELEGATE));
    }
    Ok(Place::of(spot, &wanted(&spot.offers), spot.holds_us && !spot.is_root))
}

/// A place that offers something of what is asked for.
fn offering(facts: &Cgroups, spot: &Spot, place: Place, asked: &[Controller]) -> Result<Place, Lack> {
    match asked.iter().find(|asked| !place.controllers.contains(asked)) {
        Some(first) if !asked.iter().any(|asked| place.controllers.contains(asked)) => {
            if facts.of_v1.contains(first) { Err(empty(facts, spot)) } else { Err(missing(&spot.path.display().to_string(), *first)) }
        }
        _ => Ok(place),
    }
}

/// For a hierarchy whose controllers cgroup v1 has.
fn empty(facts: &Cgroups, spot: &Spot) -> Lack {
    let names: Vec<&str> = facts.of_v1.iter().map(|controller| controller.name()).collect();
    let names = names.join(", ");
    Lack::new(format!("cgroup v1 has {names} here, and cgroup v2 at {} does not", spot.path.display()), remedy::UNIFIED)
}

fn missing(at: &str, controller: Controller) -> Lack {
    Lack::new(
        format!("the cgroup {at} has no {controller} controller"),
        format!("have the service manager delegate it: Delegate={controller} … for the unit, user@.service for users"),
    )
}

fn plan(policy: &Policy, host: &Host, place: Place, shape: Shape, device: Option<(u64, u64)>) -> Groups {
    let limits = &policy.limits;
    // Where nobody asks for it, it would only be in the way of whatever moves tasks between processors.
    let is_asked = |controller: &Controller| *controller != Controller::Cpuset || limits.cpuset.is_some();
    let Place { path: parent, mut enable, mut controllers, leave } = place;
    enable.retain(is_asked);
    controllers.retain(is_asked);
    let protection = asked(limits).first().map_or(Protection::Memory, |(_, protection)| *protection);
    let plan = GroupPlan {
        parent,
        enable,
        controllers,
        leave,
        shared: Vec::new(),
        leaf: Vec::new(),
        protection,
        reaper: reaper(host),
    };
    let mut groups = Groups { plan: Some(Arc::new(plan.clone())), lack: None, device };
    let mut leaf = Vec::new();
    if groups.hold(Controller::Memory) {
        // Half of a command is of no use to anybody, and init goes with it, so that the end is told by the kernel.
        leaf.push(Setting::new("memory.oom.group", 1));
    }
    let (shared, leaf) = match shape {
        Shape::OneShot => {
            leaf.extend(settings(limits, &groups, INIT));
            (Vec::new(), leaf)
        }
        Shape::Session { ready } => {
            // Whoever hits it first shall be the one who made them.
            let of_each = Limits { pids: limits.pids, ..Limits::default() };
            leaf.extend(settings(&of_each, &groups, INIT));
            (settings(limits, &groups, limits::own_processes(ready)), leaf)
        }
    };
    groups.plan = Some(Arc::new(GroupPlan { shared, leaf, ..plan }));
    groups
}

/// The files that hold processes to `limits`, of those that `groups` can hold them to. `own` are processes of ours.
fn settings(limits: &Limits, groups: &Groups, own: u64) -> Vec<Setting> {
    let mut settings = Vec::new();
    let of = |controller, wanted: bool| wanted && groups.hold(controller);
    if let Some(memory) = limits.memory.filter(|_| of(Controller::Memory, true)) {
        // First, or the limit could be met by swapping.
        let swap = limits.swap.map_or(0, |size| size.bytes());
        settings.push(Setting::where_there("memory.swap.max", swap));
        settings.push(Setting::new("memory.max", memory.bytes()));
    }
    if let Some(pids) = limits.pids.filter(|_| of(Controller::Pids, true)) {
        settings.push(Setting::new("pids.max", pids.saturating_add(own).min(u64::from(u32::MAX >> 1))));
    }
    if let Some(cpus) = limits.cpus.filter(|_| of(Controller::Cpu, true)) {
        let (quota, period) = quota(cpus);
        settings.push(Setting::new("cpu.max", format!("{quota} {period}")));
    }
    if let Some(list) = limits.cpuset.as_ref().filter(|_| of(Controller::Cpuset, true)) {
        settings.push(Setting::new("cpuset.cpus", list));
    }
    if let (Some(io), Some((major, minor)), true) = (limits.io, groups.device, of(Controller::Io, true)) {
        let parts = [
            io.read.map(|size| format!(" rbps={}", size.bytes())),
            io.write.map(|size| format!(" wbps={}", size.bytes())),
            io.read_ops.map(|count| format!(" riops={count}")),
            io.write_ops.map(|count| format!(" wiops={count}")),
        ];
        let parts: String = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            settings.push(Setting::new("io.max", format!("{major}:{minor}{parts}")));
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
fn quota(cpus: f64) -> (u64, u64) {
    let of = |period: u64| (cpus * period as f64).round() as u64;
    let period = if of(PERIOD) < SHORTEST_QUOTA { LONGEST_PERIOD } else { PERIOD };
    (of(period).max(SHORTEST_QUOTA), period)
}

/// A reaper lies beside the embedding program, in no namespace of its own, and makes few calls. What is sent to the
/// program's process group does not reach it.
fn reaper(host: &Host) -> Section {
    let mut steps = Section::default();
    steps.push(Protection::PidNamespace, &Step::NewSession {});
    identity::untouchable(&mut steps);
    if host.seccomp {
        let program = &seccomp::bytes(&seccomp::of_reaper());
        steps.push(Protection::Seccomp, &Step::Seccomp { program });
    }
    steps
}

#[cfg(test)]
mod tests;
