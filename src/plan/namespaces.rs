//! Who the command is inside: namespaces, id maps, privileges, keyring. Decides which steps, runs none.

use std::ffi::CStr;

use Protection::*;
use kennel_helper::plan::Step;

use crate::plan::Section;
use crate::policy::network::NetworkMode;
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::sys::birth::Users;
use crate::view::inputs::Inputs;

/// Securebits that take real root's privileges from uid 0, locked: SECBIT_NOROOT, SECBIT_NO_SETUID_FIXUP,
/// SECBIT_NO_CAP_AMBIENT_RAISE and their locks, of capabilities(7).
const SECUREBITS: u64 = 0b1100_1111;

/// What is said where there is no user namespace.
const WITHOUT_USERS: &str = "refused by this host: commands run as the host's root, without capabilities";
/// What a command sees of its own place among the cgroups.
const CGROUP: &str = "its own cgroup appears as the root";

/// The user and pid namespaces are there when PID 1 starts; the others are made one by one, so that a refusal
/// names the one that is refused.
pub(crate) fn namespaces(inputs: &Inputs<'_>, setup: &mut Section, enforcement: &mut Enforcement) {
    users(inputs, setup, enforcement);
    enforcement.set(PidNamespace, State::Enforced, "own processes only; init is out of reach");
    let mut unshare = |protection, flag, detail| {
        self::unshare(inputs, setup, protection, flag);
        enforcement.set(protection, State::Enforced, detail);
    };
    unshare(MountNamespace, libc::CLONE_NEWNS, "own mount table");
    if !inputs.shape.is_session() {
        unshare(IpcNamespace, libc::CLONE_NEWIPC, "own System V and POSIX IPC");
    }
    unshare(UtsNamespace, libc::CLONE_NEWUTS, "own host name");
    // A zygote stays where the groups of its workers are in sight: from within a namespace of its own it could have none
    // of them born elsewhere (mount option nsdelegate).
    if inputs.controllers.is_none() || !inputs.shape.is_session() {
        unshare(CgroupNamespace, libc::CLONE_NEWCGROUP, CGROUP);
    }
    if inputs.policy.effective_network() == NetworkMode::Host {
        enforcement.not_asked(NetworkNamespace, "the policy grants the host's network");
    } else {
        enforcement.set(NetworkNamespace, State::Enforced, "own loopback, no way out");
        own_network(inputs, setup);
    }
    setup.push_by(inputs.policy, UtsNamespace, &Step::Hostname { name: inputs.policy.hostname.as_bytes() });
}

/// What each worker has for itself. Its pid namespace is there when it starts.
pub(crate) fn worker_namespaces(inputs: &Inputs<'_>, worker: &mut Section, enforcement: &mut Enforcement) {
    worker.push(MountNamespace, &Step::Unshare { flags: libc::CLONE_NEWNS.cast_unsigned() });
    worker.push(MountNamespace, &Step::EnterRoot {});
    unshare(inputs, worker, IpcNamespace, libc::CLONE_NEWIPC);
    enforcement.set(IpcNamespace, State::Enforced, "own System V and POSIX IPC");
    if inputs.controllers.is_some() {
        unshare(inputs, worker, CgroupNamespace, libc::CLONE_NEWCGROUP);
        enforcement.set(CgroupNamespace, State::Enforced, CGROUP);
    }
}

/// A network namespace. Nothing replaces it where a proxy is to be the only way out: without it the proxy would be open
/// to the whole host, and the host's network to the command.
fn own_network(inputs: &Inputs<'_>, setup: &mut Section) {
    if inputs.policy.effective_network() == NetworkMode::Proxy {
        return new_network(setup);
    }
    unshare(inputs, setup, Protection::NetworkNamespace, libc::CLONE_NEWNET);
    setup.push_by(inputs.policy, Protection::NetworkNamespace, &Step::LoopbackUp {});
}

