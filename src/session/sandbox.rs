//! The one-shot: every command in a sandbox of its own.

use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::audit::trail::Trail;
use crate::command::Command;
use crate::command::source::{Membership, ReadyWorker, WorkerSource};
use crate::host::Host;
use crate::host::caller::Caller;
use crate::launch::cgroup::Groups;
use crate::launch::image::Images;
use crate::launch::prepared::{OwnSteps, Prepared};
use crate::launch::start;
use crate::network::ask::{Ask, Decision, NetworkRequest};
use crate::network::serving::{BoxFuture, Serving};
use crate::plan::mount_state::{MountChange, replaced};
use crate::plan::{Section, compile};
use crate::policy::Policy;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::sys::locked;
use crate::view::inputs;
use crate::view::inputs::SandboxKind;

/// Where no program is in a sandbox.
const NO_PROGRAM: &str = "/.kennel/nothing";

/// A policy made ready for this host: every command of it runs in a fresh sandbox of its own, whose walls fit what is in the
/// granted directories when the command starts.
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
    fn of(question: Question, prepared: Prepared) -> Self {
        Self::with(OneShots::of(question, prepared))
    }

    /// For a single command.
    pub(crate) fn once(prepared: Prepared) -> Self {
        Self::with(OneShots::once(prepared))
    }

    fn with(one_shots: OneShots) -> Self {
        let enforcement = Arc::new(one_shots.prepared().compiled.enforcement.clone());
        Self { one_shots: Arc::new(one_shots), enforcement }
    }

    /// Checks the policy against this host and compiles it. Starts nothing. Blocks its thread while it looks at what the policy
    /// names on the host, most of a millisecond, longer in a repository with many submodules; so does the start of a command
    /// where that has changed.
    ///
    /// # Errors
    /// A policy that contradicts itself, a path that cannot be granted, a required protection that this host
    /// does not have.
    pub fn new(policy: &Policy) -> Result<Self, Error> {
        let (host, caller) = (Host::detect_for(policy), Caller::current());
        let compiled = compile::compile(policy, &host, &caller, SandboxKind::OneShot)?;
        let images = Images::new(inputs::spawn_options(policy, &host, &caller))?;
        Ok(Self::of((policy.clone(), host, caller), Prepared::new(compiled, images)?))
    }

    /// As [`new`](Self::new), but starts the first command's sandbox at once: it makes its namespaces while the policy
    /// is compiled, and its mounts when this has returned. For a program that runs one command and exits, like `kennel run`.
    /// Where something that is mounted or granted is replaced before the command, it gets another sandbox.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), those of a start, and [`OverlayError::NeedsSession`](crate::report::overlay_error::OverlayError::NeedsSession).
    /// Nothing of the sandbox is left then.
    pub fn eager(policy: &Policy) -> Result<Self, Error> {
        let (host, caller, shape) = (Host::detect_for(policy), Caller::current(), SandboxKind::Once);
        let begun = compile::begin(policy, &host, &caller, shape)?;
        let images = Images::new(inputs::spawn_options(policy, &host, &caller))?;
        let groups = begun.groups.plan.as_ref().map(|plan| Groups::make(plan, &images)).transpose()?;
        let leaf = groups.as_ref().map(Groups::only_leaf).transpose()?;
        let mut started = start::begin_one_shot(&images, &begun.namespaces, leaf)?;
        let compiled = compile::finish(begun, policy, &host, &caller, shape)?;
        let prepared = Prepared::new(compiled, images)?.with_groups(groups);
        start::refuse_kept_overlay(&prepared)?;
        start::hand_over_one_shot(&mut started, &prepared, None)?;
        Ok(Self::of((policy.clone(), host, caller), prepared.with_prestarted(started)))
    }

    /// Lets `callback` decide about connections that neither list of the policy decides, in network mode `proxy`. An answer
    /// that takes longer than `patience` counts as no. Set before the first command; a second callback is not taken.
    ///
    /// The addresses of an allowed name are still checked.
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

    /// A command to run in this sandbox. A `program` without a slash is looked for in the command's PATH, inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(Arc::clone(&self.one_shots) as Arc<dyn WorkerSource>, program.as_ref())
    }

    /// Starts a sandbox with all its walls, for a program that is not there: no look at a host says as much.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), kennel::Error> {
    /// kennel::Sandbox::new(&kennel::Policy::default())?.try_start().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Whatever kept it from coming as far as that.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn try_start(&self) -> Result<(), Error> {
        match self.command(NO_PROGRAM).status().await {
            // It was looked for behind all walls.
            Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
            // A limit ended it before.
            Ok(_) => Err(Error::Lost),
        }
    }

    /// Waits until no cgroup of its commands is left, two seconds at most. For a program that exits then, like
    /// `kennel run`; otherwise they are removed soon after the last handle is dropped. Commands that still run are killed.
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

    /// What will be in force if every step of the start succeeds, as it was found when the sandbox was made.
    #[must_use]
    pub fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }
}

