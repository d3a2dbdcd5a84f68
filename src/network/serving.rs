//! The running proxy of a sandbox: serves the sockets that the sandbox hands out, until its last command has
//! ended.
//!
//! It runs in the embedding program, on the runtime of the caller. The sandbox creates the listeners in its
//! own network namespace and hands their descriptors out, so no process inside relays a byte. The proxy
//! trusts nothing that a client sends, and connects only to what `gate` allows.

use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::audit::trail::Trail;
use crate::network::accept;
use crate::network::gate::Gate;
use crate::network::proxy::Proxy;
use crate::network::stream::ProxyListener;
use crate::policy::network::settings::PORT;
use crate::report::denial::Denial;
use crate::report::error::Error;
use crate::report::network_failure::NetworkFailure;
use crate::sys::locked;

/// How long `drain` waits for bytes that clients have already sent.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// A running proxy. Dropping it ends the proxy and all of its connections.
pub(crate) struct Serving {
    proxy: Arc<Proxy>,
    served: Mutex<Vec<Served>>,
    /// Serves the proxy port instead of Kennel's own proxy.
    bridge: Option<Arc<dyn ProxyBridge>>,
    /// When `drain` stops waiting.
    last: Option<Instant>,
}

/// A socket in the sandbox, and the task that serves it.
struct Served {
    /// Kept open, so that no process inside can bind the same port. `None` if the bridge has it.
    socket: Option<ServedSocket>,
    task: JoinHandle<()>,
}

/// A socket that Kennel's own proxy serves.
enum ServedSocket {
    /// The name server.
    Names(Arc<UdpSocket>),
    /// The proxy port.
    Clients(Arc<ProxyListener>),
    /// A port for programs without proxy support.
    Direct(Arc<ProxyListener>),
}

impl From<ListeningSocket> for ServedSocket {
    fn from(ListeningSocket { kind, port, socket }: ListeningSocket) -> Self {
        let listener = |socket| Arc::new(ProxyListener::Tcp(TcpListener::from(socket)));
        match (kind, port) {
            (libc::SOCK_DGRAM, _) => Self::Names(Arc::new(socket.into())),
            (_, PORT) => Self::Clients(listener(socket)),
            _ => Self::Direct(listener(socket)),
        }
    }
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

    /// Serves a socket that the sandbox handed out.
    ///
    /// # Errors
    /// The runtime or the bridge does not accept the socket.
    pub(crate) async fn take(&self, listening: ListeningSocket) -> Result<(), Error> {
        let served = match &self.bridge {
            Some(bridge) if (listening.kind, listening.port) == (libc::SOCK_STREAM, PORT) => {
                Served { socket: None, task: serve_by_bridge(Arc::clone(bridge), listening.socket).await? }
            }
            _ => {
                let socket = ServedSocket::from(listening);
                let task = self.serve(&socket).map_err(Error::io("serve the sandbox's network"))?;
                Served { socket: Some(socket), task }
            }
        };
        self.lock().push(served);
        Ok(())
    }

    /// Serves the clients of a listener as those of the proxy port.
    ///
    /// # Errors
    /// The runtime does not accept the socket.
    pub(crate) fn listen(&self, listener: ProxyListener) -> io::Result<()> {
        listener.set_nonblocking()?;
        let socket = ServedSocket::Clients(Arc::new(listener));
        let task = self.serve(&socket)?;
        self.lock().push(Served { socket: Some(socket), task });
        Ok(())
    }

    fn serve(&self, socket: &ServedSocket) -> io::Result<JoinHandle<()>> {
        let proxy = Arc::clone(&self.proxy);
        match socket {
            ServedSocket::Names(socket) => accept::answer_names(proxy, Arc::clone(socket)),
            ServedSocket::Clients(listener) => accept::accept(proxy, Arc::clone(listener), accept::serve),
            ServedSocket::Direct(listener) => {
                accept::accept(proxy, Arc::clone(listener), accept::serve_transparently)
            }
        }
    }

    /// Serves sockets again on the current runtime, if the runtime that served them has ended.
    pub(crate) fn renew(&self) {
        for served in self.lock().iter_mut().filter(|served| served.task.is_finished()) {
            let Some(socket) = &served.socket else { continue };
            match self.serve(socket) {
                Ok(task) => served.task = task,
                Err(error) => tracing::error!(%error, "the proxy of the sandbox has stopped"),
            }
        }
    }

