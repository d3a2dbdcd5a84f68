//! Starts the inside with a clone that copies nothing. Until it executes the image, the child borrows the
//! memory of this program, so it must not allocate, take a lock, or touch what belongs to a thread.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32};
use std::{io, ptr};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::geteuid;

use crate::sys::received;

// Numbers of linux/capability.h.
pub(crate) const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SETPCAP: u32 = 8;
const CAP_NET_BIND_SERVICE: u32 = 10;
const CAP_NET_ADMIN: u32 = 12;
pub(crate) const CAP_SYS_CHROOT: u32 = 18;
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
    /// Whether it needs CAP_SYS_CHROOT: it mounts in the namespace of commands that share one, by setns(2);
    /// or commands may be root of another root, who may call chroot(2).
    pub(crate) chroots: bool,
    /// Whether its workers get ready while commands run; see [`DAC_READ_SEARCH`].
    pub(crate) overtakes: bool,
    /// A second id, as which it opens files of /etc. It needs capabilities for that, too.
    pub(crate) reader: Option<u32>,
}

impl SpawnOptions {
    /// Options for an inside that needs no more than [`INSIDE_CAPABILITIES`].
    pub(crate) fn of(users: Users) -> Self {
        Self { users, overlays: false, chroots: false, overtakes: false, reader: None }
    }
}

/// What overlays need as well: overlayfs accesses its work directory, which has mode 0, with the rights of
/// the process that mounted it. The inside drops the capability right after that mount.
const OVERLAY_CAPABILITIES: [u32; 1] = [CAP_DAC_OVERRIDE];

/// What [`SpawnOptions::chroots`] needs as well.
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

type Stack = [MaybeUninit<u8>; STACK];

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
#[derive(Debug)]
struct Lent {
    image: RawFd,
    control: RawFd,
    /// Capabilities that the child keeps.
    capabilities: Vec<u32>,
    /// Whether the child stays in the caller's user namespace.
    is_callers: bool,
    kept: AtomicBool,
    errno: AtomicI32,
    /// The kernel clears it once the child does not use this memory any more: CLONE_CHILD_CLEARTID.
    is_borrowed: AtomicU32,
}

/// A process on its way into the image. Until then it borrows memory of this program.
///
/// The caller goes on meanwhile, so two processors do both, and one switches less often. With CLONE_VFORK it
/// would sleep.
#[derive(Debug)]
pub(crate) struct Birth {
    lent: Arc<Lent>,
    /// Only the child uses it.
    stack: AtomicPtr<Stack>,
}

impl Birth {
    /// Waits until the process has executed the image.
    ///
    /// # Errors
    /// It could not, and has ended, or is about to.
    pub(crate) fn executed(self) -> Result<(), CloneError> {
        self.wait();
        match self.lent.errno.load(Acquire) {
            0 => Ok(()),
            errno => {
                let why = if self.lent.kept.load(Acquire) { CloneError::Exec } else { CloneError::Keep };
                Err(why(io::Error::from_raw_os_error(errno)))
            }
        }
    }

    /// futex(2) on the word that the kernel clears.
    fn wait(&self) {
        let word = &self.lent.is_borrowed;
        while word.load(Acquire) != 0 {
            // SAFETY: the word is live. The call only sleeps while it is 1.
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, 1, ptr::null::<u8>()) };
        }
    }
}

