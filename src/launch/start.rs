//! Starts: one function for each kind. Each call blocks its thread for about as long as posix_spawn(3).
//!
//! Every start has two halves. `begin_…` creates init, which makes its namespaces at once; meanwhile this
//! program compiles the rest of the policy. `hand_over_…` waits until init has executed its image, and sends
//! the compiled plan, which init carries out.

use std::os::fd::{AsFd, BorrowedFd};

use kennel_helper::control::{Handover, Role};
use kennel_helper::plan::Plan;
use kennel_helper::wire::Field;

use crate::launch::cgroup::leaf::Leaf;
use crate::launch::control::ignore_epipe;
use crate::launch::image::{Images, SpawnedInit};
use crate::launch::inside::{CommandInit, Inside, PlannedInit, WaitingInit};
use crate::launch::prepared::{Memfd, Prepared};
use crate::plan::Section;
use crate::plan::bridge::BridgePlan;
use crate::report::error::Error;
use crate::report::error::overlay::OverlayError;
use crate::sys::birth::{Birth, Placement};

// A one-shot: a sandbox for one command. Its init then waits for the request.

/// Starts a one-shot. `own_steps` are additional steps of its command.
///
/// # Errors
/// Those of the start, and [`OverlayError::NeedsSession`].
pub(crate) fn start_one_shot(prepared: &Prepared, own_steps: Option<&Memfd>) -> Result<CommandInit, Error> {
    refuse_kept_overlay(prepared)?;

    // The one that was started ahead already has its plan, so it cannot take additional steps.
    if let Some(init) = prepared.take_prestarted().filter(|_| own_steps.is_none()) {
        return Ok(init.begin(&prepared.compiled.watches));
    }

    // mkdir(2): a cgroup with the limits of each command, see cgroups(7).
    let leaf = prepared.groups()?.map(|groups| groups.only_leaf()).transpose()?;

    let init = begin_one_shot(&prepared.images, &prepared.compiled.steps.namespaces, leaf)?;
    let init = hand_over_one_shot(init, prepared, own_steps)?;
    Ok(init.begin(&prepared.compiled.watches))
}

/// The first half: creates init, in the cgroup `leaf` if there is one.
pub(crate) fn begin_one_shot(
    images: &Images,
    namespaces: &Section,
    leaf: Option<Leaf>,
) -> Result<WaitingInit, Error> {
    begin(images, &Role::OneShot { namespaces: &namespaces.bytes }, leaf)
}

/// The second half: sends the plan. Remembers which mounts the plan is based on.
pub(crate) fn hand_over_one_shot(
    init: WaitingInit,
    prepared: &Prepared,
    own_steps: Option<&Memfd>,
) -> Result<PlannedInit, Error> {
    let role = Role::OneShot { namespaces: &prepared.compiled.steps.namespaces.bytes };
    let init = executed(init, &prepared.images, &role)?.planned(prepared.compiled.one_shot_mounts.now());
    let plan = prepared.plan().map_err(Error::io("hand over the plan"))?;
    send_plan(&init, plan, own_steps)?;
    Ok(init)
}

/// # Errors
/// The overlay keeps its changes, which a one-shot cannot do.
pub(crate) fn refuse_kept_overlay(prepared: &Prepared) -> Result<(), Error> {
    match &prepared.compiled.overlay {
        Some(overlay) if overlay.upper.is_some() => Err(OverlayError::NeedsSession.into()),
        _ => Ok(()),
    }
}

// A session: a zygote, which then waits for orders to fork workers.

/// The first half: creates the zygote, in the cgroup `leaf` if there is one.
pub(crate) fn begin_session(
    images: &Images,
    namespaces: &Section,
    leaf: Option<Leaf>,
) -> Result<WaitingInit, Error> {
    begin(images, &Role::Zygote { namespaces: &namespaces.bytes }, leaf)
}

/// The second half: sends the plan.
pub(crate) fn hand_over_session(zygote: WaitingInit, prepared: &Prepared) -> Result<WaitingInit, Error> {
    let role = Role::Zygote { namespaces: &prepared.compiled.steps.namespaces.bytes };
    let zygote = executed(zygote, &prepared.images, &role)?;
    let plan = prepared.plan().map_err(Error::io("hand over the plan"))?;
    send_plan(&zygote, plan, None)?;
    Ok(zygote)
}

