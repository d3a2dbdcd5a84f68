//! The outside's hold on a bridge: a process that connects whoever connects to a TCP socket of the sandbox to a proxy on a
//! Unix socket of the host. It sees no byte that passes.
//!
//! A bridge can be started early, beside the sandbox whose listener it will serve. Dropping it ends it, with every
//! connection.

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use kennel_helper::control::{BridgeOrder, Report, section};
use kennel_helper::plan::{Plan, Step};
use kennel_helper::wire::Field;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Linger, TcpNoDelay};

use crate::audit::trail::Trail;
use crate::launch::inside::{Arrival, Inside, unless_gone};
use crate::launch::prepared::{Bytes, Prepared, step_failed, step_skipped};
use crate::launch::start;
use crate::launch::start::Images;
use crate::network::proxy::{BoxFuture, ProxyBridge, Serving};
use crate::plan::bridge::BridgePlan;
use crate::report::enforcement::{Enforcement, Protection};
use crate::report::error::Error;

/// A bridge that was started.
#[derive(Debug)]
pub(crate) struct Bridge {
    inside: Inside,
    plan: Arc<BridgePlan>,
    /// Whether its end was ordered.
    finishing: AtomicBool,
}

impl Bridge {
    /// Starts a bridge, which makes its namespaces, its root and its walls without being waited for. Blocks its thread
    /// for about as long as posix_spawn(3) would.
    ///
    /// # Errors
    /// Those of any start before a step is carried out.
    pub(crate) fn start(images: &Images, plan: &Arc<BridgePlan>) -> Result<Self, Error> {
        let inside = start::start_bridge(images, &plan.namespaces)?;
        let mut bytes = Vec::new();
        Plan { setup: &plan.setup.bytes, worker: &[], walls: &plan.walls.bytes, payload: &[] }
            .put(&mut bytes);
        let bytes = Bytes::new(&bytes).map_err(Error::io("hand over the plan of the bridge"))?;
        start::hand_over_plan(&inside, &bytes, None)?;
        Ok(Self { inside, plan: Arc::clone(plan), finishing: AtomicBool::new(false) })
    }

    /// Hands over a listening TCP socket, and waits until whoever connects to it is served. To be called once. Walls of
    /// the bridge that may be missing and are get entered into `enforcement`.
    ///
    /// # Errors
    /// A step that failed, [`Error::Lost`] where the bridge was killed.
    pub(crate) async fn serve(&self, listener: OwnedFd, enforcement: &mut Enforcement) -> Result<(), Error> {
        let failed = || Error::io("hand over the listener of the bridge");
        // Connections inherit both: they do not hold back small packets, and whoever closes one resets it, so that no
        // client takes what came for all there was. The bridge unsets that where it was all; killed, it cannot.
        let resets = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&listener, TcpNoDelay, &true).map_err(|errno| failed()(errno.into()))?;
        setsockopt(&listener, Linger, &resets).map_err(|errno| failed()(errno.into()))?;
        // The bridge expects that nothing blocks.
        fcntl(&listener, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| failed()(errno.into()))?;
        let mut message = Vec::new();
        BridgeOrder::Serve { connections: self.plan.connections }.put(&mut message);
        unless_gone(self.inside.send(&message, [listener.as_fd()])).map_err(failed())?;
        // From here on connections end with the bridge.
        drop(listener);
        loop {
            match self.inside.next().await.map_err(Error::io("read the control socket of the bridge"))? {
                Arrival::Report(Report::Ready { .. }) => return Ok(()),
                Arrival::Report(Report::Failed { section, index, errno }) => {
                    let place = (section, index);
                    return Err(step_failed(self.step(place), place, errno));
                }
                Arrival::Report(Report::Skipped { section, index, errno }) => {
                    step_skipped(self.step((section, index)), errno, enforcement);
                }
                Arrival::Closed => return Err(Error::Lost),
                _ => {}
            }
        }
    }

    /// Has it end, where it serves, once what clients have sent was passed on. To be called when none of them lives.
    pub(crate) fn finish(&self) {
        if self.finishing.swap(true, Relaxed) {
            return;
        }
        let mut message = Vec::new();
        BridgeOrder::Finish {}.put(&mut message);
        // That nobody is left to receive it is no error: the end is on its way.
        if let Err(error) = unless_gone(self.inside.send(&message, [])) {
            tracing::debug!(%error, "order the bridge to finish");
        }
    }

    /// Whether it was told to.
    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.load(Relaxed)
    }

    /// Waits until the bridge, which serves, is gone; answers why. Only a fault of its own or of the host ends it before
    /// it is dropped or told to finish.
    pub(crate) async fn ended(&self) -> Error {
        match self.inside.next().await {
            Ok(Arrival::Report(Report::Failed { section, index, errno })) => {
                step_failed(self.step((section, index)), (section, index), errno)
            }
            Ok(_) => Error::Lost,
            Err(source) => Error::Io { what: "read the control socket of the bridge", source },
        }
    }

    /// Kills it and waits, a second at most, until it is gone.
    pub(crate) async fn gone(&self) {
        self.inside.gone().await;
    }

    fn step(&self, (section, index): (u32, u32)) -> Option<(Protection, Step<'_>)> {
        let section = match section {
            section::NAMESPACES => &self.plan.namespaces,
            section::SETUP => &self.plan.setup,
            section::WALLS => &self.plan.walls,
            _ => return None,
        };
        section.step(index)
    }
}

