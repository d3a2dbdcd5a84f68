//! The handle on a bridge: a process that connects each client of a TCP socket in the sandbox to a Unix
//! socket of a proxy on the host. Kennel itself sees no byte of these connections.
//!
//! A bridge can start early, beside its sandbox. Dropping it ends it with all of its connections.

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use kennel_helper::control::{BridgeOrder, Report, section};
use kennel_helper::plan::Step;
use kennel_helper::wire::Field;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Linger, TcpNoDelay};

use crate::audit::trail::Trail;
use crate::launch::control::{Arrival, ignore_epipe};
use crate::launch::image::Images;
use crate::launch::inside::{Inside, WaitingInit};
use crate::launch::prepared::{FailedStep, Prepared, step_failed, step_skipped};
use crate::launch::start;
use crate::network::serving::{BoxFuture, ListeningSocket, ProxyBridge, Serving};
use crate::plan::PlannedStep;
use crate::plan::bridge::BridgePlan;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;

/// A running bridge.
#[derive(Debug)]
pub(crate) struct Bridge {
    init: WaitingInit,
    plan: Arc<BridgePlan>,
    /// Whether `finish` was called.
    finishing: AtomicBool,
}

impl Bridge {
    /// Starts a bridge. It makes its namespaces, root and protections on its own. The call blocks its thread
    /// for about as long as posix_spawn(3).
    ///
    /// # Errors
    /// Those of any start before the first step.
    pub(crate) fn start(images: &Images, plan: &Arc<BridgePlan>) -> Result<Self, Error> {
        let init = start::start_bridge(images, plan)?;
        Ok(Self { init, plan: Arc::clone(plan), finishing: AtomicBool::new(false) })
    }

    /// Hands over a listening TCP socket and waits until the bridge serves it. Call it once. Optional
    /// protections that the host lacks are recorded in `enforcement`.
    ///
    /// # Errors
    /// A step that failed, or [`Error::Lost`] if the bridge was killed.
    pub(crate) async fn serve(&self, listener: OwnedFd, enforcement: &mut Enforcement) -> Result<(), Error> {
        let failed = || Error::io("hand over the listener of the bridge");
        // Connections inherit both options. Small packets are sent at once. close(2) resets the connection,
        // so that a client does not take an incomplete stream for a complete one; the bridge clears the
        // option after a complete stream, which it cannot do if it is killed.
        let resets = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&listener, TcpNoDelay, &true).map_err(|errno| failed()(errno.into()))?;
        setsockopt(&listener, Linger, &resets).map_err(|errno| failed()(errno.into()))?;
        // The bridge expects nonblocking sockets.
        fcntl(&listener, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| failed()(errno.into()))?;
        let mut message = Vec::new();
        BridgeOrder::Serve { connections: self.plan.connections }.put(&mut message);
        ignore_epipe(self.init.send(&message, [listener.as_fd()])).map_err(failed())?;
        // From here on the connections end with the bridge.
        drop(listener);
        loop {
            match self.init.next().await.map_err(Error::io("read the control socket of the bridge"))? {
                Arrival::Report(Report::Ready { .. }) => return Ok(()),
                Arrival::Report(Report::Failed { section, index, errno }) => {
                    let failed = FailedStep { section, index, errno };
                    return Err(step_failed(self.step(section, index), failed));
                }
                Arrival::Report(Report::Skipped { section, index, errno }) => {
                    step_skipped(self.step(section, index), errno, enforcement);
                }
                Arrival::Closed => return Err(Error::Lost),
                _ => {}
            }
        }
    }

    /// Orders a serving bridge to pass on what clients have sent, and to end. Call it when no client is left.
    pub(crate) fn finish(&self) {
        if self.finishing.swap(true, Relaxed) {
            return;
        }
        let mut message = Vec::new();
        BridgeOrder::Finish {}.put(&mut message);
        // A bridge that is gone is no error.
        if let Err(error) = ignore_epipe(self.init.send(&message, [])) {
            tracing::debug!(%error, "order the bridge to finish");
        }
    }

    /// Whether `finish` was called.
    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.load(Relaxed)
    }

    /// Waits until a serving bridge is gone, and returns the reason. Before `finish` or a drop, only an error
    /// of its own or of the host can end it.
    pub(crate) async fn ended(&self) -> Error {
        match self.init.next().await {
            Ok(Arrival::Report(Report::Failed { section, index, errno })) => {
                step_failed(self.step(section, index), FailedStep { section, index, errno })
            }
            Ok(_) => Error::Lost,
            Err(source) => Error::Io { what: "read the control socket of the bridge", source },
        }
    }

    /// Kills the bridge and waits up to a second for its end.
    pub(crate) async fn gone(&self) {
        self.init.gone().await;
    }

    fn step(&self, section: u32, index: u32) -> Option<PlannedStep<'_>> {
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
        // The report of the sandbox already names what the host lacks; both have the same protections.
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

