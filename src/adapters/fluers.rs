//! The process sandbox of the agent harness `fluers-runtime`: it prepares once for a workspace, asks what to start for
//! each command, and starts that itself, with pipes of its own.

pub(crate) mod context;
pub(crate) mod place;
pub(crate) mod policy;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use async_trait::async_trait;
use fluers_runtime::{
    Enforcement, ExecSandboxContext, ProcessSandbox, RuntimeResult, SandboxProfile, WrappedCommand,
};

use crate::adapters::fluers::context::Context;
use crate::adapters::fluers::place::{ContextPlace, FluersError};
use crate::policy::Policy;
use crate::policy::profile::OnUnavailable;
use crate::probe::{Probe, Verdict};
use crate::session::Session;
use crate::sys::inode::Identity;

/// Confines the commands of a `fluers-runtime` harness.
///
/// For each context, that is a workspace with a profile and an egress list, there is one [`Session`]; contexts that are
/// prepared live side by side. [`wrap`](ProcessSandbox::wrap) names the small client of that session, which passes the
/// descriptors that the harness gives it on to a worker, and ends with the command's status. Killing the client kills the
/// command: so the harness keeps its timeouts, with status 124.
///
/// | profile | workspace | elsewhere | network |
/// | --- | --- | --- | --- |
/// | `ReadOnly` | read-only | system read-only, private `/tmp` | none |
/// | `RepoWrite` | writable | the same | what the egress list names; none without one |
/// | `NoNetwork` | writable | the same | none; an egress list is an error |
/// | `FullDev` | writable | the host's tree read-only | the host's |
/// | `CiOnly` | writable | system read-only, nothing of homes, fixed environment | as `RepoWrite` |
///
/// Commands have the environment of the session, as the policy makes it. Nothing of the client's environment, which may
/// hold more than a command should see, is passed on.
///
/// A session belongs to the runtime that prepared it, as [`Session::listen`] has it; clients are served there. Dropping
/// this ends every session and removes its files, as [`shutdown`](ProcessSandbox::shutdown) does.
///
/// ```
/// use std::{path::Path, sync::Arc};
///
/// use fluers_runtime::{LocalSandbox, OnUnavailable, Sandbox, SandboxPolicy, SandboxProfile};
/// use kennel::adapters::fluers::KennelSandbox;
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
    /// What is prepared, by workspace; of those that are alike the last one counts.
    contexts: HashMap<PathBuf, Vec<Arc<Context>>>,
    /// Where sockets lie, from the first context on.
    place: Option<Arc<ContextPlace>>,
    /// Profiles that were last found to be enforced in part: who prepares one all the same has agreed to it.
    partial: Vec<SandboxProfile>,
    /// How often it was shut down.
    shutdowns: u64,
}

impl Default for KennelSandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl KennelSandbox {
    /// With the plain profiles.
    #[must_use]
    pub fn new() -> Self {
        Self::with_policy(Policy::default())
    }

    /// With a policy to start from: its grants, limits, variables and requirements hold for every context. Its profile,
    /// workspace and directory are the harness's to say, and so is what happens where a protection is missing. Egress lists
    /// add to what it allows. An overlay is refused, because its changes could not be committed.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use kennel::{Policy, adapters::fluers::KennelSandbox};
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

    /// A harness knows of no changes that wait to be committed: they would be lost.
    fn without_overlay(&self) -> Result<(), FluersError> {
        if self.base.overlay.is_none() {
            return Ok(());
        }
        Err(FluersError::Policy {
            reason: "the changes of an overlay could not be committed through the harness".to_owned(),
            remedy: Some("leave Policy::overlay out, or prepare a Session of your own".to_owned()),
        })
    }

    /// Prepares a context, unless there is one that serves.
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
        // Another task may have been faster.
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
        let probe = Probe::under(policy::to_probe(&self.base, profile)).await?;
        for finding in probe.negatives().filter(|finding| finding.needed) {
            tracing::warn!(?profile, name = finding.name, state = %finding.state, detail = finding.detail,
                remedy = finding.remedy, "not enforced in full");
        }
        // Nothing about the host: a harness that degrades must not take it for one without sandboxes.
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
            // With all or not at all: a harness that degrades would run it with nothing.
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
    /// The context that commands of such a one go to.
    fn find(&self, asked: &ExecSandboxContext) -> Result<Arc<Context>, FluersError> {
        let alike = self.contexts.get(&asked.workspace_path).into_iter().flatten();
        alike.rev().find(|context| context.is_for(asked)).cloned().ok_or_else(|| FluersError::NotPrepared {
            workspace: asked.workspace_path.clone(),
            profile: asked.profile,
            was_shut_down: self.shutdowns > 0,
        })
    }

    /// A context that has all that a new one would have.
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
    /// Prepares the session of a context. Calling it again has no effect, unless the session has ended or the workspace
    /// is another directory by now.
    ///
    /// If [`probe`](Self::probe) last said `Partial` for the profile, the session runs without what is missing; otherwise a
    /// missing protection is an error. With `CiOnly` it always is.
    async fn prepare(&self, ctx: &ExecSandboxContext) -> RuntimeResult<()> {
        Ok(self.open(ctx).await?)
    }

    /// Names what to start for `argv`. No file is touched.
    ///
    /// A relative `cwd` starts at the workspace. One that is certainly not visible is an error here. If it does not exist,
    /// the client ends with 125 and says so.
    fn wrap(&self, argv: &[String], ctx: &ExecSandboxContext) -> RuntimeResult<WrappedCommand> {
        Ok(self.wrapped(argv, ctx)?)
    }

    /// Tests this host, each time again, as [`Probe::run`] does, with the grants, limits and requirements of the policy.
    /// Missing protections are also `tracing` events.
    ///
    /// A policy that cannot be is an error, whatever the host has. So is everything but `FullyEnforced` for `CiOnly`: a
    /// harness that degrades would run it unconfined.
    async fn probe(&self, profile: &SandboxProfile) -> RuntimeResult<Enforcement> {
        Ok(self.probed(*profile).await?)
    }

    /// Ends every session, kills what runs, and removes the sockets. What is prepared afterwards starts fresh.
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

/// Whether two paths are the same directory, and what it is: a workspace that was removed and made anew is another.
fn identity(path: &Path) -> Option<Identity> {
    Identity::at(path).ok()
}
