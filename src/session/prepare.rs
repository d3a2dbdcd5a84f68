//! Prepares a session: everything that happens once.

use std::path::PathBuf;
use std::sync::Arc;

use crate::audit::record::Record;
use crate::caller::Caller;
use crate::host::Host;
use crate::launch::cgroup::Groups;
use crate::launch::image::Images;
use crate::launch::prepared::Prepared;
use crate::launch::start;
use crate::network::ask::Ask;
use crate::overlay::claim::Claim;
use crate::overlay::record::Heading;
use crate::overlay::root_upper::RootUpper;
use crate::plan::compile;
use crate::plan::compile::CompileInputs;
use crate::policy::Policy;
use crate::report::error::Error;
use crate::report::error::overlay::OverlayError;
use crate::session::live::Live;
use crate::session::log::SessionLog;
use crate::session::mount_state::SessionMounts;
use crate::session::services::SessionServices;
use crate::session::warm::When;
use crate::session::zygote::{SetUp, Zygote};
use crate::sys::birth::{SpawnOptions, Users};
use crate::view::inputs;
use crate::view::inputs::SandboxKind;

/// Prepares a session that keeps `ready` workers ready, up to its first orders.
pub(crate) async fn prepare(policy: &Policy, ready: usize, ask: Option<Ask>) -> Result<Arc<Live>, Error> {
    let (host, caller, kind) = (Host::detect_for(policy), Caller::current(), SandboxKind::Session { ready });
    let (with_place, root_upper) = RootUpper::of(policy, &caller)?.unzip();
    let policy = with_place.as_ref().unwrap_or(policy);
    let workspace: PathBuf = caller.absolute(&policy.workspace).components().collect();
    let begun = compile::begin(policy, &host, &caller, kind)?;
    let options = inputs::spawn_options(policy, &host, &caller);
    let images = Images::new(SpawnOptions { overtakes: options.users == Users::Own, ..options })?;
    // The zygote makes its namespaces while the rest is compiled. An error from here on drops and kills
    // it.
    let groups = begun.groups.plan.as_ref().map(|plan| Groups::make(plan, &images)).transpose()?;
    let leaf = groups.as_ref().map(Groups::zygote).transpose()?;
    let init = start::begin_session(&images, &begun.namespaces, leaf)?;
    let compiled = compile::finish(begun, policy, &host, &caller, kind)?;
    let upper = compiled.overlay.as_ref().and_then(|merged| Some((merged, merged.upper.as_ref()?)));
    let keeps = policy.overlay.as_ref().is_some_and(|overlay| overlay.keeps);
    let claim = upper.map(|(merged, upper)| {
        let heading = keeps.then(|| Heading::of(policy, merged)).transpose();
        let path = &merged.workspace.path;
        let heading = heading.map_err(|source| OverlayError::io("look at the workspace", path, source))?;
        Claim::take(upper, path, heading)
    });
    let claim = claim.transpose()?;
    let inputs = CompileInputs { policy: policy.clone(), host, caller, kind };
    let mounts = SessionMounts::new(&compiled, inputs);
    let prepared = Prepared::new(compiled, images)?;
    let trail = prepared.trail();
    if let Some(ask) = ask {
        prepared.set_ask(ask);
    }
    let span = tracing::info_span!("session", name = trail.session(), workspace = %workspace.display());
    let init = start::hand_over_session(init, &prepared)?;
    let prepared = Arc::new(prepared);
    let log = Arc::new(SessionLog::new(trail, span));
    let mut zygote = Zygote::new(init, Arc::clone(&prepared), groups, mounts, ready, Arc::clone(&log));

    // Orders wait in the socket of the zygote until it has set up.
    let common_init = policy.shares_processes().then(|| zygote.order_common_init());
    if common_init.is_none() {
        zygote.refill();
    }
    let SetUp { proxy, upper, root_upper: in_memory } = zygote.set_up().await?;
    log.open_ledger(&prepared, upper, claim).await?;
    log.keep_root_changes(in_memory, root_upper)?;
    // If the zygote has failed, `set_up` has told why.
    if let Some(ordered) = common_init {
        zygote.share(ordered?).await?;
        zygote.refill();
    }

    log.trail().write(None, || Record::Session {
        profile: policy.profile,
        workspace: workspace.display().to_string(),
        network: policy.effective_network(),
        enforcement: zygote.enforcement().level(),
        root: log.trail().origin().root.as_deref(),
    })?;
    tracing::info!(parent: log.span(), "ready");
    let services = SessionServices::new(log.trail(), proxy);
    let live = Live::new(zygote, services, log);
    live.refill_interpreters(When::Now);
    Ok(live)
}
