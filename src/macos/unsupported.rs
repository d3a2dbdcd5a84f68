//! What macOS cannot hold: which policies are refused for it, and what the report of a command says.

use std::path::PathBuf;

use Protection::{
    Capabilities, CgroupNamespace, CoreDumps, CpuTime, Cpus, Cpuset, FileSize, Io, IpcNamespace, Keyring,
    Landlock, LandlockNetwork, LandlockScope, Memory, MountNamespace, NetworkNamespace, NoNewPrivs,
    OpenFiles, PidNamespace, Pids, ProtectedPaths, Proxy, Root, Seccomp, UserNamespace, UtsNamespace,
};

use crate::policy::Policy;
use crate::policy::cgroup::Cgroup;
use crate::policy::mount::Mount;
use crate::policy::network::NetworkMode;
use crate::policy::profile::{Caches, Git, Isolation};
use crate::policy::require::Requirement;
use crate::policy::{HOST_NAME, glob};
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::report::error::Error;
use crate::report::error::policy::PolicyError;
use crate::report::remedy::Remedy;

/// What is off on every Mac, and what that means.
const OFF: &[(Protection, &str)] = &[
    (UserNamespace, "macOS has no namespaces: the command runs as the caller"),
    (MountNamespace, "macOS has no namespaces: the command sees the host's file tree"),
    (IpcNamespace, "macOS has no namespaces: shared memory and semaphores are those of the host"),
    (UtsNamespace, "macOS has no namespaces: the host name is the host's"),
    (Capabilities, "macOS has no capabilities"),
    (Seccomp, "macOS has no filter of system calls"),
    (Landlock, "macOS has no Landlock: see root"),
];

/// What Seatbelt does, and how it is weaker than on Linux.
const DEGRADED: &[(Protection, &str)] = &[
    (Root, "by Seatbelt: what is not granted exists, and cannot be opened"),
    (PidNamespace, "by Seatbelt: other processes are there, and get no signal from the command"),
    (NoNewPrivs, "macOS refuses set-user-ID programs in a sandbox"),
];

/// Refuses a policy that macOS cannot hold. Returns what is enforced for any other.
///
/// # Errors
/// The key of the policy and why, or the protection that it requires.
pub(crate) fn checked(policy: &Policy) -> Result<Enforcement, Error> {
    if policy.profile.meaning().is_strict {
        return Err(unavailable(
            Root,
            "macOS cannot enforce everything that the profile ci-only requires",
            "run it on Linux, or choose the profile repo-write",
        ));
    }
    refuse_keys(policy)?;
    let enforcement = enforcement(policy);
    for entry in enforcement.protections() {
        if entry.state != State::Enforced && policy.require.get(entry.name) == Some(Requirement::Required) {
            let remedy = "write if_available, or run it on Linux";
            return Err(unavailable(entry.name, &entry.detail, remedy));
        }
        let is_limit = entry.name.is_limit() && entry.state == State::Off;
        if is_limit && policy.effective_requirement(entry.name) == Requirement::Required {
            let remedy = "leave the limit out, or require it only if it is available";
            return Err(unavailable(entry.name, &entry.detail, remedy));
        }
    }
    Ok(enforcement)
}

fn unavailable(protection: Protection, reason: &str, remedy: &'static str) -> Error {
    Error::Unavailable { protection, reason: reason.to_owned(), remedy: Some(Remedy::from(remedy)) }
}

