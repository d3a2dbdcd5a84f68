//! System calls of Linux.

use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::{io, ptr};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::SigSet;
use nix::sys::socket::{SockFlag, accept4};
use nix::sys::stat::{FileStat, SFlag};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, pipe2};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys::descriptor::received;
use crate::sys::runtime::watched;

// Processes.

/// pidfd_open(2). Linux 5.3.
pub(crate) fn open_process(pid: u32) -> nix::Result<OwnedFd> {
    // SAFETY: a system call with integer arguments only.
    let answer = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let number = RawFd::try_from(answer).map_err(|_| Errno::EBADF)?;
    Errno::result(number)?;
    Ok(received(number))
}

/// poll(2) of a pidfd: whether the process has ended, or ends within that time.
pub(crate) fn has_ended(pidfd: &OwnedFd, within: PollTimeout) -> bool {
    let mut ended = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    // A signal handler of the embedding program can interrupt the wait. The wait then starts again.
    loop {
        match poll(&mut ended, within) {
            Err(Errno::EINTR) => {}
            polled => return polled.is_ok_and(|count| count > 0),
        }
    }
}

/// [`signal()`] with SIGKILL.
///
/// # Errors
/// As for `signal`.
pub(crate) fn kill(pidfd: &OwnedFd) -> nix::Result<()> {
    signal(pidfd, libc::SIGKILL)
}

/// pidfd_send_signal(2). Linux 5.1. It is no error if the process has ended.
///
/// # Errors
/// `EPERM` if this process has changed its user IDs since it started the other one.
pub(crate) fn signal(pidfd: &OwnedFd, number: i32) -> nix::Result<()> {
    let none: *const libc::siginfo_t = ptr::null();
    // SAFETY: a live descriptor, a signal number, and NULL, which means "the same siginfo as kill(2)".
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), number, none, 0) };
    match Errno::result(sent) {
        Err(Errno::ESRCH) => Ok(()),
        sent => sent.map(drop),
    }
}

/// waitid(P_PIDFD, WNOHANG): reaps the process if it has ended.
pub(crate) fn reap(pidfd: &OwnedFd) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
    // ECHILD: the embedding program waits for all its children and was faster.
    let _ = waitid(Id::PIDFd(pidfd.as_fd()), flags);
}

/// The end of a child that this process started, by its pidfd: seeing it does not take the child's status.
#[derive(Debug)]
pub(crate) struct ChildExit(AsyncFd<OwnedFd>);

impl ChildExit {
    /// # Errors
    /// No descriptor is free; the kernel reaped the child already, because this process ignores SIGCHLD.
    pub(crate) fn of(child: Pid) -> io::Result<Self> {
        let process = open_process(child.as_raw().cast_unsigned())?;
        watched(process, Interest::READABLE).map(Self)
    }

    /// Returns once it has ended.
    ///
    /// # Errors
    /// The runtime has ended.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }
}

/// The largest resident set, in bytes: getrusage(2) counts kibibytes.
pub(crate) fn resident_bytes(used: &libc::rusage) -> u64 {
    used.ru_maxrss.unsigned_abs() * 1024
}

/// Scheduling privileges of the calling thread, which its children inherit: a real-time or deadline policy, a
/// nice value below 0, the real-time class of I/O.
pub(crate) fn scheduling_privileges() -> [bool; 3] {
    const IO_REAL_TIME: i64 = 1;
    // SAFETY: the call takes a number and changes nothing.
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

// Descriptors and sockets.

/// memfd_create(2): a file without a name.
pub(crate) fn nameless_file() -> io::Result<File> {
    Ok(memfd_create(c"kennel", MFdFlags::MFD_CLOEXEC)?.into())
}

/// accept4(2) of a connection that neither blocks nor is inherited by programs.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK).map(received)
}

