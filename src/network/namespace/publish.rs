//! Published ports: programs outside connect to a port of the host and reach a server in the sandbox.
//!
//! It runs in the embedding program, on the runtime of the caller. For each connection it makes one to the
//! server inside and relays. So bytes pass only on connections that somebody outside began: a command can
//! answer, and no more.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::socket::sockopt::KeepAlive;
use nix::sys::socket::{Shutdown, setsockopt, shutdown};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};

use crate::audit::record::{Ingress, Record};
use crate::audit::trail::{Trail, millis};
use crate::network::meter::{Meter, Traffic};
use crate::network::namespace::socket::NamespaceSockets;
use crate::network::relay::{self, Relays};
use crate::network::serving::BoxFuture;
use crate::network::stream::Stream;
use crate::policy::network::publish::{MOST_PUBLISHED, Publish};
use crate::report::error::Error;
use crate::report::published::PublishedPort;
use crate::sys::descriptor::share_of_descriptors;
use crate::sys::{locked, watched};

/// The most connections at a time to one published port. Further ones wait in the kernel.
const MOST_CONNECTIONS: usize = 512;

/// How long to wait after a failed accept(2), for example when the embedding program has no descriptor left.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// How long `drain` waits for bytes that the command has already sent.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// Connects to servers of a sandbox.
pub(crate) trait Inward: Send + Sync {
    /// Connects to a TCP port of the sandbox's loopback.
    fn connect(&self, port: u16) -> BoxFuture<'_, io::Result<TcpStream>>;
}

impl Inward for NamespaceSockets {
    fn connect(&self, port: u16) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(self.connect(port))
    }
}

/// A port of the host that this program listens on. Nothing accepts connections yet.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: TcpListener,
    port: PublishedPort,
}

impl Bound {
    /// # Errors
    /// [`Error::Publish`]: another program has the port, or this program may not have it.
    pub(crate) fn at(publish: Publish) -> Result<Self, Error> {
        let listen = || {
            // It sets SO_REUSEADDR, so that old connections of an earlier run do not hold the port.
            let listener = TcpListener::bind(publish.outside)?;
            listener.set_nonblocking(true)?;
            let chosen = publish.outside.port() == 0;
            let port = PublishedPort { address: listener.local_addr()?, inside: publish.inside, chosen };
            Ok(Self { listener, port })
        };
        listen().map_err(|source| Error::Publish { address: publish.outside, source })
    }

    /// # Errors
    /// As for [`at`](Self::at), for the first port that fails.
    pub(crate) fn all(publish: &[Publish]) -> Result<Vec<Self>, Error> {
        publish.iter().map(|&publish| Self::at(publish)).collect()
    }
}

/// The published ports of one sandbox. Dropping it closes them and ends their connections.
pub(crate) struct Publishing {
    shared: Arc<Shared>,
    served: Mutex<Vec<Served>>,
    /// When `drain` stops waiting.
    last: Option<Instant>,
}

/// What the connections of a sandbox share.
struct Shared {
    relays: Relays,
    trail: Arc<Trail>,
}

/// A port, and the task that accepts its connections.
struct Served {
    port: PublishedPort,
    listener: Arc<TcpListener>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Publishing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publishing").field("ports", &self.ports()).finish_non_exhaustive()
    }
}

impl Publishing {
    pub(crate) fn new(trail: &Arc<Trail>) -> Self {
        // An editor or a browser may hold a silent connection for hours.
        let relays = Relays::new(None, Meter::new(None, None), MOST_CONNECTIONS / 8);
        let shared = Arc::new(Shared { relays, trail: Arc::clone(trail) });
        Self { shared, served: Mutex::default(), last: None }
    }

