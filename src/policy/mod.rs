//! The policy: plain data that says what a sandbox may see, use and reach.
//!
//! Nothing here asks the host, except [`Policy::load`], which reads a policy file. The folder `plan` turns a
//! policy into namespaces and mounts.

#[cfg(test)]
pub(crate) mod arbitrary;
pub(crate) mod audit;
pub(crate) mod builder;
pub(crate) mod cgroup;
pub(crate) mod env;
pub(crate) mod file;
pub(crate) mod glob;
pub(crate) mod image_upper;
pub(crate) mod known_variables;
pub(crate) mod limits;
pub(crate) mod mount;
pub(crate) mod mount_text;
pub(crate) mod network;
pub(crate) mod obeyed;
pub(crate) mod overlay;
pub(crate) mod path;
pub(crate) mod profile;
pub(crate) mod require;
pub(crate) mod secrets;
pub(crate) mod text;
pub(crate) mod units;
pub(crate) mod validate;
pub(crate) mod warm;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::policy::audit::Audit;
use crate::policy::env::Env;
use crate::policy::image_upper::ImageUpper;
use crate::policy::limits::Limits;
use crate::policy::mount::Mount;
use crate::policy::network::Network;
use crate::policy::overlay::Overlay;
use crate::policy::profile::{Caches, Git, Isolation, OnUnavailable, Profile, TmpLife, Toolchains};
use crate::policy::require::Requirements;
use crate::report::enforcement::Note;
use crate::report::remedy::Wording;

/// The host name of a policy that names none.
pub(crate) const HOST_NAME: &str = "kennel";

/// Everything that one sandbox is allowed: the only input of a sandbox besides the command.
///
/// Build it in code with [`Policy::profile`] and the methods below, or read it from a file with
/// [`Policy::load`]. In code, relative paths start at the working directory of the process that prepares the
/// sandbox. In a file, they start at the directory of the file.
///
/// The fields are public and accept any value. [`Policy::validate`] checks whether they make sense together.
/// Kennel calls it again before it starts anything.
///
/// ```
/// use kennel::{Policy, Profile};
/// use std::time::Duration;
///
/// let policy = Policy::profile(Profile::RepoWrite, "/home/me/repo")
///     .read_only("/srv/models")
///     .allow("crates.io:443")
///     .timeout(Duration::from_secs(60));
/// policy.validate()?;
/// # Ok::<(), kennel::report::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// The set of grants to start from. Default: [`Profile::RepoWrite`].
    pub profile: Profile,
    /// The directory the commands work on, visible at its own path. Default: `.`. An empty path stands for no
    /// workspace, which only a policy with another [`root`](Self::root) can have.
    pub workspace: PathBuf,
    /// Files and directories that are visible, or hidden, in addition to the profile. The order does not
    /// matter.
    #[serde(deserialize_with = "mount_text::deserialize_all")]
    pub mounts: Vec<Mount>,
    /// What the commands can reach over the network.
    pub network: Network,
    /// Which environment variables the commands get.
    pub env: Env,
    /// How much the commands may use.
    pub limits: Limits,
    /// Whether toolchains kept outside the system directories are visible.
    pub toolchains: Toolchains,
    /// What commands can do with the caches of package managers and compilers.
    pub caches: Caches,
    /// Whether the commands of a session share private places such as `/tmp`.
    pub tmp: TmpLife,
    /// What the commands of a session share with each other. `None`: nothing, as [`Isolation::Command`];
    /// `kennel session start` then takes [`Isolation::Session`]. A sandbox of one command has nothing to
    /// share.
    pub isolation: Option<Isolation>,
    /// Interpreters that a session starts before their command is known, each with the modules that it
    /// imports ahead: `python3` and `numpy`. A command that names one of them takes it over, and begins where
    /// the imports end. Only Python can be named. A sandbox of one command has no time to start one.
    pub warm: BTreeMap<String, Vec<String>>,
    /// What commands see and change of git repositories.
    pub git: Git,
    /// Paths inside the workspace that stay read-only, in addition to the files that git obeys (`.git/hooks`,
    /// `.git/config` and the like). Relative to the workspace, or absolute and below it.
    ///
    /// A path with `*`, `?`, `[` or `{` is a pattern, as in .gitignore: `*.key` matches at any depth,
    /// `src/*.key` only in `src`, and `**` means any number of directories. What matches is protected with
    /// everything in it.
    pub protect: Vec<PathBuf>,
    /// Which protections may be missing.
    pub require: Requirements,
    /// What to do when the host cannot provide a required protection.
    pub on_unavailable: OnUnavailable,
    /// An image of the [store](crate::image::Store) that is the root file system in place of the host's, by
    /// its name (`python:3.12`) or digest. All that [`root`](Self::root) says holds for it too; its user,
    /// variables and directory are those of commands.
    pub image: Option<String>,
    /// A directory that becomes the root file system in place of the host's: `None` shows the host's system.
    /// Commands can change all of it; their changes are in memory (but see
    /// [`image_upper`](Self::image_upper)), end with the sandbox, and share
    /// [`Limits::tmp_size`](crate::policy::limits::Limits::tmp_size). Of the host nothing is shown but what
    /// [`mounts`](Self::mounts) and a named workspace show. Changes in memory need Linux 6.6.
    pub root: Option<PathBuf>,
    /// The user that commands are in another [`root`](Self::root), as its own `/etc/passwd` and `/etc/group`
    /// have it: `NAME`, `UID`, and `:GROUP` or `:GID` after it. Every file of the root that belongs to the
    /// caller belongs to this user there. `None`: the image's, or root.
    pub user: Option<String>,
    /// The disk that holds what commands change in another root, until the session ends. `None`: the changes
    /// are in memory. The session must be one: a [`Sandbox`](crate::session::sandbox::Sandbox) keeps its
    /// changes in memory. [`Limits::tmp_size`](crate::policy::limits::Limits::tmp_size) does not limit a
    /// disk.
    pub image_upper: Option<ImageUpper>,
    /// The host name that commands see. Default: `kennel`; with a granted socket of an X server, the host's
    /// own.
    pub hostname: String,
    /// The working directory of commands; it must be visible in the sandbox. `None`: the workspace.
    pub cwd: Option<PathBuf>,
    /// Collects changes to the workspace until they are committed. `None`: commands write to the workspace
    /// directly.
    pub overlay: Option<Overlay>,
    /// The audit log. `None`: no log.
    pub audit: Option<Audit>,
    /// Whether outcomes say which protection blocked what, as far as Kennel knows: [`Outcome::denials`].
    /// Default: false.
    ///
    /// With it, a refused system call, and each one that names a path or connects, waits for a thread of the
    /// embedding program. That thread gives the same answer as the filter would, and lets what is allowed go
    /// on. So commands are slower.
    ///
    /// [`Outcome::denials`]: crate::report::outcome::Outcome::denials
    pub explain: bool,
    /// Whether commands may read nearly everything of the host, and [`Outcome::observed`] says what they
    /// used, so that a person can write a policy for them. Known secrets, `/run`, `/tmp` and homes of others
    /// stay hidden. What commands write to `HOME` goes to a copy. The proxy takes an answer of
    /// [`Sandbox::on_request`] for a name, never for a special address. Default: false. Not part of the text
    /// of a policy: no file turns it on.
    ///
    /// [`Outcome::observed`]: crate::report::outcome::Outcome::observed
    /// [`Sandbox::on_request`]: crate::session::sandbox::Sandbox::on_request
    #[serde(skip)]
    pub learn: bool,
    /// The files that this policy was read from. [`Policy::load`] adds its file; a program that reads
    /// policies in another way may add its own. A command that could write to them would decide about the
    /// next sandbox, so they stay read-only in every writable grant that shows them. Absolute; Kennel follows
    /// links. Not part of the text of a policy.
    #[serde(skip)]
    pub files: Vec<PathBuf>,
    /// What a person should know about how this policy was made, such as a file that was not used. The report
    /// has it among [`Enforcement::notes`](crate::report::enforcement::Enforcement::notes). Not part of the
    /// text of a policy.
    #[serde(skip)]
    pub notes: Vec<Note>,
    /// How Kennel names settings where it speaks itself: in lines for clients of a session, and in answers of
    /// the proxy. Not part of the text of a policy.
    #[serde(skip)]
    pub wording: Wording,
}