impl Drop for Birth {
    fn drop(&mut self) {
        self.wait();
        // SAFETY: it came from `Box::into_raw`, and the child does not use it any more.
        drop(unsafe { Box::from_raw(*self.stack.get_mut()) });
    }
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

/// Begins to start the image with `control` as its descriptor 0. The process has its own copies of both
/// descriptors.
///
/// This never copies the calling program: the child borrows its memory (CLONE_VM). So the cost does not
/// depend on the size of the program.
pub(crate) fn begin_inside(
    image: BorrowedFd<'_>,
    control: BorrowedFd<'_>,
    options: SpawnOptions,
    placement: Placement<'_>,
) -> Result<(Born, Birth), CloneError> {
    let is_beside = matches!(placement, Placement::Beside);
    let capabilities = if is_beside {
        if geteuid().is_root() { REAPER_CAPABILITIES.to_vec() } else { Vec::new() }
    } else {
        let of_overlays: &[u32] = if options.overlays { &OVERLAY_CAPABILITIES } else { &[] };
        let of_reader: &[u32] = if options.reader.is_some() { &READER_CAPABILITIES } else { &[] };
        let entering: &[u32] = if options.chroots { &ENTERING_CAPABILITIES } else { &[] };
        let of_workers: &[u32] = if options.overtakes { &[DAC_READ_SEARCH] } else { &[] };
        [&INSIDE_CAPABILITIES, of_overlays, entering, of_workers, of_reader].concat()
    };
    let lent = Arc::new(Lent {
        image: image.as_raw_fd(),
        control: control.as_raw_fd(),
        capabilities,
        is_callers: is_beside || options.users == Users::Callers,
        kept: AtomicBool::new(false),
        errno: AtomicI32::new(0),
        is_borrowed: AtomicU32::new(0),
    });
    let stack: Box<Stack> = Box::new([MaybeUninit::uninit(); STACK]);
    let birth = Birth { lent, stack: AtomicPtr::new(Box::into_raw(stack)) };
    // The child shares the memory of the embedding program, so none of its signal handlers may run there.
    let before = SigSet::all()
        .thread_swap_mask(SigmaskHow::SIG_SETMASK)
        .map_err(|errno| CloneError::Clone(errno.into()))?;
    let users = if options.users == Users::Own { libc::CLONE_NEWUSER } else { 0 };
    let of_its_own = users | libc::CLONE_NEWPID;
    let begun = match placement {
        Placement::Beside => birth.begin(None, 0),
        Placement::Namespaces => birth.begin(None, of_its_own),
        Placement::Group(group) => match birth.begin(Some(group), of_its_own) {
            // The kernel is older than 5.7, or a seccomp filter around this program hides clone3(2).
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                birth.begin(None, of_its_own).map(|born| Born { is_in_group: false, ..born })
            }
            begun => begun,
        },
    };
    // Restoring the previous mask cannot fail.
    let _ = before.thread_set_mask();
    Ok((begun.map_err(CloneError::Clone)?, birth))
}

impl Birth {
    /// clone(2) with these namespaces, or clone3(2) into `group`.
    fn begin(&self, group: Option<BorrowedFd<'_>>, namespaces: c_int) -> io::Result<Born> {
        let mut pidfd: c_int = -1;
        let stack = self.stack.load(Relaxed);
        self.lent.is_borrowed.store(1, Relaxed);
        let begun = match group {
            None => clone_beside(namespaces, stack, &self.lent, &mut pidfd),
            Some(group) => clone_into(group, namespaces, stack, &self.lent, &mut pidfd),
        };
        if begun.is_err() {
            // There is no child.
            self.lent.is_borrowed.store(0, Relaxed);
        }
        Ok(Born { pid: begun?, pidfd: received(pidfd), is_in_group: true })
    }
}

const BORROWS: c_int = libc::CLONE_VM | libc::CLONE_PIDFD | libc::CLONE_CHILD_CLEARTID;

fn clone_beside(
    namespaces: c_int,
    stack: *mut Stack,
    lent: &Arc<Lent>,
    pidfd: &mut c_int,
) -> io::Result<c_int> {
    let flags = BORROWS | libc::SIGCHLD | namespaces;
    let top: *mut c_void = stack.wrapping_add(1).cast();
    let argument = Arc::as_ptr(lent).cast_mut().cast();
    let (no_storage, word) = (ptr::null_mut::<c_void>(), lent.is_borrowed.as_ptr());
    // SAFETY: stack and lent memory outlive the child's use of them, because `Birth` waits for that before it
    // frees them. The kernel stores the pidfd before the call returns. `child_main` never returns into Rust
    // code of the parent.
    let pid =
        unsafe { libc::clone(child_main, top, flags, argument, ptr::from_mut(pidfd), no_storage, word) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) }
}

/// clone3(CLONE_INTO_CGROUP): like [`clone_beside`], but the child starts in `group`. libc has no wrapper.
/// Linux 5.7.
fn clone_into(
    group: BorrowedFd<'_>,
    namespaces: c_int,
    stack: *mut Stack,
    lent: &Arc<Lent>,
    pidfd: &mut c_int,
) -> io::Result<c_int> {
    let flags = BORROWS | namespaces;
    let base = stack.cast::<u8>();
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut wanted: libc::clone_args = unsafe { std::mem::zeroed() };
    wanted.flags = u64::from(flags.cast_unsigned()) | INTO_CGROUP;
    wanted.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    wanted.pidfd = ptr::from_mut(pidfd).expose_provenance() as u64;
    wanted.child_tid = lent.is_borrowed.as_ptr().expose_provenance() as u64;
    wanted.stack = base.expose_provenance() as u64;
    // The ABI aligns the stack to 16 bytes before a call.
    wanted.stack_size = (STACK - base.wrapping_add(STACK).addr() % 16) as u64;
    wanted.cgroup = u64::from(group.as_raw_fd().cast_unsigned());
    let answer: i64;
    // SAFETY: the record is live and has its true size. What it refers to outlives the child's use, as in
    // `clone_beside`. The child has all registers except rax, rcx and r11, and its own stack, from which
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
            in("r13") Arc::as_ptr(lent),
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
    let texts = [c"overlay".as_ptr(), c"/etc".as_ptr(), options.cast_const().cast()];
    let [kind, at, options] = texts.map(|text| text.expose_provenance() as u64);
    // SAFETY: mount(2) with C strings that outlive the call.
    let mounted = unsafe { call(libc::SYS_mount, [kind, at, kind, libc::MS_RDONLY, options]) };
    mounted.err().unwrap_or_default()
}