    /// Accepts connections on the current runtime, until the end.
    ///
    /// # Errors
    /// The runtime does not accept the socket.
    pub(crate) fn serve(&self, bound: Bound, inward: Arc<dyn Inward>) -> io::Result<PublishedPort> {
        if locked(&self.served).len() >= MOST_PUBLISHED {
            let reason = format!("at most {MOST_PUBLISHED} ports of a sandbox are published");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, reason));
        }
        let Bound { listener, port } = bound;
        let listener = Arc::new(listener);
        let watched = watched(Arc::clone(&listener), Interest::READABLE)?;
        let task = tokio::spawn(accept(Arc::clone(&self.shared), watched, inward, port.inside));
        locked(&self.served).push(Served { port, listener, task });
        Ok(port)
    }

    /// The published ports, in the order of their publication.
    pub(crate) fn ports(&self) -> Vec<PublishedPort> {
        locked(&self.served).iter().map(|served| served.port).collect()
    }

    /// Closes the ports, and waits up to two seconds until what the command has sent has arrived. A caller
    /// that is cancelled may call it again.
    pub(crate) async fn drain(&mut self) {
        self.close();
        self.shared.relays.close();
        let last = *self.last.get_or_insert_with(|| Instant::now() + DRAIN_TIME);
        let served = self.served.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for Served { task, .. } in served {
            if !task.is_finished() && timeout_at(last, task).await.is_err() {
                tracing::debug!("connections to published ports did not end in time");
            }
        }
    }

    /// Closes the ports and ends their connections.
    pub(crate) fn end(&self) {
        self.close();
        locked(&self.served).drain(..).for_each(|served| served.task.abort());
    }

    /// From now on, the kernel refuses connections, whenever the tasks drop their descriptors.
    fn close(&self) {
        for served in &*locked(&self.served) {
            let _ = shutdown(served.listener.as_raw_fd(), Shutdown::Both);
        }
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        self.end();
    }
}

/// Accepts connections. Each has a task, which ends with this one.
async fn accept(
    shared: Arc<Shared>,
    listener: AsyncFd<Arc<TcpListener>>,
    inward: Arc<dyn Inward>,
    inside: u16,
) {
    // Each connection takes two descriptors, and a sandbox may have several ports.
    let slots = Arc::new(Semaphore::new(share_of_descriptors(8, MOST_CONNECTIONS)));
    let mut connections = JoinSet::new();
    loop {
        let (client, from, slot) = tokio::select! {
            biased;
            () = shared.relays.closing() => break,
            Some(_) = connections.join_next() => continue,
            next = next(&listener, &slots) => match next {
                Some(next) => next,
                None => break,
            },
        };
        let (shared, inward) = (Arc::clone(&shared), Arc::clone(&inward));
        connections.spawn(async move {
            serve(client, from, &shared, &*inward, inside).await;
            drop(slot);
        });
    }
    while connections.join_next().await.is_some() {}
}

/// The next connection, once a slot is free.
async fn next(
    listener: &AsyncFd<Arc<TcpListener>>,
    slots: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    let accept = |listener: &Arc<TcpListener>| {
        let (stream, from) = listener.accept()?;
        stream.set_nonblocking(true)?;
        Ok((stream, from))
    };
    loop {
        let accepted = listener.async_io(Interest::READABLE, accept).await;
        match accepted.and_then(|(stream, from)| Ok((TcpStream::from_std(stream)?, from))) {
            Ok((stream, from)) => return Some((stream, from, slot)),
            Err(error) => {
                tracing::debug!(%error, "accept on a published port");
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Serves one connection to its end. If nothing listens inside, it is reset.
async fn serve(client: TcpStream, from: SocketAddr, shared: &Shared, inward: &dyn Inward, port: u16) {
    let _ = client.set_nodelay(true);
    // A machine that is gone sends no end.
    let _ = setsockopt(&client, KeepAlive, &true);
    let client = Stream::Tcp(client);
    client.resets(true);
    let mut record =
        Connection { trail: &shared.trail, from, port, decision: "failed", traffic: Traffic::new() };
    match inward.connect(port).await {
        Ok(server) if record.begin() => {
            let server = Stream::Tcp(server);
            relay::between(&shared.relays, &record.traffic, server.into(), client.into()).await;
        }
        // The log fails closed and cannot be written.
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, port, "a published port leads to no server"),
    }
}

/// A connection. Dropping it writes its audit record, however the connection ends.
struct Connection<'s> {
    trail: &'s Trail,
    from: SocketAddr,
    port: u16,
    decision: &'static str,
    traffic: Traffic,
}

impl Connection<'_> {
    /// In a log that fails closed, writes a record before anything passes. Returns whether it may pass.
    fn begin(&mut self) -> bool {
        let record = || Record::Ingress(Ingress { decision: "begun", ..self.record() });
        if self.trail.is_fail_closed() && self.trail.write(self.trail.only_command(), record).is_err() {
            return false;
        }
        self.decision = "allowed";
        true
    }

    fn record(&self) -> Ingress {
        Ingress {
            from: self.from,
            port: self.port,
            decision: self.decision,
            bytes_up: self.traffic.up.load(Relaxed),
            bytes_down: self.traffic.down.load(Relaxed),
            duration_ms: millis(self.traffic.age()),
        }
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        let _ = self.trail.write(self.trail.only_command(), || Record::Ingress(self.record()));
    }
}
