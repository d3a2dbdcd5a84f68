//! Ways to a TCP port other than connect(2) of a TCP socket.

use std::net::SocketAddrV4;

use crate::{
    call::{address_of, raw},
    say,
};

/// To each address by Multipath TCP, then by TCP Fast Open with sendto(2), sendmsg(2) and sendmmsg(2).
pub(crate) fn detours(addresses: &[&str]) {
    for address in addresses {
        let Ok(address) = address.parse::<SocketAddrV4>() else { return say(Err(libc::EINVAL)) };
        let name = sockaddr(address);
        let name = (address_of(name.as_ptr()), 16);
        say(socket(libc::IPPROTO_MPTCP).and_then(|to| raw(libc::SYS_connect, [to, name.0, name.1, 0, 0, 0])));
        let flags = i64::from(libc::MSG_FASTOPEN);
        let text = address_of(b"out".as_ptr());
        say(socket(0).and_then(|to| raw(libc::SYS_sendto, [to, text, 3, flags, name.0, name.1])));
        let vector = [text, 3];
        // `struct msghdr`; with the length that follows, `struct mmsghdr`.
        let message = [name.0, name.1, address_of(vector.as_ptr()), 1, 0, 0, 0, 0];
        let message = address_of(message.as_ptr());
        say(socket(0).and_then(|to| raw(libc::SYS_sendmsg, [to, message, flags, 0, 0, 0])));
        say(socket(0).and_then(|to| raw(libc::SYS_sendmmsg, [to, message, 1, flags, 0, 0])));
    }
}

/// A stream socket of IPv4. It lives as long as the process.
fn socket(protocol: libc::c_int) -> Result<i64, i32> {
    raw(libc::SYS_socket, [libc::AF_INET, libc::SOCK_STREAM, protocol, 0, 0, 0].map(i64::from))
}

/// `struct sockaddr_in`.
fn sockaddr(address: SocketAddrV4) -> [u8; 16] {
    let ([a, b, c, d], [high, low]) = (address.ip().octets(), address.port().to_be_bytes());
    let [first, second, ..] = libc::AF_INET.to_ne_bytes();
    [first, second, high, low, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0]
}
