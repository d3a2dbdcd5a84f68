//! The identity of the command inside: namespaces, id maps, privileges, keyring. This file writes the steps
//! and runs none.

use std::ffi::CStr;

use Protection::*;
use kennel_helper::plan::Step;

use crate::plan::Section;
use crate::policy::network::NetworkMode;
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::sys::birth::{CAP_DAC_OVERRIDE, CAP_SYS_CHROOT, DAC_READ_SEARCH, Users};
use crate::view::desktop;
use crate::view::inputs::{Ids, Inputs};

/// Securebits that take real root's privileges from uid 0, and lock that: SECBIT_NOROOT,
/// SECBIT_NO_SETUID_FIXUP, SECBIT_NO_CAP_AMBIENT_RAISE and their locks (capabilities(7)).
const SECUREBITS: u64 = 0b1100_1111;

/// What root of another root keeps, as the bits of capset(2): package managers write to directories whose
/// mode forbids it, and run scripts with another root directory. Both hold for files of the caller alone,
/// which are those that the user namespace has an owner for.
const FAKE_ROOT: u32 = 1 << CAP_DAC_OVERRIDE | 1 << CAP_SYS_CHROOT;

/// The report if there is no user namespace.
const WITHOUT_USERS: &str = "refused by this host: commands run as the host's root, without capabilities";
/// The report on a command's view of its cgroup.
const CGROUP: &str = "its own cgroup appears as the root";

/// Appends the namespaces of PID 1. The user and pid namespaces exist when it starts. It makes the others one
/// by one, so that a failure names the namespace that the kernel refuses.
pub(crate) fn namespaces(inputs: &Inputs<'_>, setup: &mut Section, enforcement: &mut Enforcement) {
    users(inputs, setup, enforcement);
    enforcement.set(
        PidNamespace,
        State::Enforced,
        match inputs.are_shared() {
            false => "own processes only; init is out of reach",
            true => "the processes of the session; init is out of reach",
        },
    );
    let mut unshare = |protection, flag, detail| {
        self::unshare(inputs, setup, protection, flag);
        enforcement.set(protection, State::Enforced, detail);
    };
    unshare(MountNamespace, libc::CLONE_NEWNS, "own mount table");
    if !inputs.kind.is_session() {
        unshare(IpcNamespace, libc::CLONE_NEWIPC, "own System V and POSIX IPC");
    }
    unshare(UtsNamespace, libc::CLONE_NEWUTS, "own host name");
    // A zygote stays outside of a cgroup namespace. From within one, it could not have its workers born in
    // their cgroups (mount option nsdelegate, cgroups(7)).
    if inputs.controllers.is_none() || !inputs.kind.is_session() {
        unshare(CgroupNamespace, libc::CLONE_NEWCGROUP, CGROUP);
    }
    if inputs.policy.effective_network() == NetworkMode::Host {
        enforcement.not_asked(NetworkNamespace, "the policy grants the host's network");
    } else {
        enforcement.set(NetworkNamespace, State::Enforced, "own loopback, no way out");
        own_network(inputs, setup);
    }
    setup.push_by(
        inputs.policy,
        UtsNamespace,
        &Step::Hostname { name: desktop::host_name(inputs).as_bytes() },
    );
}

/// Appends the namespaces of each worker. Its pid namespace exists when it starts.
pub(crate) fn worker_namespaces(inputs: &Inputs<'_>, worker: &mut Section, enforcement: &mut Enforcement) {
    worker.push(MountNamespace, &Step::Unshare { flags: libc::CLONE_NEWNS.cast_unsigned() });
    worker.push(MountNamespace, &Step::EnterRoot {});
    unshare(inputs, worker, IpcNamespace, libc::CLONE_NEWIPC);
    enforcement.set(
        IpcNamespace,
        State::Enforced,
        match inputs.are_shared() {
            false => "own System V and POSIX IPC",
            true => "System V and POSIX IPC of the session",
        },
    );
    if inputs.controllers.is_some() {
        unshare(inputs, worker, CgroupNamespace, libc::CLONE_NEWCGROUP);
        enforcement.set(CgroupNamespace, State::Enforced, CGROUP);
    }
}

/// Appends the network namespace. With a proxy it is not optional: without a network namespace the whole host
/// could use the proxy, and the command could use the host's network.
fn own_network(inputs: &Inputs<'_>, setup: &mut Section) {
    if inputs.policy.effective_network() == NetworkMode::Proxy {
        return new_network(setup);
    }
    unshare(inputs, setup, Protection::NetworkNamespace, libc::CLONE_NEWNET);
    setup.push_by(inputs.policy, Protection::NetworkNamespace, &Step::LoopbackUp {});
}

/// Appends a new namespace of one kind.
///
/// Without a user namespace it is not optional: the inside then has capabilities of the host's root, so the
/// next steps would act on the host. A new mount namespace then needs one more step, so that its mounts do
/// not propagate to the host.
pub(crate) fn unshare(inputs: &Inputs<'_>, section: &mut Section, protection: Protection, flag: libc::c_int) {
    let step = Step::Unshare { flags: flag.cast_unsigned() };
    if inputs.users() == Users::Own {
        return section.push_by(inputs.policy, protection, &step);
    }
    section.push(protection, &step);
    if flag == libc::CLONE_NEWNS {
        section.push(protection, &Step::Separate {});
    }
}

