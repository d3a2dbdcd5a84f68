//! System calls of macOS, by the names of those in `linux.rs`. Nobody has run them on a Mac yet.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::{env, fs, io, ptr, thread};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::SigSet;
use nix::sys::stat::{FileStat, fstat};
use nix::unistd::Pid;
use tokio::sync::watch;

use crate::sys::descriptor::received;

/// open(2) with this flag holds a directory. macOS holds no file without reading it.
pub(crate) const HELD: OFlag = OFlag::O_RDONLY;

/// A path of an open file: fd(4).
pub(crate) fn own_path(held: impl AsFd) -> PathBuf {
    format!("/dev/fd/{}", held.as_fd().as_raw_fd()).into()
}

/// The number of the device that a file is on.
pub(crate) fn device_of(stat: &FileStat) -> u64 {
    stat.st_dev.cast_unsigned().into()
}

/// fstat(2).
pub(crate) fn known_stat(fd: impl AsFd) -> io::Result<FileStat> {
    Ok(fstat(fd)?)
}

/// accept(2) of a connection that neither blocks nor is inherited by programs. A program that another thread
/// starts in between inherits it: macOS has no accept4(2).
pub(crate) fn accept(listener: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let connection = received(nix::sys::socket::accept(listener.as_raw_fd())?);
    fcntl(&connection, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    fcntl(&connection, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(connection)
}

/// A file without a name, in the temporary directory: macOS has no memfd_create(2). mkstemp(3), unlink(2).
pub(crate) fn nameless_file() -> io::Result<File> {
    let (file, path) = nix::unistd::mkstemp(&env::temp_dir().join("kennel-XXXXXX"))?;
    fs::remove_file(path)?;
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(file.into())
}

/// poll(2): whether the peer of a stream is gone. Unread data may remain.
pub(crate) fn has_hung_up(stream: RawFd) -> bool {
    // poll(2) always reports POLLHUP and POLLERR.
    let mut hung_up = libc::pollfd { fd: stream, events: 0, revents: 0 };
    // SAFETY: one live record, and the kernel writes only that one. A number that is no descriptor sets
    // POLLNVAL.
    let has_event = unsafe { libc::poll(&raw mut hung_up, 1, 0) > 0 };
    has_event && hung_up.revents & libc::POLLNVAL == 0
}

/// Whether close(2) of it waits for nobody: that of another program may always wait.
pub(crate) fn closes_at_once(_fd: &impl AsFd) -> bool {
    false
}

/// pipe(2): the reading and the writing end of a pipe. A program that another thread starts meanwhile
/// inherits it: macOS has no pipe2(2).
pub(crate) fn pipe() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = nix::unistd::pipe()?;
    for end in [&reader, &writer] {
        fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    }
    Ok((reader, writer))
}

/// Whether a descriptor with these flags only holds a file: macOS has no such descriptors.
pub(crate) fn only_holds(_flags: OFlag) -> bool {
    false
}

/// The largest resident set, in bytes: getrusage(2) of macOS counts bytes.
pub(crate) fn resident_bytes(used: &libc::rusage) -> u64 {
    used.ru_maxrss.unsigned_abs()
}

/// The two ends of a pipe for splice(2).
pub(crate) struct SplicingPipe {
    pub(crate) out: OwnedFd,
    pub(crate) into: OwnedFd,
}

/// macOS has no splice(2).
///
/// # Errors
/// Always `ENOTSUP`.
pub(crate) fn splicing_pipe(_size: usize) -> io::Result<SplicingPipe> {
    Err(Errno::ENOTSUP.into())
}

/// As [`splicing_pipe`].
pub(crate) fn splice_once(_from: impl AsFd, _to: impl AsFd, _count: usize) -> io::Result<usize> {
    Err(Errno::ENOTSUP.into())
}

/// sigpending(2) and sigwait(3): removes a signal that is pending for this thread.
pub(super) fn take_pending(signal: &SigSet) {
    let mut pending = SigSet::empty();
    let set: *mut libc::sigset_t = ptr::from_mut(&mut pending).cast();
    // SAFETY: SigSet is a transparent wrapper of sigset_t, and the call writes one of them at the address.
    let answer = unsafe { libc::sigpending(set) };
    if answer == 0 && signal.iter().all(|one| pending.contains(one)) {
        let _ = signal.wait();
    }
}

/// getentropy(2): an unpredictable number.
///
/// # Errors
/// Those of the call.
pub(crate) fn random() -> nix::Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: the call writes that many bytes, to an array of that size.
    Errno::result(unsafe { libc::getentropy(bytes.as_mut_ptr().cast(), bytes.len()) })?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The end of a child that this process started, which a thread waits for: seeing it does not take the
/// child's status.
#[derive(Debug)]
pub(crate) struct ChildExit(watch::Receiver<Option<Result<(), Errno>>>);

impl ChildExit {
    /// # Errors
    /// The kernel refuses a thread.
    pub(crate) fn of(child: Pid) -> io::Result<Self> {
        let (tell, told) = watch::channel(None);
        let thread = thread::Builder::new().name("kennel-wait".to_owned());
        thread.spawn(move || {
            tell.send_replace(Some(wait_without_reaping(child)));
        })?;
        Ok(Self(told))
    }

    /// Returns once it has ended.
    ///
    /// # Errors
    /// `ECHILD`: the kernel reaped it already, because this process ignores SIGCHLD.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        let mut told = self.0.clone();
        let ended = told.wait_for(Option::is_some).await.map_err(io::Error::other)?;
        (*ended).unwrap_or(Ok(())).map_err(io::Error::from)
    }
}

/// waitid(2) with WNOWAIT: returns once the child has ended, and leaves it as it is.
fn wait_without_reaping(child: Pid) -> nix::Result<()> {
    let number = child.as_raw().cast_unsigned();
    loop {
        // SAFETY: all-zero bytes are a valid value of this plain record.
        let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes one siginfo at the address.
        let answer =
            unsafe { libc::waitid(libc::P_PID, number, &raw mut ended, libc::WEXITED | libc::WNOWAIT) };
        match Errno::result(answer) {
            Err(Errno::EINTR) => {}
            answer => return answer.map(drop),
        }
    }
}
