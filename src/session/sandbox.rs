//! The one-shot sandbox: every command gets its own.

use std::ffi::OsStr;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::caller::Caller;
use crate::command::one_shot::OneShots;
use crate::command::{Command, CommandSource};
use crate::host::Host;
use crate::launch::cgroup::Groups;
use crate::launch::image::Images;
use crate::launch::prepared::Prepared;
use crate::launch::start;
use crate::network::ask::{Ask, Decision, NetworkRequest};
use crate::plan::compile;
use crate::plan::compile::CompileInputs;
use crate::policy::Policy;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::report::in_force::InForce;
use crate::view::inputs;
use crate::view::inputs::SandboxKind;

/// A path that no sandbox has.
const NO_PROGRAM: &str = "/.kennel/nothing";

/// A policy compiled for this host. Every command runs in its own fresh sandbox, which fits the granted
/// directories as they are when the command starts.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::Error> {
/// use kennel::{Policy, Profile, Sandbox};
///
/// let sandbox = Sandbox::new(&Policy::profile(Profile::ReadOnly, "."))?;
/// let outcome = sandbox.command("ls").arg("-l").status().await?;
/// assert!(outcome.status.success());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Sandbox {
    one_shots: Arc<OneShots>,
    enforcement: Arc<Enforcement>,
}

impl Sandbox {
    /// A sandbox for a single command.
    pub(crate) fn once(prepared: Prepared) -> Self {
        Self::from_one_shots(OneShots::once(prepared))
    }

    fn renewable(inputs: CompileInputs, prepared: Prepared) -> Self {
        Self::from_one_shots(OneShots::renewable(inputs, prepared))
    }

    fn from_one_shots(one_shots: OneShots) -> Self {
        let enforcement = Arc::new(one_shots.prepared().compiled.enforcement.clone());
        Self { one_shots: Arc::new(one_shots), enforcement }
    }

    /// Checks the policy against this host and compiles it. Starts nothing. It blocks its thread while it
    /// looks at the paths of the policy on the host: almost a millisecond, longer in a repository with many
    /// submodules. If those paths change, the start of the next command blocks as long.
    ///
    /// # Errors
    /// The policy contradicts itself; a path cannot be granted; this host lacks a required protection.
    pub fn new(policy: &Policy) -> Result<Self, Error> {
        let (host, caller) = (Host::detect_for(policy), Caller::current());
        let compiled = compile::compile(policy, &host, &caller, SandboxKind::OneShot)?;
        let images = Images::new(inputs::spawn_options(policy, &host, &caller))?;
        let inputs = CompileInputs { policy: policy.clone(), host, caller, kind: SandboxKind::OneShot };
        Ok(Self::renewable(inputs, Prepared::new(compiled, images)?))
    }

    /// Like [`new`](Self::new), but starts the sandbox of the first command at once. The sandbox makes its
    /// namespaces while the policy is compiled, and its mounts after this returns. For a program that runs
    /// one command and exits, like `kennel run`. If somebody replaces a mounted or granted path before the
    /// command starts, the command gets another sandbox.
    ///
    /// # Errors
    /// As for [`new`](Self::new) and for a start, and
    /// [`OverlayError::NeedsSession`](crate::report::error::overlay::OverlayError::NeedsSession). Nothing of
    /// the sandbox is left then.
    pub fn eager(policy: &Policy) -> Result<Self, Error> {
        let (host, caller, kind) = (Host::detect_for(policy), Caller::current(), SandboxKind::Once);
        let begun = compile::begin(policy, &host, &caller, kind)?;
        let images = Images::new(inputs::spawn_options(policy, &host, &caller))?;
        let groups = begun.groups.plan.as_ref().map(|plan| Groups::make(plan, &images)).transpose()?;
        let leaf = groups.as_ref().map(Groups::only_leaf).transpose()?;
        let init = start::begin_one_shot(&images, &begun.namespaces, leaf)?;
        let compiled = compile::finish(begun, policy, &host, &caller, kind)?;
        let prepared = Prepared::new(compiled, images)?.with_groups(groups);
        start::refuse_kept_overlay(&prepared)?;
        let started = start::hand_over_one_shot(init, &prepared, None)?;
        let inputs = CompileInputs { policy: policy.clone(), host, caller, kind: SandboxKind::OneShot };
        Ok(Self::renewable(inputs, prepared.with_prestarted(started)))
    }

    /// Lets `callback` decide about connections that no rule of the policy decides, in network mode `proxy`.
    /// An answer that takes longer than `patience` counts as no. Set it before the first command. A second
    /// callback has no effect. Programs without proxy support are only served if the policy names the mode or
    /// has a rule.
    ///
    /// The proxy still checks the addresses of an allowed name.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), kennel::Error> {
    /// use kennel::{Decision, NetworkMode, Policy, Sandbox};
    /// use std::time::Duration;
    ///
    /// let policy = Policy::default().network_mode(NetworkMode::Proxy);
    /// let sandbox = Sandbox::new(&policy)?.on_request(Duration::from_secs(60), |request| async move {
    ///     if request.host.ends_with(".example.com") { Decision::AllowForSession } else { Decision::Deny }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_request<F, A>(self, patience: Duration, callback: F) -> Self
    where
        F: Fn(NetworkRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Decision> + Send + 'static,
    {
        self.one_shots.prepared().set_ask(Ask::new(patience, callback));
        self
    }

    /// A command to run in this sandbox. A `program` without a slash is searched in the command's PATH, in
    /// the sandbox.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(CommandSource::OneShots(Arc::clone(&self.one_shots)), program.as_ref())
    }

    /// Starts a complete sandbox for a program that does not exist. This proves more about a host than any
    /// look at it.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), kennel::Error> {
    /// kennel::Sandbox::new(&kennel::Policy::default())?.try_start().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Everything that keeps the sandbox from starting.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn try_start(&self) -> Result<(), Error> {
        match self.command(NO_PROGRAM).status().await {
            // The sandbox searched for the program, so it was complete.
            Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
            // A limit ended the sandbox before that.
            Ok(_) => Err(Error::Lost),
        }
    }

    /// Kills running commands and waits until their cgroups are removed, at most two seconds. For a program
    /// that exits next, like `kennel run`. Other programs need not call it: Kennel removes the cgroups soon
    /// after the last handle is dropped.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), kennel::Error> {
    /// let sandbox = kennel::Sandbox::eager(&kennel::Policy::default())?;
    /// let outcome = sandbox.command("make").status().await;
    /// sandbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown(&self) {
        self.one_shots.prepared().gone().await;
    }

    /// What a sandbox will enforce if every step of its start succeeds, as found when this was made.
    #[must_use]
    pub fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }

    /// The file or directory of the host that commands will see at `path`, as found when this was made.
    /// `None` if they see nothing there, or what is not the host's. What is there may be a link, or missing.
    #[must_use]
    pub fn host_path(&self, path: &Path) -> Option<PathBuf> {
        let view = &self.one_shots.prepared().compiled.view;
        view.host_path(path).filter(|_| !view.is_covered(path))
    }

    /// What commands will see and may change, as found when this was made.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        self.one_shots.prepared().compiled.in_force()
    }
}
