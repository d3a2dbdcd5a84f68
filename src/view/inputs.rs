//! The inputs of one compilation: policy, host, caller, and what the sandbox is for.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{fs, io};

use crate::caller::Caller;
use crate::host::cgroups::Controller;
use crate::host::mounts::MountTable;
use crate::host::{Host, READER};
use crate::policy::Policy;
use crate::policy::profile::{Caches, Toolchains};
use crate::policy::require::Requirement;
use crate::report::enforcement::Protection;
use crate::sys::birth::{SpawnOptions, Users};
use crate::sys::lexical;
use crate::sys::lexical::clean;
use crate::view::root::OtherRoot;

/// The inputs of one compilation.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'p> {
    pub(crate) policy: &'p Policy,
    pub(crate) host: &'p Host,
    pub(crate) caller: &'p Caller,
    pub(crate) names: &'p HomeNames,
    pub(crate) kind: SandboxKind,
    pub(crate) subject: Subject<'p>,
    /// The root, if that is not the host's.
    pub(crate) root: Option<&'p Arc<OtherRoot>>,
    /// Controllers of the cgroups that hold the commands; `None` if there are no cgroups.
    pub(crate) controllers: Option<&'p [Controller]>,
}

impl Inputs<'_> {
    pub(crate) fn users(&self) -> Users {
        users(self.policy, self.host, self.caller)
    }

    /// Whether the sandbox shows the host's /etc together with files of its own. Profile `ci-only` shows only
    /// a few files.
    pub(crate) fn merges_etc(&self) -> bool {
        merges_etc(self.policy, self.host)
    }

    /// Whether the commands of a session share processes, mounts and IPC.
    pub(crate) fn are_shared(&self) -> bool {
        self.kind.is_session() && self.policy.shares_processes()
    }

    /// As [`reader`].
    pub(crate) fn reader(&self) -> Option<u32> {
        reader(self.policy, self.host, self.caller)
    }

    /// The variables of the caller that are passed on by name, with their values.
    pub(crate) fn passed(&self) -> Vec<(&str, &OsStr)> {
        match self.subject {
            Subject::Workspace => {
                let names = self.policy.env.pass.iter();
                names.filter_map(|name| Some((&**name, self.caller.variable(name)?))).collect()
            }
            Subject::Program(ProgramInputs { variables, .. }) => {
                variables.iter().map(|(name, value)| (&**name, &**value)).collect()
            }
        }
    }

    /// The user and group ids of commands.
    pub(crate) fn ids(&self) -> Ids {
        match self.root {
            Some(root) => Ids { user: root.user.uid, group: root.user.gid },
            None => Ids { user: self.caller.uid, group: self.caller.gid },
        }
    }

    /// Whether commands are root of another root, in a user namespace of its own. Such a root can install
    /// packages.
    pub(crate) fn fakes_root(&self) -> bool {
        self.root.is_some_and(|root| root.user.uid == 0) && self.users() == Users::Own
    }

    /// HOME inside: that of another root's user; else the caller's, unless the profile hides everything about
    /// the caller.
    pub(crate) fn home(&self) -> PathBuf {
        if let Some(root) = self.root {
            return root.user.home.clone();
        }
        if self.policy.profile.meaning().knows_caller { self.caller.home.clone() } else { "/home/ci".into() }
    }
}

/// A user and a group id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// How many commands the sandbox is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SandboxKind {
    /// One command. PID 1 is the zygote and its only worker.
    Once,
    /// One of many one-shots with the same policy.
    OneShot,
    /// Many commands, each in its own worker. Kennel keeps `ready` workers waiting.
    Session { ready: usize },
}

impl SandboxKind {
    pub(crate) fn is_session(self) -> bool {
        matches!(self, Self::Session { .. })
    }
}

/// What the sandbox is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'s> {
    /// The workspace of the policy.
    Workspace,
    /// A program that the spawn broker checked. There is no workspace, even if the policy has one.
    Program(ProgramInputs<'s>),
}

/// What the spawn broker decided about a program, beside its policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramInputs<'s> {
    /// The copy of the program, if it runs from one.
    pub(crate) own: Option<&'s OwnProgram>,
    /// The variables of the caller that it gets.
    pub(crate) variables: &'s BTreeMap<String, OsString>,
}

/// A program that Kennel copies into the sandbox.
#[derive(Debug)]
pub(crate) struct OwnProgram {
    /// Its path in the sandbox, outside of everything that the host provides.
    pub(crate) at: PathBuf,
    pub(crate) contents: Vec<u8>,
}

