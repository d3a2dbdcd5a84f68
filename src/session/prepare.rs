//! Prepares a session: everything that happens once.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use kennel_helper::control::Report;

use crate::audit::record::Record;
use crate::host::Host;
use crate::host::caller::Caller;
use crate::launch::bridge::HandedOut;
use crate::launch::cgroup::Groups;
use crate::launch::control::Arrival;
use crate::launch::image::Images;
use crate::launch::prepared::Prepared;
use crate::launch::start;
use crate::launch::supervisor::Supervisor;
use crate::network::ask::Ask;
use crate::network::publish::Publishing;
use crate::overlay::claim::Claim;
use crate::overlay::ledger::Ledger;
use crate::overlay::record::Heading;
use crate::plan::compile;
use crate::policy::Policy;
use crate::report::error::Error;
use crate::report::error::overlay::OverlayError;
use crate::session::live::{Live, ReadyWorkers};
use crate::session::mount_state::{CompileInputs, SessionMounts};
use crate::sys::birth::{SpawnOptions, Users};
use crate::view::inputs;
use crate::view::inputs::SandboxKind;

impl Live {
    pub(crate) async fn prepare(policy: &Policy, ready: usize, ask: Option<Ask>) -> Result<Self, Error> {
        let (host, caller, kind) =
            (Host::detect_for(policy), Caller::current(), SandboxKind::Session { ready });
        let workspace: PathBuf = caller.absolute(&policy.workspace).components().collect();
        let begun = compile::begin(policy, &host, &caller, kind)?;
        let options = inputs::spawn_options(policy, &host, &caller);
        let images = Images::new(SpawnOptions { overtakes: options.users == Users::Own, ..options })?;
        // The zygote makes its namespaces while the rest is compiled. An error from here on drops and kills
        // it.
        let groups = begun.groups.plan.as_ref().map(|plan| Groups::make(plan, &images)).transpose()?;
        let leaf = groups.as_ref().map(Groups::zygote).transpose()?;
        let zygote = start::begin_session(&images, &begun.namespaces, leaf)?;
        let compiled = compile::finish(begun, policy, &host, &caller, kind)?;
        let upper = compiled.overlay.as_ref().and_then(|merged| Some((merged, merged.upper.as_ref()?)));
        let keeps = policy.overlay.as_ref().is_some_and(|overlay| overlay.keeps);
        let claim = upper.map(|(merged, upper)| {
            let heading = keeps.then(|| Heading::of(policy, merged)).transpose();
            let path = &merged.workspace.path;
            let heading =
                heading.map_err(|source| OverlayError::io("look at the workspace", path, source))?;
            Claim::take(upper, path, heading)
        });
        let claim = claim.transpose()?;
        let inputs = CompileInputs { policy: policy.clone(), host, caller, kind };
        let mounts = SessionMounts::new(&compiled, Arc::new(inputs));
        let prepared = Prepared::new(compiled, images)?;
        let trail = prepared.trail();
        if let Some(ask) = ask {
            prepared.set_ask(ask);
        }
        let span = tracing::info_span!("session", name = trail.session(), workspace = %workspace.display());
        start::hand_over_session(&zygote, &prepared)?;
        let mut live = Self {
            // `mounts` has the notes of the plan, which change with the host's files.
            enforcement: prepared.compiled.enforcement.without_notes(),
            prepared: Arc::new(prepared),
            zygote,
            groups,
            mounts,
            waiting: Mutex::default(),
            shared: None,
            view: Mutex::default(),
            sockets: tokio::sync::Mutex::default(),
            published: Publishing::new(&trail),
            background: Mutex::default(),
            ready_workers: ReadyWorkers::new(ready),
            ended: AtomicBool::new(false),
            terminated: AtomicBool::new(false),
            counts: Arc::default(),
            ledger: Mutex::default(),
            proxy: None,
            span,
            trail,
            detached: Arc::default(),
            supervisor: None,
        };
        live.begin(claim).await?;
        live.trail.write(None, || Record::Session {
            profile: policy.profile,
            workspace: workspace.display().to_string(),
            network: policy.effective_network(),
            enforcement: live.enforcement.level(),
        })?;
        tracing::info!(parent: &live.span, "ready");
        Ok(live)
    }

    /// Waits until the zygote has carried out the plan, and orders the first workers.
    async fn begin(&mut self, claim: Option<Claim>) -> Result<(), Error> {
        // Orders wait in the socket of the zygote until it has set up.
        if self.mounts.inputs.policy.shares_processes() {
            let init = self.order_common_init();
            // If the zygote has failed, this tells why.
            self.set_up(claim).await?;
            self.share(init?).await?;
            self.refill();
        } else {
            self.refill();
            self.set_up(claim).await?;
        }
        Ok(())
    }

    /// Waits until the zygote has carried out the session's steps.
    async fn set_up(&mut self, claim: Option<Claim>) -> Result<(), Error> {
        let (mut early_reports, mut upper) = (Vec::new(), None);
        let handed_out =
            HandedOut::receive(&self.prepared, &self.zygote, &self.trail, &mut early_reports).await;
        let handed_out = handed_out.map_err(|error| match error {
            Error::Lost => Error::SessionEnded,
            error => error,
        })?;
        self.proxy = handed_out.proxy;
        let supervise = |listener| Supervisor::follow(listener, &self.prepared.compiled);
        self.supervisor = handed_out.seccomp_listener.map(supervise).transpose()?;
        let mut early_reports = early_reports.into_iter();
        loop {
            let arrival = match early_reports.next() {
                Some(report) => Arrival::Report(report),
                None => self.zygote.next().await.map_err(Error::io("read the control socket"))?,
            };
            match arrival {
                Arrival::Report(Report::Ready { .. }) => return self.open_ledger(upper, claim).await,
                Arrival::Upper(directory) => upper = Some(directory),
                Arrival::Refusing(listener) => self.supervisor = Some(supervise(listener)?),
                Arrival::Report(Report::Upper {} | Report::Refusing {}) => return Err(Error::no_descriptor()),
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

    /// Opens the ledger of the changes, if the session has an overlay.
    async fn open_ledger(&mut self, upper: Option<OwnedFd>, claim: Option<Claim>) -> Result<(), Error> {
        if let (Some(merged), Some(upper)) = (&self.prepared.compiled.overlay, upper) {
            self.ledger = Mutex::new(Some(Arc::new(Ledger::open(merged, upper, claim).await?)));
        }
        Ok(())
    }
}
