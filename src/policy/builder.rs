//! Builder methods of a policy: each sets one field, or adds one entry to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::policy::Policy;
use crate::policy::audit::Audit;
use crate::policy::env::Env;
use crate::policy::image_upper::ImageUpper;
use crate::policy::limits::Limits;
use crate::policy::mount::Mount;
use crate::policy::network::NetworkMode;
use crate::policy::overlay::Overlay;
use crate::policy::profile::{Caches, Git, Isolation, OnUnavailable, TmpLife, Toolchains};
use crate::policy::require::Requirement;
use crate::policy::units::Size;
use crate::report::enforcement::Protection;

impl Policy {
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

    /// Shows an image as the root file system, in place of the host's; see [`Policy::image`]. A workspace
    /// that is only the default is not shown.
    ///
    /// ```
    /// use kennel::Policy;
    ///
    /// let policy = Policy::default().image("python:3.12");
    /// policy.validate()?;
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    #[must_use]
    pub fn image(mut self, reference: impl Into<String>) -> Self {
        self.image = Some(reference.into());
        self.without_default_workspace()
    }

    /// Shows `directory` as the root file system, in place of the host's; see [`Policy::root`]. A workspace
    /// that is only the default is not shown.
    ///
    /// ```
    /// use kennel::Policy;
    ///
    /// let policy = Policy::default().root("/srv/debian").user("nobody");
    /// policy.validate()?;
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    #[must_use]
    pub fn root(mut self, directory: impl Into<PathBuf>) -> Self {
        self.root = Some(directory.into());
        self.without_default_workspace()
    }

    fn without_default_workspace(mut self) -> Self {
        if self.workspace == Path::new(".") {
            self.workspace = PathBuf::new();
        }
        self
    }

    /// Sets the user that commands are in another root; see [`Policy::user`].
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Keeps what commands change in another root on a disk until the session ends; see
    /// [`Policy::image_upper`].
    #[must_use]
    pub fn image_upper(mut self, upper: ImageUpper) -> Self {
        self.image_upper = Some(upper);
        self
    }

    /// Has sessions start a Python before its command is known, which imports these modules ahead; see
    /// [`Policy::warm`](field@Policy::warm).
    ///
    /// ```
    /// let policy = kennel::Policy::default().warm("python3", ["numpy"]);
    /// policy.validate()?;
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    #[must_use]
    pub fn warm<M: Into<String>>(
        mut self,
        program: impl Into<String>,
        modules: impl IntoIterator<Item = M>,
    ) -> Self {
        self.warm.entry(program.into()).or_default().extend(modules.into_iter().map(Into::into));
        self
    }

    /// Adds one mount of any kind.
    #[must_use]
    pub fn mount(mut self, mount: Mount) -> Self {
        self.mounts.push(mount);
        self
    }

    /// Hides a path that would be visible, or everything that matches a [pattern](Policy::protect): a
    /// directory becomes empty, a file unreadable.
    #[must_use]
    pub fn mask(self, path: impl Into<PathBuf>) -> Self {
        self.mount(Mount::Mask { path: path.into() })
    }

    /// Puts an empty, writable directory in memory at `target`, of at most `size`.
    #[must_use]
    pub fn tmpfs(self, target: impl Into<PathBuf>, size: Option<Size>) -> Self {
        self.mount(Mount::Tmpfs { target: target.into(), size })
    }

    /// Lets the proxy allow connections to `host:port`, or to the hosts of a preset such as `@cargo`; see
    /// [`Network::allow`](crate::policy::network::Network::allow) for the forms.
    #[must_use]
    pub fn allow(mut self, rule: impl Into<String>) -> Self {
        self.network.allow.push(rule.into());
        self
    }

    /// Makes the proxy refuse connections to `host:port`, even if [`allow`](Self::allow) matches them.
    #[must_use]
    pub fn deny(mut self, rule: impl Into<String>) -> Self {
        self.network.deny.push(rule.into());
        self
    }

    /// Lets programs outside connect to a server in the sandbox: `[ADDR:]PORT[:INSIDE]`; see
    /// [`Network::publish`](crate::policy::network::Network::publish).
    #[must_use]
    pub fn publish(mut self, port: impl Into<String>) -> Self {
        self.network.publish.push(port.into());
        self
    }