/// waitid(P_PIDFD) for a child that is about to end: the kernel gives its memory back shortly before the
/// child is a zombie. Returns its exit status.
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

// What the child does before it executes the image. It borrows the memory of its parent, whose threads run
// meanwhile, so it only makes raw system calls: no allocation, no lock, no errno.

/// Main function of the child. Its argument is a live [`Lent`].
pub(crate) extern "C" fn child_main(argument: *mut c_void) -> c_int {
    // SAFETY: it is the live `Lent` of a `Birth`, which waits for this process before it frees it.
    let lent = unsafe { &*argument.cast::<Lent>() };
    let rootless = if lent.is_callers { without_root() } else { Ok(()) };
    let kept = rootless.and_then(|()| keep_capabilities(&lent.capabilities));
    lent.kept.store(kept.is_ok(), Release);
    if let Err(errno) = kept.and_then(|()| execute(lent)) {
        lent.errno.store(errno, Release);
    }
    1
}

/// prctl(PR_SET_SECUREBITS): without SECBIT_NOROOT, uid 0 of the caller's user namespace would get every
/// capability by execveat(2), not only the kept ones. In a new user namespace the uid is not mapped yet, and
/// only root gets any.
fn without_root() -> Result<(), c_int> {
    const NOROOT: u64 = 1;
    // SAFETY: geteuid(2) changes nothing.
    if unsafe { call(libc::SYS_geteuid, [0; 5]) }? != 0 {
        return Ok(());
    }
    let prctl = |option: c_int, value: u64| {
        // SAFETY: prctl(2) with integer arguments only.
        unsafe { call(libc::SYS_prctl, [option.cast_unsigned().into(), value, 0, 0, 0]) }
    };
    let bits = prctl(libc::PR_GET_SECUREBITS, 0)?;
    prctl(libc::PR_SET_SECUREBITS, bits | NOROOT).map(drop)
}

/// Puts the capabilities into the ambient set: so they survive execveat(2) of an ordinary file by a user
/// other than root.
fn keep_capabilities(capabilities: &[u32]) -> Result<(), c_int> {
    let header = [0x2008_0522u32, 0];
    let kept = capabilities.iter().fold(0u32, |set, capability| set | 1 << capability);
    // Effective, permitted and inheritable: first of the low 32 capabilities, then of the high ones.
    let data = [kept, kept, kept, 0, 0, 0];
    let [header, data] = [header.as_ptr().expose_provenance(), data.as_ptr().expose_provenance()]
        .map(|address| address as u64);
    // SAFETY: header and data have the layout of capset(2), version 3.
    unsafe { call(libc::SYS_capset, [header, data, 0, 0, 0]) }?;
    let [ambient, raise] =
        [libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE].map(|word| word.cast_unsigned().into());
    for &capability in capabilities {
        // SAFETY: prctl(2) with integer arguments only.
        unsafe { call(libc::SYS_prctl, [ambient, raise, capability.into(), 0, 0]) }?;
    }
    Ok(())
}

/// Moves the control socket to descriptor 0 and becomes the image.
fn execute(lent: &Lent) -> Result<(), c_int> {
    let [control, image, flags] =
        [lent.control, lent.image, libc::AT_EMPTY_PATH].map(|word| word.cast_unsigned().into());
    // SAFETY: dup2(2) of descriptors of its own.
    unsafe { call(libc::SYS_dup2, [control, 0, 0, 0, 0]) }?;
    let empty: *const c_char = c"".as_ptr();
    let arguments = [c"kennel".as_ptr(), ptr::null()];
    let environment: [*const c_char; 1] = [ptr::null()];
    let [path, arguments, environment] = [
        empty.expose_provenance(),
        arguments.as_ptr().expose_provenance(),
        environment.as_ptr().expose_provenance(),
    ]
    .map(|address| address as u64);
    // SAFETY: the path is a C string and both arrays are NULL-terminated.
    unsafe { call(libc::SYS_execveat, [image, path, arguments, environment, flags]) }.map(drop)
}

/// A system call. libc's wrapper would write errno, which belongs to a thread of the parent.
///
/// # Safety
/// As for that system call.
unsafe fn call(number: c_long, words: [u64; 5]) -> Result<u64, c_int> {
    let answer: c_long;
    let [first, second, third, fourth, fifth] = words;
    // SAFETY: the caller answers for the call. The kernel changes no other register, and the stack not at
    // all.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    u64::try_from(answer).map_err(|_| c_int::try_from(-answer).unwrap_or(libc::EINVAL))
}
