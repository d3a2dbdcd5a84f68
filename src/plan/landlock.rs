//! Landlock as the second wall: it allows the grants of the view once more, by inode. A path that leads out
//! of the view would end here.
//!
//! It is no second wall for a read-only path below a writable one (protected paths, grants below /tmp or
//! HOME): Landlock rights only add up. There the read-only mount is the wall.

use std::ffi::CStr;
use std::path::Path;

use ::landlock::{ABI, Access as _, AccessFs, AccessNet, BitFlags, Scope};
use kennel_helper::plan::Step;

use crate::host::remedy::go_without;
use crate::plan::network::ports_of_host;
use crate::plan::{Section, relative};
use crate::policy::require::Requirement;
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::report::error::Error;
use crate::view::inputs::Inputs;
use crate::view::{Access, Node, Origin, View, ViewEntry};

/// First ABI with rules for TCP ports: Linux 6.7.
const ABI_WITH_PORTS: u32 = 4;

/// First ABI with scopes for signals and abstract sockets: Linux 6.12.
const ABI_WITH_SCOPES: u32 = 6;

/// Ways around Landlock's rules for TCP ports (Linux 6.18). The seccomp filter refuses them.
pub(crate) const WITHOUT_FILTER: &str =
    "without a seccomp filter Multipath TCP and TCP Fast Open connect to any port";

/// Appends the ruleset. It handles every right that the ABI knows. It allows reading below the root, which
/// shows only grants, and writing where the view is writable.
pub(crate) fn ruleset(
    inputs: &Inputs<'_>,
    view: &View,
    setup: &mut Section,
    enforcement: &mut Enforcement,
) -> Result<(), Error> {
    let number = inputs.host.landlock_abi;
    if number == 0 {
        report_missing(inputs, Protection::Landlock, "this kernel has no Landlock", enforcement)?;
        report_ports(inputs, number, enforcement)?;
        return report_missing(inputs, Protection::LandlockScope, "this kernel has no Landlock", enforcement);
    }
    let abi = abi(number);
    let scopes: BitFlags<Scope> = Scope::from_all(abi);
    let policy = inputs.policy;
    let ports = if number < ABI_WITH_PORTS { None } else { ports_of_host(inputs) };
    let net = ports.as_ref().map_or(0, |_| BitFlags::from(AccessNet::ConnectTcp).bits());
    let ruleset = Step::LandlockRuleset { fs: AccessFs::from_all(abi).bits(), net, scoped: scopes.bits() };
    setup.push_by(policy, Protection::Landlock, &ruleset);
    for port in ports.into_iter().flatten() {
        let step = Step::LandlockPort { access: net, port: port.into() };
        setup.push_by(policy, Protection::LandlockNetwork, &step);
    }
    let mut rule = |path: &Path, access: BitFlags<AccessFs>| {
        let step = Step::LandlockRule { path: &relative(path), access: access.bits() };
        setup.push_by(policy, Protection::Landlock, &step);
    };
    rule(Path::new("/"), AccessFs::from_read(abi));
    rule(Path::new("/dev"), devices(abi));
    for (target, place) in view.iter() {
        // The rule of a private directory holds for the layers in it: rules hold across mounts.
        let is_in_private =
            || matches!(view.mount_above(target), Some((_, ViewEntry { node: Node::Private { .. }, .. })));
        if matches!(place.node, Node::Layered { .. }) && is_in_private() {
            continue;
        }
        if let Some(access) = allowed(place, abi) {
            rule(target, access);
        }
    }
    enforcement.set(Protection::Landlock, State::Enforced, detail(number));
    report_ports(inputs, number, enforcement)?;
    if number < ABI_WITH_SCOPES {
        let reason = format!("ABI {number} has no scopes: they came with Linux 6.12");
        return report_missing(inputs, Protection::LandlockScope, &reason, enforcement);
    }
    enforcement.set(Protection::LandlockScope, State::Enforced, "signals and abstract sockets stay inside");
    Ok(())
}

/// Reports whether TCP ports are restricted, if the policy asks for it.
fn report_ports(inputs: &Inputs<'_>, number: u32, enforcement: &mut Enforcement) -> Result<(), Error> {
    let Some(ports) = ports_of_host(inputs) else { return Ok(()) };
    if number < ABI_WITH_PORTS {
        let reason = format!("ABI {number} has no rules for TCP ports: they came with Linux 6.7");
        return report_missing(inputs, Protection::LandlockNetwork, &reason, enforcement);
    }
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    let detail = format!("TCP connections to port {} only; UDP is not narrowed", ports.join(", "));
    enforcement.set(Protection::LandlockNetwork, State::Enforced, detail);
    Ok(())
}

