//! System calls that only the client `kennel-exec` makes; they are not part of the inside.

use super::*;

mod nr {
    pub(super) const GETSOCKOPT: usize = 55;
    pub(super) const GETCWD: usize = 79;
    pub(super) const GETEUID: usize = 107;
    pub(super) const PRLIMIT64: usize = 302;
    pub(super) const MEMFD_CREATE: usize = 319;
}

const TCGETS: usize = 0x5401;
const SOCK_SEQPACKET: usize = 5;
const SO_PEERCRED: usize = 17;
const SO_PEERPIDFD: usize = 77;
const RLIMIT_NOFILE: usize = 7;
const PR_SET_DUMPABLE: usize = 4;
const PR_GET_SECCOMP: usize = 21;
const PR_CAPBSET_READ: usize = 23;
const PR_GET_NO_NEW_PRIVS: usize = 39;
const SECCOMP_MODE_FILTER: usize = 2;
const ENOPROTOOPT: i32 = 92;
/// linux/sockios.h: the bytes of memory that a Unix socket's peer has not read yet.
const SIOCOUTQ: usize = 0x5411;

/// `struct cmsghdr` before its data.
const RIGHTS_HEAD: usize = 16;

impl Fd {
    /// Standard error. Never closed through this name.
    pub(crate) const STDERR: &'static Self = &Self(2);
}

/// How often to retry a write, and how many milliseconds to wait each time.
const ATTEMPTS: u32 = 1000;
const PAUSE: i32 = 10;

/// A pipe that poll(2) reports writable takes this many bytes at once: PIPE_BUF.
const PIECE: usize = 4096;
const POLLOUT: i16 = 4;

