//! The one-shot sandbox: every command gets its own.

use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::audit::trail::Trail;
use crate::command::Command;
use crate::command::detached::DetachedCommands;
use crate::command::source::{Entered, Membership, ReadyWorker, Turn, WorkerSource, Workers};
use crate::host::Host;
use crate::host::caller::Caller;
use crate::in_force::InForce;
use crate::launch::bridge::HandedOut;
use crate::launch::cgroup::Groups;
use crate::launch::image::Images;
use crate::launch::prepared::{OwnSteps, Prepared};
use crate::launch::start;
use crate::mount_snapshot::{MountChange, replaced};
use crate::network::ask::{Ask, Decision, NetworkRequest};
use crate::network::namespace_socket::NamespaceSockets;
use crate::network::publish::{Bound, Inward, Publishing};
use crate::network::serving::BoxFuture;
use crate::plan::network::SOCKETS_HANDED_OUT;
use crate::plan::{Section, compile};
use crate::policy::Policy;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::session::mount_state::CompileInputs;
use crate::sys::locked;
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
        Self::from_one_shots(OneShots { inputs: None, prepared: Mutex::new(Arc::new(prepared)) })
    }

    fn renewable(inputs: CompileInputs, prepared: Prepared) -> Self {
        Self::from_one_shots(OneShots { inputs: Some(inputs), prepared: Mutex::new(Arc::new(prepared)) })
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
        let mut started = start::begin_one_shot(&images, &begun.namespaces, leaf)?;
        let compiled = compile::finish(begun, policy, &host, &caller, kind)?;
        let prepared = Prepared::new(compiled, images)?.with_groups(groups);
        start::refuse_kept_overlay(&prepared)?;
        start::hand_over_one_shot(&mut started, &prepared, None)?;
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
        Command::new(Arc::clone(&self.one_shots) as Arc<dyn WorkerSource>, program.as_ref())
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
        InForce::of(&self.one_shots.prepared().compiled)
    }
}

/// The plan of a sandbox, shared with its commands.
struct OneShots {
    /// `None` for a single command, which starts at once.
    inputs: Option<CompileInputs>,
    /// The plan of the last start; before the first start, the plan it will use.
    prepared: Mutex<Arc<Prepared>>,
}

/// Does not show the inputs: the policy and the environment may hold secrets.
impl fmt::Debug for OneShots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneShots").field("prepared", &self.prepared()).finish_non_exhaustive()
    }
}

impl WorkerSource for OneShots {
    fn prepared(&self) -> Arc<Prepared> {
        Arc::clone(&locked(&self.prepared))
    }

    fn turn(self: Arc<Self>) -> BoxFuture<'static, Result<Turn, Error>> {
        let prepared = self.renewed();
        Box::pin(async move { Ok(Turn { prepared: prepared?, workers: self, entered: None }) })
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn detached(&self) -> Option<&Arc<DetachedCommands>> {
        None
    }
}

impl OneShots {
    /// Compiles the policy again if mounted or granted paths have changed.
    fn renewed(&self) -> Result<Arc<Prepared>, Error> {
        let mut prepared = locked(&self.prepared);
        if let Some(inputs) = &self.inputs {
            match prepared.mount_change() {
                MountChange::None => {}
                MountChange::Grant(what, path) => return Err(replaced(what, path, "make a new sandbox")),
                MountChange::Source(..) | MountChange::Some => {
                    *prepared = Arc::new(prepared.recompiled(inputs.compile()?));
                }
            }
        }
        Ok(Arc::clone(&prepared))
    }
}

impl Workers for OneShots {
    fn trail(&self) -> Arc<Trail> {
        self.prepared().trail()
    }

    fn span(&self) -> Option<tracing::Id> {
        tracing::Span::current().id()
    }

    fn worker<'s>(
        &'s self,
        prepared: &'s Prepared,
        trail: &'s Arc<Trail>,
        _: Option<Entered>,
        own_steps: Option<&'s Section>,
        _: bool,
    ) -> BoxFuture<'s, Result<ReadyWorker, Error>> {
        Box::pin(start_worker(prepared, trail, own_steps.cloned()))
    }

    fn has_others(&self) -> Result<bool, Error> {
        Ok(false)
    }

    fn join(self: Arc<Self>, _: bool) -> Option<Box<dyn Membership>> {
        None
    }
}

/// Publishes ports of a sandbox, whose sockets lead there.
async fn publish(
    bound: Vec<Bound>,
    sockets: [OwnedFd; SOCKETS_HANDED_OUT],
    trail: &Arc<Trail>,
) -> io::Result<Publishing> {
    let sockets = Arc::new(NamespaceSockets::new(sockets).await?);
    let publishing = Publishing::new(trail);
    for bound in bound {
        publishing.serve(bound, Arc::clone(&sockets) as Arc<dyn Inward>)?;
    }
    Ok(publishing)
}

/// Starts a sandbox for one command. Its PID 1 is the worker.
async fn start_worker(
    prepared: &Prepared,
    trail: &Arc<Trail>,
    own_steps: Option<Section>,
) -> Result<ReadyWorker, Error> {
    let own = own_steps.map(OwnSteps::new).transpose();
    let own = own.map_err(Error::io("write the steps of the command to a memfd"))?.map(Arc::new);
    // Before the start: a port that another program has is an error of the caller.
    let bound = Bound::all(&prepared.compiled.publish)?;
    let inside = start::start_one_shot(prepared, own.as_ref().map(|own| &own.bytes))?;
    let mut reports = Vec::new();
    let handed_out = HandedOut::receive(prepared, &inside, trail, &mut reports).await?;
    let HandedOut { proxy, sockets, seccomp_listener } = handed_out;
    let published = match sockets.try_into() {
        Ok(sockets) => Some(publish(bound, sockets, trail).await.map_err(Error::io("publish the ports"))?),
        Err(_) => None,
    };
    Ok(ReadyWorker { inside, reports, proxy, published, seccomp_listener, own })
}
