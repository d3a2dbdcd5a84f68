//! Ports of a session: connections from outside to servers that its commands started.
//!
//! The zygote's network namespace is that of all commands. A worker without a command hands out two of its
//! sockets when they are first needed; see `network::namespace_socket` for what is made of them.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::network::namespace_socket::NamespaceSockets;
use crate::network::publish::{Bound, Inward};
use crate::network::serving::BoxFuture;
use crate::plan::network;
use crate::policy::network::publish::Publish;
use crate::policy::network::{NO_NAMESPACE, publish};
use crate::report::enforcement::{Protection, State};
use crate::report::error::Error;
use crate::report::error::policy::PolicyError;
use crate::report::published::PublishedPort;
use crate::session::Session;
use crate::session::live::Live;

/// # Ports of a session
///
/// A command that listens on TCP, on 127.0.0.1, ::1 or every address, is a server that only commands of the
/// session reach. These calls let others reach it. Nothing inside can begin a connection to the outside by
/// them, and no other port becomes reachable.
impl Session {
    /// Connects to a server that a command of the session started: to this port of the session's loopback.
    /// The embedding program alone has the connection; nothing is published.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::ErrorKind;
    ///
    /// use kennel::{Policy, Profile, Session};
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// let session = Session::prepare(&Policy::profile(Profile::NoNetwork, ".")).await?;
    /// let server = session.command("python3").args(["-m", "http.server", "8000"]).spawn().await?;
    /// // It takes a moment until the server listens.
    /// let mut stream = loop {
    ///     match session.connect(8000).await {
    ///         Err(error) if error.kind() == ErrorKind::ConnectionRefused => tokio::task::yield_now().await,
    ///         stream => break stream?,
    ///     }
    /// };
    /// stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    /// let mut answer = String::new();
    /// stream.read_to_string(&mut answer).await?;
    /// # drop(server);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ConnectionRefused`: nothing listens there. `NotConnected`: the session has ended. `Unsupported`: it
    /// has the network of the host, where an ordinary connection reaches the server. `InvalidInput`: the port
    /// is Kennel's own.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn connect(&self, port: u16) -> io::Result<PortStream> {
        self.live().connect(port).await.map(PortStream)
    }

    /// Publishes a port from now on: programs outside connect to `PORT` of `[ADDR:]PORT[:INSIDE]` and reach
    /// `INSIDE`; see [`Network::publish`](crate::policy::network::Network::publish). Returns the address,
    /// with the port that the kernel chose if `PORT` is 0. The current runtime serves it, until the session
    /// ends.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), kennel::Error> {
    /// let session = kennel::Session::prepare(&kennel::Policy::default()).await?;
    /// let port = session.publish("0:8000")?;
    /// println!("http://{}/", port.address);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Policy`] for a text that is no port to publish, [`Error::Publish`] if another program has the
    /// port, and [`Error::SessionEnded`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub fn publish(&self, port: impl AsRef<str>) -> Result<PublishedPort, Error> {
        let publish = publish(port.as_ref())?;
        let live = self.live();
        if !live.has_network_namespace() {
            return Err(PolicyError::value("network.publish", publish, NO_NAMESPACE).into());
        }
        network::check_publish(&live.mounts.inputs.policy, &publish)?;
        live.publish(Bound::at(publish)?)
    }

    /// The published ports, with the ports that the kernel chose.
    #[must_use]
    pub fn published(&self) -> Vec<PublishedPort> {
        self.live().published.ports()
    }
}

/// A connection to a server in a session; see [`Session::connect`].
pub struct PortStream(TcpStream);

impl PortStream {
    /// The socket, in blocking mode.
    pub(crate) fn into_socket(self) -> io::Result<OwnedFd> {
        let stream = self.0.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream.into())
    }
}

impl fmt::Debug for PortStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortStream").finish_non_exhaustive()
    }
}

impl AsyncRead for PortStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    /// Ends the sending direction: shutdown(2). The server can still answer.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Leads published ports to the session, and does not keep it alive.
struct ToSession(Weak<Live>);

impl Inward for ToSession {
    fn connect(&self, port: u16) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(async move {
            let live = self.0.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            live.connect(port).await
        })
    }
}

impl Live {
    /// Connects to a port inside.
    async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        if !self.has_network_namespace() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the session has the network of the host",
            ));
        }
        network::check_publish(&self.mounts.inputs.policy, &Publish::inward(port))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let sockets = self.namespace_sockets().await.map_err(|error| match error {
            Error::SessionEnded => io::Error::new(io::ErrorKind::NotConnected, error),
            error => io::Error::other(error),
        })?;
        sockets.connect(port).await
    }

    /// Publishes ports.
    pub(crate) fn publish(self: &Arc<Self>, bound: Bound) -> Result<PublishedPort, Error> {
        if self.is_gone() {
            return Err(Error::SessionEnded);
        }
        let inward = Arc::new(ToSession(Arc::downgrade(self)));
        let port = self.published.serve(bound, inward).map_err(Error::io("serve a published port"))?;
        // It may have ended meanwhile.
        if self.has_ended() {
            self.published.end();
            return Err(Error::SessionEnded);
        }
        Ok(port)
    }

    /// Whether commands have a network of their own.
    fn has_network_namespace(&self) -> bool {
        let entry = self.enforcement.get(Protection::NetworkNamespace);
        entry.is_some_and(|entry| entry.state == State::Enforced)
    }

    /// What makes sockets of the session's network namespace. The first call orders it.
    async fn namespace_sockets(&self) -> Result<Arc<NamespaceSockets>, Error> {
        let mut sockets = self.sockets.lock().await;
        if self.is_gone() {
            return Err(Error::SessionEnded);
        }
        if let Some(sockets) = &*sockets {
            return Ok(Arc::clone(sockets));
        }
        let mut worker = self.order_apart(&network::socket_steps()).await?;
        let handed_out = self
            .unless_gone(worker.wait_for_sockets(self.prepared(), self.counts()))
            .await
            .map_err(|error| match error {
                Error::Lost => self.lost(),
                error => error,
            })?;
        let made =
            NamespaceSockets::new(handed_out).await.map_err(Error::io("take the sockets of the session"))?;
        let made = Arc::new(made);
        // The session may have ended meanwhile. Then nothing may keep its network.
        if self.has_ended() {
            return Err(Error::SessionEnded);
        }
        *sockets = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Lets go of the session's network namespace.
    pub(crate) fn forget_sockets(&self) {
        // Whoever has the lock looks whether the session has ended.
        if let Ok(mut sockets) = self.sockets.try_lock() {
            sockets.take();
        }
    }
}
