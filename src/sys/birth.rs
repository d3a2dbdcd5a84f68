//! Starts the inside with a vfork-like clone. Until it executes the image, the child borrows the memory of
//! this program, so it must not allocate or take a lock.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::{io, ptr};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::geteuid;

use crate::sys::received;

// Numbers of linux/capability.h.
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SETPCAP: u32 = 8;
const CAP_NET_BIND_SERVICE: u32 = 10;
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_CHROOT: u32 = 18;
const CAP_SYS_ADMIN: u32 = 21;

/// Capabilities that the inside needs in its user namespace until its last restriction is in place.
pub(crate) const INSIDE_CAPABILITIES: [u32; 4] =
    [CAP_SETPCAP, CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_SYS_ADMIN];

/// The user namespace of the inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// A new one.
    Own,
    /// The caller's. The caller holds [`INSIDE_CAPABILITIES`] there: it is real root on a host without user
    /// namespaces.
    Callers,
}

/// How to start the inside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpawnOptions {
    pub(crate) users: Users,
    /// Whether it mounts an overlay. That needs one more capability.
    pub(crate) overlays: bool,
    /// Whether it mounts in the namespace of commands that share one: setns(2) needs one more capability.
    pub(crate) enters_mounts: bool,
    /// Whether its workers get ready while commands run; see [`DAC_READ_SEARCH`].
    pub(crate) overtakes: bool,
    /// A second id, as which it opens files of /etc. It needs capabilities for that, too.
    pub(crate) reader: Option<u32>,
}

impl SpawnOptions {
    /// Options for an inside that needs no more than [`INSIDE_CAPABILITIES`].
    pub(crate) fn of(users: Users) -> Self {
        Self { users, overlays: false, enters_mounts: false, overtakes: false, reader: None }
    }
}

/// What overlays need as well: overlayfs accesses its work directory, which has mode 0, with the rights of
/// the process that mounted it. The inside drops the capability right after that mount.
const OVERLAY_CAPABILITIES: [u32; 1] = [CAP_DAC_OVERRIDE];

/// What [`SpawnOptions::enters_mounts`] needs as well.
const ENTERING_CAPABILITIES: [u32; 1] = [CAP_SYS_CHROOT];

/// CAP_DAC_READ_SEARCH of capabilities(7), which [`SpawnOptions::overtakes`] needs as well. A worker of a
/// session walks to the places of its view while other commands run, and they may take the right to search a
/// directory away. Only workers make it effective, until their last wall: what the zygote mounts must not see
/// more than the caller may.
pub(crate) const DAC_READ_SEARCH: u32 = 2;

/// What [`SpawnOptions::reader`] needs as well. The inside drops them right after the mount of /etc.
pub(crate) const READER_CAPABILITIES: [u32; 2] = [CAP_SETGID, CAP_SETUID];

/// What the reaper needs if the caller is root.
const REAPER_CAPABILITIES: [u32; 1] = [CAP_DAC_OVERRIDE];

/// `CLONE_INTO_CGROUP` of clone3(2). It does not fit into the 32-bit flags of clone(2).
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// Stack of the child, in bytes. It needs a few small frames before execveat(2).
const STACK: usize = 32 * 1024;

/// Why the inside did not start.
#[derive(Debug)]
pub(crate) enum CloneError {
    /// clone(2) failed: there is no process.
    Clone(io::Error),
    /// The child could not keep the capabilities that the inside needs, and has ended.
    Keep(io::Error),
    /// The child could not execute the image, and has ended.
    Exec(io::Error),
}

/// What the child needs between clone(2) and execveat(2), and where it stores the reason of a failure.
struct Birth<'k> {
    image: RawFd,
    control: RawFd,
    /// Capabilities that the child keeps.
    capabilities: &'k [u32],
    /// Whether the child stays in the caller's user namespace.
    is_callers: bool,
    kept: bool,
    errno: c_int,
}

/// A process that was started.
#[derive(Debug)]
pub(crate) struct Born {
    pub(crate) pidfd: OwnedFd,
    pub(crate) pid: c_int,
    /// Whether it started in the cgroup that its [`Placement`] asked for. True if it asked for none.
    pub(crate) is_in_group: bool,
}

/// Where a process starts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Placement<'g> {
    /// In a new pid namespace, as PID 1, and in a new user namespace unless its options say otherwise.
    Namespaces,
    /// The same, and in this cgroup, if the kernel can do both at once.
    Group(BorrowedFd<'g>),
    /// In the namespaces of this program. Of root's capabilities the process keeps only the one to write to
    /// any file: the root of the cgroup hierarchy is not writable even for its owner, and no user namespace
    /// has power over it.
    Beside,
}

