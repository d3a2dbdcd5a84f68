//! Calls of the kernel, and files by descriptor. The only folder with `unsafe` code.

#![expect(unsafe_code, reason = "the one fence around raw calls of the outside")]

pub(crate) mod birth;
pub(crate) mod dirfd;
pub(crate) mod entries;
pub(crate) mod inode;
pub(crate) mod lexical;
pub(crate) mod packet;
pub(crate) mod reap;
pub(crate) mod secret;

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{io, ptr};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdRegisterError};

/// Whether a process has ended, now or within that time.
pub(crate) fn has_ended(pidfd: &OwnedFd, within: PollTimeout) -> bool {
    let mut ended = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    // Signals of the program that embeds us cut the wait short, and begin it anew.
    loop {
        match poll(&mut ended, within) {
            Err(Errno::EINTR) => {}
            polled => return polled.is_ok_and(|count| count > 0),
        }
    }
}

/// poll(2): whether the other side of a stream says nothing more, because it has ended that or is gone, also where what it said
/// before lies unread.
pub(crate) fn has_hung_up(stream: RawFd) -> bool {
    // What is told without being asked for is that it is closed or reset. POLLRDHUP is unknown to nix.
    let mut hung_up = libc::pollfd { fd: stream, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one live record, of which the kernel writes one; it does not wait. A number that names no stream is only looked at.
    let is_told = unsafe { libc::poll(&raw mut hung_up, 1, 0) > 0 };
    is_told && hung_up.revents & libc::POLLNVAL == 0
}

/// waitid(P_PIDFD) without waiting: takes the zombie away if there is one.
pub(crate) fn reap(pidfd: &OwnedFd) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
    // ECHILD: the embedding program waits for all its children and was faster.
    let _ = waitid(Id::PIDFd(pidfd.as_fd()), flags);
}

/// pidfd_send_signal(2) with SIGKILL. Linux 5.1. A process that has ended is no error.
///
/// # Errors
/// `EPERM` for who has changed its ids since it started the process.
pub(crate) fn kill(pidfd: &OwnedFd) -> nix::Result<()> {
    let none: *const libc::siginfo_t = ptr::null();
    // SAFETY: a live descriptor, a signal number, and NULL for "as kill(2) would fill it".
    let sent =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, none, 0) };
    match Errno::result(sent) {
        Err(Errno::ESRCH) => Ok(()),
        sent => sent.map(drop),
    }
}

/// getrandom(2): a number that nobody foresees, and that a process which was forked from this one does not get as well.
///
/// # Errors
/// Those of the call.
pub(crate) fn random() -> nix::Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: the kernel writes at most that many bytes, to an array that has as many.
    let count = Errno::result(unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) })?;
    // So few come in one piece.
    if usize::try_from(count) == Ok(bytes.len()) { Ok(u64::from_ne_bytes(bytes)) } else { Err(Errno::EIO) }
}

/// landlock_create_ruleset(LANDLOCK_CREATE_RULESET_VERSION): the ABI, 0 where there is none. Linux 5.13.
pub(crate) fn landlock_abi() -> u32 {
    let none: *const c_void = ptr::null();
    // SAFETY: with the version flag the call takes no pointer.
    let answer = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, 1u32) };
    u32::try_from(answer).unwrap_or(0)
}

/// seccomp(SECCOMP_GET_ACTION_AVAIL): whether filters with an errno action can be installed. Linux 4.14.
pub(crate) fn seccomp_available() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads one 32-bit number at the address.
    let answer =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    answer == 0
}

/// Takes ownership of a descriptor that came with a message, or that a call has made.
pub(crate) fn received(number: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made it for this process, and every caller takes each number once.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// fcntl(F_DUPFD_CLOEXEC) of a descriptor that this process was started with: every other one is closed on execve(2).
///
/// # Errors
/// `EBADF` where there is none of that number.
pub(crate) fn copy_inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a number that is no descriptor is an error; nothing else is read.
    let flags = Errno::result(unsafe { libc::fcntl(number, libc::F_GETFD) })?;
    if flags & libc::FD_CLOEXEC != 0 {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: as above; the copy is a new descriptor.
    let copy = Errno::result(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) })?;
    Ok(received(copy))
}

