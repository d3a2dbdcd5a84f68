//! Raw calls of the outside that no crate wraps: the vfork-like start and what goes with a pidfd. The only
//! unsafe code of `src/`.
#![expect(unsafe_code, reason = "the one fence around raw calls of the outside")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    ptr,
};

use tokio::io::{Interest, unix::AsyncFd};

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, SigmaskHow},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::{Pid, geteuid},
};

use crate::Usage;

/// Capabilities that the inside needs, in its own user namespace, until its last wall stands:
/// CAP_SETPCAP, CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_SYS_ADMIN of capabilities(7).
pub(crate) const INSIDE_CAPABILITIES: [u32; 4] = [8, 10, 12, 21];

/// Whose user namespace the inside is born in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// One of its own.
    Own,
    /// The caller's, who holds [`INSIDE_CAPABILITIES`] there: real root where the host has no other.
    Callers,
}

/// What the inside is born with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birthright {
    pub(crate) users: Users,
    /// Whether it mounts an overlay, which takes one capability more.
    pub(crate) overlays: bool,
}

/// The same and CAP_DAC_OVERRIDE: overlayfs keeps its work in a directory of mode 0, with the rights of whoever mounted
/// it. Dropped as soon as it is mounted.
const OVERLAY_CAPABILITIES: [u32; 5] = [1, 8, 10, 12, 21];

/// What a reaper of root's needs: CAP_DAC_OVERRIDE.
const REAPER_CAPABILITIES: [u32; 1] = [1];

/// `CLONE_INTO_CGROUP` of clone3(2), which is wider than the flags of clone(2).
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// The child has a few small frames before execveat(2).
const STACK: usize = 32 * 1024;

/// Why the inside did not start.
#[derive(Debug)]
pub(crate) enum BirthError {
    /// clone(2) refused: no process was made.
    Clone(io::Error),
    /// The capabilities that the inside needs could not be kept; the process is gone.
    Keep(io::Error),
    /// The image could not be executed; the process is gone.
    Exec(io::Error),
}

/// What the child needs between clone(2) and execveat(2), and where it leaves the reason when it fails.
struct Birth<'k> {
    image: RawFd,
    control: RawFd,
    /// Capabilities that it keeps.
    capabilities: &'k [u32],
    /// Whether they are those of the caller's user namespace.
    is_callers: bool,
    kept: bool,
    errno: c_int,
}

/// A process that was started.
#[derive(Debug)]
pub(crate) struct Born {
    pub(crate) pidfd: OwnedFd,
    pub(crate) pid: c_int,
    /// Whether it is where it was to be born.
    pub(crate) is_in_group: bool,
}

/// Where a process is born.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cradle<'g> {
    /// In a new pid namespace, as PID 1, and in a new user namespace unless its birthright says otherwise.
    Namespaces,
    /// There, and in this cgroup, if the kernel can do both at once.
    Group(BorrowedFd<'g>),
    /// Beside this program, with nothing of what root may but to write to any file: the root of the cgroup hierarchy has
    /// no write permission for its owner, and a user namespace would have no say there.
    Beside,
}