// The sockets of a new sandbox. The proxy serves them before a command can use them, so a failure is an error
// of the start.

/// What a new sandbox hands out for its network.
pub(crate) struct HandedOut {
    /// `None` if the policy has no proxy.
    pub(crate) proxy: Option<Serving>,
    /// The sockets for published ports, if PID 1 makes them.
    pub(crate) sockets: Vec<OwnedFd>,
    /// The listener of the seccomp filter, if it has arrived.
    pub(crate) seccomp_listener: Option<OwnedFd>,
}

impl HandedOut {
    /// Serves the network of a sandbox or session while it carries out its plan; waits for all of its
    /// sockets. Other reports that arrive meanwhile go to `reports`.
    ///
    /// # Errors
    /// A step that failed, or no free descriptor.
    pub(crate) async fn receive(
        prepared: &Prepared,
        inside: &Inside,
        trail: &Arc<Trail>,
        reports: &mut Vec<Report>,
    ) -> Result<Self, Error> {
        let proxy = prepared.gate().map(|gate| {
            let bridge = prepared.compiled.services.bridge.as_ref();
            // The bridge sets itself up beside the sandbox.
            let bridge = bridge.map(|plan| Bridge::start(&prepared.images, plan)).transpose()?;
            let bridge = bridge.map(|bridge| -> Arc<dyn ProxyBridge> { Arc::new(bridge) });
            Ok::<_, Error>(Serving::new(gate, trail, bridge))
        });
        let mut handed_out = Self { proxy: proxy.transpose()?, sockets: Vec::new(), seccomp_listener: None };
        let of_proxy = prepared.gate().map_or(0, |gate| gate.settings().sockets);
        let mut missing = of_proxy + prepared.compiled.services.published_sockets;
        while missing > 0 {
            match inside.next().await.map_err(Error::io("read the control socket"))? {
                Arrival::Listening(listening) => {
                    handed_out.take(listening).await?;
                    missing -= 1;
                }
                Arrival::Report(Report::Failed { section, index, errno }) => {
                    return Err(prepared.step_failed(None, FailedStep { section, index, errno }));
                }
                // No descriptor number was free for the socket.
                Arrival::Report(Report::Listening { .. }) => return Err(Error::no_descriptor()),
                // The proxy only refuses. Without this socket, programs find nothing at its address.
                Arrival::Report(Report::Skipped { section, index, .. })
                    if prepared.step(None, section, index).is_some_and(|it| is_socket(&it.step)) =>
                {
                    missing -= 1;
                }
                Arrival::Report(report) => reports.push(report),
                Arrival::Closed => return Err(Error::Lost),
                Arrival::Refusing(listener) => handed_out.seccomp_listener = Some(listener),
                Arrival::Born(..)
                | Arrival::Terminal(_)
                | Arrival::Started(_)
                | Arrival::Root(_)
                | Arrival::Upper(_)
                | Arrival::RootUpper(_)
                | Arrival::Mounts(_) => {}
            }
        }
        Ok(handed_out)
    }

    async fn take(&mut self, listening: ListeningSocket) -> Result<(), Error> {
        match &self.proxy {
            Some(proxy) if listening.port != 0 => proxy.take(listening).await?,
            _ => self.sockets.push(listening.socket),
        }
        Ok(())
    }
}

fn is_socket(step: &Step<'_>) -> bool {
    matches!(step, Step::Listen { .. } | Step::ListenEverywhere { .. })
}