/// Starts the image with `control` as its descriptor 0.
///
/// This never copies the calling program: the child borrows its memory (CLONE_VM) while the calling thread
/// sleeps (CLONE_VFORK). So the cost does not depend on the size of the program.
pub(crate) fn spawn_inside(
    image: BorrowedFd<'_>,
    control: BorrowedFd<'_>,
    options: SpawnOptions,
    placement: Placement<'_>,
) -> Result<Born, CloneError> {
    let mut stack = Box::new([MaybeUninit::<u8>::uninit(); STACK]);
    let is_beside = matches!(placement, Placement::Beside);
    let capabilities = &*if is_beside {
        if geteuid().is_root() { REAPER_CAPABILITIES.to_vec() } else { Vec::new() }
    } else {
        let of_overlays: &[u32] = if options.overlays { &OVERLAY_CAPABILITIES } else { &[] };
        let of_reader: &[u32] = if options.reader.is_some() { &READER_CAPABILITIES } else { &[] };
        let entering: &[u32] = if options.enters_mounts { &ENTERING_CAPABILITIES } else { &[] };
        let of_workers: &[u32] = if options.overtakes { &[DAC_READ_SEARCH] } else { &[] };
        [&INSIDE_CAPABILITIES, of_overlays, entering, of_workers, of_reader].concat()
    };
    let is_callers = is_beside || options.users == Users::Callers;
    let (image, control) = (image.as_raw_fd(), control.as_raw_fd());
    let mut birth = Birth { image, control, capabilities, is_callers, kept: false, errno: 0 };
    let mut pidfd: c_int = -1;
    // The child shares the memory of the embedding program, so none of its signal handlers may run there.
    let before = SigSet::all()
        .thread_swap_mask(SigmaskHow::SIG_SETMASK)
        .map_err(|errno| CloneError::Clone(errno.into()))?;
    let users = if options.users == Users::Own { libc::CLONE_NEWUSER } else { 0 };
    let of_its_own = users | libc::CLONE_NEWPID;
    let born = match placement {
        Placement::Beside => clone_vfork(0, &mut stack, &mut birth, &mut pidfd).map(|pid| (pid, true)),
        Placement::Namespaces => {
            clone_vfork(of_its_own, &mut stack, &mut birth, &mut pidfd).map(|pid| (pid, true))
        }
        Placement::Group(group) => match clone_into(group, of_its_own, &mut stack, &mut birth, &mut pidfd) {
            // The kernel is older than 5.7, or a seccomp filter around this program hides clone3(2).
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                clone_vfork(of_its_own, &mut stack, &mut birth, &mut pidfd).map(|pid| (pid, false))
            }
            born => born.map(|pid| (pid, true)),
        },
    };
    // Restoring the previous mask cannot fail.
    let _ = before.thread_set_mask();
    let (pid, is_in_group) = born.map_err(CloneError::Clone)?;
    // SAFETY: with CLONE_PIDFD a successful clone stored a new descriptor there, and nothing else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    if birth.errno != 0 {
        let _ = reap_blocking(&pidfd);
        let why = if birth.kept { CloneError::Exec } else { CloneError::Keep };
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
    // asleep until the child has executed or ended; `child_main` never returns into Rust code of the parent.
    let pid =
        unsafe { libc::clone(child_main, top, flags, ptr::from_mut(birth).cast(), ptr::from_mut(pidfd)) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) }
}

/// clone3(CLONE_INTO_CGROUP): like [`clone_vfork`], but the child starts in `group`. libc has no wrapper.
/// Linux 5.7.
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
    // The ABI aligns the stack to 16 bytes before a call.
    wanted.stack_size = (STACK - base.wrapping_add(STACK).addr() % 16) as u64;
    wanted.cgroup = u64::from(group.as_raw_fd().cast_unsigned());
    let answer: i64;
    // SAFETY: the record is live and has its true size. What it refers to outlives the child's use, as in
    // `clone_vfork`. The child has all registers except rax, rcx and r11, and its own stack, from which
    // nothing returns: it calls `child_main` and exits. In the parent the instructions after the call change
    // nothing.
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
            in("r12") child_main as extern "C" fn(*mut c_void) -> c_int,
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

/// clone(2) of a child that ends at once: whether the kernel grants `namespaces`, which are flags of
/// clone(2).
pub(crate) fn try_namespaces(namespaces: c_int) -> io::Result<()> {
    try_in_child(namespaces, end_at_once, ptr::null_mut()).map(drop)
}

