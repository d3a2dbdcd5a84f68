//! Where cgroups can be made: in a cgroup that is delegated to the caller, or in one that the policy names.
//!
//! Facts in, a place or a reason out. It reads and changes nothing.

use std::path::PathBuf;

use crate::host::cgroups::{CgroupDirectory, Cgroups, Controller, HOST};
use crate::host::remedy;
use crate::host::remedy::delegate;
use crate::report::remedy::Remedy;

/// Why no cgroup can enforce a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MissingCgroup {
    pub(crate) reason: String,
    pub(crate) remedy: Remedy,
}

impl MissingCgroup {
    pub(crate) fn new(reason: impl Into<String>, remedy: impl Into<Remedy>) -> Self {
        Self { reason: reason.into(), remedy: remedy.into() }
    }
}

/// A cgroup in which Kennel can make others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CgroupPlace {
    pub(crate) path: PathBuf,
    /// Controllers that it does not yet enable for its children.
    pub(crate) enable: Vec<Controller>,
    /// Controllers that its children have then.
    pub(crate) controllers: Vec<Controller>,
    /// Whether this program is in it and has to move out first.
    pub(crate) leave: bool,
}

impl CgroupPlace {
    /// The cgroup `spot`, whose children get all of `controllers`.
    fn of(spot: &CgroupDirectory, controllers: &[Controller], leave: bool) -> Self {
        Self {
            path: spot.path.clone(),
            enable: controllers
                .iter()
                .copied()
                .filter(|controller| !spot.gives.contains(controller))
                .collect(),
            controllers: controllers.to_vec(),
            leave,
        }
    }
}

/// The cgroup that the policy names. Kennel trusts the policy that it is delegated.
pub(crate) fn named(spot: &CgroupDirectory, is_root: bool) -> Result<CgroupPlace, MissingCgroup> {
    let at = spot.path.display();
    if !spot.writable {
        return Err(MissingCgroup::new(format!("{at} is not writable"), delegate()));
    }
    if !spot.reachable && !is_root {
        let reason = format!("processes cannot be moved to {at} from the caller's cgroup");
        return Err(MissingCgroup::new(reason, delegate()));
    }
    usable(spot)
}

/// A cgroup that is delegated to the caller: its own, its parent, or for real root the root of the hierarchy.
pub(crate) fn delegated(
    facts: &Cgroups,
    is_root: bool,
    asked: &[Controller],
) -> Result<CgroupPlace, MissingCgroup> {
    let (Some(own), Some(top)) = (&facts.own, &facts.top) else {
        return Err(MissingCgroup::new("no cgroup v2 hierarchy is mounted here", remedy::UNIFIED));
    };
    let is_own = |spot: &CgroupDirectory| {
        spot.writable && spot.reachable && !spot.is_root && (spot.marked || !is_root || spot.path == top.path)
    };
    let is_above = |spot: &CgroupDirectory| {
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
    // As container engines do without a service manager. Kennel enables no further controller there.
    if is_root && top.is_root && top.writable && lack.is_none() {
        return offering(facts, top, CgroupPlace::of(top, &wanted(&top.gives), false), asked);
    }
    // The missing controllers are those of cgroup v1. Delegating this cgroup would not help.
    let is_elsewhere = |asked: &Controller| {
        facts.of_v1.contains(asked) && !own.offers.contains(asked) && !top.offers.contains(asked)
    };
    if !asked.is_empty() && asked.iter().all(is_elsewhere) {
        return Err(empty(facts, own));
    }
    Err(lack.unwrap_or_else(|| {
        MissingCgroup::new(format!("{} is not delegated to the caller", own.path.display()), delegate())
    }))
}

/// The controllers that children of a cgroup can get, in Kennel's order.
fn wanted(offers: &[Controller]) -> Vec<Controller> {
    Controller::ALL.into_iter().filter(|controller| offers.contains(controller)).collect()
}

/// Checks that a cgroup holds no process but this one, which can move out: a cgroup with processes cannot
/// enable controllers for its children (cgroups(7), "no internal processes").
fn usable(spot: &CgroupDirectory) -> Result<CgroupPlace, MissingCgroup> {
    if spot.others > 0 && !spot.is_root {
        let reason = format!(
            "{} holds {} other processes, so it can give no limits to groups in it",
            spot.path.display(),
            spot.others
        );
        return Err(MissingCgroup::new(reason, delegate()));
    }
    Ok(CgroupPlace::of(spot, &wanted(&spot.offers), spot.holds_us && !spot.is_root))
}

/// Checks that a place has at least one of the controllers that the policy needs.
fn offering(
    facts: &Cgroups,
    spot: &CgroupDirectory,
    place: CgroupPlace,
    asked: &[Controller],
) -> Result<CgroupPlace, MissingCgroup> {
    match asked.iter().find(|asked| !place.controllers.contains(asked)) {
        Some(first) if !asked.iter().any(|asked| place.controllers.contains(asked)) => {
            if facts.of_v1.contains(first) {
                Err(empty(facts, spot))
            } else {
                Err(missing(&spot.path.display().to_string(), *first))
            }
        }
        _ => Ok(place),
    }
}

/// The error for a cgroup v2 hierarchy whose controllers belong to cgroup v1.
fn empty(facts: &Cgroups, spot: &CgroupDirectory) -> MissingCgroup {
    let names: Vec<&str> = facts.of_v1.iter().map(|controller| controller.name()).collect();
    let names = names.join(", ");
    MissingCgroup::new(
        format!("cgroup v1 has {names} here, and cgroup v2 at {} does not", spot.path.display()),
        remedy::UNIFIED,
    )
}

pub(crate) fn missing(at: &str, controller: Controller) -> MissingCgroup {
    MissingCgroup::new(
        format!("the cgroup {at} has no {controller} controller"),
        format!(
            "have the service manager delegate it: Delegate={controller} … for the unit, user@.service for users"
        ),
    )
}
