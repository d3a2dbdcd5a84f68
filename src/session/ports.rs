//! Ports of a session: connections from outside to servers that its commands started.
//!
//! The zygote's network namespace is that of all commands. A worker without a command hands out two of its
//! sockets when they are first needed; see `network::namespace_socket` for what is made of them.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::network::namespace::publish::Bound;
use crate::plan::network;
use crate::policy::network::{NO_NAMESPACE, publish};
use crate::report::error::Error;
use crate::report::error::policy::PolicyError;
use crate::report::published::PublishedPort;
use crate::session::Session;

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
        let zygote = self.live().zygote();
        if !zygote.has_network_namespace() {
            return Err(PolicyError::value("network.publish", publish, NO_NAMESPACE).into());
        }
        network::check_publish(&zygote.inputs().policy, &publish)?;
        self.live().publish(Bound::at(publish)?)
    }

    /// The published ports, with the ports that the kernel chose.
    #[must_use]
    pub fn published(&self) -> Vec<PublishedPort> {
        self.live().services().published().ports()
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
