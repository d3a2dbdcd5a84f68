//! The `ProcessSandbox` trait of the agent harness `fluers-runtime`. The harness prepares a workspace once,
//! asks for the command line to start for each command, and starts it itself, with its own pipes.

pub(crate) mod context;
pub(crate) mod place;
pub(crate) mod policy;

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use async_trait::async_trait;
use fluers_runtime::{
    Enforcement, ExecSandboxContext, ProcessSandbox, RuntimeResult, SandboxProfile, WrappedCommand,
};
use kennel::{OnUnavailable, Policy, Session, internal, probe::Verdict};

use crate::fluers::context::Context;
use crate::fluers::place::{ContextPlace, FluersError};

/// Confines the commands of a `fluers-runtime` harness.
///
/// A context is a workspace with a profile and an egress list. There is one [`Session`] for each context;
/// several contexts can be prepared at the same time. [`wrap`](ProcessSandbox::wrap) returns the command line
/// of the small client of that session. The client passes the descriptors that it got from the harness to a
/// worker, and ends with the command's status. Killing the client kills the command, so the timeouts of the
/// harness work, with status 124.
///
/// | profile | workspace | elsewhere | network |
/// | --- | --- | --- | --- |
/// | `ReadOnly` | read-only | system read-only, private `/tmp` | none |
/// | `RepoWrite` | writable | the same | what the egress list names; none without one |
/// | `NoNetwork` | writable | the same | none; an egress list is an error |
/// | `FullDev` | writable | the host's tree read-only | the host's |
/// | `CiOnly` | writable | system read-only, nothing of homes, fixed environment | as `RepoWrite` |
///
/// Commands have the environment that the policy makes for the session. Kennel passes nothing of the client's
/// environment, which may hold more than a command should see.
///
/// The tokio runtime that prepared a session serves its clients, as with [`Session::listen`]. Dropping this
/// ends every session and removes its files, as [`shutdown`](ProcessSandbox::shutdown) does.
///
/// ```
/// use std::{path::Path, sync::Arc};
///
/// use fluers_runtime::{LocalSandbox, OnUnavailable, Sandbox, SandboxPolicy, SandboxProfile};
/// use kennel_adapters::fluers::KennelSandbox;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let workspace = std::env::temp_dir().join(format!("kennel-doc-{}", std::process::id()));
/// let policy = SandboxPolicy {
///     profile: SandboxProfile::RepoWrite,
///     egress: vec!["crates.io:443".to_owned()],
///     on_unavailable: OnUnavailable::Refuse,
/// };
/// let kennel = Arc::new(KennelSandbox::new());
/// let harness = LocalSandbox::new(&workspace).with_exec_sandbox(kennel, policy);
/// let env = harness.env_for(&workspace).await?;
/// let result = env.exec("echo hello", Path::new("."), Some(5_000), &Default::default()).await?;
/// assert_eq!(result.stdout, "hello\n");
/// # std::fs::remove_dir_all(workspace)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct KennelSandbox {
    base: Policy,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Prepared contexts by workspace. If several are alike, the last one counts.
    contexts: HashMap<PathBuf, Vec<Arc<Context>>>,
    /// The directory for sockets, made with the first context.
    place: Option<Arc<ContextPlace>>,
    /// Profiles whose last probe said `Partial`. A caller who then prepares one accepts that.
    partial: Vec<SandboxProfile>,
    /// How many times it was shut down.
    shutdowns: u64,
}

impl Default for KennelSandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl KennelSandbox {
    /// Starts from the plain profiles.
    #[must_use]
    pub fn new() -> Self {
        Self::with_policy(Policy::default())
    }