/// Appends a network namespace that is not optional, such as that of one worker of a session.
pub(crate) fn new_network(steps: &mut Section) {
    let flags = libc::CLONE_NEWNET.cast_unsigned();
    steps.push(Protection::NetworkNamespace, &Step::Unshare { flags });
    steps.push(Protection::NetworkNamespace, &Step::LoopbackUp {});
}

/// The user and group ids inside. If there is a user namespace, it exists when PID 1 starts.
fn users(inputs: &Inputs<'_>, setup: &mut Section, enforcement: &mut Enforcement) {
    // With a second id, the outside writes the maps.
    if inputs.reader().is_none() {
        id_maps(inputs, setup);
    }
    match inputs.users() {
        Users::Own => {
            let detail = match inputs.reader() {
                None => "own user namespace, the caller's uid and gid only",
                Some(_) => "own user namespace, the caller's uid and gid, and one that owns nothing",
            };
            enforcement.set(Protection::UserNamespace, State::Enforced, detail);
        }
        Users::Callers => enforcement.set(Protection::UserNamespace, State::Off, WITHOUT_USERS),
    }
}

/// Appends the id maps. A process may map its own ids, one each, once it has denied setgroups(2)
/// (user_namespaces(7)).
pub(crate) fn id_maps(inputs: &Inputs<'_>, setup: &mut Section) {
    if inputs.users() == Users::Callers {
        return;
    }
    let Ids { user, group } = inputs.ids();
    let uids = format!("{user} {} 1\n", inputs.caller.uid);
    let gids = format!("{group} {} 1\n", inputs.caller.gid);
    let mut write = |path: &CStr, bytes: &[u8]| {
        setup.push(Protection::UserNamespace, &Step::Write { path, bytes });
    };
    write(c"/proc/self/setgroups", b"deny");
    write(c"/proc/self/uid_map", uids.as_bytes());
    write(c"/proc/self/gid_map", gids.as_bytes());
}

/// Appends an empty session keyring: the keys of the caller's session are then out of reach.
pub(crate) fn keyring(inputs: &Inputs<'_>, setup: &mut Section, enforcement: &mut Enforcement) {
    setup.push_by(inputs.policy, Protection::Keyring, &Step::NewKeyring {});
    enforcement.set(Protection::Keyring, State::Enforced, "new session keyring");
}

/// Appends the steps that give up every privilege for good. Init gives its own up too: it waits and signals
/// without any. What the commands of root of another root keep is in no effect before execve(2).
pub(crate) fn privileges(inputs: &Inputs<'_>, walls: &mut Section, enforcement: &mut Enforcement) {
    if !inputs.kind.is_session() {
        lock_privileges(walls);
    }
    let kept = if inputs.fakes_root() { FAKE_ROOT } else { 0 };
    walls.push(Protection::Capabilities, &Step::DropCapabilities { but: kept });
    let detail = match kept {
        0 => "none, bounding set empty",
        _ => {
            "in the sandbox's own user namespace CAP_DAC_OVERRIDE and CAP_SYS_CHROOT, which installing takes"
        }
    };
    enforcement.set(Protection::Capabilities, State::Enforced, detail);
    enforcement.set(Protection::NoNewPrivs, State::Enforced, "set-user-id programs gain nothing");
}

/// The step of a zygote that puts the right to search every directory aside, or of its worker that uses it.
/// Only with a user namespace of its own a zygote has it.
pub(crate) fn search(inputs: &Inputs<'_>, uses: bool) -> Section {
    let mut section = Section::default();
    if inputs.kind.is_session() && inputs.users() == Users::Own {
        let step = Step::SetEffective { capability: DAC_READ_SEARCH, has: uses.into() };
        section.push(Protection::Capabilities, &step);
    }
    section
}

/// Appends the steps after which nobody may trace this process, and execve(2) gives no capability back.
///
/// They cannot come earlier: a process that is not dumpable cannot write its id maps, because they belong to
/// root. Workers inherit all of it from their zygote. The zygote keeps its own capabilities for their set-up,
/// and runs no program.
pub(crate) fn lock_privileges(section: &mut Section) {
    section.push(Protection::PidNamespace, &prctl(libc::PR_SET_DUMPABLE, 0));
    section.push(Protection::Capabilities, &prctl(libc::PR_SET_SECUREBITS, SECUREBITS));
    section.push(Protection::Capabilities, &Step::DropBoundingSet {});
    section.push(Protection::NoNewPrivs, &prctl(libc::PR_SET_NO_NEW_PRIVS, 1));
}

/// Appends the steps after which nobody may trace this process, and execve(2) gives it no privilege.
pub(crate) fn no_tracing(section: &mut Section) {
    section.push(Protection::PidNamespace, &prctl(libc::PR_SET_DUMPABLE, 0));
    section.push(Protection::NoNewPrivs, &prctl(libc::PR_SET_NO_NEW_PRIVS, 1));
}

fn prctl(option: libc::c_int, argument: u64) -> Step<'static> {
    Step::Prctl { option: option.cast_unsigned(), argument }
}
