//! System calls on namespaces, and on their host name and network devices.

use super::*;

const AF_NETLINK: usize = 16;
const SOCK_RAW: usize = 3;
const NETLINK_ROUTE: usize = 0;
const RTM_SETLINK: u32 = 19;
const NLM_F_REQUEST: u32 = 1;
const NLM_F_ACK: u32 = 4;
/// The index of `lo` in every network namespace.
const LOOPBACK: u32 = 1;
const IFF_UP: u32 = 1;

/// unshare(2).
pub(crate) fn unshare(flags: u32) -> Result<(), Errno> {
    call!(nr::UNSHARE, flags).map(drop)
}

/// setns(CLONE_NEWNS): enters a mount namespace, and its root.
pub(crate) fn enter_mounts(namespace: &Fd) -> Result<(), Errno> {
    call!(nr::SETNS, namespace.0, CLONE_NEWNS).map(drop)
}

/// sethostname(2).
pub(crate) fn set_hostname(name: &[u8]) -> Result<(), Errno> {
    call!(nr::SETHOSTNAME, name.as_ptr(), name.len()).map(drop)
}

/// rtnetlink(7), RTM_SETLINK: brings `lo` up. An ioctl would not do: a zygote's filter refuses those that set
/// up networks, and its worker may need this.
pub(crate) fn loopback_up() -> Result<(), Errno> {
    let socket = call!(nr::SOCKET, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE).map(fd)?;
    // struct nlmsghdr, struct ifinfomsg: length; type and flags; sequence; port; kind; index; flags; mask of
    // changed flags.
    let request = [32, RTM_SETLINK | (NLM_F_REQUEST | NLM_F_ACK) << 16, 0, 0, 0, LOOPBACK, IFF_UP, IFF_UP];
    call!(nr::WRITE, socket.0, request.as_ptr(), size_of_val(&request))?;
    // struct nlmsghdr, struct nlmsgerr: an error number, 0 for success, and the head of the request.
    let mut answer = [0i32; 9];
    let length = call!(nr::READ, socket.0, answer.as_mut_ptr(), size_of_val(&answer))?;
    match answer {
        [.., 0, _, _, _, _] if length == size_of_val(&answer) => Ok(()),
        [.., 0, _, _, _, _] => Err(Errno(EPROTO)),
        [.., error, _, _, _, _] => Err(Errno(error.wrapping_neg())),
    }
}

/// socket(2), ioctl(SIOCSIFADDR): adds an address to `lo`, under its own label.
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