impl ProxyBridge for Bridge {
    fn serve(&self, listener: OwnedFd) -> BoxFuture<'_, Result<(), Error>> {
        // The report of the sandbox names what the host lacks: both have the same walls.
        Box::pin(async move { self.serve(listener, &mut Enforcement::default()).await })
    }

    fn ended(&self) -> BoxFuture<'_, Error> {
        Box::pin(self.ended())
    }

    fn finish(&self) {
        self.finish();
    }

    fn is_finishing(&self) -> bool {
        self.is_finishing()
    }

    fn gone(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.gone())
    }
}

// Takes the sockets of a sandbox that was just started, and begins to serve them: before any command can use them, so
// that what goes wrong is an error of the start.

impl Serving {
    /// Serves the network of a sandbox or session whose steps are being carried out; waits until its sockets have come.
    /// `None` where the policy has no proxy. What else was said meanwhile is left in `said`.
    ///
    /// # Errors
    /// A step that failed, no room for a descriptor.
    pub(crate) async fn open(
        prepared: &Prepared,
        inside: &Inside,
        trail: &Arc<Trail>,
        said: &mut Vec<Report>,
    ) -> Result<Option<Self>, Error> {
        let Some(gate) = prepared.gate() else { return Ok(None) };
        let bridge = prepared.compiled.bridge.as_ref();
        // It gets ready beside the sandbox.
        let bridge = bridge.map(|plan| Bridge::start(&prepared.images, plan)).transpose()?;
        let serving =
            Self::new(gate, trail, bridge.map(|bridge| -> Arc<dyn ProxyBridge> { Arc::new(bridge) }));
        let mut missing = gate.settings().sockets;
        while missing > 0 {
            match inside.next().await.map_err(Error::io("read the control socket"))? {
                Arrival::Listening(listening) => {
                    serving.take(listening).await?;
                    missing -= 1;
                }
                Arrival::Report(Report::Failed { section, index, errno }) => {
                    return Err(prepared.step_failed(None, (section, index), errno));
                }
                // Its descriptor was lost for want of room for one.
                Arrival::Report(Report::Listening { .. }) => return Err(Error::no_descriptor()),
                Arrival::Report(report) => said.push(report),
                Arrival::Closed => return Err(Error::Lost),
                Arrival::Born(_)
                | Arrival::Terminal(_)
                | Arrival::Refusing(_)
                | Arrival::Root(_)
                | Arrival::Upper(_)
                | Arrival::Mounts(_) => {}
            }
        }
        Ok(Some(serving))
    }
}