    /// Collects changes to the workspace until they are committed.
    #[must_use]
    pub fn overlay(mut self, overlay: Overlay) -> Self {
        self.overlay = Some(overlay);
        self
    }

    /// Keeps an audit log. A path alone means a log with the default settings.
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
    /// for denial in &output.outcome.denials {
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

    /// Sets the network mode instead of that of the profile; see [`Policy::effective_network`].
    #[must_use]
    pub fn network_mode(mut self, mode: NetworkMode) -> Self {
        self.network.mode = Some(mode);
        self
    }

    /// Replaces all settings of the environment.
    #[must_use]
    pub fn env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// Passes one variable of the caller's environment to the commands, if it is set there.
    #[must_use]
    pub fn pass_env(mut self, name: impl Into<String>) -> Self {
        self.env.pass.push(name.into());
        self
    }

    /// Sets one variable; it replaces a variable that is passed on.
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

    /// What the commands of a session share with each other.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// Whether toolchains outside the system directories are visible.
    #[must_use]
    pub fn toolchains(mut self, toolchains: Toolchains) -> Self {
        self.toolchains = toolchains;
        self
    }

    /// What commands can do with the caches of package managers and compilers.
    #[must_use]
    pub fn caches(mut self, caches: Caches) -> Self {
        self.caches = caches;
        self
    }

    /// What commands see and change of git repositories.
    #[must_use]
    pub fn git(mut self, git: Git) -> Self {
        self.git = git;
        self
    }

    /// Keeps a path inside the workspace read-only, or everything that matches a [pattern](Policy::protect).
    #[must_use]
    pub fn protect(mut self, path: impl Into<PathBuf>) -> Self {
        self.protect.push(path.into());
        self
    }

    /// Sets whether one protection may be missing.
    #[must_use]
    pub fn require(mut self, protection: Protection, requirement: Requirement) -> Self {
        self.require.set(protection, requirement);
        self
    }

    /// Sets what to do when the host cannot provide a required protection.
    #[must_use]
    pub fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.on_unavailable = on_unavailable;
        self
    }

    /// Sets the host name that commands see.
    #[must_use]
    pub fn hostname(mut self, hostname: impl Into<String>) -> Self {
        self.hostname = hostname.into();
        self
    }

    /// Sets the working directory of commands.
    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::env::EnvBase;
    use crate::policy::profile::Profile;

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
            .publish("8080")
            .audit("/log")
            .overlay(Overlay::default())
            .explain(true)
            .env(Env { base: EnvBase::Inherit, ..Env::default() })
            .pass_env("CI")
            .set_env("A", "b")
            .limits(Limits { pids: Some(3), ..Limits::default() })
            .timeout(Duration::from_secs(1))
            .toolchains(Toolchains::None)
            .caches(Caches::Keep)
            .git(Git::Trust)
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
        assert_eq!(policy.network.publish, ["8080"]);
        assert_eq!(policy.audit, Some(Audit::new("/log")));
        assert_eq!(policy.overlay, Some(Overlay::default()));
        assert!(policy.explain);
        assert_eq!(policy.env.base, EnvBase::Inherit);
        assert_eq!(policy.env.pass, ["CI"]);
        assert_eq!(policy.env.set["A"], "b");
        assert_eq!(policy.limits.pids, Some(3));
        assert_eq!(policy.limits.timeout, Some(Duration::from_secs(1).into()));
        assert_eq!(policy.toolchains, Toolchains::None);
        assert_eq!(policy.caches, Caches::Keep);
        assert_eq!(policy.git, Git::Trust);
        assert_eq!(policy.protect, [PathBuf::from(".env")]);
        assert_eq!(policy.require.get(Protection::Landlock), Some(Requirement::IfAvailable));
        assert_eq!(policy.on_unavailable, OnUnavailable::Degrade);
        assert_eq!(policy.hostname, "h");
        assert_eq!(policy.cwd, Some(PathBuf::from("/w/sub")));
    }
}
