//! Namespaces and what is set up in them.

use super::*;

/// unshare(2).
pub(crate) fn unshare(flags: u32) -> Result<(), Errno> {
    call!(nr::UNSHARE, flags).map(drop)
}

/// sethostname(2).
pub(crate) fn set_hostname(name: &[u8]) -> Result<(), Errno> {
    call!(nr::SETHOSTNAME, name.as_ptr(), name.len()).map(drop)
}

/// socket(2), ioctl(SIOCSIFFLAGS): `lo` up.
pub(crate) fn loopback_up() -> Result<(), Errno> {
    let socket = call!(nr::SOCKET, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0).map(fd)?;
    let mut request = IfReq { name: [0; 16], flags: IFF_UP, rest: [0; 22] };
    for (to, from) in request.name.iter_mut().zip(*b"lo") {
        *to = from;
    }
    call!(nr::IOCTL, socket.0, SIOCSIFFLAGS, &raw const request).map(drop)
}