/// ioctl(SIOCOUTQ) of unix(7): whether the peer has not read all that was sent to it.
pub(crate) fn is_unheard(socket: BorrowedFd<'_>) -> bool {
    let mut unread: libc::c_int = 0;
    // SAFETY: the call writes one int at the address. SIOCOUTQ is TIOCOUTQ.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
    answer == 0 && unread > 0
}

/// ioctl(TIOCSWINSZ).
pub(crate) fn set_window(terminal: RawFd, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call reads one winsize at the address.
    let answer = unsafe { libc::ioctl(terminal, libc::TIOCSWINSZ, &raw const size) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts a descriptor under the runtime's watch. For types of this crate that own one descriptor for life.
///
/// # Errors
/// `ENOSPC` where the user has as many watches as fs.epoll.max_user_watches lets him.
pub(crate) fn watched<T: AsRawFd>(inner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    watched_or_back(inner, interest).map_err(io::Error::from)
}

/// The same, where what cannot be watched is wanted back: it is in the error.
pub(crate) fn watched_or_back<T: AsRawFd>(
    inner: T,
    interest: Interest,
) -> Result<AsyncFd<T>, AsyncFdRegisterError<T>> {
    // SAFETY: `Inside`, `Left`, `OwnedFd`, `File`, and `Arc`s of them keep the descriptor that as_raw_fd names open
    // until they are dropped, and none of them ever exchanges it.
    unsafe { AsyncFd::register_with_interest(inner, interest) }
}

/// ioctl(TIOCGWINSZ): rows and columns.
pub(crate) fn window(terminal: RawFd) -> io::Result<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call writes one winsize at the address.
    let answer = unsafe { libc::ioctl(terminal, libc::TIOCGWINSZ, &raw mut size) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok((size.ws_row, size.ws_col)) }
}

/// fcntl(F_SETLEASE, F_RDLCK), and back: whether nobody has the file open for writing any more, so that it can be
/// executed. Where the file system has no leases, nobody knows, and it is taken for so.
pub(crate) fn has_no_writer(file: BorrowedFd<'_>) -> bool {
    // SAFETY: fcntl(2) with integer arguments only.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
    if answer < 0 {
        return io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN);
    }
    // SAFETY: as above.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    true
}

/// statx(2): whether `name` in `directory`, itself and not what it links to, is the root of a mount. Linux 5.8.
pub(crate) fn is_mount_root(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    let (directory, wanted) = (directory.as_raw_fd(), libc::STATX_TYPE);
    // SAFETY: the name is a C string, and the call writes one record at the address.
    let answer = unsafe { libc::statx(directory, name.as_ptr(), flags, wanted, &raw mut stat) };
    let root = u64::try_from(libc::STATX_ATTR_MOUNT_ROOT).unwrap_or_default();
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(stat.stx_attributes & root != 0) }
}

/// pidfd_open(2). Linux 5.3.
pub(crate) fn open_process(pid: u32) -> nix::Result<OwnedFd> {
    // SAFETY: a system call with integer arguments only.
    let answer = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let number = RawFd::try_from(answer).map_err(|_| Errno::EBADF)?;
    Errno::result(number)?;
    Ok(received(number))
}

/// waitid(2) with WNOWAIT: what a child that has ended used, with its own children that it waited for. The child stays
/// to be waited for.
pub(crate) fn usage_of_ended(child: Pid) -> io::Result<libc::rusage> {
    // SAFETY: plain numbers, for which all zeroes are values.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    let none: *mut libc::siginfo_t = ptr::null_mut();
    let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    let (kind, number) = (libc::P_PID, child.as_raw());
    // SAFETY: the kernel writes one rusage at the address, and nothing where siginfo would be.
    let answer = unsafe { libc::syscall(libc::SYS_waitid, kind, number, none, flags, &raw mut used) };
    Errno::result(answer)?;
    Ok(used)
}

