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
    let mut flags = [0; 24];
    put(&mut flags, &IFF_UP.to_ne_bytes());
    interface(b"lo", SIOCSIFFLAGS, flags)
}

/// socket(2), ioctl(SIOCSIFADDR): one more address for `lo`, under a label of its own.
pub(crate) fn loopback_address(address: u32) -> Result<(), Errno> {
    let mut sockaddr = [0; 24];
    put(&mut sockaddr, &u32::try_from(AF_INET).unwrap_or_default().to_le_bytes());
    put(sockaddr.get_mut(4..).unwrap_or_default(), &address.to_be_bytes());
    interface(b"lo:1", SIOCSIFADDR, sockaddr)
}

fn interface(name: &[u8], request: usize, value: [u8; 24]) -> Result<(), Errno> {
    let socket = call!(nr::SOCKET, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0).map(fd)?;
    let mut ifreq = IfReq { name: [0; 16], value };
    put(&mut ifreq.name, name);
    call!(nr::IOCTL, socket.0, request, &raw const ifreq).map(drop)
}

fn put(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}
