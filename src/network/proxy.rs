//! The proxy: the only way out of a sandbox whose network mode is `proxy`. It runs outside, on the runtime of whoever
//! prepared the sandbox; its listeners lie in the sandbox's network namespace and were handed out, so that no byte
//! passes through the inside.
//!
//! Nothing that a client sends is believed, and nothing is dialled that `gate` did not let pass.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::audit::trail::Trail;
use crate::network::accept;
use crate::network::gate::Gate;
use crate::network::loopback_names::LoopbackNames;
use crate::network::meter::Meter;
use crate::network::refusal::{Denials, ProxyRefusal};
use crate::plan::network::PORT;
use crate::policy::destination::{Destination, Host};
use crate::report::denial::Denial;
use crate::report::error::Error;
use crate::sys::locked;

/// How long what was sent last may take to arrive.
const LAST_MOMENT: Duration = Duration::from_secs(2);

/// How long who is refused too often waits for each answer.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The proxy of one network namespace.
pub(crate) struct Proxy {
    pub(crate) gate: Arc<Gate>,
    pub(crate) names: LoopbackNames,
    denials: Denials,
    pub(crate) meter: Meter,
    pub(crate) slots: Arc<Semaphore>,
    /// Room for descriptors beside the two of each connection, two a piece: pipes, and more attempts to connect than one.
    pub(crate) spare: Arc<Semaphore>,
    pub(crate) trail: Arc<Trail>,
    closing: watch::Sender<bool>,
}

impl Proxy {
    fn new(gate: &Arc<Gate>, trail: &Arc<Trail>) -> Self {
        let limits = &gate.settings().limits;
        Self {
            names: LoopbackNames::default(),
            denials: Denials::default(),
            meter: Meter::new(limits.bytes, limits.rate),
            slots: Arc::new(Semaphore::new(limits.connections)),
            spare: Arc::new(Semaphore::new(limits.connections / 8)),
            trail: Arc::clone(trail),
            closing: watch::Sender::new(false),
            gate: Arc::clone(gate),
        }
    }

    /// Remembers that something was refused, for the commands that run and for the audit log. To be called before the
    /// client is told, so that no command ends before its denial is known.
    ///
    /// Who is refused too often waits for the answer: nobody shall fill a disk with what he may not do.
    pub(crate) async fn refused(&self, refusal: &ProxyRefusal) {
        self.record_refusal(refusal);
        if let Some(until) = self.denials.add(refusal) {
            // Not for long: whoever waits takes the room of a connection.
            tokio::time::sleep_until(until.min(Instant::now() + LONGEST_WAIT)).await;
        }
    }

    /// As `refused`, for an answer that need not be given. Whether it may be.
    pub(crate) fn refuses(&self, refusal: &ProxyRefusal) -> bool {
        if self.denials.is_too_much() {
            return false;
        }
        self.record_refusal(refusal);
        self.denials.add(refusal);
        true
    }

    /// The destination by its name, where a program asks for an address that its name was answered with.
    pub(crate) fn named(&self, destination: Destination) -> Destination {
        match destination.host {
            Host::Address(IpAddr::V4(ip)) => match self.names.name_of(ip) {
                Some(name) => Destination { host: Host::Name(name), ..destination },
                None => destination,
            },
            _ => destination,
        }
    }

    /// Returns once the command that the sandbox was for has ended.
    pub(crate) async fn closing(&self) {
        // The sender lives as long as this value.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }
}

/// The way to a proxy that is not Kennel's own: it takes the listening socket of the proxy's port and serves it.
pub(crate) trait ProxyBridge: Send + Sync {
    /// Serves whoever connects to `listener`; returns once that has begun. To be called once.
    fn serve(&self, listener: OwnedFd) -> BoxFuture<'_, Result<(), Error>>;

    /// Waits until it is gone; answers why.
    fn ended(&self) -> BoxFuture<'_, Error>;

    /// Passes on what clients have sent, and ends. To be called when no client lives.
    fn finish(&self);

    /// Whether it was told to finish.
    fn is_finishing(&self) -> bool;

    /// Kills it and waits until it is gone.
    fn gone(&self) -> BoxFuture<'_, ()>;
}

/// A future on the heap, for a trait that is used as an object.
pub(crate) type BoxFuture<'f, T> = Pin<Box<dyn Future<Output = T> + Send + 'f>>;

/// A proxy that serves; it ends with this value, and every connection through it.
pub(crate) struct Serving {
    proxy: Arc<Proxy>,
    served: Mutex<Vec<Served>>,
    /// What the proxy's own port leads to, where the proxy is not ours.
    bridge: Option<Arc<dyn ProxyBridge>>,
    /// When who has something to send at the end has had time enough.
    last: Option<Instant>,
}

/// A socket of the sandbox's, and the task that serves it.
struct Served {
    /// Kept, so that nothing inside can ever take its place; none where the bridge has it.
    socket: Option<ListeningSocket>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("session", &self.proxy.trail.session()).finish_non_exhaustive()
    }
}