/// Whether the seccomp filter is required: required port rules can be bypassed without it.
pub(crate) fn needs_filter(inputs: &Inputs<'_>) -> bool {
    ports_of_host(inputs).is_some()
        && inputs.policy.effective_requirement(Protection::LandlockNetwork) == Requirement::Required
}

/// Reports that port rules can be bypassed, because there is no seccomp filter.
pub(crate) fn report_missing_filter(inputs: &Inputs<'_>, enforcement: &mut Enforcement) -> Result<(), Error> {
    if needs_filter(inputs) {
        return Err(Error::Unavailable {
            protection: Protection::LandlockNetwork,
            reason: WITHOUT_FILTER.to_owned(),
            remedy: Some(
                format!(
                    "use a kernel with CONFIG_SECCOMP_FILTER=y, {}",
                    go_without(Protection::LandlockNetwork)
                )
                .into(),
            ),
        });
    }
    enforcement.weaken(Protection::LandlockNetwork, WITHOUT_FILTER);
    Ok(())
}

/// Appends the step with which the payload enters the domain.
pub(crate) fn restrict(inputs: &Inputs<'_>, payload: &mut Section) {
    if inputs.host.landlock_abi > 0 {
        payload.push_by(inputs.policy, Protection::Landlock, &Step::LandlockRestrict {});
    }
}

/// Appends a domain that allows only to connect to one socket: no file, no port, no signal and no abstract
/// socket outside of the domain. From ABI 9 on, connecting to a path needs a right.
pub(crate) fn socket_only(inputs: &Inputs<'_>, socket: &CStr, walls: &mut Section) {
    let number = inputs.host.landlock_abi;
    if number == 0 {
        return;
    }
    let abi = abi(number);
    let (fs, net, scoped) = (AccessFs::from_all(abi), AccessNet::from_all(abi), Scope::from_all(abi));
    let ruleset = Step::LandlockRuleset { fs: fs.bits(), net: net.bits(), scoped: scoped.bits() };
    walls.push_by(inputs.policy, Protection::Landlock, &ruleset);
    let access = fs & AccessFs::ResolveUnix;
    if !access.is_empty() {
        let rule = Step::LandlockRule { path: socket, access: access.bits() };
        walls.push_by(inputs.policy, Protection::Landlock, &rule);
    }
    restrict(inputs, walls);
}

/// What an entry allows beyond reading, if anything.
fn allowed(place: &ViewEntry, abi: ABI) -> Option<BitFlags<AccessFs>> {
    let directory =
        AccessFs::from_all(abi) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    match &place.node {
        _ if place.origin == Origin::Wall => None,
        Node::Private { .. } | Node::Tmpfs { .. } | Node::Layered { .. } => Some(directory),
        Node::Root { is_writable: true } => Some(directory),
        Node::Bind { source, access: Access::Write } if source.is_dir() => Some(directory),
        Node::Bind { access: Access::Write, .. } => Some(directory & AccessFs::from_file(abi)),
        Node::Bind { source, access: Access::Device } if !source.path.starts_with("/dev") => {
            Some(devices(abi) & AccessFs::from_file(abi))
        }
        // Files of procfs that belong to the command's processes.
        Node::Proc { is_writable: true } => {
            Some((AccessFs::WriteFile | AccessFs::Truncate) & AccessFs::from_all(abi))
        }
        _ => None,
    }
}

fn devices(abi: ABI) -> BitFlags<AccessFs> {
    let wanted = AccessFs::ReadFile
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::IoctlDev
        | AccessFs::ReadDir;
    wanted & AccessFs::from_all(abi)
}

fn detail(number: u32) -> String {
    let known = abi(number) as u32;
    if number > known {
        return format!("ABI {number}, all file access rights up to ABI {known}");
    }
    format!("ABI {number}, all of its file access rights")
}

/// The crate's newest ABI stands for every newer one. Kennel does not handle rights that the crate does not
/// know.
fn abi(number: u32) -> ABI {
    ABI::from(i32::try_from(number).unwrap_or(i32::MAX))
}

/// Handles a protection that the host lacks: an error if the policy requires it, otherwise an entry `off` in
/// the report.
pub(crate) fn report_missing(
    inputs: &Inputs<'_>,
    protection: Protection,
    reason: &str,
    enforcement: &mut Enforcement,
) -> Result<(), Error> {
    if inputs.policy.effective_requirement(protection) == Requirement::Required {
        return Err(Error::Unavailable {
            protection,
            reason: reason.to_owned(),
            remedy: crate::host::remedy::remedy(protection, libc::ENOSYS),
        });
    }
    enforcement.set(protection, State::Off, reason);
    Ok(())
}
