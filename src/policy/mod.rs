//! The policy: what a sandbox may see, use and reach. Nouns only: plain data that says what is allowed.
//!
//! Nothing here asks the host anything, except [`Policy::load`], which reads the file it is given. How a
//! policy becomes namespaces and mounts is the business of `compile`.

pub(crate) mod address;
#[cfg(test)]
pub(crate) mod arbitrary;
pub(crate) mod audit;
pub(crate) mod builder;
pub(crate) mod cgroup;
pub(crate) mod destination;
pub(crate) mod env;
pub(crate) mod file;
pub(crate) mod limits;
pub(crate) mod mount;
pub(crate) mod mount_text;
pub(crate) mod network;
pub(crate) mod overlay;
pub(crate) mod profile;
pub(crate) mod require;
pub(crate) mod rule;
pub(crate) mod text;
pub(crate) mod units;
pub(crate) mod upstream;
pub(crate) mod validate;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::policy::audit::Audit;
use crate::policy::env::Env;
use crate::policy::limits::Limits;
use crate::policy::mount::Mount;
use crate::policy::network::Network;
use crate::policy::overlay::Overlay;
use crate::policy::profile::{OnUnavailable, Profile, TmpLife, Toolchains};
use crate::policy::require::Requirements;

/// What one sandbox is allowed, complete: the only input of the sandbox besides the command itself.
///
/// Built in code by [`Policy::profile`] and the methods below, or read from a file by [`Policy::load`].
/// Relative paths built in code are taken from the working directory of the process that prepares the
/// sandbox; those in a file from the directory of the file.
///
/// The fields are public and any value can be written into them; [`Policy::validate`] says whether they make
/// sense together, and is asked again before anything is started.
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
/// # Ok::<(), kennel::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// The set of grants to start from. Default: [`Profile::RepoWrite`].
    pub profile: Profile,
    /// The directory the commands work on, visible at its own path. Default: `.`.
    pub workspace: PathBuf,
    /// What is visible beyond the profile. The order does not matter.
    #[serde(deserialize_with = "mount_text::numbered")]
    pub mounts: Vec<Mount>,
    /// What can be reached.
    pub network: Network,
    /// Which environment variables the commands get.
    pub env: Env,
    /// How much the commands may use.
    pub limits: Limits,
    /// Whether toolchains kept outside the system directories are visible.
    pub toolchains: Toolchains,
    /// Whether the commands of a session share private places such as `/tmp`.
    pub tmp: TmpLife,
    /// Paths inside the workspace that stay read-only, in addition to what git obeys (`.git/hooks`, `.git/config` and the like).
    /// Relative to the workspace, or absolute and below it.
    pub protect: Vec<PathBuf>,
    /// Which protections may be missing.
    pub require: Requirements,
    /// What to do when the host cannot provide a required protection.
    pub on_unavailable: OnUnavailable,
    /// The host name that commands see. Default: `kennel`.
    pub hostname: String,
    /// Where commands start; must be visible inside. `None`: in the workspace.
    pub cwd: Option<PathBuf>,
    /// Whether changes to the workspace are collected until they are committed. `None`: they are written directly.
    pub overlay: Option<Overlay>,
    /// The audit log. `None`: no log.
    pub audit: Option<Audit>,
    /// Whether outcomes say which protection blocked what, as far as that is known: [`Outcome::denials`]. Default: false.
    ///
    /// Refused system calls then wait for a thread of the embedding program, which gives the same answer as the filter
    /// would. The stderr of a command that failed is searched if Kennel reads it: with [`Command::output`], and in
    /// [`Outcome::count`] for a pipe.
    ///
    /// [`Outcome::denials`]: crate::report::outcome::Outcome::denials
    /// [`Outcome::count`]: crate::report::outcome::Outcome::count
    /// [`Command::output`]: crate::command::Command::output
    pub explain: bool,
    /// The files that it was read from: [`Policy::load`] enters its own, and whoever has another way of reading policies may enter
    /// his. Commands that could write to them would decide about the next sandbox, so they stay read-only wherever a writable
    /// grant shows them. Absolute; links are followed. No part of a policy's text.
    #[serde(skip)]
    pub files: Vec<PathBuf>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy::profile(Profile::default(), ".")
    }
}

impl Policy {
    /// The plain profile over a workspace, nothing added.
    pub fn profile(profile: Profile, workspace: impl Into<PathBuf>) -> Policy {
        Policy {
            profile,
            workspace: workspace.into(),
            mounts: Vec::new(),
            network: Network::default(),
            env: Env::default(),
            limits: Limits::default(),
            toolchains: Toolchains::default(),
            tmp: TmpLife::default(),
            protect: Vec::new(),
            require: Requirements::default(),
            on_unavailable: OnUnavailable::default(),
            hostname: "kennel".to_owned(),
            cwd: None,
            overlay: None,
            audit: None,
            explain: false,
            files: Vec::new(),
        }
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