/// Keys that mean something which a process of the host cannot have.
fn refuse_keys(policy: &Policy) -> Result<(), PolicyError> {
    let no =
        |key: &str, value: &dyn std::fmt::Display, reason: &str| Err(PolicyError::value(key, value, reason));
    for (index, mount) in policy.mounts.iter().enumerate() {
        let key = format!("mounts[{index}]");
        let shown = mount.target().display();
        match mount {
            Mount::ReadOnly { source, target } | Mount::ReadWrite { source, target } => {
                if target.as_ref().is_some_and(|target| target != source) {
                    return no(&key, &shown, "macOS shows a file only at its own path");
                }
            }
            Mount::Mask { path } if glob::is_pattern(path) => {
                return no(&key, &shown, "macOS hides no patterns: name the paths");
            }
            Mount::Mask { .. } => {}
            _ => return no(&key, &shown, "macOS has no mounts of its own for a command"),
        }
    }
    if let Some(pattern) = policy.protect.iter().find(|path| glob::is_pattern(path)) {
        return no("protect", &pattern.display(), "macOS protects no patterns: name the paths");
    }
    if let Some(port) = policy.network.publish.first() {
        return no("network.publish", port, "a server listens on the host itself on macOS");
    }
    if let Some(proxy) = &policy.network.proxy {
        return no("network.proxy", &proxy.unix.display(), "macOS has no bridge to another proxy");
    }
    if policy.effective_network() == NetworkMode::Host
        && let Some(rule) = policy.network.allow.first()
    {
        return no("network.allow", rule, "macOS does not restrict the ports of the host's network");
    }
    if let Some(image) = &policy.image {
        return no("image", image, "macOS has no other root file system");
    }
    if let Some(root) = &policy.root {
        return no("root", &root.display(), "macOS has no other root file system");
    }
    if let Some(upper) = &policy.image_upper {
        return no(
            "image_upper",
            &PathBuf::from(upper.clone()).display(),
            "macOS has no other root file system",
        );
    }
    if policy.overlay.is_some() {
        return no("overlay", &"…", "macOS has no overlays");
    }
    if policy.learn {
        return no("learn", &true, "macOS does not tell what a command used");
    }
    if policy.explain {
        return no("explain", &true, "macOS does not tell what it refused");
    }
    if matches!(policy.caches, Caches::Keep | Caches::None) {
        return no("caches", &policy.caches, "macOS shows caches, read-only");
    }
    let limits = &policy.limits;
    if let Some(size) = limits.tmp_size {
        return no("limits.tmp_size", &size, "the temporary directory is on the disk on macOS");
    }
    if let Some(count) = limits.tmp_inodes {
        return no("limits.tmp_inodes", &count, "the temporary directory is on the disk on macOS");
    }
    if let Cgroup::At(directory) = &limits.cgroup {
        return no("limits.cgroup", &directory.display(), "macOS has no cgroups");
    }
    if policy.isolation == Some(Isolation::Session) {
        return no("isolation", &Isolation::Session, "macOS has no namespaces that commands could share");
    }
    if let Some(program) = policy.warm.keys().next() {
        return no("warm", program, "macOS starts no interpreter ahead");
    }
    if policy.hostname != HOST_NAME {
        return no("hostname", &policy.hostname, "the host name is the host's on macOS");
    }
    if matches!(policy.git, Git::ReadOnly | Git::Workspace) {
        return no("git", &policy.git, "macOS knows protect and trust");
    }
    Ok(())
}

/// What is enforced for a command of this policy.
pub(crate) fn enforcement(policy: &Policy) -> Enforcement {
    let mut enforcement = Enforcement::default();
    for (protection, detail) in OFF {
        enforcement.set(*protection, State::Off, *detail);
    }
    for (protection, detail) in DEGRADED {
        enforcement.set(*protection, State::Degraded, *detail);
    }
    for protection in [CgroupNamespace, LandlockScope, LandlockNetwork, Keyring] {
        enforcement.not_asked(protection, "only Linux has this");
    }
    network(policy, &mut enforcement);
    enforcement.set(CoreDumps, State::Enforced, "no core files (RLIMIT_CORE)");
    match policy.git {
        Git::Trust if policy.protect.is_empty() => {
            enforcement.not_asked(ProtectedPaths, "the policy protects nothing");
        }
        Git::Trust => enforcement.set(ProtectedPaths, State::Enforced, "by Seatbelt"),
        _ => enforcement.set(
            ProtectedPaths,
            State::Degraded,
            "by Seatbelt: what git obeys in directories named .git, which commands cannot make either",
        ),
    }
    limits(policy, &mut enforcement);
    enforcement.add_notes(policy.notes.iter().cloned());
    enforcement
}

fn network(policy: &Policy, enforcement: &mut Enforcement) {
    let shared = "by Seatbelt: there is no network of its own, so no loopback either";
    match policy.effective_network() {
        NetworkMode::Host => {
            enforcement.not_asked(NetworkNamespace, "the policy grants the host's network");
        }
        NetworkMode::None => enforcement.set(NetworkNamespace, State::Degraded, shared),
        NetworkMode::Proxy => {
            enforcement.set(NetworkNamespace, State::Degraded, shared);
            let detail = "by Seatbelt: only the proxy's port of loopback, for programs that know a proxy";
            enforcement.set(Proxy, State::Degraded, detail);
        }
    }
}

fn limits(policy: &Policy, enforcement: &mut Enforcement) {
    for protection in [Memory, Pids, Cpus, Cpuset, Io] {
        if policy.limits.asks_for(protection) {
            enforcement.set(protection, State::Off, "macOS has no cgroups");
        } else {
            enforcement.not_asked(protection, "the policy sets no limit");
        }
    }
    for protection in [CpuTime, OpenFiles, FileSize] {
        if policy.limits.asks_for(protection) {
            enforcement.set(protection, State::Enforced, "of each process (setrlimit)");
        } else {
            enforcement.not_asked(protection, "the policy sets no limit");
        }
    }
}
