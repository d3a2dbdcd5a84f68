//! What one compilation looks at: the policy, the host, who asks, and what for.

use std::path::PathBuf;

use super::{cgroup::Groups, home::Names};
use crate::{
    caller::Caller,
    host::Host,
    policy::{Policy, Protection, Requirement},
    sys::{SpawnOptions, Users},
};

/// What one compilation looks at.
#[derive(Clone, Copy)]
pub(super) struct Parts<'p> {
    pub(super) policy: &'p Policy,
    pub(super) host: &'p Host,
    pub(super) caller: &'p Caller,
    pub(super) names: &'p Names,
    pub(super) shape: Shape,
    pub(super) subject: Subject<'p>,
    pub(super) groups: &'p Groups,
}

impl Parts<'_> {
    pub(super) fn users(&self) -> Users {
        users(self.policy, self.host, self.caller)
    }

    /// HOME inside: the caller's, except where nothing of it may be known.
    pub(super) fn home(&self) -> PathBuf {
        if self.policy.profile.meaning().knows_caller { self.caller.home.clone() } else { "/home/ci".into() }
    }
}

/// What the plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A single command: PID 1 is the zygote and its only worker.
    Once,
    /// The same for each of many commands.
    OneShot,
    /// Many commands, each in a worker of its own; that many are kept ready.
    Session { ready: usize },
}

impl Shape {
    pub(super) fn is_session(self) -> bool {
        matches!(self, Self::Session { .. })
    }
}

/// What a sandbox is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'s> {
    /// The policy's workspace.
    Workspace,
    /// A program that the spawn broker checked: there is no workspace, whatever the policy says.
    Program(Option<&'s OwnProgram>),
}

/// A program of which the sandbox has a copy of its own.
#[derive(Debug)]
pub(crate) struct OwnProgram {
    /// Where it lies inside, outside of everything of the host's.
    pub(crate) at: PathBuf,
    pub(crate) contents: Vec<u8>,
}

/// What the inside of this policy is started with.
pub(crate) fn spawn_options(policy: &Policy, host: &Host, caller: &Caller) -> SpawnOptions {
    SpawnOptions { users: users(policy, host, caller), overlays: policy.overlay.is_some() }
}

/// Whose users a sandbox has: a user namespace is gone without only where the policy may, by root.
fn users(policy: &Policy, host: &Host, caller: &Caller) -> Users {
    let may = policy.effective_requirement(Protection::UserNamespace) == Requirement::IfAvailable;
    if host.user_namespaces || !may || !caller.is_root() { Users::Own } else { Users::Callers }
}
