//! TCP sockets of a sandbox's network namespace, made and connected from outside.
//!
//! A socket belongs for life to the namespace that it was created in, and whoever holds it can connect it
//! there. Only a process inside can create one with socket(2), but accept(2) creates one in the namespace of
//! the listener. So two sockets of the namespace are enough to make others out here: one listens for a
//! moment, the other connects to it, and what accept(2) returns is disconnected again (`AF_UNSPEC`, see
//! connect(2)). Then it is as fresh as a new one.
//!
//! So nothing inside takes part in a connection to a server of the sandbox, and no command can reach what
//! makes it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream as StdStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{Backlog, SockaddrIn, SockaddrIn6, connect, listen};
use tokio::io::Interest;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::network::namespace::SOCKETS_HANDED_OUT;
use crate::sys;

/// How long it may take to make a socket, and to connect it. Both happen within one kernel, so this is long.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Makes sockets in the network namespace of a sandbox.
#[derive(Debug)]
pub(crate) struct NamespaceSockets {
    pair: Mutex<Pair>,
}

impl NamespaceSockets {
    /// `sockets` are two listening sockets of the namespace. Their ports are free again when this returns.
    ///
    /// # Errors
    /// They are no sockets of one namespace, or no descriptor is free.
    pub(crate) async fn new(sockets: [OwnedFd; SOCKETS_HANDED_OUT]) -> io::Result<Self> {
        let [listener, client] = sockets;
        // They are bound to ports. Those that they make are not.
        let mut bound = Pair::new(listener, client)?;
        let [listener, client] = [bound.fresh().await?, bound.fresh().await?];
        Ok(Self { pair: Mutex::new(Pair::new(listener.into(), client.into())?) })
    }

    /// Connects to a server on the loopback device of the namespace: to 127.0.0.1, or else to ::1.
    ///
    /// # Errors
    /// `ConnectionRefused`: nothing listens at that port.
    pub(crate) async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let family = self.pair.lock().await.family()?;
        let stream = match self.connect_to(family.loopback_of_ipv4(port)).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && family == Family::Both => {
                // Without ::1, the first answer counts.
                let second = self.connect_to(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port)).await;
                second.map_err(|_| error)?
            }
            stream => stream?,
        };
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn connect_to(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.pair.lock().await.fresh().await?;
        let connecting = TcpSocket::from_std_stream(socket).connect(address);
        timeout(TIME_LIMIT, connecting).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Which addresses the sockets can connect to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    /// The kernel has no IPv6.
    Ipv4,
    Both,
}

impl Family {
    fn loopback_of_ipv4(self, port: u16) -> SocketAddr {
        let address = match self {
            Self::Ipv4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Self::Both => IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped()),
        };
        SocketAddr::new(address, port)
    }
}

/// Two sockets of the namespace. Between two calls of `fresh`, neither listens or is connected.
#[derive(Debug)]
struct Pair {
    listener: TcpListener,
    client: StdStream,
}

impl Pair {
    fn new(listener: OwnedFd, client: OwnedFd) -> io::Result<Self> {
        let pair = Self { listener: listener.into(), client: client.into() };
        pair.listener.set_nonblocking(true)?;
        pair.client.set_nonblocking(true)?;
        Ok(pair)
    }

    fn family(&self) -> io::Result<Family> {
        Ok(if self.listener.local_addr()?.is_ipv6() { Family::Both } else { Family::Ipv4 })
    }

    /// A new socket of the namespace: not bound, not connected.
    async fn fresh(&mut self) -> io::Result<StdStream> {
        self.disconnect()?;
        // Also if the caller drops this future.
        let pair = Resting(self);
        let made = timeout(TIME_LIMIT, pair.0.accepted()).await;
        let socket = made.unwrap_or(Err(io::ErrorKind::TimedOut.into()))?;
        sys::disconnect(socket.as_fd())?;
        Ok(socket)
    }