/// Whether a child with namespaces of its own can mount an overlay with these options.
pub(crate) fn try_overlay(options: &CStr) -> io::Result<()> {
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    match try_in_child(namespaces, mount_overlay, options.as_ptr().cast_mut().cast())? {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// clone(2) of a child that runs `entry(argument)`; returns its exit status. The child sends no signal when
/// it ends, so no other code waits for it.
fn try_in_child(
    namespaces: c_int,
    entry: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> io::Result<c_int> {
    let mut stack = Box::new([MaybeUninit::<u8>::uninit(); STACK]);
    let mut pidfd: c_int = -1;
    // The child shares the memory of the embedding program, so none of its signal handlers may run there.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | namespaces;
    let top: *mut c_void = stack.as_mut_ptr_range().end.cast();
    // SAFETY: stack, argument and pidfd outlive the child's use of them, because CLONE_VFORK keeps this
    // thread asleep until the child has ended. Both entries only read their argument.
    let pid = unsafe { libc::clone(entry, top, flags, argument, ptr::from_mut(&mut pidfd)) };
    let error = io::Error::last_os_error();
    // Restoring the previous mask cannot fail.
    let _ = before.thread_set_mask();
    if pid < 0 {
        return Err(error);
    }
    Ok(reap_blocking(&received(pidfd)))
}

/// Main function of a child in borrowed memory. clone(2) exits with the status that it returns.
extern "C" fn end_at_once(_: *mut c_void) -> c_int {
    0
}

/// The same for a child that mounts an overlay over /etc, with these options. Its mount namespace ends with
/// it.
extern "C" fn mount_overlay(options: *mut c_void) -> c_int {
    let kind = c"overlay".as_ptr();
    let flags = libc::MS_RDONLY;
    // SAFETY: mount(2) with C strings that outlive the call.
    let mounted = unsafe { libc::syscall(libc::SYS_mount, kind, c"/etc".as_ptr(), kind, flags, options) };
    errno_of(mounted).err().unwrap_or_default()
}

/// waitid(P_PIDFD) for a child that is about to end: CLONE_VFORK wakes the parent shortly before the child is
/// a zombie. Returns its exit status.
fn reap_blocking(pidfd: &OwnedFd) -> c_int {
    loop {
        match waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED | WaitPidFlag::__WALL) {
            Err(Errno::EINTR) => {}
            Ok(WaitStatus::Exited(_, status)) => return status,
            // ECHILD: as in `reap`.
            _ => return 1,
        }
    }
}

// What the child does before it executes the image. It borrows the memory of its sleeping parent, so it only
// makes raw system calls: no allocation, no lock.

/// Main function of the child. Its argument is a live [`Birth`].
pub(crate) extern "C" fn child_main(argument: *mut c_void) -> c_int {
    // SAFETY: `clone_vfork` passed its live `Birth`, and nothing else touches it while the parent sleeps.
    let birth = unsafe { &mut *argument.cast::<Birth<'_>>() };
    let rootless = if birth.is_callers { without_root() } else { Ok(()) };
    let kept = rootless.and_then(|()| keep_capabilities(birth.capabilities));
    birth.kept = kept.is_ok();
    birth.errno = kept.and_then(|()| execute(birth)).err().unwrap_or_default();
    1
}

/// prctl(PR_SET_SECUREBITS): without SECBIT_NOROOT, uid 0 of the caller's user namespace would get every
/// capability by execveat(2), not only the kept ones. In a new user namespace the uid is not mapped yet, and
/// only root gets any.
fn without_root() -> Result<(), c_int> {
    const NOROOT: libc::c_long = 1;
    // SAFETY: geteuid(2) changes nothing.
    if unsafe { libc::syscall(libc::SYS_geteuid) } != 0 {
        return Ok(());
    }
    // SAFETY: prctl(2) with integer arguments only.
    let bits = unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_SECUREBITS, 0, 0, 0, 0) };
    errno_of(bits)?;
    // SAFETY: as above.
    errno_of(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_SECUREBITS, bits | NOROOT, 0, 0, 0) })
}

/// Puts the capabilities into the ambient set: so they survive execveat(2) of an ordinary file by a user
/// other than root.
fn keep_capabilities(capabilities: &[u32]) -> Result<(), c_int> {
    let header = [0x2008_0522u32, 0];
    let kept = capabilities.iter().fold(0u32, |set, capability| set | 1 << capability);
    // Effective, permitted and inheritable: first of the low 32 capabilities, then of the high ones.
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
    // SAFETY: the pointer is always valid. It is the calling thread's errno; the child borrows that of the
    // sleeping parent.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    Err(unsafe { *errno })
}