/// What the calling thread is ahead of others by, which its children inherit: a real-time or deadline policy, a nice value
/// below 0, the real-time class of I/O.
pub(crate) fn privileges_of_scheduling() -> [bool; 3] {
    const IO_REAL_TIME: i64 = 1;
    // SAFETY: it takes a number and changes nothing.
    let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    // SAFETY: as above.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // SAFETY: as above.
    let io = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) };
    [
        matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE),
        nice < 0,
        io >> 13 == IO_REAL_TIME,
    ]
}

// Answering system calls in the place of a filter: seccomp_unotify(2).

/// ioctl(SECCOMP_IOCTL_NOTIF_RECV): a call that waits for an answer. Does not wait where poll(2) has said that there is
/// one, and nobody else receives. `ENOENT` where the caller is gone. Linux 5.0.
pub(crate) fn refused_call(listener: BorrowedFd<'_>) -> io::Result<libc::seccomp_notif> {
    let data = libc::seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] };
    let mut call = libc::seccomp_notif { id: 0, pid: 0, flags: 0, data };
    let request = libc::SECCOMP_IOCTL_NOTIF_RECV;
    // SAFETY: the call writes one seccomp_notif at the address, which is zeroed as it asks.
    let answer = unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw mut call) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(call) }
}

/// ioctl(SECCOMP_IOCTL_NOTIF_SEND): the call with that id returns `errno`. It is never let through: no flag is given.
pub(crate) fn refuse_call(listener: BorrowedFd<'_>, id: u64, errno: c_int) -> io::Result<()> {
    let answer = libc::seccomp_notif_resp { id, val: 0, error: -errno, flags: 0 };
    let request = libc::SECCOMP_IOCTL_NOTIF_SEND;
    // SAFETY: the call reads one seccomp_notif_resp at the address.
    let sent = unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw const answer) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// ioctl(SECCOMP_IOCTL_NOTIF_ID_VALID): whether that call still waits, so that its pid is still the caller's.
pub(crate) fn still_waits(listener: BorrowedFd<'_>, id: u64) -> bool {
    let request = libc::SECCOMP_IOCTL_NOTIF_ID_VALID;
    // SAFETY: the call reads one 64-bit number at the address.
    let answer = unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw const id) };
    answer == 0
}

// Writing beyond a limit on the size of files: an error, and not the death of the embedding program.

/// Does `write` on this thread, with `EFBIG` where setrlimit(2) would have SIGXFSZ end the program.
///
/// # Errors
/// Those of `write`.
pub(crate) fn without_sigxfsz<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let signal = SigSet::from(Signal::SIGXFSZ);
    let before = signal.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    // Who blocks it has it wait.
    if before.contains(Signal::SIGXFSZ) {
        return write();
    }
    let _unblock = Unblock;
    let written = write();
    if written.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EFBIG)) {
        take(&signal);
    }
    written
}

/// sigtimedwait(2) without waiting: takes a signal that waits for this thread.
fn take(signal: &SigSet) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call reads the set and the time, and writes nothing where the information would be.
    let _ = unsafe { libc::sigtimedwait(signal.as_ref(), ptr::null_mut(), &raw const now) };
}

struct Unblock;

impl Drop for Unblock {
    fn drop(&mut self) {
        // It is a valid set.
        let _ = SigSet::from(Signal::SIGXFSZ).thread_unblock();
    }
}

// Locks of this crate: somebody who panicked while he held one keeps nobody else from it. What they guard is whole between any
// two lines of its holder.

/// Locks it, whoever panicked.
pub(crate) fn locked<T: ?Sized>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
