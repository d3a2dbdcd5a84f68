//! The first steps of a session: everything that is made and carried out once.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use kennel_helper::control::Report;

use crate::audit::record::Record;
use crate::host::Host;
use crate::host::caller::Caller;
use crate::launch::cgroup::Groups;
use crate::launch::control::Arrival;
use crate::launch::image::Images;
use crate::launch::prepared::Prepared;
use crate::launch::start;
use crate::network::ask::Ask;
use crate::network::serving::Serving;
use crate::overlay::ledger::{Claim, Ledger};
use crate::plan::compile;
use crate::policy::Policy;
use crate::report::error::Error;
use crate::session::live::{Live, ReadyWorkers};
use crate::session::mount_state::SessionMounts;
use crate::session::stats::Counts;
use crate::view::inputs;
use crate::view::inputs::SandboxKind;

impl Live {
    pub(crate) async fn prepare(policy: &Policy, ready: usize, ask: Option<Ask>) -> Result<Self, Error> {
        let (host, caller, shape) =
            (Host::detect_for(policy), Caller::current(), SandboxKind::Session { ready });
        let workspace: PathBuf = caller.absolute(&policy.workspace).components().collect();
        let begun = compile::begin(policy, &host, &caller, shape)?;
        let images = Images::new(inputs::spawn_options(policy, &host, &caller))?;
        // It makes its namespaces while the rest is compiled. An error from here on takes it away again.
        let groups = begun.groups.plan.as_ref().map(|plan| Groups::make(plan, &images)).transpose()?;
        let leaf = groups.as_ref().map(Groups::zygote).transpose()?;
        let zygote = start::begin_session(&images, &begun.namespaces, leaf)?;
        let compiled = compile::finish(begun, policy, &host, &caller, shape)?;
        let upper = compiled.overlay.as_ref().and_then(|merged| Some((merged, merged.upper.as_ref()?)));
        let claim = upper.map(|(merged, upper)| Claim::take(upper, &merged.workspace.path)).transpose()?;
        let ground = SessionMounts::of(&compiled, (policy, host, caller, shape));
        let prepared = Prepared::new(compiled, images)?;
        let trail = prepared.trail();
        if let Some(ask) = ask {
            prepared.set_ask(ask);
        }
        start::hand_over_session(&zygote, &prepared)?;
        let mut live = Self {
            enforcement: prepared.compiled.enforcement.clone(),
            prepared: Arc::new(prepared),
            zygote,
            groups,
            ground,
            waiting: Mutex::default(),
            tree: Mutex::default(),
            background: Mutex::default(),
            depth: ReadyWorkers::of(ready),
            ended: AtomicBool::new(false),
            counts: Counts::default(),
            ledger: Mutex::default(),
            serving: None,
            span: tracing::info_span!("session", name = trail.session(), workspace = %workspace.display()),
            trail,
        };
        // They lie in the zygote's socket until it has set up.
        live.refill();
        live.set_up(claim).await?;
        live.trail.write(None, || Record::Session {
            profile: policy.profile,
            workspace: workspace.display().to_string(),
            network: policy.effective_network(),
            enforcement: live.enforcement.level(),
        })?;
        tracing::info!(parent: &live.span, "ready");
        Ok(live)
    }

    /// Waits until the zygote has carried out the session's steps.
    async fn set_up(&mut self, claim: Option<Claim>) -> Result<(), Error> {
        let (mut said, mut upper) = (Vec::new(), None);
        self.serving =
            Serving::open(&self.prepared, &self.zygote, &self.trail, &mut said).await.map_err(|error| {
                match error {
                    Error::Lost => Error::SessionEnded,
                    error => error,
                }
            })?;
        let mut said = said.into_iter();
        loop {
            let arrival = match said.next() {
                Some(report) => Arrival::Report(report),
                None => self.zygote.next().await.map_err(Error::io("read the control socket"))?,
            };
            match arrival {
                Arrival::Report(Report::Ready { .. }) => return self.keep_changes(upper, claim).await,
                Arrival::Upper(directory) => upper = Some(directory),
                Arrival::Report(Report::Upper {}) => return Err(Error::no_descriptor()),
                Arrival::Report(Report::Failed { section, index, errno }) => {
                    return Err(self.prepared.step_failed(None, (section, index), errno));
                }
                Arrival::Report(Report::Skipped { section, index, errno }) => {
                    self.prepared.step_skipped(None, (section, index), errno, &mut self.enforcement);
                }
                Arrival::Closed => return Err(Error::SessionEnded),
                _ => {}
            }
        }
    }

    /// Takes down where the changes of the workspace are, if they are kept apart from it.
    async fn keep_changes(&mut self, upper: Option<OwnedFd>, claim: Option<Claim>) -> Result<(), Error> {
        if let (Some(merged), Some(upper)) = (&self.prepared.compiled.overlay, upper) {
            self.ledger = Mutex::new(Some(Arc::new(Ledger::open(merged, upper, claim).await?)));
        }
        Ok(())
    }
}