/// poll(POLLRDHUP): whether the peer of a stream has closed its sending side or is gone. Unread data may
/// remain.
pub(crate) fn has_hung_up(stream: RawFd) -> bool {
    // poll(2) always reports POLLHUP and POLLERR. nix does not know POLLRDHUP.
    let mut hung_up = libc::pollfd { fd: stream, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one live record, and the kernel writes only that one. A number that is no descriptor sets
    // POLLNVAL.
    let has_event = unsafe { libc::poll(&raw mut hung_up, 1, 0) > 0 };
    has_event && hung_up.revents & libc::POLLNVAL == 0
}

/// connect(2) to `AF_UNSPEC`: a TCP socket is connected, listens and is bound no more. A port that bind(2)
/// gave it stays.
pub(crate) fn disconnect(socket: BorrowedFd<'_>) -> io::Result<()> {
    let family = libc::sa_family_t::try_from(libc::AF_UNSPEC).unwrap_or_default();
    let nowhere = libc::sockaddr { sa_family: family, sa_data: [0; 14] };
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr>()).unwrap_or_default();
    // SAFETY: the call reads one sockaddr at the address.
    let answer = unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, length) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// ioctl(SIOCOUTQ) of unix(7): whether the peer has not yet read everything that this end sent.
pub(crate) fn peer_has_unread(socket: BorrowedFd<'_>) -> bool {
    let mut unread: libc::c_int = 0;
    // SAFETY: the call writes one int at the address. SIOCOUTQ has the same number as TIOCOUTQ.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
    answer == 0 && unread > 0
}

/// Whether close(2) of it waits for nobody. A pipe can be held up only by one of its writers whose own memory
/// is a file of FUSE. Who gives such a one is the user, who could as well end this program.
pub(crate) fn closes_at_once(fd: &impl AsFd) -> bool {
    static PIPES: OnceLock<Option<libc::dev_t>> = OnceLock::new();
    let Ok(stat) = known_stat(fd) else { return false };
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFIFO => {
            let device = || pipe2(OFlag::O_CLOEXEC).ok().and_then(|(pipe, _)| known_stat(&pipe).ok());
            *PIPES.get_or_init(|| device().map(|stat| stat.st_dev)) == Some(stat.st_dev)
        }
        SFlag::S_IFCHR => stat.st_rdev == libc::makedev(1, 3),
        _ => false,
    }
}

/// pipe2(2): the reading and the writing end of a pipe that programs do not inherit.
pub(crate) fn pipe() -> nix::Result<(OwnedFd, OwnedFd)> {
    pipe2(OFlag::O_CLOEXEC)
}

/// Whether a descriptor with these flags only holds a file: O_PATH.
pub(crate) fn only_holds(flags: OFlag) -> bool {
    flags.contains(OFlag::O_PATH)
}

/// The two ends of a pipe for splice(2).
pub(crate) struct SplicingPipe {
    pub(crate) out: OwnedFd,
    pub(crate) into: OwnedFd,
}

/// A pipe with a buffer of that many bytes, if possible.
///
/// # Errors
/// Those of pipe2(2).
pub(crate) fn splicing_pipe(size: usize) -> io::Result<SplicingPipe> {
    let (out, into) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let size = i32::try_from(size).unwrap_or(i32::MAX);
    // The kernel limits the pipe buffers of one user (pipe(7)); beyond that the pipe keeps the usual size.
    let _ = fcntl(&into, FcntlArg::F_SETPIPE_SZ(size));
    Ok(SplicingPipe { out, into })
}

/// splice(2) of at most `count` bytes, without waiting.
///
/// # Errors
/// Those of the call.
pub(crate) fn splice_once(from: impl AsFd, to: impl AsFd, count: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    Ok(splice(from, None, to, None, count, flags)?)
}

// Files.

/// open(2) with this flag holds a file without reading it.
pub(crate) const HELD: OFlag = OFlag::O_PATH;

/// A path of an open file, whatever its name is now: in this process the link in /proc leads to that very
/// file.
pub(crate) fn own_path(held: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", held.as_fd().as_raw_fd()).into()
}

/// The number of the device that a file is on.
pub(crate) fn device_of(stat: &FileStat) -> u64 {
    stat.st_dev
}