/// Starts the image, its descriptor 0 being `control`.
///
/// The calling program is never copied: the child borrows its memory (CLONE_VM) while the calling thread sleeps
/// (CLONE_VFORK), so the cost does not depend on the program's size.
pub(crate) fn give_birth(
    image: BorrowedFd<'_>,
    control: BorrowedFd<'_>,
    birthright: Birthright,
    cradle: Cradle<'_>,
) -> Result<Born, BirthError> {
    let mut stack = Box::new([MaybeUninit::<u8>::uninit(); STACK]);
    let is_beside = matches!(cradle, Cradle::Beside);
    let capabilities: &[u32] = match birthright {
        _ if is_beside && geteuid().is_root() => &REAPER_CAPABILITIES,
        _ if is_beside => &[],
        Birthright { overlays: true, .. } => &OVERLAY_CAPABILITIES,
        Birthright { overlays: false, .. } => &INSIDE_CAPABILITIES,
    };
    let is_callers = is_beside || birthright.users == Users::Callers;
    let (image, control) = (image.as_raw_fd(), control.as_raw_fd());
    let mut birth = Birth { image, control, capabilities, is_callers, kept: false, errno: 0 };
    let mut pidfd: c_int = -1;
    // No handler of the embedding program may run in the child, which shares its memory.
    let before = SigSet::all()
        .thread_swap_mask(SigmaskHow::SIG_SETMASK)
        .map_err(|errno| BirthError::Clone(errno.into()))?;
    let users = if birthright.users == Users::Own { libc::CLONE_NEWUSER } else { 0 };
    let of_its_own = users | libc::CLONE_NEWPID;
    let born = match cradle {
        Cradle::Beside => clone_vfork(0, &mut stack, &mut birth, &mut pidfd).map(|pid| (pid, true)),
        Cradle::Namespaces => {
            clone_vfork(of_its_own, &mut stack, &mut birth, &mut pidfd).map(|pid| (pid, true))
        }
        Cradle::Group(group) => match clone_into(group, of_its_own, &mut stack, &mut birth, &mut pidfd) {
            // An older kernel, or a seccomp filter around all of this.
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                clone_vfork(of_its_own, &mut stack, &mut birth, &mut pidfd).map(|pid| (pid, false))
            }
            born => born.map(|pid| (pid, true)),
        },
    };
    // Restoring what was there before cannot fail; there would be nobody to tell.
    let _ = before.thread_set_mask();
    let (pid, is_in_group) = born.map_err(BirthError::Clone)?;
    // SAFETY: with CLONE_PIDFD a successful clone stored a new descriptor there, owned by nobody else.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    if birth.errno != 0 {
        bury(&pidfd);
        let why = if birth.kept { BirthError::Exec } else { BirthError::Keep };
        return Err(why(io::Error::from_raw_os_error(birth.errno)));
    }
    Ok(Born { pidfd, pid, is_in_group })
}

fn clone_vfork(
    namespaces: c_int,
    stack: &mut [MaybeUninit<u8>; STACK],
    birth: &mut Birth<'_>,
    pidfd: &mut c_int,
) -> io::Result<c_int> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD | namespaces;
    let top: *mut c_void = stack.as_mut_ptr_range().end.cast();
    // SAFETY: stack, birth and pidfd outlive the child's use of them, because CLONE_VFORK keeps this thread
    // asleep until the child has executed or ended; `be_born` never returns into Rust code of the parent.
    let pid = unsafe { libc::clone(be_born, top, flags, ptr::from_mut(birth).cast(), ptr::from_mut(pidfd)) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) }
}

/// clone3(CLONE_INTO_CGROUP), which the C library does not have: as [`clone_vfork`], but born in `group`. Linux 5.7.
fn clone_into(
    group: BorrowedFd<'_>,
    namespaces: c_int,
    stack: &mut [MaybeUninit<u8>; STACK],
    birth: &mut Birth<'_>,
    pidfd: &mut c_int,
) -> io::Result<c_int> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | namespaces;
    let base = stack.as_mut_ptr();
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut wanted: libc::clone_args = unsafe { std::mem::zeroed() };
    wanted.flags = u64::from(flags.cast_unsigned()) | INTO_CGROUP;
    wanted.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    wanted.pidfd = ptr::from_mut(pidfd).expose_provenance() as u64;
    wanted.stack = base.expose_provenance() as u64;
    // Where a function is called the stack is aligned to 16 bytes.
    wanted.stack_size = (STACK - base.wrapping_add(STACK).addr() % 16) as u64;
    wanted.cgroup = u64::from(group.as_raw_fd().cast_unsigned());
    let answer: i64;
    // SAFETY: the record is live and of its true size; what it refers to outlives the child's use, as in
    // `clone_vfork`. The child has all registers but rax, rcx and r11, and a stack of its own from which nothing
    // returns: it calls `be_born` and ends. In the parent the instructions after the call change nothing.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "mov edi, eax",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit_group,
            inlateout("rax") libc::SYS_clone3 => answer,
            in("rdi") &raw const wanted,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") be_born as extern "C" fn(*mut c_void) -> c_int,
            in("r13") ptr::from_mut(birth),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    match c_int::try_from(answer) {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(io::Error::from_raw_os_error(c_int::try_from(-answer).unwrap_or(libc::EINVAL))),
    }
}