impl Default for Policy {
    fn default() -> Self {
        Policy::profile(Profile::default(), ".")
    }
}

impl Policy {
    /// A policy with this profile and workspace, and the default for everything else.
    pub fn profile(profile: Profile, workspace: impl Into<PathBuf>) -> Policy {
        Policy {
            profile,
            workspace: workspace.into(),
            mounts: Vec::new(),
            network: Network::default(),
            env: Env::default(),
            limits: Limits::default(),
            toolchains: Toolchains::default(),
            caches: Caches::default(),
            tmp: TmpLife::default(),
            isolation: None,
            warm: BTreeMap::new(),
            git: Git::default(),
            protect: Vec::new(),
            require: Requirements::default(),
            on_unavailable: OnUnavailable::default(),
            image: None,
            root: None,
            user: None,
            image_upper: None,
            hostname: HOST_NAME.to_owned(),
            cwd: None,
            overlay: None,
            audit: None,
            explain: false,
            learn: false,
            files: Vec::new(),
            notes: Vec::new(),
            wording: Wording::default(),
        }
    }

    /// Whether the root is not the host's.
    pub(crate) fn has_other_root(&self) -> bool {
        self.root.is_some() || self.image.is_some()
    }

    /// Whether there is a workspace.
    pub(crate) fn has_workspace(&self) -> bool {
        !self.has_other_root() || !self.workspace.as_os_str().is_empty()
    }

    /// Whether the commands of a session share their processes, mounts and IPC.
    pub(crate) fn shares_processes(&self) -> bool {
        self.isolation == Some(Isolation::Session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_repo_write_here() {
        let policy = Policy::default();
        assert_eq!(policy.profile, Profile::RepoWrite);
        assert_eq!(policy.workspace, PathBuf::from("."));
        assert_eq!(policy.hostname, "kennel");
        policy.validate().expect("the default policy is valid");
    }
}