/// statx(2) with AT_STATX_DONT_SYNC of a descriptor: its kind, its number and that of its device, as far as
/// they are known here. A server of FUSE or NFS is not asked, so this does not wait for one. All else is
/// zero.
pub(crate) fn known_stat(fd: impl AsFd) -> io::Result<libc::stat> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    let known = statx(fd.as_fd(), c"", flags, libc::STATX_TYPE | libc::STATX_INO)?;
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_mode = known.stx_mode.into();
    stat.st_ino = known.stx_ino;
    stat.st_dev = libc::makedev(known.stx_dev_major, known.stx_dev_minor);
    stat.st_rdev = libc::makedev(known.stx_rdev_major, known.stx_rdev_minor);
    Ok(stat)
}

/// fcntl(F_SETLEASE, F_RDLCK), and back: whether no process has the file open for writing, so that execve(2)
/// accepts it. On a file system without leases this is unknown, and the answer is yes.
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

/// statx(2): whether `name` in `directory` is the root of a mount. Does not follow a link. Linux 5.8.
pub(crate) fn is_mount_root(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    let stat = statx(directory, name, flags, libc::STATX_TYPE)?;
    let root = u64::try_from(libc::STATX_ATTR_MOUNT_ROOT).unwrap_or_default();
    Ok(stat.stx_attributes & root != 0)
}

/// statx(2): the number of the mount of a descriptor, as mountinfo has it. Linux 5.8.
pub(crate) fn mount_id(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let stat = statx(fd, c"", libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC, libc::STATX_MNT_ID)?;
    if stat.stx_mask & libc::STATX_MNT_ID == 0 { Err(Errno::ENOSYS.into()) } else { Ok(stat.stx_mnt_id) }
}

fn statx(fd: BorrowedFd<'_>, name: &CStr, flags: i32, wanted: u32) -> io::Result<libc::statx> {
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the name is a C string, and the call writes one record at the address.
    let answer = unsafe { libc::statx(fd.as_raw_fd(), name.as_ptr(), flags, wanted, &raw mut stat) };
    Errno::result(answer)?;
    Ok(stat)
}

/// ioctl(TIOCGPTPEER): opens the other side of a pseudoterminal by its master. It does not become the
/// controlling terminal.
pub(crate) fn peer(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the request takes flags as an integer, no address.
    let number = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    Errno::result(number)?;
    // SAFETY: the kernel has just opened this descriptor for this call, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

// Landlock and seccomp.

/// landlock_create_ruleset(LANDLOCK_CREATE_RULESET_VERSION): the ABI, or 0 without Landlock. Linux 5.13.
pub(crate) fn landlock_abi() -> u32 {
    let none: *const c_void = ptr::null();
    // SAFETY: with the version flag the call takes no pointer.
    let answer = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, 1u32) };
    u32::try_from(answer).unwrap_or(0)
}

/// seccomp(SECCOMP_GET_ACTION_AVAIL): whether the kernel accepts filters with an errno action. Linux 4.14.
pub(crate) fn seccomp_available() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads one 32-bit number at the address.
    let answer =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    answer == 0
}

/// ioctl(SECCOMP_IOCTL_NOTIF_RECV) of seccomp_unotify(2): a system call that waits for an answer. It does not
/// block if poll(2) has reported one and no other thread receives. `ENOENT` if the calling thread is gone.
/// Linux 5.0.
pub(crate) fn receive_notification(listener: BorrowedFd<'_>) -> io::Result<libc::seccomp_notif> {
    let data = libc::seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] };
    let mut call = libc::seccomp_notif { id: 0, pid: 0, flags: 0, data };
    let request = libc::SECCOMP_IOCTL_NOTIF_RECV;
    // SAFETY: the call writes one seccomp_notif at the address. It is zeroed, as the call requires.
    let answer = unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw mut call) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(call) }
}

/// ioctl(SECCOMP_IOCTL_NOTIF_SEND): the system call with that id is not made and fails with `errno`, or
/// returns a value. There is no flag that lets the call continue.
pub(crate) fn answer_notification(
    listener: BorrowedFd<'_>,
    id: u64,
    result: Result<c_int, c_int>,
) -> io::Result<()> {
    let (val, error) = result.map_or_else(|errno| (0, -errno), |value| (value.into(), 0));
    let answer = libc::seccomp_notif_resp { id, val, error, flags: 0 };
    let request = libc::SECCOMP_IOCTL_NOTIF_SEND;
    // SAFETY: the call reads one seccomp_notif_resp at the address.
    let sent = unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw const answer) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// ioctl(SECCOMP_IOCTL_NOTIF_ADDFD): the process whose system call waits gets this file, closed on execve(2).