/// A new namespace of one kind. Where the capabilities of the inside are those of the host's root, none may be missing:
/// what comes next would be done to the host. Nor may mounts be seen there, which takes a step of its own then.
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

/// A network namespace that nothing goes without, such as that of one worker of a session.
pub(crate) fn new_network(steps: &mut Section) {
    let flags = libc::CLONE_NEWNET.cast_unsigned();
    steps.push(Protection::NetworkNamespace, &Step::Unshare { flags });
    steps.push(Protection::NetworkNamespace, &Step::LoopbackUp {});
}

/// Who there is inside. The user namespace is there when PID 1 starts, if there is one.
fn users(inputs: &Inputs<'_>, setup: &mut Section, enforcement: &mut Enforcement) {
    id_maps(inputs, setup);
    match inputs.users() {
        Users::Own => {
            let detail = "own user namespace, the caller's uid and gid only";
            enforcement.set(Protection::UserNamespace, State::Enforced, detail);
        }
        Users::Callers => enforcement.set(Protection::UserNamespace, State::Off, WITHOUT_USERS),
    }
}

/// user_namespaces(7): a process may map its own ids, one each, once setgroups(2) is denied.
pub(crate) fn id_maps(inputs: &Inputs<'_>, setup: &mut Section) {
    if inputs.users() == Users::Callers {
        return;
    }
    let uids = format!("{0} {0} 1\n", inputs.caller.uid);
    let gids = format!("{0} {0} 1\n", inputs.caller.gid);
    let mut write = |path: &CStr, bytes: &[u8]| {
        setup.push(Protection::UserNamespace, &Step::Write { path, bytes });
    };
    write(c"/proc/self/setgroups", b"deny");
    write(c"/proc/self/uid_map", uids.as_bytes());
    write(c"/proc/self/gid_map", gids.as_bytes());
}

/// An empty session keyring: keys of the caller's session are out of reach.
pub(crate) fn keyring(inputs: &Inputs<'_>, setup: &mut Section, enforcement: &mut Enforcement) {
    setup.push_by(inputs.policy, Protection::Keyring, &Step::NewKeyring {});
    enforcement.set(Protection::Keyring, State::Enforced, "new session keyring");
}

/// Takes every privilege away, for good. Init gives its own up too: it needs none to wait and to signal.
pub(crate) fn privileges(inputs: &Inputs<'_>, walls: &mut Section, enforcement: &mut Enforcement) {
    if !inputs.shape.is_session() {
        without_comeback(walls);
    }
    walls.push(Protection::Capabilities, &Step::DropCapabilities {});
    enforcement.set(Protection::Capabilities, State::Enforced, "none, bounding set empty");
    enforcement.set(Protection::NoNewPrivs, State::Enforced, "set-user-id programs gain nothing");
}

/// Nobody may trace this process or look into it, and no program can give capabilities back. Earlier, its id maps could
/// not be written, which belong to root once it is not dumpable. Workers inherit all of it from their zygote, which
/// keeps its own capabilities for them and runs no program.
pub(crate) fn without_comeback(section: &mut Section) {
    section.push(Protection::PidNamespace, &prctl(libc::PR_SET_DUMPABLE, 0));
    section.push(Protection::Capabilities, &prctl(libc::PR_SET_SECUREBITS, SECUREBITS));
    section.push(Protection::Capabilities, &Step::DropBoundingSet {});
    section.push(Protection::NoNewPrivs, &prctl(libc::PR_SET_NO_NEW_PRIVS, 1));
}

/// Nobody may trace this process or look into it, and it gets no privilege by execve(2).
pub(crate) fn untouchable(section: &mut Section) {
    section.push(Protection::PidNamespace, &prctl(libc::PR_SET_DUMPABLE, 0));
    section.push(Protection::NoNewPrivs, &prctl(libc::PR_SET_NO_NEW_PRIVS, 1));
}

fn prctl(option: libc::c_int, argument: u64) -> Step<'static> {
    Step::Prctl { option: option.cast_unsigned(), argument }
}