/// How PID 1 of this policy is started.
pub(crate) fn spawn_options(policy: &Policy, host: &Host, caller: &Caller) -> SpawnOptions {
    let overlays = policy.overlay.is_some() || policy.has_other_root() || may_have_layers(policy);
    let users = users(policy, host, caller);
    SpawnOptions {
        users,
        overlays,
        chroots: policy.shares_processes() || policy.has_other_root() && users == Users::Own,
        overtakes: false,
        reader: reader(policy, host, caller),
    }
}

/// Whether sandboxes of this policy may have layers.
pub(crate) fn may_have_layers(policy: &Policy) -> bool {
    matches!(policy.caches, Caches::Private | Caches::Keep)
        && !policy.has_other_root()
        && policy.toolchains == Toolchains::Auto
        && policy.profile.meaning().knows_caller
}

fn merges_etc(policy: &Policy, host: &Host) -> bool {
    host.etc_overlays && !policy.has_other_root() && policy.profile.meaning().knows_caller
}

/// The id as which a sandbox of root opens files of /etc. Other callers have only their own: the kernel keeps
/// what they may not read from them anyway.
fn reader(policy: &Policy, host: &Host, caller: &Caller) -> Option<u32> {
    (caller.is_root() && merges_etc(policy, host)).then_some(READER)
}

/// The user namespace. A sandbox does without one only if the host refuses it, the policy allows that, and
/// the caller is root.
pub(crate) fn users(policy: &Policy, host: &Host, caller: &Caller) -> Users {
    let may = policy.effective_requirement(Protection::UserNamespace) == Requirement::IfAvailable;
    if host.user_namespaces || !may || !caller.is_root() { Users::Own } else { Users::Callers }
}

/// Directories of a home with many of the paths that Kennel looks for.
const LISTED: &[&str] = &["", ".cache", ".config", ".local/share"];

/// The names in each home and in some of its directories.
///
/// Kennel lists each of them once. Most of the paths that it looks for do not exist, and one system call for
/// each of them would take longer than the rest of a compilation.
#[derive(Debug, Default)]
pub(crate) struct HomeNames {
    /// A directory that cannot be listed is not among them, and one that does not exist has no names.
    directories: Vec<(PathBuf, BTreeSet<OsString>)>,
    /// The mounts of the host, once somebody asks.
    mounts: OnceLock<MountTable>,
}

impl HomeNames {
    /// Lists each home and those of its directories.
    pub(crate) fn read(homes: &[PathBuf]) -> Self {
        let names = |directory: &Path| match fs::read_dir(directory) {
            // If one name cannot be read, the listing is incomplete: then nothing is known to be missing.
            Ok(entries) => entries.map(|entry| entry.map(|entry| entry.file_name())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(error),
        };
        let mut all = Self::default();
        for path in homes.iter().flat_map(|home| LISTED.iter().map(|name| clean(home.join(name)))) {
            if all.may_exist(&path)
                && let Ok(names) = names(&path)
            {
                all.directories.push((path, names));
            }
        }
        all
    }

    /// The mounts of the host, read at the first call.
    ///
    /// # Errors
    /// If /proc is not readable.
    pub(crate) fn mounts(&self) -> io::Result<&MountTable> {
        match self.mounts.get() {
            Some(table) => Ok(table),
            None => MountTable::read().map(|table| self.mounts.get_or_init(|| table)),
        }
    }

    /// Whether `path` may exist, as far as the listings say.
    pub(crate) fn may_exist(&self, path: &Path) -> bool {
        self.directories.iter().all(|(directory, names)| may_be_among(names, lexical::below(path, directory)))
    }

    /// Whether `below`, a relative path, may exist in `home`. The same as [`may_exist`](Self::may_exist) of
    /// both together, which need not be put together for each row of a table.
    pub(crate) fn may_have(&self, home: &Path, below: &str) -> bool {
        let below = Path::new(below);
        self.directories.iter().all(|(directory, names)| {
            let rest = match lexical::below(directory, home) {
                Some(listed) if listed.as_os_str().is_empty() => Some(below),
                listed => listed.and_then(|listed| lexical::below(below, listed)),
            };
            may_be_among(names, rest)
        })
    }
}

/// Whether the first part of `path` is one of a directory's `names`, if it is a path in that directory.
fn may_be_among(names: &BTreeSet<OsString>, path: Option<&Path>) -> bool {
    let first = path.and_then(|path| path.as_os_str().as_bytes().split(|byte| *byte == b'/').next());
    // What is spelled otherwise is not looked up: `/home/me//.npm`.
    first.is_none_or(|first| matches!(first, b"" | b"." | b"..") || names.contains(OsStr::from_bytes(first)))
}