/// Returns its number there. Linux 5.9.
pub(crate) fn add_descriptor(listener: BorrowedFd<'_>, id: u64, file: impl AsFd) -> io::Result<c_int> {
    let srcfd = file.as_fd().as_raw_fd().cast_unsigned();
    let newfd_flags = libc::O_CLOEXEC.cast_unsigned();
    let added = libc::seccomp_notif_addfd { id, flags: 0, srcfd, newfd: 0, newfd_flags };
    let request = libc::SECCOMP_IOCTL_NOTIF_ADDFD;
    // SAFETY: the call reads one seccomp_notif_addfd at the address. The descriptor in it is open.
    let number = unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw const added) };
    if number < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
}

/// ioctl(SECCOMP_IOCTL_NOTIF_SEND) with SECCOMP_USER_NOTIF_FLAG_CONTINUE: the kernel goes on with the system
/// call with that id, and checks it as if nobody had been asked. Linux 5.5.
pub(crate) fn continue_notification(listener: BorrowedFd<'_>, id: u64) -> io::Result<()> {
    let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or_default();
    let answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
    let request = libc::SECCOMP_IOCTL_NOTIF_SEND;
    // SAFETY: the call reads one seccomp_notif_resp at the address.
    let sent = unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw const answer) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// ioctl(SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP): who asks and who answers run on
/// one processor, because one of them always waits. Linux 6.6; older kernels answer `EINVAL`, and each turn
/// takes longer.
pub(crate) fn take_turns(listener: BorrowedFd<'_>) -> io::Result<()> {
    // SECCOMP_IOW(4, __u64), which libc does not name yet.
    let (request, flags) = (0x4008_2104, 1_u64);
    // SAFETY: ioctl(2) with integer arguments only.
    let answer = unsafe { libc::ioctl(listener.as_raw_fd(), request, flags) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// ioctl(SECCOMP_IOCTL_NOTIF_ID_VALID): whether that system call still waits. If so, its pid still names the
/// same thread.
pub(crate) fn notification_is_valid(listener: BorrowedFd<'_>, id: u64) -> bool {
    let request = libc::SECCOMP_IOCTL_NOTIF_ID_VALID;
    // SAFETY: the call reads one 64-bit number at the address.
    let answer = unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw const id) };
    answer == 0
}

/// sigtimedwait(2) with a timeout of 0: removes a signal that is pending for this thread.
pub(super) fn take_pending(signal: &SigSet) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call reads the set and the time. For a NULL siginfo it writes nothing.
    let _ = unsafe { libc::sigtimedwait(signal.as_ref(), ptr::null_mut(), &raw const now) };
}

// Others.

/// Reads a file of /proc. [`std::fs::read`] would read it in pieces, because such a file does not tell its
/// size.
///
/// # Errors
/// Those of open(2) and read(2).
pub(crate) fn read_proc(path: &str) -> io::Result<Vec<u8>> {
    let mut contents = Vec::with_capacity(8192);
    File::open(path)?.take(u64::MAX).read_to_end(&mut contents)?;
    Ok(contents)
}

/// getrandom(2): an unpredictable number. A forked copy of this process gets another one.
///
/// # Errors
/// Those of the call.
pub(crate) fn random() -> nix::Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: the kernel writes at most that many bytes, to an array of that size.
    let count = Errno::result(unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) })?;
    // The kernel returns up to 256 bytes in one piece.
    if usize::try_from(count) == Ok(bytes.len()) { Ok(u64::from_ne_bytes(bytes)) } else { Err(Errno::EIO) }
}

// The marks of overlayfs, in the form of an unprivileged mount (`userxattr`): see overlayfs.rst in the kernel
// documentation.

/// Marks a directory that hides the lower one instead of merging with it.
pub(crate) const OPAQUE: &str = "user.overlay.opaque";

/// Whether this is a whiteout: overlayfs's marker of a deleted entry.
pub(crate) fn is_whiteout(stat: &FileStat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == 0
}
