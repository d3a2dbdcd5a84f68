//! What one compilation looks at: the policy, the host, who asks, and what for.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::host::Host;
use crate::host::caller::Caller;
use crate::host::cgroups::Controller;
use crate::policy::Policy;
use crate::policy::require::Requirement;
use crate::report::enforcement::Protection;
use crate::sys::birth::{SpawnOptions, Users};

/// What one compilation looks at.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'p> {
    pub(crate) policy: &'p Policy,
    pub(crate) host: &'p Host,
    pub(crate) caller: &'p Caller,
    pub(crate) names: &'p HomeNames,
    pub(crate) shape: SandboxKind,
    pub(crate) subject: Subject<'p>,
    /// Controllers of the cgroups that hold its commands; `None` where there are no groups.
    pub(crate) controllers: Option<&'p [Controller]>,
}

impl Inputs<'_> {
    pub(crate) fn users(&self) -> Users {
        users(self.policy, self.host, self.caller)
    }

    /// HOME inside: the caller's, except where nothing of it may be known.
    pub(crate) fn home(&self) -> PathBuf {
        if self.policy.profile.meaning().knows_caller { self.caller.home.clone() } else { "/home/ci".into() }
    }
}

/// What the plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SandboxKind {
    /// A single command: PID 1 is the zygote and its only worker.
    Once,
    /// The same for each of many commands.
    OneShot,
    /// Many commands, each in a worker of its own; that many are kept ready.
    Session { ready: usize },
}

impl SandboxKind {
    pub(crate) fn is_session(self) -> bool {
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

// The names in the caller's homes, read once: most of what could lie there does not, and asking the kernel for
// each would cost more than everything else in a compilation.

/// What lies directly in each home; `None` for one that cannot be listed.
#[derive(Debug, Default)]
pub(crate) struct HomeNames {
    homes: Vec<(PathBuf, Option<HashSet<OsString>>)>,
}

impl HomeNames {
    /// Lists each home.
    pub(crate) fn read(homes: &[PathBuf]) -> Self {
        let names = |home: &PathBuf| {
            let entries = fs::read_dir(home).ok()?;
            // A name that could not be read is not one that is missing.
            entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>().ok()
        };
        Self { homes: homes.iter().map(|home| (home.clone(), names(home))).collect() }
    }

    /// Whether `path` can exist, as far as the listings tell.
    pub(crate) fn may_exist(&self, path: &Path) -> bool {
        let missing = |(home, names): &(PathBuf, Option<HashSet<OsString>>)| {
            let first = path.strip_prefix(home).ok().and_then(|below| below.iter().next());
            first.zip(names.as_ref()).is_some_and(|(first, names)| !names.contains(first))
        };
        !self.homes.iter().any(missing)
    }
}