    /// A socket that is connected to `client`.
    async fn accepted(&self) -> io::Result<StdStream> {
        // Without bind(2), the kernel chooses a port until the socket listens no more.
        listen(&self.listener, Backlog::new(1)?)?;
        let port = self.listener.local_addr()?.port();
        self.connect_client(port)?;
        let ours = self.client.local_addr()?;
        loop {
            match self.listener.accept() {
                Ok((socket, peer)) if peer == ours => {
                    socket.set_nonblocking(true)?;
                    return Ok(socket);
                }
                // A command was faster: the port is open to it, too, for this moment.
                Ok(_) => {}
                // Usually the kernel connects loopback at once.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let listener = sys::watched(self.listener.try_clone()?, Interest::READABLE)?;
                    drop(listener.readable().await?);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Connects `client` to a port of loopback. Prefers IPv6: what is accepted from there can connect to
    /// both.
    fn connect_client(&self, port: u16) -> io::Result<()> {
        let client = self.client.as_raw_fd();
        let to = |address: Ipv6Addr| {
            connect(client, &SockaddrIn6::from(std::net::SocketAddrV6::new(address, port, 0, 0)))
        };
        let connected = match self.family()? {
            Family::Ipv4 => connect(client, &SockaddrIn::new(127, 0, 0, 1, port)),
            Family::Both => match to(Ipv6Addr::LOCALHOST) {
                // IPv6 is turned off for the device.
                Err(Errno::EADDRNOTAVAIL | Errno::ENETUNREACH | Errno::EACCES) => {
                    to(Ipv4Addr::LOCALHOST.to_ipv6_mapped())
                }
                connected => connected,
            },
        };
        match connected {
            Err(Errno::EINPROGRESS) => Ok(()),
            connected => Ok(connected?),
        }
    }

    /// Ends what they do.
    fn disconnect(&self) -> io::Result<()> {
        sys::disconnect(self.listener.as_fd())?;
        sys::disconnect(self.client.as_fd())
    }
}

/// Ends what the pair does when it is dropped.
struct Resting<'p>(&'p Pair);

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        // The next use tries again, and reports an error.
        let _ = self.0.disconnect();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn listening(address: &str) -> TcpListener {
        TcpListener::bind(address).expect("a port")
    }

    async fn sockets(address: &str) -> NamespaceSockets {
        let sockets = [listening(address).into(), listening(address).into()];
        NamespaceSockets::new(sockets).await.expect("two sockets of one namespace")
    }

    async fn answers(sockets: &NamespaceSockets, server: &TcpListener) -> bool {
        let port = server.local_addr().expect("its port").port();
        let stream = sockets.connect(port).await.expect("a connection");
        let (mut accepted, _) = server.accept().expect("the same");
        accepted.write_all(b"hello").expect("room");
        drop(accepted);
        let mut stream = stream.into_std().expect("a socket");
        stream.set_nonblocking(false).expect("a flag");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("five bytes");
        said == "hello"
    }

    #[tokio::test]
    async fn servers_of_both_families_are_reached() {
        let sockets = sockets("[::]:0").await;
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"] {
            assert!(answers(&sockets, &listening(address)).await, "{address}");
        }
    }

    #[tokio::test]
    async fn a_kernel_without_ipv6_is_enough() {
        let sockets = sockets("127.0.0.1:0").await;
        assert!(answers(&sockets, &listening("127.0.0.1:0")).await);
        let only_ipv6 = listening("[::1]:0").local_addr().expect("its port").port();
        let refused = sockets.connect(only_ipv6).await.expect_err("another family");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_port_where_nothing_listens_refuses() {
        let sockets = sockets("[::]:0").await;
        let free = listening("127.0.0.1:0").local_addr().expect("its port").port();
        for _ in 0..3 {
            let refused = sockets.connect(free).await.expect_err("nothing listens");
            assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED));
        }
        assert!(answers(&sockets, &listening("127.0.0.1:0")).await, "the sockets are as good as before");
    }

    #[tokio::test]
    async fn nothing_listens_or_stays_bound_between_two_calls() {
        let handed_out = [listening("[::]:0"), listening("[::]:0")];
        let ports = handed_out.each_ref().map(|socket| socket.local_addr().expect("its port").port());
        let sockets = NamespaceSockets::new(handed_out.map(OwnedFd::from)).await.expect("two sockets");
        // Without SO_REUSEADDR: a port that any other socket is bound to is refused.
        let is_free = |port| {
            let socket = TcpSocket::new_v6().expect("a socket");
            socket.bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).is_ok()
        };
        assert!(ports.into_iter().all(is_free), "those that were handed out");
        let pair = sockets.pair.lock().await;
        let last = [pair.listener.local_addr(), pair.client.local_addr()];
        for port in last.map(|address| address.expect("an address").port()) {
            assert!(StdStream::connect(("127.0.0.1", port)).is_err() && is_free(port), "{port}");
        }
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_leaves_the_pair_usable() {
        let sockets = sockets("[::]:0").await;
        let server = listening("127.0.0.1:0");
        let port = server.local_addr().expect("its port").port();
        for _ in 0..50 {
            tokio::select! {
                biased;
                _ = sockets.connect(port) => {}
                () = std::future::ready(()) => {}
            }
        }
        let server = listening("127.0.0.1:0");
        assert!(answers(&sockets, &server).await);
    }
}
