//! Ways to somebody else by sockets.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixStream},
    },
    time::Duration,
};

use crate::{from_std, say};

const PATIENCE: Duration = Duration::from_secs(2);

/// TCP to each address.
pub(crate) fn connect(addresses: &[&str]) {
    for address in addresses {
        match address.parse::<SocketAddr>() {
            Ok(address) => say(from_std(TcpStream::connect_timeout(&address, PATIENCE))),
            Err(_) => say(Err(libc::EINVAL)),
        }
    }
}

/// A UDP datagram to each address.
pub(crate) fn send(addresses: &[&str]) {
    for address in addresses {
        let from = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        say(from_std(UdpSocket::bind(from).and_then(|socket| socket.send_to(b"out", address))));
    }
}

/// A stream and a datagram socket of the abstract name space.
pub(crate) fn abstract_socket(names: &[&str]) {
    for name in names {
        let address = UnixAddr::from_abstract_name(name);
        say(from_std(address.as_ref().map_err(copy).and_then(UnixStream::connect_addr)));
        let datagram = UnixDatagram::unbound();
        say(from_std(datagram.and_then(|socket| socket.send_to_addr(b"out", &address?))));
    }
}

fn copy(error: &std::io::Error) -> std::io::Error {
    std::io::Error::from_raw_os_error(error.raw_os_error().unwrap_or_default())
}

/// A stream socket at each path.
pub(crate) fn unix_socket(paths: &[&str]) {
    for path in paths {
        say(from_std(UnixStream::connect(path)));
    }
}

/// Listens on both loopbacks and talks to itself.
pub(crate) fn loopback(_: &[&str]) {
    say(from_std(echo("127.0.0.1:0")));
    say(from_std(echo("[::1]:0")));
}

fn echo(address: &str) -> std::io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let mut client = TcpStream::connect_timeout(&listener.local_addr()?, PATIENCE)?;
    let (mut server, _) = listener.accept()?;
    server.write_all(b"x")?;
    client.read_exact(&mut [0])
}
