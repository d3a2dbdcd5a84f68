//! The sandboxes of commands without a session: each command gets its own.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use crate::audit::trail::Trail;
use crate::command::source::ReadyWorker;
use crate::launch::bridge::HandedOut;
use crate::launch::prepared::{OwnSteps, Prepared};
use crate::launch::start;
use crate::network::namespace::SOCKETS_HANDED_OUT;
use crate::network::namespace::publish::{Bound, Inward, Publishing};
use crate::network::namespace::socket::NamespaceSockets;
use crate::network::serving::Serving;
use crate::plan::Section;
use crate::plan::compile::CompileInputs;
use crate::protect::mount_snapshot::{MountChange, replaced};
use crate::report::error::Error;
use crate::sys::locked;

/// The plan of a sandbox, shared with its commands.
pub(crate) struct OneShots {
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

impl OneShots {
    /// For a single command.
    pub(crate) fn once(prepared: Prepared) -> Self {
        Self { inputs: None, prepared: Mutex::new(Arc::new(prepared)) }
    }

    /// For any number of commands. Each gets mounts that fit the host's files.
    pub(crate) fn renewable(inputs: CompileInputs, prepared: Prepared) -> Self {
        Self { inputs: Some(inputs), prepared: Mutex::new(Arc::new(prepared)) }
    }

    /// The plan of the last start; before the first start, the plan it will use.
    pub(crate) fn prepared(&self) -> Arc<Prepared> {
        Arc::clone(&locked(&self.prepared))
    }

    /// The plan for the next command: compiles the policy again if mounted or granted paths have changed.
    ///
    /// # Errors
    /// The workspace was replaced or removed, or a grant was removed; a protected path on the host cannot be
    /// protected any more.
    pub(crate) fn renew(&self) -> Result<Arc<Prepared>, Error> {
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

/// The network that a one-shot has for itself.
#[derive(Debug)]
pub(crate) struct OwnNetwork {
    /// The proxy, if the policy has one.
    pub(crate) proxy: Option<Serving>,
    /// The published ports, if the policy has any.
    pub(crate) published: Option<Publishing>,
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
/// The proxy, if it gets one, writes to `trail`. `own_steps` are steps of this command alone.
pub(crate) async fn start_worker(
    prepared: &Prepared,
    trail: &Arc<Trail>,
    own_steps: Option<Section>,
) -> Result<(ReadyWorker, OwnNetwork), Error> {
    let own = own_steps.map(OwnSteps::new).transpose();
    let own = own.map_err(Error::io("write the steps of the command to a memfd"))?.map(Arc::new);
    // Before the start: a port that another program has is an error of the caller.
    let bound = Bound::all(&prepared.compiled.services.publish)?;
    let init = start::start_one_shot(prepared, own.as_ref().map(|own| &own.bytes))?;
    let mut reports = Vec::new();
    let handed_out = HandedOut::receive(prepared, &init, trail, &mut reports).await?;
    let HandedOut { proxy, sockets, seccomp_listener } = handed_out;
    let published = match sockets.try_into() {
        Ok(sockets) => Some(publish(bound, sockets, trail).await.map_err(Error::io("publish the ports"))?),
        Err(_) => None,
    };
    Ok((ReadyWorker { init, reports, seccomp_listener, own }, OwnNetwork { proxy, published }))
}