    /// Starts to collect what the proxy refuses while a command runs.
    pub(crate) fn denial_cursor(&self) -> DenialCursor {
        DenialCursor { since: self.proxy.denials.position(), proxy: Arc::clone(&self.proxy) }
    }

    /// Waits until the bridge, if there is one, has ended.
    pub(crate) async fn gone(&self) {
        if let Some(bridge) = &self.bridge {
            bridge.gone().await;
        }
    }

    /// Accepts no more connections, and waits up to two seconds until bytes already sent have arrived.
    /// Without a proxy the kernel would deliver them too, although their sender has exited. A caller that is
    /// cancelled may call it again.
    pub(crate) async fn drain(&mut self) {
        self.proxy.relays.close();
        if let Some(bridge) = &self.bridge {
            bridge.finish();
        }
        let last = *self.last.get_or_insert_with(|| Instant::now() + DRAIN_TIME);
        if timeout_at(last, self.ended()).await.is_err() {
            tracing::debug!("connections did not end in time");
        }
    }

    /// Accepts no more connections, and waits until those that are open have ended by themselves. Dropping
    /// the future ends them.
    pub(crate) async fn finish(mut self) {
        self.proxy.relays.drain();
        self.ended().await;
    }

    /// Waits until no connection is left.
    async fn ended(&mut self) {
        let served = self.served.get_mut().unwrap_or_else(PoisonError::into_inner);
        while let Some(Served { task, .. }) = served.last_mut() {
            let _ = task.await;
            served.pop();
        }
    }

    /// Ends every connection and accepts no more.
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

/// What the proxy refuses during one command. Concurrent commands of a session share a network, so each also
/// sees the refusals of the others.
pub(crate) struct DenialCursor {
    proxy: Arc<Proxy>,
    since: u64,
}

impl std::fmt::Debug for DenialCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DenialCursor").field("since", &self.since).finish_non_exhaustive()
    }
}

impl DenialCursor {
    /// What could not be reached since the command started.
    pub(crate) fn failures(&self) -> Vec<NetworkFailure> {
        self.proxy.denials.failures_since(self.since)
    }

    /// The presets of package registries that were reached since the command started, if what came from there
    /// is gone with the sandbox.
    pub(crate) fn registries(&self) -> Vec<String> {
        self.proxy.denials.registries_since(self.since)
    }

    /// Everything refused since the command started.
    pub(crate) fn denials(&self) -> Vec<Denial> {
        self.proxy.denials.since(self.since)
    }
}

/// A listening socket in the network namespace of a sandbox.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    /// The type, as in socket(2).
    pub(crate) kind: i32,
    pub(crate) port: u16,
    pub(crate) socket: OwnedFd,
}

// A bridge serves the proxy port if the policy names another proxy.

/// A bridge to another proxy. It takes the listening socket of the proxy port and serves it.
pub(crate) trait ProxyBridge: Send + Sync {
    /// Serves connections to `listener`. Returns once the bridge accepts them. Call it once.
    fn serve(&self, listener: OwnedFd) -> BoxFuture<'_, Result<(), Error>>;

    /// Waits until the bridge has ended, and returns the reason.
    fn ended(&self) -> BoxFuture<'_, Error>;

    /// Passes on what clients have sent, and ends. Call it when no client is left.
    fn finish(&self);

    /// Whether `finish` was called.
    fn is_finishing(&self) -> bool;

    /// Kills the bridge and waits until it has ended.
    fn gone(&self) -> BoxFuture<'_, ()>;
}

/// A boxed future, for a trait that is used as an object.
pub(crate) type BoxFuture<'f, T> = Pin<Box<dyn Future<Output = T> + Send + 'f>>;

/// Starts a bridge on a listener. The task logs an error if the bridge ends too early.
async fn serve_by_bridge(bridge: Arc<dyn ProxyBridge>, listener: OwnedFd) -> Result<JoinHandle<()>, Error> {
    bridge.serve(listener).await?;
    Ok(tokio::spawn(async move {
        let error = bridge.ended().await;
        if !bridge.is_finishing() {
            tracing::error!(
                error = error.chain(),
                "the bridge to the proxy has ended; the sandbox has no network any more"
            );
        }
    }))
}
