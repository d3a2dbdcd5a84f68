//! Ways to other processes and hosts by sockets.

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

/// Asks the name server at the address for the name of each `ADDRESS/NAME` by UDP. Prints the answer,
/// `silence`, or the errno.
pub(crate) fn query(questions: &[&str]) {
    for question in questions {
        let (address, name) = question.split_once('/').unwrap_or_default();
        match ask(address, name) {
            Ok(answer) => println!("{answer}"),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => println!("silence"),
            Err(error) => say(Err(error.raw_os_error().unwrap_or_default())),
        }
    }
}

/// The last four bytes of an answer with records are an address. For other answers it prints the code.
fn ask(address: &str, name: &str) -> std::io::Result<String> {
    let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len()).unwrap_or_default());
        question.extend_from_slice(label.as_bytes());
    }
    question.extend_from_slice(&[0, 0, 1, 0, 1]);
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(address)?;
    socket.send(&question)?;
    let mut answer = [0; 512];
    let count = socket.recv(&mut answer)?;
    Ok(match answer[..count] {
        [_, _, _, code, _, _, 0, 0, ..] => format!("code {}", code & 15),
        [.., a, b, c, d] => format!("{a}.{b}.{c}.{d}"),
        _ => "short".to_owned(),
    })
}