/// write(2) of all bytes that never blocks, because nobody may be reading. `EAGAIN` if the descriptor takes
/// nothing for long.
pub(crate) fn write_waiting(to: &Fd, mut bytes: &[u8]) -> Result<(), Errno> {
    let mut left = ATTEMPTS;
    while !bytes.is_empty() {
        let mut room = PollFd { fd: to.0, events: POLLOUT, answered: 0 };
        let piece = bytes.get(..PIECE).unwrap_or(bytes);
        let written = match call!(super::nr::POLL, &raw mut room, 1, 0) {
            Ok(0) => Err(Errno(EAGAIN)),
            _ => call!(super::nr::WRITE, to.0, piece.as_ptr(), piece.len()),
        };
        match written {
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                left = ATTEMPTS;
            }
            Err(Errno(EAGAIN)) if left > 0 => {
                left = left.saturating_sub(1);
                // poll(2) without descriptors sleeps.
                let _ = call!(super::nr::POLL, 0, 0, PAUSE);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// getcwd(2): the path with its NUL, in `buffer`.
pub(crate) fn working_directory(buffer: &mut [u8]) -> Result<&CStr, Errno> {
    let length = call!(nr::GETCWD, buffer.as_mut_ptr(), buffer.len())?;
    let path = buffer.get(..length).ok_or(Errno(EPROTO))?;
    CStr::from_bytes_with_nul(path).map_err(|_| Errno(EPROTO))
}

/// geteuid(2).
pub(crate) fn effective_user() -> u32 {
    // It cannot fail.
    call!(nr::GETEUID).map_or(u32::MAX, |user| user as u32)
}

/// rt_sigaction(2): the inherited ignored signals among `signals`, as a bit mask, lowest bit for signal 1.
pub(crate) fn ignored(signals: u64) -> u64 {
    let bit = |signal: u32| 1u64.rotate_left(signal.wrapping_sub(1));
    let is_ignored = |&signal: &u32| {
        let mut action = Sigaction { handler: SIG_DFL, flags: 0, restorer: 0, mask: 0 };
        let asked = call!(super::nr::RT_SIGACTION, signal, 0, &raw mut action, 8);
        asked.is_ok() && action.handler == SIG_IGN
    };
    (1..=64)
        .filter(|&signal| signals & bit(signal) != 0)
        .filter(is_ignored)
        .fold(0, |set, signal| set | bit(signal))
}

/// socket(2) of type SOCK_SEQPACKET.
pub(crate) fn packets() -> Result<Fd, Errno> {
    call!(super::nr::SOCKET, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0).map(fd)
}

/// getsockopt(SO_PEERCRED): PID and user of the process that made the peer socket listen.
pub(crate) fn peer(socket: &Fd) -> Result<(u32, u32), Errno> {
    let mut credentials = [u32::MAX; 3];
    let mut length = size_of_val(&credentials);
    let address = credentials.as_mut_ptr();
    call!(nr::GETSOCKOPT, socket.0, SOL_SOCKET, SO_PEERCRED, address, &raw mut length)?;
    let [process, user, _] = credentials;
    Ok((process, user))
}

/// getsockopt(SO_PEERPIDFD): a pidfd of that process. `None` before Linux 6.5; `EINVAL` if it is gone.
pub(crate) fn peer_process(socket: &Fd) -> Result<Option<Fd>, Errno> {
    let mut number = [0u32];
    let mut length = size_of_val(&number);
    let address = number.as_mut_ptr();
    match call!(nr::GETSOCKOPT, socket.0, SOL_SOCKET, SO_PEERPIDFD, address, &raw mut length) {
        Ok(_) => {
            let [number] = number;
            Ok(Some(fd(number as usize)))
        }
        Err(Errno(ENOPROTOOPT)) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// sendmsg(2) of one packet with descriptors 0, 1 and 2, and a fourth if there is one.
pub(crate) fn send_standard(socket: &Fd, bytes: &mut [u8], fourth: Option<&Fd>) -> Result<(), Errno> {
    let count = if fourth.is_some() { 4 } else { 3 };
    let length = size_of::<i32>().wrapping_mul(count).wrapping_add(RIGHTS_HEAD);
    let descriptors = [0, 1, 2, fourth.map_or(-1, |fd| fd.0)];
    let mut rights = Rights { length, level: SOL_SOCKET, kind: SCM_RIGHTS, descriptors };
    let mut vector = IoVec { base: bytes.as_mut_ptr(), length: bytes.len() };
    let message = MsgHdr {
        name: 0,
        name_length: 0,
        vectors: &raw mut vector,
        vector_count: 1,
        control: (&raw mut rights).cast(),
        control_length: size_of::<Rights>(),
        flags: 0,
    };
    call!(super::nr::SENDMSG, socket.0, &raw const message, MSG_NOSIGNAL).map(drop)
}

/// prlimit(2): raises this process's soft limit of descriptors to its hard limit.
pub(crate) fn allow_all_descriptors() -> Result<(), Errno> {
    let mut limits = [0u64; 2];
    call!(nr::PRLIMIT64, 0, RLIMIT_NOFILE, 0, limits.as_mut_ptr())?;
    let [_, hard] = limits;
    limits = [hard; 2];
    call!(nr::PRLIMIT64, 0, RLIMIT_NOFILE, limits.as_ptr(), 0).map(drop)
}

/// memfd_create(2).
pub(crate) fn memory_file(name: &CStr) -> Result<Fd, Errno> {
    call!(nr::MEMFD_CREATE, name.as_ptr(), 1).map(fd)
}

/// kill(2) of this process with SIGSTOP. Returns once another process continues it.
pub(crate) fn stop() -> Result<(), Errno> {
    let myself = call!(super::nr::GETPID)?;
    call!(super::nr::KILL, myself, SIGSTOP).map(drop)
}

/// kill(2) of this process with a signal that ends it, without a core file. Returns if the kernel does not
/// send it.
pub(crate) fn die_of(signal: u32) {
    let _ = call!(crate::kernel::nr::PRCTL, PR_SET_DUMPABLE, 0, 0, 0, 0);
    // SIGKILL has no disposition to reset.
    let _ = disposition(signal, SIG_DFL);
    let _ = signal_mask(0);
    if let Ok(myself) = call!(super::nr::GETPID) {
        let _ = call!(super::nr::KILL, myself, signal);
    }
}

/// ioctl(TCGETS): whether a standard descriptor is a terminal.
pub(crate) fn is_terminal(number: usize) -> bool {
    let mut modes = [0u8; TERMIOS];
    call!(crate::kernel::nr::IOCTL, number, TCGETS, modes.as_mut_ptr()).is_ok()
}

/// openat(2) of a terminal by absolute path, for writing. It does not become the controlling terminal.
pub(crate) fn open_for_writing_only(path: &CStr) -> Result<Fd, Errno> {
    call!(super::nr::OPENAT, AT_FDCWD, path.as_ptr(), O_WRONLY | O_NOCTTY | O_CLOEXEC, 0).map(fd)
}

/// open(2) of the null device as the lowest free descriptor, never closed.
pub(crate) fn open_null() -> Result<(), Errno> {
    call!(super::nr::OPENAT, AT_FDCWD, c"/dev/null".as_ptr(), O_RDWR, 0).map(drop)
}

/// The strings of a NULL-terminated pointer array, such as the environment.
#[derive(Clone, Copy)]
pub(crate) struct Strings {
    next: *const usize,
}

impl Strings {
    /// The environment.
    ///
    /// # Safety
    /// `stack` must be the stack pointer at program start: a count, that many addresses, zero, then the
    /// addresses of the environment up to another zero.
    pub(crate) unsafe fn environment(stack: *const usize) -> Self {
        // SAFETY: the caller vouches that the stack begins with the count.
        let count = unsafe { stack.read() };
        Self { next: stack.wrapping_add(count).wrapping_add(2) }
    }
}

impl Iterator for Strings {
    type Item = &'static CStr;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: this never reads beyond the zero at the end of the array.
        let address = unsafe { self.next.read() };
        if address == 0 {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        // SAFETY: execve(2) put a NUL-terminated string there, which nobody changes or takes away.
        Some(unsafe { CStr::from_ptr(ptr::with_exposed_provenance(address)) })
    }
}

/// prctl(2): whether this process has a seccomp filter, no_new_privs and an empty bounding set, as in a
/// Kennel sandbox. Used only for messages.
pub(crate) fn is_sandboxed() -> bool {
    let ask = |question: usize, about: usize| call!(crate::kernel::nr::PRCTL, question, about, 0, 0, 0);
    // Beyond the kernel's last capability it is an error.
    ask(PR_GET_SECCOMP, 0) == Ok(SECCOMP_MODE_FILTER)
        && ask(PR_GET_NO_NEW_PRIVS, 0) == Ok(1)
        && (0..CAPABILITIES).all(|capability| ask(PR_CAPBSET_READ, capability) != Ok(1))
}

/// ioctl(SIOCOUTQ) of unix(7): whether the peer has unread messages.
pub(crate) fn is_unread(socket: &Fd) -> bool {
    let mut unread = 0i32;
    call!(crate::kernel::nr::IOCTL, socket.0, SIOCOUTQ, &raw mut unread).is_ok() && unread > 0
}
