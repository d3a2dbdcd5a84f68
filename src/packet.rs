//! Packets between a session that listens and its clients: bytes, and the descriptors that come with them. Both ends
//! use it; neither trusts what it reads.

use std::{
    fs::File,
    io::{self, IoSlice},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::fs::FileExt,
    },
    path::Path,
    sync::Mutex,
};

use nix::{
    errno::Errno,
    sys::{
        memfd::{MFdFlags, memfd_create},
        resource::{Resource, getrlimit, setrlimit},
        socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, socket},
    },
};

use crate::{locked::locked, sys};

/// One packet as it came. Not to be printed: it may have secrets.
pub(crate) struct Packet {
    /// Empty when the other end is gone.
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// A new socket for packets.
pub(crate) fn packet_socket(flags: SockFlag) -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags | SockFlag::SOCK_CLOEXEC, None)?)
}

/// The address of a path, which must be shorter than 108 bytes.
pub(crate) fn address(path: &Path) -> io::Result<UnixAddr> {
    Ok(UnixAddr::new(path)?)
}

/// Sends one packet.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let rights = if numbers.is_empty() { &rights[..0] } else { &rights[..] };
    let socket = socket.as_fd().as_raw_fd();
    let send = || loop {
        match sendmsg::<UnixAddr>(socket, &[IoSlice::new(bytes)], rights, MsgFlags::MSG_NOSIGNAL, None) {
            // A signal of the program that embeds us.
            Err(Errno::EINTR) => {}
            sent => return sent,
        }
    };
    match send() {
        Err(Errno::ETOOMANYREFS) => with_all_descriptors(send)?,
        sent => sent?,
    };
    Ok(())
}

/// Does what the soft limit of descriptors is in the way of, with the hard one. Whoever starts a program meanwhile gives it
/// that limit: this is for when nothing could be started else.
pub(crate) fn with_all_descriptors<T>(act: impl FnOnce() -> nix::Result<T>) -> nix::Result<T> {
    static ONE: Mutex<()> = Mutex::new(());
    // Who comes second would take the first one's limit for the usual one.
    let _one = locked(&ONE);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let done = act();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    done
}

/// Receives one packet of at most `longest` bytes. One that was cut is an error: `EMFILE` where there was no room for the
/// descriptors that came with it.
pub(crate) fn receive(socket: impl AsFd, longest: usize) -> io::Result<Packet> {
    let mut bytes = vec![0; longest];
    let received = sys::receive(socket.as_fd(), &mut bytes)?;
    if received.lacks_room {
        // The kernel does not say why; the machine's own limit is rarely the reason.
        return Err(Errno::EMFILE.into());
    }
    if received.cut {
        return Err(io::ErrorKind::InvalidData.into());
    }
    bytes.truncate(received.count);
    Ok(Packet { bytes, descriptors: received.descriptors })
}

/// What is longer than a packet, in a memfd to send with one.
pub(crate) fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let memfd = File::from(memfd_create(c"kennel-packet", MFdFlags::MFD_CLOEXEC)?);
    sys::without_sigxfsz(|| memfd.write_all_at(bytes, 0))?;
    Ok(memfd.into())
}

/// The first `length` bytes of what [`memory_file`] made.
pub(crate) fn content(memfd: &File, length: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    memfd.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