    /// Starts from a policy: its grants, limits, variables and requirements hold for every context. The
    /// harness sets the profile, the workspace, the working directory, and what happens if a protection is
    /// missing. Its egress lists add to what the policy allows. An overlay is an error, because the harness
    /// cannot commit its changes.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use kennel::Policy;
    /// use kennel_adapters::fluers::KennelSandbox;
    ///
    /// let policy = Policy::default().read_only("/srv/models").timeout(Duration::from_secs(600));
    /// let kennel = KennelSandbox::with_policy(policy);
    /// ```
    #[must_use]
    pub fn with_policy(base: Policy) -> Self {
        Self { base, state: RwLock::default() }
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses an overlay: the harness cannot commit its changes, so they would be lost.
    fn without_overlay(&self) -> Result<(), FluersError> {
        if self.base.overlay.is_none() {
            return Ok(());
        }
        Err(FluersError::Policy {
            reason: "the changes of an overlay could not be committed through the harness".to_owned(),
            remedy: Some("leave Policy::overlay out, or prepare a Session of your own".into()),
        })
    }

    /// Prepares a context, unless a prepared one will do.
    async fn open(&self, asked: &ExecSandboxContext) -> Result<(), FluersError> {
        self.without_overlay()?;
        let shutdowns = self.state().shutdowns;
        let degrade =
            asked.profile != SandboxProfile::CiOnly && self.state().partial.contains(&asked.profile);
        let wanted = if degrade { OnUnavailable::Degrade } else { OnUnavailable::Refuse };
        if self.state().serving(asked, wanted).is_some() {
            return Ok(());
        }
        let policy = policy::of_context(&self.base, asked, wanted);
        ContextPlace::usual();
        let session = Session::prepare(&policy).await?;
        let mut state = self.state_mut();
        if state.shutdowns != shutdowns {
            return Err(FluersError::ShutDown);
        }
        // Another task may have prepared the same context meanwhile.
        if state.serving(asked, wanted).is_none() {
            let place = state.place()?;
            let context = Arc::new(Context::listen(session, asked, wanted, place)?);
            state.contexts.entry(asked.workspace_path.clone()).or_default().push(context);
        }
        Ok(())
    }

    fn wrapped(&self, argv: &[String], asked: &ExecSandboxContext) -> Result<WrappedCommand, FluersError> {
        if argv.is_empty() {
            return Err(FluersError::NoCommand);
        }
        let context = self.state().find(asked)?;
        context.wrap(argv, asked.cwd.as_deref())
    }

    async fn probed(&self, profile: SandboxProfile) -> Result<Enforcement, FluersError> {
        self.without_overlay()?;
        let probe = internal::probe(policy::to_probe(&self.base, profile)).await?;
        for finding in probe.negatives().filter(|finding| finding.needed) {
            tracing::warn!(?profile, name = finding.name, state = %finding.state, detail = finding.detail,
                remedy = finding.remedy.as_ref().map(tracing::field::display), "not enforced in full");
        }
        // This must be an error, not `Unavailable`: a harness that degrades would then run commands without a
        // sandbox.
        if let Some(refused) = probe.get("start") {
            return Err(FluersError::Policy {
                reason: refused.detail.clone(),
                remedy: refused.remedy.clone(),
            });
        }
        let mut state = self.state_mut();
        state.partial.retain(|other| *other != profile);
        match probe.verdict {
            Verdict::FullyEnforced => Ok(Enforcement::FullyEnforced),
            // `CiOnly` must be enforced in full. It must be an error, because a harness that degrades would
            // run it unconfined.
            _ if profile == SandboxProfile::CiOnly => Err(FluersError::not_in_full(&probe)),
            Verdict::Partial => {
                state.partial.push(profile);
                Ok(Enforcement::Partial)
            }
            Verdict::Unavailable => Ok(Enforcement::Unavailable),
        }
    }
}

impl State {
    /// The context for commands with these settings.
    fn find(&self, asked: &ExecSandboxContext) -> Result<Arc<Context>, FluersError> {
        let alike = self.contexts.get(&asked.workspace_path).into_iter().flatten();
        alike.rev().find(|context| context.is_for(asked)).cloned().ok_or_else(|| FluersError::NotPrepared {
            workspace: asked.workspace_path.clone(),
            profile: asked.profile,
            was_shut_down: self.shutdowns > 0,
        })
    }

    /// A context that gives everything that a new one would give.
    fn serving(&self, asked: &ExecSandboxContext, wanted: OnUnavailable) -> Option<Arc<Context>> {
        self.find(asked).ok().filter(|context| context.serves(wanted))
    }

    fn place(&mut self) -> Result<Arc<ContextPlace>, FluersError> {
        let place = match self.place.take() {
            Some(place) => place,
            None => Arc::new(ContextPlace::make()?),
        };
        Ok(Arc::clone(self.place.insert(place)))
    }
}

#[async_trait]
impl ProcessSandbox for KennelSandbox {
    /// Prepares the session of a context. Calling it again has no effect, unless the session has ended or the
    /// workspace has become another directory.
    ///
    /// If [`probe`](Self::probe) last said `Partial` for the profile, the session runs without the missing
    /// protections. Otherwise a missing protection is an error. With `CiOnly` it is always an error.
    async fn prepare(&self, ctx: &ExecSandboxContext) -> RuntimeResult<()> {
        Ok(self.open(ctx).await?)
    }

    /// Returns the command line to start for `argv`. Touches no file.
    ///
    /// A relative `cwd` starts at the workspace. A `cwd` that the sandbox certainly does not show is an error
    /// here. If it does not exist, the client prints an error and ends with 125.
    fn wrap(&self, argv: &[String], ctx: &ExecSandboxContext) -> RuntimeResult<WrappedCommand> {
        Ok(self.wrapped(argv, ctx)?)
    }

    /// Tests this host, anew each time, as [`Probe::run`] does, with the grants, limits and requirements of
    /// the policy. Also reports missing protections as `tracing` events.
    ///
    /// An invalid policy is an error, whatever the host supports. For `CiOnly` any result but `FullyEnforced`
    /// is an error too: a harness that degrades would run it unconfined.
    async fn probe(&self, profile: &SandboxProfile) -> RuntimeResult<Enforcement> {
        Ok(self.probed(*profile).await?)
    }

    /// Ends every session, kills what runs in it, and removes the sockets. Contexts that are prepared later
    /// start fresh.
    async fn shutdown(&self) -> RuntimeResult<()> {
        let contexts = {
            let mut state = self.state_mut();
            state.shutdowns += 1;
            state.place = None;
            std::mem::take(&mut state.contexts)
        };
        let contexts: Vec<_> = contexts.into_values().flatten().collect();
        contexts.iter().for_each(|context| context.end());
        for context in contexts {
            context.gone().await;
        }
        Ok(())
    }
}

/// Identifies a directory, by device and inode. A workspace that was removed and created again is a different
/// one.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}