/// The child, in borrowed memory: only raw system calls, no allocation, no lock.
extern "C" fn be_born(argument: *mut c_void) -> c_int {
    // SAFETY: `clone_vfork` passed its live `Birth`, and nobody else touches it while the parent sleeps.
    let birth = unsafe { &mut *argument.cast::<Birth<'_>>() };
    let rootless = if birth.is_callers { without_root() } else { Ok(()) };
    let kept = rootless.and_then(|()| keep_capabilities(birth.capabilities));
    birth.kept = kept.is_ok();
    birth.errno = kept.and_then(|()| execute(birth)).err().unwrap_or_default();
    1
}

/// prctl(PR_SET_SECUREBITS): uid 0 of the caller's user namespace would get every capability by execveat(2), and not
/// only those that are kept. In a namespace of its own the uid is not mapped yet, and others than root get none.
fn without_root() -> Result<(), c_int> {
    const NOROOT: libc::c_long = 1;
    // SAFETY: geteuid(2) only answers.
    if unsafe { libc::syscall(libc::SYS_geteuid) } != 0 {
        return Ok(());
    }
    // SAFETY: prctl(2) with integer arguments only.
    let bits = unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_SECUREBITS, 0, 0, 0, 0) };
    errno_of(bits)?;
    // SAFETY: as above.
    errno_of(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_SECUREBITS, bits | NOROOT, 0, 0, 0) })
}

/// Makes the capabilities survive execveat(2) of an ordinary file by who is not root: the ambient set.
fn keep_capabilities(capabilities: &[u32]) -> Result<(), c_int> {
    let header = [0x2008_0522u32, 0];
    let kept = capabilities.iter().fold(0u32, |set, capability| set | 1 << capability);
    // effective, permitted, inheritable, of the low 32 capabilities and then of the high ones
    let data = [kept, kept, kept, 0, 0, 0];
    // SAFETY: header and data have the layout of capset(2), version 3.
    errno_of(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) })?;
    for &capability in capabilities {
        let raise = libc::PR_CAP_AMBIENT_RAISE;
        // SAFETY: prctl(2) with integer arguments only.
        errno_of(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_CAP_AMBIENT, raise, capability, 0, 0) })?;
    }
    Ok(())
}

/// Moves the control socket to descriptor 0 and becomes the image.
fn execute(birth: &Birth<'_>) -> Result<(), c_int> {
    // SAFETY: dup2(2) of a descriptor that the parent holds open; descriptor 0 is the child's own copy.
    errno_of(unsafe { libc::syscall(libc::SYS_dup2, birth.control, 0) })?;
    let empty: *const c_char = c"".as_ptr();
    let arguments = [c"kennel".as_ptr(), ptr::null()];
    let environment: [*const c_char; 1] = [ptr::null()];
    // SAFETY: the path is a C string and both arrays are NULL-terminated.
    errno_of(unsafe {
        libc::syscall(
            libc::SYS_execveat,
            birth.image,
            empty,
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    })
}

fn errno_of(answer: libc::c_long) -> Result<(), c_int> {
    if answer >= 0 {
        return Ok(());
    }
    // SAFETY: always valid; it is the calling thread's own, and the child borrows that of the sleeping parent.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    Err(unsafe { *errno })
}

/// clone(2) of a child that ends at once: whether `namespaces`, flags of clone(2), are to be had. It sends no signal when
/// it ends, and nobody else waits for it.
pub(crate) fn try_namespaces(namespaces: c_int) -> io::Result<()> {
    let mut stack = Box::new([MaybeUninit::<u8>::uninit(); STACK]);
    let mut pidfd: c_int = -1;
    // No handler of the embedding program may run in the child, which shares its memory.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | namespaces;
    let top: *mut c_void = stack.as_mut_ptr_range().end.cast();
    // SAFETY: stack and pidfd outlive the child's use of them, because CLONE_VFORK keeps this thread asleep until it has
    // ended; `end_at_once` takes no argument.
    let pid = unsafe { libc::clone(end_at_once, top, flags, ptr::null_mut(), ptr::from_mut(&mut pidfd)) };
    let error = io::Error::last_os_error();
    // Restoring what was there before cannot fail; there would be nobody to tell.
    let _ = before.thread_set_mask();
    if pid < 0 {
        return Err(error);
    }
    bury(&received(pidfd));
    Ok(())
}

/// A child, in borrowed memory: clone(2) ends it with what this answers.
extern "C" fn end_at_once(_: *mut c_void) -> c_int {
    0
}

/// waitid(P_PIDFD) for a child that is about to end: memory that was borrowed is given back a moment before that.
fn bury(pidfd: &OwnedFd) {
    // ECHILD: as in `reap`.
    while waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED | WaitPidFlag::__WALL) == Err(Errno::EINTR) {}
}

/// waitid(P_PIDFD) without waiting: takes the zombie away if there is one.
pub(crate) fn reap(pidfd: &OwnedFd) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
    // ECHILD: the embedding program waits for all its children and was faster.
    let _ = waitid(Id::PIDFd(pidfd.as_fd()), flags);
}

