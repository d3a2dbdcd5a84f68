//! The policy: what a sandbox may see, use and reach. Nouns only: plain data that says what is allowed.
//!
//! Nothing here asks the host anything, except [`Policy::load`], which reads the file it is given. How a
//! policy becomes namespaces and mounts is the business of `compile`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[cfg(test)]
pub(crate) mod arbitrary;
mod audit;
mod cgroup;
mod env;
mod error;
mod file;
mod limits;
mod mount;
mod mount_text;
mod network;
mod overlay;
mod profile;
mod require;
pub(crate) mod text;
mod units;
mod validate;
pub(crate) mod words;

pub use audit::Audit;
pub(crate) use audit::DATE;
pub(crate) use cgroup::processors;
pub use cgroup::{Cgroup, IoLimits};
pub use env::{Env, EnvBase};
pub use error::PolicyError;
pub(crate) use error::{shown, told};
pub use limits::Limits;
pub use mount::Mount;
pub use network::{ForeignProxy, Network, NetworkLimits, NetworkMode};
pub use overlay::Overlay;
pub use profile::{OnUnavailable, Profile, TmpLife, Toolchains};
pub use require::{Protection, Requirement, Requirements};
pub use units::{Size, Span};
pub(crate) use validate::{has_parent, without_dots};

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
    /// [`Outcome::denials`]: crate::Outcome::denials
    /// [`Outcome::count`]: crate::Outcome::count
    /// [`Command::output`]: crate::Command::output
    pub explain: bool,
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
        }
    }

    /// Shows a file or directory of the host, read-only, at its own path.
    #[must_use]
    pub fn read_only(self, path: impl Into<PathBuf>) -> Self {
        self.mount(Mount::ReadOnly { source: path.into(), target: None })
    }

    /// Shows a file or directory of the host, writable, at its own path.
    #[must_use]
    pub fn read_write(self, path: impl Into<PathBuf>) -> Self {
        self.mount(Mount::ReadWrite { source: path.into(), target: None })
    }

    /// Adds one mount of any kind.
    #[must_use]
    pub fn mount(mut self, mount: Mount) -> Self {
        self.mounts.push(mount);
        self
    }

    /// Hides a path that would be visible: a directory becomes empty, a file unreadable.
    #[must_use]
    pub fn mask(self, path: impl Into<PathBuf>) -> Self {
        self.mount(Mount::Mask { path: path.into() })
    }

    /// Puts an empty, writable directory in memory at `target`, of at most `size`.
    #[must_use]
    pub fn tmpfs(self, target: impl Into<PathBuf>, size: Option<Size>) -> Self {
        self.mount(Mount::Tmpfs { target: target.into(), size })
    }

    /// Lets the proxy allow connections to `host:port`; see [`Network::allow`] for the forms.
    #[must_use]
    pub fn allow(mut self, rule: impl Into<String>) -> Self {
        self.network.allow.push(rule.into());
        self
    }

    /// Makes the proxy refuse connections to `host:port`, whatever is allowed.
    #[must_use]
    pub fn deny(mut self, rule: impl Into<String>) -> Self {
        self.network.deny.push(rule.into());
        self
    }

    /// Collects changes to the workspace until they are committed.
    #[must_use]
    pub fn overlay(mut self, overlay: Overlay) -> Self {
        self.overlay = Some(overlay);
        self
    }

    /// Logs what happens: to the file of that path, or as [`Audit`] says.
    #[must_use]
    pub fn audit(mut self, audit: impl Into<Audit>) -> Self {
        self.audit = Some(audit.into());
        self
    }

    /// Makes outcomes say which protection blocked what.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), kennel::Error> {
    /// use kennel::{Policy, Sandbox};
    ///
    /// let sandbox = Sandbox::new(&Policy::default().explain(true))?;
    /// let output = sandbox.command("touch").arg("/etc/motd").output().await?;
    /// for denial in &output.denials {
    ///     println!("{}: {} ({:?})", denial.protection, denial.subject, denial.basis);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn explain(mut self, explain: bool) -> Self {
        self.explain = explain;
        self
    }

    /// Sets the network mode, whatever the profile says; see [`Policy::effective_network`].
    #[must_use]
    pub fn network_mode(mut self, mode: NetworkMode) -> Self {
        self.network.mode = Some(mode);
        self
    }

    /// Replaces the whole environment description.
    #[must_use]
    pub fn env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// Passes one variable of the caller's environment on, if it is set there.
    #[must_use]
    pub fn pass_env(mut self, name: impl Into<String>) -> Self {
        self.env.pass.push(name.into());
        self
    }

    /// Sets one variable; it wins over one that is passed on.
    #[must_use]
    pub fn set_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.set.insert(name.into(), value.into());
        self
    }

    /// Replaces all limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Kills a command that runs for longer than this.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.limits.timeout = Some(timeout.into());
        self
    }

    /// Whether the commands of a session share private places such as `/tmp`.
    #[must_use]
    pub fn tmp(mut self, tmp: TmpLife) -> Self {
        self.tmp = tmp;
        self
    }

    /// Whether toolchains kept outside the system directories are visible.
    #[must_use]
    pub fn toolchains(mut self, toolchains: Toolchains) -> Self {
        self.toolchains = toolchains;
        self
    }

    /// Keeps a path inside the workspace read-only.
    #[must_use]
    pub fn protect(mut self, path: impl Into<PathBuf>) -> Self {
        self.protect.push(path.into());
        self
    }

    /// Says whether one protection may be missing.
    #[must_use]
    pub fn require(mut self, protection: Protection, requirement: Requirement) -> Self {
        self.require.set(protection, requirement);
        self
    }

    /// What to do when the host cannot provide a required protection.
    #[must_use]
    pub fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.on_unavailable = on_unavailable;
        self
    }

    /// The host name that commands see.
    #[must_use]
    pub fn hostname(mut self, hostname: impl Into<String>) -> Self {
        self.hostname = hostname.into();
        self
    }

    /// Where commands start.
    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = Some(cwd.into());
        self
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

    #[test]
    fn builder_methods_fill_the_field_they_name() {
        let size = Size::from_bytes(4096);
        let policy = Policy::profile(Profile::FullDev, "/w")
            .read_only("/ro")
            .read_write("/rw")
            .mask("/mask")
            .tmpfs("/t", Some(size))
            .network_mode(NetworkMode::Proxy)
            .allow("a:1")
            .deny("b:2")
            .audit("/log")
            .overlay(Overlay::default())
            .explain(true)
            .env(Env { base: EnvBase::Inherit, ..Env::default() })
            .pass_env("CI")
            .set_env("A", "b")
            .limits(Limits { pids: Some(3), ..Limits::default() })
            .timeout(Duration::from_secs(1))
            .toolchains(Toolchains::None)
            .protect(".env")
            .require(Protection::Landlock, Requirement::IfAvailable)
            .on_unavailable(OnUnavailable::Degrade)
            .hostname("h")
            .cwd("/w/sub");
        policy.validate().expect("valid");
        assert_eq!(policy.mounts.len(), 4);
        assert_eq!(policy.mounts[3], Mount::Tmpfs { target: "/t".into(), size: Some(size) });
        assert_eq!(policy.network.mode, Some(NetworkMode::Proxy));
        assert_eq!(
            (&*policy.network.allow, &*policy.network.deny),
            (&["a:1".into()][..], &["b:2".into()][..])
        );
        assert_eq!(policy.audit, Some(Audit::new("/log")));
        assert_eq!(policy.overlay, Some(Overlay::default()));
        assert!(policy.explain);
        assert_eq!(policy.env.base, EnvBase::Inherit);
        assert_eq!(policy.env.pass, ["CI"]);
        assert_eq!(policy.env.set["A"], "b");
        assert_eq!(policy.limits.pids, Some(3));
        assert_eq!(policy.limits.timeout, Some(Duration::from_secs(1).into()));
        assert_eq!(policy.toolchains, Toolchains::None);
        assert_eq!(policy.protect, [PathBuf::from(".env")]);
        assert_eq!(policy.require.get(Protection::Landlock), Some(Requirement::IfAvailable));
        assert_eq!(policy.on_unavailable, OnUnavailable::Degrade);
        assert_eq!(policy.hostname, "h");
        assert_eq!(policy.cwd, Some(PathBuf::from("/w/sub")));
    }
}
