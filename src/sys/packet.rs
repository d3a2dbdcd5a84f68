//! Packets on Unix sockets and the descriptors that they carry.

use std::fs::File;
use std::io;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, socket,
};

use crate::sys::closing::HeldFd;
use crate::sys::memory_file::MemoryFile;
use crate::sys::{locked, received};

/// What recvmsg(2) returned.
pub(crate) struct Received {
    pub(crate) count: usize,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Whether bytes or descriptors were lost.
    pub(crate) cut: bool,
    /// Whether descriptors were lost: this process could not open more.
    pub(crate) lost_descriptors: bool,
}

/// Size of the control buffer, in 8-byte words: a header and the most descriptors of one message
/// (`SCM_MAX_FD`, 253).
const CONTROL: usize = (16 + 253 * 4usize).div_ceil(8);

/// recvmsg(2) of one packet. The result owns every descriptor that came, even if the packet is damaged.
pub(crate) fn receive_message(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut was_reset = false;
    loop {
        match receive_once(socket, buffer) {
            // The peer closed its end with data unread. The kernel reports that once, before the packets that
            // the peer sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !was_reset => was_reset = true,
            // A signal handler of the embedding program ran.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

fn receive_once(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = [0u64; CONTROL];
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the record describes one live buffer and one live control buffer, with their true sizes.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let descriptors = descriptors(&message).into_iter().map(received).collect();
    let lost = |what: i32| message.msg_flags & what != 0;
    let cut = lost(libc::MSG_TRUNC | libc::MSG_CTRUNC);
    Ok(Received { count, descriptors, cut, lost_descriptors: lost(libc::MSG_CTRUNC) })
}

/// The numbers of the descriptors in the control data of a received message.
fn descriptors(message: &libc::msghdr) -> Vec<RawFd> {
    let mut numbers = Vec::new();
    // SAFETY: the kernel filled the control buffer and set its length, and neither has changed since.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return NULL or a header inside the control buffer.
    while let Some(here) = unsafe { header.as_ref() } {
        if (here.cmsg_level, here.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: arithmetic on a length only.
            let head = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = here.cmsg_len.saturating_sub(head) / size_of::<RawFd>();
            // SAFETY: the data of a header begins right behind it.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            // SAFETY: the kernel wrote that many descriptors there, and nothing writes to the control buffer
            // any more.
            numbers.extend((0..count).map(|at| unsafe { data.wrapping_add(at).read_unaligned() }));
        }
        // SAFETY: `header` is inside the message's control buffer.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    numbers
}

// Packets between a listening session and its clients. Both ends use these functions, and neither trusts what
// it reads.

/// One received packet. It may hold secrets, so it must not be printed.
pub(crate) struct Packet {
    /// Empty if the peer is gone.
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<HeldFd>,
}

/// Creates a socket for packets.
pub(crate) fn packet_socket(flags: SockFlag) -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags | SockFlag::SOCK_CLOEXEC, None)?)
}

/// The socket address of a path, which must be shorter than 108 bytes.
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
            // A signal handler of the embedding program ran.
            Err(Errno::EINTR) => {}
            sent => return sent,
        }
    };
    match send() {
        Err(Errno::ETOOMANYREFS) => with_hard_fd_limit(send)?,
        sent => sent?,
    };
    Ok(())
}

/// Calls `act` with the soft limit of descriptors raised to the hard limit. A program that another thread
/// starts at that moment gets the raised limit too, so this is only for cases where nothing could start
/// otherwise.
pub(crate) fn with_hard_fd_limit<T>(act: impl FnOnce() -> nix::Result<T>) -> nix::Result<T> {
    static ONE: Mutex<()> = Mutex::new(());
    // A second thread would take the raised limit for the usual one, so only one may be here.
    let _one = locked(&ONE);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let done = act();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    done
}

/// Receives one packet of at most `longest` bytes.
///
/// # Errors
/// `EMFILE` if descriptors were lost, `InvalidData` if the packet is longer than `longest`.
pub(crate) fn receive(socket: impl AsFd, longest: usize) -> io::Result<Packet> {
    let mut bytes = vec![0; longest];
    let received = receive_message(socket.as_fd(), &mut bytes)?;
    let descriptors = received.descriptors.into_iter().map(HeldFd::strange).collect();
    if received.lost_descriptors {
        // The kernel does not tell the reason. The limit of the whole machine is rarely the one.
        return Err(Errno::EMFILE.into());
    }
    if received.cut {
        return Err(io::ErrorKind::InvalidData.into());
    }
    bytes.truncate(received.count);
    Ok(Packet { bytes, descriptors })
}

/// A memfd with `bytes`, to send what is too long for a packet.
pub(crate) fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut memfd = MemoryFile::new()?;
    memfd.append(bytes)?;
    Ok(memfd.into_fd())
}

/// The first `length` bytes of a [`memory_file`].
pub(crate) fn content(memfd: &File, length: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    memfd.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

    use super::*;

    extern "C" fn nothing(_: libc::c_int) {}

    /// An embedding program may have a signal handler without SA_RESTART.
    #[test]
    fn a_signal_does_not_cut_a_packet_short() {
        let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing, and no other test uses this signal.
        unsafe { sigaction(Signal::SIGWINCH, &action) }.expect("a handler");
        let (ours, theirs) = UnixDatagram::pair().expect("sockets");
        let (tell, told) = mpsc::channel();
        let receiver = thread::spawn(move || {
            let received = receive_message(theirs.as_fd(), &mut [0; 8]).map(|received| received.count);
            tell.send(received).expect("somebody waits");
        });
        for _ in 0..20 {
            // SAFETY: the thread was not joined yet.
            unsafe { libc::pthread_kill(receiver.as_pthread_t(), libc::SIGWINCH) };
            if let Ok(received) = told.recv_timeout(Duration::from_millis(5)) {
                panic!("nothing was sent, and it answers {received:?}");
            }
        }
        ours.send(b"late").expect("sent");
        assert_eq!(told.recv().expect("an answer").expect("a packet"), 4);
        receiver.join().expect("it ended");
    }
}