/// pidfd_send_signal(2) with SIGKILL. Linux 5.1. A process that has ended is no error.
pub(crate) fn kill(pidfd: &OwnedFd) {
    let none: *const libc::siginfo_t = ptr::null();
    // SAFETY: a live descriptor, a signal number, and NULL for "as kill(2) would fill it".
    let _ = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, none, 0) };
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

/// Takes ownership of a descriptor that came with a message.
pub(crate) fn received(number: RawFd) -> OwnedFd {
    // SAFETY: recvmsg(2) has just made it for this process, and every caller takes each number once.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// ioctl(TIOCSWINSZ).
pub(crate) fn set_window(terminal: RawFd, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call reads one winsize at the address.
    let answer = unsafe { libc::ioctl(terminal, libc::TIOCSWINSZ, &raw const size) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts a descriptor under the runtime's watch. For types of this crate that own one descriptor for life.
pub(crate) fn watched<T: AsRawFd>(inner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: `Inside`, `Remains`, `Left`, `OwnedFd` and `File` keep the descriptor that as_raw_fd names open until they are
    // dropped, and none of them ever exchanges it.
    unsafe { AsyncFd::register_with_interest(inner, interest) }.map_err(io::Error::from)
}

/// ioctl(TIOCGWINSZ): rows and columns.
pub(crate) fn window(terminal: RawFd) -> io::Result<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call writes one winsize at the address.
    let answer = unsafe { libc::ioctl(terminal, libc::TIOCGWINSZ, &raw mut size) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok((size.ws_row, size.ws_col)) }
}

/// What recvmsg(2) delivered.
pub(crate) struct Received {
    pub(crate) count: usize,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Bytes or descriptors were lost on the way.
    pub(crate) cut: bool,
}

/// Words of control data: a header and as many descriptors as a message can carry (`SCM_MAX_FD`, 253).
const CONTROL: usize = (16 + 253 * 4usize).div_ceil(8);

/// recvmsg(2) of one packet. Every descriptor that came is owned by the answer, whatever else is wrong with it.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = [0u64; CONTROL];
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the record describes one live buffer and one live control buffer with their true sizes.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let descriptors = descriptors(&message).into_iter().map(received).collect();
    Ok(Received { count, descriptors, cut: message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 })
}

/// The numbers of the descriptors in the control data of a received message.
fn descriptors(message: &libc::msghdr) -> Vec<RawFd> {
    let mut numbers = Vec::new();
    // SAFETY: the kernel filled the control buffer and set its length; both are as they were.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR answer NULL or a header that lies in the control buffer.
    while let Some(here) = unsafe { header.as_ref() } {
        if (here.cmsg_level, here.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: arithmetic on a length only.
            let head = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = here.cmsg_len.saturating_sub(head) / size_of::<RawFd>();
            // SAFETY: the data of a header begins right behind it.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            // SAFETY: the kernel wrote that many descriptors there; the control buffer is not written to any more.
            numbers.extend((0..count).map(|at| unsafe { data.wrapping_add(at).read_unaligned() }));
        }
        // SAFETY: `header` lies in the message's control buffer.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    numbers
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

/// getxattr(2): whether an extended attribute has exactly this value. Those of cgroups came with Linux 5.7.
pub(crate) fn attribute_is(path: &Path, name: &str, value: &[u8]) -> bool {
    let (Ok(path), Ok(name)) = (CString::new(path.as_os_str().as_bytes()), CString::new(name)) else {
        return false;
    };
    let mut bytes = [0u8; 16];
    // SAFETY: both names are C strings, and the call writes at most as many bytes as there are.
    let count =
        unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len()) };
    usize::try_from(count).ok().and_then(|count| bytes.get(..count)) == Some(value)
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
pub(crate) fn usage_of_ended(child: Pid) -> io::Result<Usage> {
    // SAFETY: plain numbers, for which all zeroes are values.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    let none: *mut libc::siginfo_t = ptr::null_mut();
    let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    let (kind, number) = (libc::P_PID, child.as_raw());
    // SAFETY: the kernel writes one rusage at the address, and nothing where siginfo would be.
    let answer = unsafe { libc::syscall(libc::SYS_waitid, kind, number, none, flags, &raw mut used) };
    Errno::result(answer)?;
    let micros = |time: libc::timeval| time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_usec.unsigned_abs();
    Ok(Usage {
        user_us: micros(used.ru_utime),
        system_us: micros(used.ru_stime),
        max_rss_bytes: used.ru_maxrss.unsigned_abs() * 1024,
        ..Usage::default()
    })
}

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