/// What compile needs to do its work again.
pub(crate) type Question = (Policy, Host, Caller);

pub(crate) struct OneShots {
    /// `None` where there is a single command.
    question: Option<Question>,
    now: Mutex<Arc<Prepared>>,
}

/// A policy and the environment of whoever made the sandbox may hold secrets.
impl fmt::Debug for OneShots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneShots").field("now", &self.prepared()).finish_non_exhaustive()
    }
}

impl OneShots {
    pub(crate) fn of(question: Question, prepared: Prepared) -> Self {
        Self { question: Some(question), now: Mutex::new(Arc::new(prepared)) }
    }

    /// For a single command, which is started at once.
    pub(crate) fn once(prepared: Prepared) -> Self {
        Self { question: None, now: Mutex::new(Arc::new(prepared)) }
    }

    /// As the last one was started, or the first will be.
    pub(crate) fn prepared(&self) -> Arc<Prepared> {
        Arc::clone(&locked(&self.now))
    }

    /// As one is to be started now.
    ///
    /// # Errors
    /// The workspace or a writable grant that was replaced or is gone; those of compile, where what is there now cannot be protected.
    pub(crate) fn renewed(&self) -> Result<Arc<Prepared>, Error> {
        let mut now = locked(&self.now);
        if let Some((policy, host, caller)) = &self.question {
            match now.mount_change() {
                MountChange::None => {}
                MountChange::Grant(what, path) => return Err(replaced(what, path, "make a new sandbox")),
                MountChange::Some => {
                    *now = Arc::new(now.recompiled(compile::compile(
                        policy,
                        host,
                        caller,
                        SandboxKind::OneShot,
                    )?));
                }
            }
        }
        Ok(Arc::clone(&now))
    }
}

impl WorkerSource for OneShots {
    fn prepared(&self) -> Arc<Prepared> {
        self.prepared()
    }

    fn renewed(&self) -> Result<Arc<Prepared>, Error> {
        self.renewed()
    }

    fn trail(&self) -> Arc<Trail> {
        self.prepared().trail()
    }

    fn span(&self) -> Option<tracing::Id> {
        tracing::Span::current().id()
    }

    fn keeps_background(&self) -> bool {
        false
    }

    fn worker<'s>(
        &'s self,
        prepared: &'s Prepared,
        trail: &'s Arc<Trail>,
        narrow: Option<&'s Section>,
        _: bool,
    ) -> BoxFuture<'s, Result<ReadyWorker, Error>> {
        Box::pin(start_worker(prepared, trail, narrow.cloned()))
    }

    fn has_others(&self) -> Result<bool, Error> {
        Ok(false)
    }

    fn join(self: Arc<Self>) -> Option<Box<dyn Membership>> {
        None
    }
}

/// Starts a sandbox for one command: its PID 1 is the worker.
async fn start_worker(
    prepared: &Prepared,
    trail: &Arc<Trail>,
    narrow: Option<Section>,
) -> Result<ReadyWorker, Error> {
    let own = narrow.map(OwnSteps::new).transpose();
    let own = own.map_err(Error::io("write the steps of the command to a memfd"))?.map(Arc::new);
    let inside = start::start_one_shot(prepared, own.as_ref().map(|own| &own.bytes))?;
    let mut said = Vec::new();
    let serving = Serving::open(prepared, &inside, trail, &mut said).await?;
    Ok(ReadyWorker { inside, said, serving, listener: None, own })
}