impl Serving {
    pub(crate) fn new(gate: &Arc<Gate>, trail: &Arc<Trail>, bridge: Option<Arc<dyn ProxyBridge>>) -> Self {
        Self { proxy: Arc::new(Proxy::new(gate, trail)), served: Mutex::default(), bridge, last: None }
    }

    /// Serves a socket that came out of the sandbox.
    ///
    /// # Errors
    /// Those of putting it under the runtime's watch, and of the bridge.
    pub(crate) async fn take(&self, listening: ListeningSocket) -> Result<(), Error> {
        let served = match &self.bridge {
            Some(bridge) if (listening.kind, listening.port) == (libc::SOCK_STREAM, PORT) => {
                Served { socket: None, task: lead(Arc::clone(bridge), listening.socket).await? }
            }
            _ => {
                let task = self.serve(&listening).map_err(Error::io("serve the sandbox's network"))?;
                Served { socket: Some(listening), task }
            }
        };
        self.lock().push(served);
        Ok(())
    }

    fn serve(&self, ListeningSocket { kind, port, socket }: &ListeningSocket) -> io::Result<JoinHandle<()>> {
        let (proxy, socket) = (Arc::clone(&self.proxy), socket.try_clone()?);
        match (*kind, *port) {
            (libc::SOCK_DGRAM, _) => accept::answer_names(proxy, socket),
            (_, PORT) => accept::accept(proxy, socket, accept::serve),
            _ => accept::accept(proxy, socket, accept::serve_transparently),
        }
    }

    /// Serves again what a runtime that has ended served, on the one that this is called in.
    pub(crate) fn renew(&self) {
        for served in self.lock().iter_mut().filter(|served| served.task.is_finished()) {
            let Some(socket) = &served.socket else { continue };
            match self.serve(socket) {
                Ok(task) => served.task = task,
                Err(error) => tracing::error!(%error, "the sandbox's network is not served any more"),
            }
        }
    }

    /// Follows what is refused while a command runs.
    pub(crate) fn witness(&self) -> Witness {
        Witness { since: self.proxy.denials.now(), proxy: Arc::clone(&self.proxy) }
    }

    /// Waits until the bridge, if there is one, is gone.
    pub(crate) async fn gone(&self) {
        if let Some(bridge) = &self.bridge {
            bridge.gone().await;
        }
    }

    /// Takes no more connections, and waits, for a moment at most, until what was sent through them has arrived: as it
    /// would have without a proxy, although whoever sent it is gone. Whoever gives up waiting can come back.
    pub(crate) async fn drain(&mut self) {
        self.proxy.closing.send_replace(true);
        if let Some(bridge) = &self.bridge {
            bridge.finish();
        }
        let last = *self.last.get_or_insert_with(|| Instant::now() + LAST_MOMENT);
        let served = self.served.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ended = async {
            while let Some(Served { task, .. }) = served.last_mut() {
                let _ = task.await;
                served.pop();
            }
        };
        if timeout_at(last, ended).await.is_err() {
            tracing::debug!("connections did not come to their end in time");
        }
    }

    /// Ends every connection, and takes no more.
    pub(crate) fn end(&self) {
        self.lock().iter().for_each(|served| served.task.abort());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Served>> {
        locked(&self.served)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
    }
}

/// Has a bridge serve a listener; the task says so if it ends before its time.
async fn lead(bridge: Arc<dyn ProxyBridge>, listener: OwnedFd) -> Result<JoinHandle<()>, Error> {
    bridge.serve(listener).await?;
    Ok(tokio::spawn(async move {
        let error = bridge.ended().await;
        if !bridge.is_finishing() {
            tracing::error!(
                error = error.chain(),
                "the bridge to the proxy is gone, and the way out with it"
            );
        }
    }))
}

/// What is known of the network of one command. Commands of a session that run side by side share a network, so each
/// sees what is refused to the others.
pub(crate) struct Witness {
    proxy: Arc<Proxy>,
    since: u64,
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Witness").field("since", &self.since).finish_non_exhaustive()
    }
}

impl Witness {
    /// What was refused since the command was handed over.
    pub(crate) fn denials(&self) -> Vec<Denial> {
        self.proxy.denials.since(self.since)
    }
}

/// A socket in the network namespace of a sandbox.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    /// As socket(2) has it.
    pub(crate) kind: i32,
    pub(crate) port: u16,
    pub(crate) socket: OwnedFd,
}
