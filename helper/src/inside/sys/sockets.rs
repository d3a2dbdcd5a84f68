//! System calls on sockets and their messages.

use super::*;

/// recvmsg(2): the number of bytes, and the descriptors that came with them.
pub(crate) fn receive(socket: &Fd, buffer: &mut [u8]) -> Result<(usize, [i32; 4]), Errno> {
    let mut rights = Rights { length: 0, level: 0, kind: 0, descriptors: [-1; 4] };
    let mut vector = IoVec { base: buffer.as_mut_ptr(), length: buffer.len() };
    let mut message = message(&mut vector, &mut rights, size_of::<Rights>());
    let count = loop {
        match call!(nr::RECVMSG, socket.0, &raw mut message, MSG_CMSG_CLOEXEC) {
            Err(Errno(EINTR)) => {}
            answer => break answer?,
        }
    };
    if message.flags & (MSG_CTRUNC | MSG_TRUNC) != 0 {
        return Err(Errno(EPROTO));
    }
    Ok((count, rights.descriptors))
}

/// sendmsg(2) of one packet with at most one descriptor.
pub(crate) fn send(socket: &Fd, bytes: &mut [u8], descriptor: Option<&Fd>) -> Result<(), Errno> {
    let mut rights = Rights { length: 20, level: SOL_SOCKET, kind: SCM_RIGHTS, descriptors: [-1; 4] };
    let mut space = 0;
    if let Some(descriptor) = descriptor {
        rights.descriptors = [descriptor.0, -1, -1, -1];
        space = 24;
    }
    let mut vector = IoVec { base: bytes.as_mut_ptr(), length: bytes.len() };
    let message = message(&mut vector, &mut rights, space);
    call!(nr::SENDMSG, socket.0, &raw const message, MSG_NOSIGNAL).map(drop)
}

fn message(vector: &mut IoVec, rights: &mut Rights, space: usize) -> MsgHdr {
    MsgHdr {
        name: 0,
        name_length: 0,
        vectors: vector,
        vector_count: 1,
        control: ptr::from_mut(rights).cast(),
        control_length: space,
        flags: 0,
    }
}

/// socket(2), bind(2) of a nonblocking IPv4 socket of that kind; a stream socket also gets listen(2).
pub(crate) fn socket_at(kind: u32, address: u32, port: u32) -> Result<Fd, Errno> {
    let socket = call!(nr::SOCKET, AF_INET, kind as usize | SOCK_CLOEXEC | SOCK_NONBLOCK, 0).map(fd)?;
    let port = u16::try_from(port).map_err(|_| Errno(EINVAL))?;
    let at = SockaddrIn {
        family: AF_INET as u16,
        port: port.to_be_bytes(),
        address: address.to_be_bytes(),
        zero: [0; 8],
    };
    call!(nr::BIND, socket.0, &raw const at, size_of::<SockaddrIn>())?;
    if kind as usize == SOCK_STREAM {
        call!(nr::LISTEN, socket.0, SOMAXCONN)?;
    }
    Ok(socket)
}

/// socket(2), bind(2), listen(2) at every address. The namespace is new, so `net.ipv6.bindv6only` is 0, and a
/// socket of IPv6 also takes connections of IPv4 (ipv6(7)).
pub(crate) fn listener_everywhere(port: u32) -> Result<Fd, Errno> {
    let kind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    let socket = match call!(nr::SOCKET, AF_INET6, kind, 0).map(fd) {
        Err(Errno(EAFNOSUPPORT)) => return socket_at(SOCK_STREAM as u32, 0, port),
        socket => socket?,
    };
    let port = u16::try_from(port).map_err(|_| Errno(EINVAL))?;
    let at = SockaddrIn6 {
        family: AF_INET6 as u16,
        port: port.to_be_bytes(),
        flow: 0,
        address: [0; 16],
        scope: 0,
    };
    call!(nr::BIND, socket.0, &raw const at, size_of::<SockaddrIn6>())?;
    call!(nr::LISTEN, socket.0, SOMAXCONN)?;
    Ok(socket)
}

/// socket(2) of a byte stream.
pub(crate) fn stream(family: usize) -> Result<Fd, Errno> {
    call!(nr::SOCKET, family, SOCK_STREAM | SOCK_CLOEXEC, 0).map(fd)
}

/// connect(2). `address` has the layout of the socket's family.
pub(crate) fn connect(socket: &Fd, address: &[u8]) -> Result<(), Errno> {
    call!(nr::CONNECT, socket.0, address.as_ptr(), address.len()).map(drop)
}

/// bind(2).
pub(crate) fn bind(socket: &Fd, address: &[u8]) -> Result<(), Errno> {
    call!(nr::BIND, socket.0, address.as_ptr(), address.len()).map(drop)
}

/// listen(2).
pub(crate) fn listen(socket: &Fd) -> Result<(), Errno> {
    call!(nr::LISTEN, socket.0, 1).map(drop)
}