// A bridge to another proxy, which then waits for its listener.

/// Starts a bridge: both halves at once, because its plan is small.
pub(crate) fn start_bridge(images: &Images, plan: &BridgePlan) -> Result<WaitingInit, Error> {
    // A bridge has no cgroup: it is no part of a command.
    let role = Role::Bridge { namespaces: &plan.namespaces.bytes };
    let bridge = executed(begin(images, &role, None)?, images, &role)?;

    // memfd_create(2): the plan. A bridge runs no command, so two of the four sections are empty.
    let mut bytes = Vec::new();
    Plan { setup: &plan.setup.bytes, worker: &[], walls: &plan.walls.bytes, payload: &[] }.put(&mut bytes);
    let memfd = Memfd::new(&bytes).map_err(Error::io("hand over the plan of the bridge"))?;
    send_plan(&bridge, &memfd, None)?;
    Ok(bridge)
}

// The steps of all starts, in their order.

/// Creates init with its role, in the cgroup `leaf` if there is one.
fn begin(images: &Images, role: &Role<'_>, leaf: Option<Leaf>) -> Result<WaitingInit, Error> {
    // clone3(2) with CLONE_INTO_CGROUP, then execveat(2).
    let placement = leaf.as_ref().map_or(Placement::Namespaces, |leaf| Placement::Group(leaf.as_fd()));
    let SpawnedInit { control, pidfd, pid, is_in_group, birth } = images.begin(placement)?;
    let init = WaitingInit::child(control, pidfd, leaf, birth);

    // cgroup.procs of cgroups(7), on Linux before 5.7. It comes before the role: init makes its cgroup
    // namespace next, whose root is the cgroup that it is in, see cgroup_namespaces(7).
    if let Some(leaf) = init.leaf().filter(|_| !is_in_group) {
        leaf.add_process(pid)?;
    }

    // uid_map and gid_map of user_namespaces(7). Init may only map its own ids, one each. A bridge needs no
    // more.
    if !matches!(role, Role::Bridge { .. }) {
        images.map_ids(pid)?;
    }

    send_role(&init, role)?;
    Ok(init)
}

/// Waits until init has executed its image. If the host does not execute that one, starts init once more.
fn executed(mut init: WaitingInit, images: &Images, role: &Role<'_>) -> Result<WaitingInit, Error> {
    for is_last in [false, true] {
        let Some(Err(error)) = init.take_birth().map(Birth::executed) else { break };
        images.after(error, is_last)?;
        let leaf = init.take_leaf();
        drop(init);
        init = begin(images, role, leaf)?;
    }
    Ok(init)
}

/// sendmsg(2): the first message tells init what it is, and which namespaces to make.
fn send_role(inside: &Inside, role: &Role<'_>) -> Result<(), Error> {
    let mut message = Vec::new();
    role.put(&mut message);
    ignore_epipe(inside.send(&message, [])).map_err(Error::io("hand over the first steps"))
}

/// sendmsg(2) with SCM_RIGHTS of unix(7): the second message passes the plan, as memfds.
fn send_plan(inside: &Inside, plan: &Memfd, own_steps: Option<&Memfd>) -> Result<(), Error> {
    let mut message = Vec::new();
    Handover::Plan { plan: plan.length, own: own_steps.map_or(0, |steps| steps.length) }.put(&mut message);
    let memfds: Vec<BorrowedFd<'_>> = std::iter::once(plan).chain(own_steps).map(AsFd::as_fd).collect();
    ignore_epipe(inside.send(&message, memfds)).map_err(Error::io("hand over the plan"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::birth::{SpawnOptions, Users};

    #[test]
    fn a_memfd_that_the_host_does_not_execute_is_replaced_by_a_file() {
        let images = Images::with_refused_memfd(SpawnOptions::of(Users::Own)).expect("images");
        let role = Role::Zygote { namespaces: &[] };
        let begun = || begin(&images, &role, None).expect("begun");
        // Dropped before it could not execute its image.
        drop(begun());
        let mut first = executed(begun(), &images, &role).expect("from a file");
        assert!(first.take_birth().is_none());
        // From now on the file is what is executed.
        assert!(begun().take_birth().expect("a birth").executed().is_ok());
    }
}
