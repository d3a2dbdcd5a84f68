//! The sandboxes of commands without a session: each command gets its own.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use crate::audit::trail::Trail;
use crate::command::detached::DetachedCommands;
use crate::command::source::{Entered, Membership, ReadyWorker, Turn, WorkerSource, Workers};
use crate::launch::bridge::HandedOut;
use crate::launch::prepared::{OwnSteps, Prepared};
use crate::launch::start;
use crate::network::namespace_socket::NamespaceSockets;
use crate::network::publish::{Bound, Inward, Publishing};
use crate::network::serving::BoxFuture;
use crate::plan::Section;
use crate::plan::compile::CompileInputs;
use crate::plan::network::SOCKETS_HANDED_OUT;
use crate::protect::mount_snapshot::{MountChange, replaced};
use crate::report::error::Error;
use crate::sys::locked;

/// The plan of a sandbox, shared with its commands.
pub(crate) struct OneShots {
    /// `None` for a single command, which starts at once.
    pub(crate) inputs: Option<CompileInputs>,
    /// The plan of the last start; before the first start, the plan it will use.
    pub(crate) prepared: Mutex<Arc<Prepared>>,
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
    let bound = Bound::all(&prepared.compiled.services.publish)?;
    let init = start::start_one_shot(prepared, own.as_ref().map(|own| &own.bytes))?;
    let mut reports = Vec::new();
    let handed_out = HandedOut::receive(prepared, &init, trail, &mut reports).await?;
    let HandedOut { proxy, sockets, seccomp_listener } = handed_out;
    let published = match sockets.try_into() {
        Ok(sockets) => Some(publish(bound, sockets, trail).await.map_err(Error::io("publish the ports"))?),
        Err(_) => None,
    };
    Ok(ReadyWorker { init, reports, proxy, published, seccomp_listener, own })
}
