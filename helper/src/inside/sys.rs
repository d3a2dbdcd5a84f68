//! One function per system call, typed and safe to call. All unsafe code of the inside but assembly is here.
#![expect(unsafe_code, reason = "the one fence around system calls")]

use core::{ffi::CStr, mem, ptr, sync::atomic::AtomicU32};

use crate::{arch, kernel::*, wire::List};

/// A kernel error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// A descriptor, closed when dropped.
#[derive(Debug)]
pub(crate) struct Fd(i32);

impl Fd {
    /// Descriptor 0 as the outside left it: the control socket. Never closed through this name.
    pub(crate) const INHERITED: &'static Self = &Self(0);

    /// Takes over a descriptor that was received.
    pub(crate) fn adopt(number: i32) -> Self {
        Self(number)
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.cast_unsigned()
    }

    fn raw(&self) -> usize {
        self.0 as usize
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: close(2) takes a number; this value owns it and is gone after this.
        let _ = unsafe { arch::syscall(nr::CLOSE, [self.raw(), 0, 0, 0, 0, 0]) };
    }
}

/// The obligation of every call below is the same: each pointer among `arguments` is valid for what the system
/// call reads or writes there. It is met by passing addresses of live references, with their true sizes.
macro_rules! call {
    ($number:expr $(, $argument:expr)* $(,)?) => {{
        let arguments = six([$( $argument as usize ),*]);
        // SAFETY: see above: pointers come from references that outlive the call, sizes from their types.
        check(unsafe { arch::syscall($number, arguments) })
    }};
}

/// Arguments beyond those that a call has are zero.
fn six<const N: usize>(arguments: [usize; N]) -> [usize; 6] {
    let mut padded = [0; 6];
    for (slot, argument) in padded.iter_mut().zip(arguments) {
        *slot = argument;
    }
    padded
}

fn check(answer: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&answer) {
        return Err(Errno(i32::try_from(answer.unsigned_abs()).unwrap_or(EPROTO)));
    }
    Ok(answer.cast_unsigned())
}

fn fd(answer: usize) -> Fd {
    Fd(i32::try_from(answer).unwrap_or(-1))
}

/// exit_group(2).
pub(crate) fn exit(code: i32) -> ! {
    loop {
        let _ = call!(nr::EXIT_GROUP, code);
    }
}

/// fcntl(2) with a command that answers a descriptor.
pub(crate) fn fcntl(of: &Fd, command: usize, argument: usize) -> Result<Fd, Errno> {
    call!(nr::FCNTL, of.0, command, argument).map(fd)
}

/// fcntl(F_SETFD): whether the payload keeps standard descriptor `number` across execve(2).
pub(crate) fn keep_across_exec(number: usize) -> Result<(), Errno> {
    call!(nr::FCNTL, number, F_SETFD, 0).map(drop)
}

/// close_range(2). Linux 5.9.
pub(crate) fn close_range(first: u32, last: u32) -> Result<(), Errno> {
    call!(nr::CLOSE_RANGE, first, last, 0).map(drop)
}

/// dup3(2) onto a standard descriptor, kept across execve(2).
pub(crate) fn duplicate_to(from: &Fd, number: usize) -> Result<(), Errno> {
    call!(nr::DUP3, from.0, number, 0).map(drop)
}

/// mmap(2) of the plan: its bytes, and behind them the zeroed scratch, both private to this process.
pub(crate) fn map(
    file: Fd,
    bytes: usize,
    scratch: usize,
) -> Result<(&'static [u8], &'static mut [usize]), Errno> {
    let start = bytes.checked_next_multiple_of(mem::align_of::<usize>()).ok_or(Errno(EPROTO))?;
    let length = start.checked_add(scratch).filter(|&sum| sum > 0).ok_or(Errno(EPROTO))?;
    let base = call!(nr::MMAP, 0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.0, 0)?;
    let base = ptr::with_exposed_provenance_mut::<u8>(base);
    // SAFETY: the mapping is `length` long, never unmapped, and this range is written by nobody any more.
    let plan = unsafe { core::slice::from_raw_parts(base, bytes) };
    let scratch_at = base.wrapping_add(start).cast::<usize>();
    // SAFETY: disjoint from the range above, aligned by the rounding, zero-filled, referred to nowhere else.
    let scratch = unsafe { core::slice::from_raw_parts_mut(scratch_at, scratch / size_of::<usize>()) };
    Ok((plan, scratch))
}

/// recvmsg(2): bytes received and the numbers of the descriptors that came with them.
pub(crate) fn receive(socket: &Fd, buffer: &mut [u8]) -> Result<(usize, [i32; 4]), Errno> {
    let mut rights = Rights { length: 0, level: 0, kind: 0, descriptors: [-1; 4] };
    let mut vector = IoVec { base: buffer.as_mut_ptr(), length: buffer.len() };
    let mut message = message(&mut vector, &mut rights, size_of::<Rights>());
    let count = loop {
        match call!(nr::RECVMSG, socket.0, &raw mut message, MSG_CMSG_CLOEXEC) {
            Err(Errno(EINTR)) => {}
            answer => break answer?,
        }
    };
    if message.flags & (MSG_CTRUNC | MSG_TRUNC) != 0 {
        return Err(Errno(EPROTO));
    }
    Ok((count, rights.descriptors))
}

/// sendmsg(2) of one packet, with at most one descriptor.
pub(crate) fn send(socket: &Fd, bytes: &mut [u8], descriptor: Option<&Fd>) -> Result<(), Errno> {
    let mut rights = Rights { length: 20, level: SOL_SOCKET, kind: SCM_RIGHTS, descriptors: [-1; 4] };
    let mut space = 0;
    if let Some(descriptor) = descriptor {
        rights.descriptors = [descriptor.0, -1, -1, -1];
        space = 24;
    }
    let mut vector = IoVec { base: bytes.as_mut_ptr(), length: bytes.len() };
    let message = message(&mut vector, &mut rights, space);
    call!(nr::SENDMSG, socket.0, &raw const message, MSG_NOSIGNAL).map(drop)
}

fn message(vector: &mut IoVec, rights: &mut Rights, space: usize) -> MsgHdr {
    MsgHdr {
        name: 0,
        name_length: 0,
        vectors: vector,
        vector_count: 1,
        control: ptr::from_mut(rights).cast(),
        control_length: space,
        flags: 0,
    }
}

/// open(2) of an existing kernel file for writing.
pub(crate) fn open_for_writing(path: &CStr) -> Result<Fd, Errno> {
    call!(nr::OPENAT, AT_FDCWD, path.as_ptr(), O_WRONLY | O_CLOEXEC, 0).map(fd)
}

/// openat(2) of a terminal device, absolute path, without making it the controlling one.
pub(crate) fn open_terminal(path: &CStr) -> Result<Fd, Errno> {
    call!(nr::OPENAT, AT_FDCWD, path.as_ptr(), O_RDWR | O_NOCTTY | O_CLOEXEC, 0).map(fd)
}

/// openat(2) of a file that must not exist yet.
pub(crate) fn create(root: &Fd, path: &CStr, mode: u32) -> Result<Fd, Errno> {
    let flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    call!(nr::OPENAT, root.0, path.as_ptr(), flags, mode).map(fd)
}

/// openat2(2), O_PATH, no symbolic or magic link anywhere on the way. Linux 5.6.
///
/// With a `root`, the path is walked inside it; without, it is a host path.
pub(crate) fn open_path(root: Option<&Fd>, path: &CStr) -> Result<Fd, Errno> {
    let beneath = if root.is_some() { RESOLVE_IN_ROOT } else { 0 };
    let how = OpenHow {
        flags: (O_PATH | O_CLOEXEC) as u64,
        mode: 0,
        resolve: RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | beneath,
    };
    let at = root.map_or(AT_FDCWD, |root| root.0);
    loop {
        // EAGAIN: a rename or mount elsewhere raced with the restricted walk; the kernel asks to try again.
        match call!(nr::OPENAT2, at, path.as_ptr(), &raw const how, size_of::<OpenHow>()) {
            Err(Errno(EAGAIN)) => {}
            answer => return answer.map(fd),
        }
    }
}

/// statx(2): device (as makedev(3) packs it) and inode number.
pub(crate) fn identity(of: &Fd) -> Result<(u64, u64), Errno> {
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut stat: Statx = unsafe { mem::zeroed() };
    call!(nr::STATX, of.0, c"".as_ptr(), AT_EMPTY_PATH, STATX_INO, &raw mut stat)?;
    let (major, minor) = (u64::from(stat.device_major), u64::from(stat.device_minor));
    let device = ((major & 0xffff_f000) << 32)
        | ((major & 0xfff) << 8)
        | ((minor & 0xffff_ff00) << 12)
        | (minor & 0xff);
    Ok((device, stat.inode))
}

/// write(2), until everything is written.
pub(crate) fn write_all(to: &Fd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = call!(nr::WRITE, to.0, bytes.as_ptr(), bytes.len())?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// mkdirat(2).
pub(crate) fn make_dir(root: &Fd, path: &CStr, mode: u32) -> Result<(), Errno> {
    call!(nr::MKDIRAT, root.0, path.as_ptr(), mode).map(drop)
}

/// symlinkat(2).
pub(crate) fn symlink(root: &Fd, path: &CStr, points_to: &CStr) -> Result<(), Errno> {
    call!(nr::SYMLINKAT, points_to.as_ptr(), root.0, path.as_ptr()).map(drop)
}

/// unshare(2).
pub(crate) fn unshare(flags: u32) -> Result<(), Errno> {
    call!(nr::UNSHARE, flags).map(drop)
}

/// sethostname(2).
pub(crate) fn set_hostname(name: &[u8]) -> Result<(), Errno> {
    call!(nr::SETHOSTNAME, name.as_ptr(), name.len()).map(drop)
}

/// socket(2), ioctl(SIOCSIFFLAGS): `lo` up.
pub(crate) fn loopback_up() -> Result<(), Errno> {
    let socket = call!(nr::SOCKET, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0).map(fd)?;
    let mut request = IfReq { name: [0; 16], flags: IFF_UP, rest: [0; 22] };
    for (to, from) in request.name.iter_mut().zip(*b"lo") {
        *to = from;
    }
    call!(nr::IOCTL, socket.0, SIOCSIFFLAGS, &raw const request).map(drop)
}

/// mount(2). Targets are relative to the working directory, which is the new root.
pub(crate) fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: u64,
    options: Option<&CStr>,
) -> Result<(), Errno> {
    let address = |string: Option<&CStr>| string.map_or(ptr::null(), CStr::as_ptr);
    call!(nr::MOUNT, address(source), target.as_ptr(), address(kind), flags, address(options)).map(drop)
}

/// mknodat(S_IFREG): an empty file, which nobody opens.
pub(crate) fn make_empty_file(root: &Fd, path: &CStr) -> Result<(), Errno> {
    call!(nr::MKNODAT, root.0, path.as_ptr(), S_IFREG | 0o444, 0).map(drop)
}

/// open_tree(2): a detached recursive copy of the mounts at a host path, or at one of the new root. Linux 5.2.
pub(crate) fn clone_tree(root: Option<&Fd>, source: &CStr) -> Result<Fd, Errno> {
    let flags = OPEN_TREE_CLONE | O_CLOEXEC | AT_RECURSIVE;
    let at = root.map_or(AT_FDCWD, |root| root.0);
    call!(nr::OPEN_TREE, at, source.as_ptr(), flags).map(fd)
}

/// mount_setattr(2) with `attributes` added. Linux 5.12.
pub(crate) fn set_attributes(mount: &Fd, attributes: u64, recursive: bool) -> Result<(), Errno> {
    let attr = MountAttr { set: attributes, clear: 0, propagation: 0, userns: 0 };
    let flags = AT_EMPTY_PATH | if recursive { AT_RECURSIVE } else { 0 };
    call!(nr::MOUNT_SETATTR, mount.0, c"".as_ptr(), flags, &raw const attr, size_of::<MountAttr>()).map(drop)
}

/// move_mount(2) of a detached mount onto an opened place.
pub(crate) fn attach(mount: &Fd, target: &Fd) -> Result<(), Errno> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    call!(nr::MOVE_MOUNT, mount.0, c"".as_ptr(), target.0, c"".as_ptr(), flags).map(drop)
}

/// move_mount(2) of a detached mount onto `path` in the new root's own directories.
pub(crate) fn attach_at(mount: &Fd, root: &Fd, path: &CStr) -> Result<(), Errno> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH;
    call!(nr::MOVE_MOUNT, mount.0, c"".as_ptr(), root.0, path.as_ptr(), flags).map(drop)
}

/// fchdir(2).
pub(crate) fn change_dir_to(dir: &Fd) -> Result<(), Errno> {
    call!(nr::FCHDIR, dir.0).map(drop)
}

/// chdir(2).
pub(crate) fn change_dir(path: &CStr) -> Result<(), Errno> {
    call!(nr::CHDIR, path.as_ptr()).map(drop)
}

/// pivot_root(".", "."): the working directory becomes the root, the old root lies on top of it.
pub(crate) fn pivot_root_here() -> Result<(), Errno> {
    call!(nr::PIVOT_ROOT, c".".as_ptr(), c".".as_ptr()).map(drop)
}

/// umount2(".", MNT_DETACH).
pub(crate) fn detach_here() -> Result<(), Errno> {
    call!(nr::UMOUNT2, c".".as_ptr(), MNT_DETACH).map(drop)
}

/// landlock_create_ruleset(2). Linux 5.13; an older ABI accepts the later fields as long as they are zero.
pub(crate) fn landlock_ruleset(attr: &RulesetAttr) -> Result<Fd, Errno> {
    call!(nr::LANDLOCK_CREATE_RULESET, ptr::from_ref(attr), size_of::<RulesetAttr>(), 0).map(fd)
}

/// landlock_add_rule(2).
pub(crate) fn landlock_rule(ruleset: &Fd, parent: &Fd, access: u64) -> Result<(), Errno> {
    let attr = PathBeneathAttr { access, parent: parent.0 };
    call!(nr::LANDLOCK_ADD_RULE, ruleset.0, LANDLOCK_RULE_PATH_BENEATH, &raw const attr, 0).map(drop)
}

/// landlock_restrict_self(2).
pub(crate) fn landlock_restrict(ruleset: &Fd) -> Result<(), Errno> {
    call!(nr::LANDLOCK_RESTRICT_SELF, ruleset.0, 0).map(drop)
}

/// prctl(2) with one argument, the rest zero.
pub(crate) fn prctl(option: u32, argument: u64) -> Result<(), Errno> {
    call!(nr::PRCTL, option, argument, 0, 0, 0).map(drop)
}

/// prctl(PR_CAPBSET_DROP) of every capability that this kernel has.
pub(crate) fn drop_bounding_set() -> Result<(), Errno> {
    for capability in 0..CAPABILITIES {
        match call!(nr::PRCTL, PR_CAPBSET_DROP, capability, 0, 0, 0) {
            Ok(_) => {}
            // The first number beyond the kernel's last capability.
            Err(Errno(EINVAL)) if capability > 0 => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// capset(2): no effective, permitted or inheritable capability. The ambient set follows.
pub(crate) fn drop_capabilities() -> Result<(), Errno> {
    let header = [LINUX_CAPABILITY_VERSION_3, 0];
    let none = [0u32; 6];
    call!(nr::CAPSET, &raw const header, &raw const none).map(drop)
}

/// keyctl(KEYCTL_JOIN_SESSION_KEYRING, NULL).
pub(crate) fn new_session_keyring() -> Result<(), Errno> {
    call!(nr::KEYCTL, KEYCTL_JOIN_SESSION_KEYRING, 0).map(drop)
}

/// prlimit(2) on this process.
pub(crate) fn limit(resource: u32, soft: u64, hard: u64) -> Result<(), Errno> {
    let limit = [soft, hard];
    call!(nr::PRLIMIT64, 0, resource, &raw const limit, 0).map(drop)
}

/// seccomp(SECCOMP_SET_MODE_FILTER): `program` is `struct sock_filter`s back to back.
pub(crate) fn seccomp(program: &[u8]) -> Result<(), Errno> {
    let length = u16::try_from(program.len() / 8).map_err(|_| Errno(EINVAL))?;
    let program = SockFprog { length, filter: program.as_ptr() };
    call!(nr::SECCOMP, SECCOMP_SET_MODE_FILTER, 0, &raw const program).map(drop)
}

/// umask(2); answers the mask before.
pub(crate) fn file_mask(mask: usize) -> usize {
    call!(nr::UMASK, mask).unwrap_or(0)
}

/// setsid(2).
pub(crate) fn new_session() -> Result<(), Errno> {
    call!(nr::SETSID).map(drop)
}

/// rt_sigaction(2): every disposition back to default, also those that were ignored across execve(2).
pub(crate) fn default_signals() -> Result<(), Errno> {
    let default = Sigaction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    for signal in (1..=64).filter(|&signal| signal != SIGKILL && signal != SIGSTOP) {
        call!(nr::RT_SIGACTION, signal, &raw const default, 0, 8)?;
    }
    Ok(())
}

/// rt_sigprocmask(SIG_SETMASK) to `mask`.
pub(crate) fn signal_mask(mask: u64) -> Result<(), Errno> {
    call!(nr::RT_SIGPROCMASK, SIG_SETMASK, &raw const mask, 0, 8).map(drop)
}

/// signalfd4(2) for the signals in `mask`, which are blocked.
pub(crate) fn signal_fd(mask: u64) -> Result<Fd, Errno> {
    call!(nr::SIGNALFD4, -1i32, &raw const mask, 8, SFD_CLOEXEC).map(fd)
}

/// read(2) of one `struct signalfd_siginfo`, thrown away: it only said that there is something to reap.
pub(crate) fn take_signal(from: &Fd) -> Result<(), Errno> {
    let mut siginfo = [0u8; 128];
    call!(nr::READ, from.0, siginfo.as_mut_ptr(), siginfo.len()).map(drop)
}

/// poll(2) without a time limit.
pub(crate) fn poll(fds: &mut [PollFd]) -> Result<(), Errno> {
    match call!(nr::POLL, fds.as_mut_ptr(), fds.len(), -1i32) {
        Ok(_) | Err(Errno(EINTR)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A child that was reaped.
pub(crate) struct Reaped {
    pub(crate) pid: i32,
    pub(crate) status: i32,
    pub(crate) usage: Rusage,
}

/// wait4(2) for any child; `None` where none has ended (`wait` false), `ECHILD` where none is left.
pub(crate) fn reap(wait: bool) -> Result<Option<Reaped>, Errno> {
    let mut status = 0i32;
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut usage: Rusage = unsafe { mem::zeroed() };
    let options = if wait { 0 } else { WNOHANG };
    let pid = call!(nr::WAIT4, -1i32, &raw mut status, options, &raw mut usage)?;
    let pid = i32::try_from(pid).unwrap_or(0);
    Ok((pid > 0).then_some(Reaped { pid, status, usage }))
}

/// kill(2); `-1` is every process of the namespace but the caller, `-p` process group `p`.
pub(crate) fn kill(target: i32, signal: u32) -> Result<(), Errno> {
    call!(nr::KILL, target, signal).map(drop)
}

/// execve(2). Returns only on failure.
pub(crate) fn execute(program: &CStr, vectors: &Vectors<'_>) -> Errno {
    let answer =
        call!(nr::EXECVE, program.as_ptr(), vectors.arguments.as_ptr(), vectors.environment.as_ptr());
    answer.err().unwrap_or(Errno(EINVAL))
}

/// The two NULL-terminated pointer arrays of execve(2).
pub(crate) struct Vectors<'s> {
    arguments: &'s [usize],
    environment: &'s [usize],
}

impl<'s> Vectors<'s> {
    /// Lays both arrays out in `scratch`; the strings live as long as the plan.
    pub(crate) fn lay_out(
        scratch: &'s mut [usize],
        arguments: List<'static>,
        environment: List<'static>,
    ) -> Result<Self, Errno> {
        let split = arguments.count().checked_add(1).ok_or(Errno(E2BIG))?;
        let (first, second) = scratch.split_at_mut_checked(split).ok_or(Errno(EPROTO))?;
        Ok(Self { arguments: fill(first, arguments)?, environment: fill(second, environment)? })
    }
}

/// Writes the addresses of `strings` and a terminating NULL.
fn fill<'s>(slots: &'s mut [usize], strings: List<'static>) -> Result<&'s [usize], Errno> {
    let mut free = slots.iter_mut();
    for string in strings.iter() {
        *free.next().ok_or(Errno(EPROTO))? = string.as_ptr().expose_provenance();
    }
    *free.next().ok_or(Errno(EPROTO))? = 0;
    Ok(slots)
}

/// ioctl(2) whose argument is an integer.
pub(crate) fn ioctl(fd: &Fd, request: usize, argument: usize) -> Result<usize, Errno> {
    call!(nr::IOCTL, fd.0, request, argument)
}

/// ioctl(TIOCSPTLCK): unlocks the other side of a pseudoterminal.
pub(crate) fn unlock_terminal(master: &Fd) -> Result<(), Errno> {
    let unlocked = 0i32;
    call!(nr::IOCTL, master.0, TIOCSPTLCK, &raw const unlocked).map(drop)
}

/// ioctl(TIOCGPTPEER): opens the other side without a path. Linux 4.13.
pub(crate) fn open_peer(master: &Fd) -> Result<Fd, Errno> {
    call!(nr::IOCTL, master.0, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC).map(fd)
}

/// ioctl(TIOCSWINSZ).
pub(crate) fn set_window(terminal: &Fd, rows: u16, columns: u16) -> Result<(), Errno> {
    let size = [rows, columns, 0, 0];
    call!(nr::IOCTL, terminal.0, TIOCSWINSZ, &raw const size).map(drop)
}

/// clone(CLONE_VM | CLONE_VFORK): runs `entry(argument)` in a child that shares this memory; this process sleeps
/// until the child executes a program or ends.
pub(crate) fn vfork<T>(
    stack: &mut [u8],
    entry: extern "C" fn(*mut u8) -> !,
    argument: &mut T,
) -> Result<i32, Errno> {
    let flags = CLONE_VM | CLONE_VFORK | SIGCHLD as usize;
    // SAFETY: `stack` is writable and used by nobody else; the parent does not run while the child may use it
    // or `argument`, so both borrows outlive the child's use of them.
    let pid = unsafe {
        arch::clone_call(flags, top(stack), entry, ptr::from_mut(argument).cast(), ptr::null_mut())
    };
    i32::try_from(check(pid)?).map_err(|_| Errno(EPROTO))
}

/// The first aligned address above a stack.
fn top(stack: &mut [u8]) -> *mut u8 {
    let top = stack.as_mut_ptr_range().end;
    top.wrapping_sub(top.addr() % 16)
}

/// The argument that [`vfork`] passed to its entry.
///
/// # Safety
/// `argument` must be what an entry of `vfork::<T>` received.
pub(crate) unsafe fn vfork_argument<'a, T>(argument: *mut u8) -> &'a mut T {
    // SAFETY: the caller vouches that it is the `&mut T` given to `vfork`, whose owner sleeps.
    unsafe { &mut *argument.cast() }
}

/// The arguments of this program.
pub(crate) struct Arguments {
    stack: *const usize,
}

impl Arguments {
    /// # Safety
    /// `stack` must be the stack pointer at program start: a count, and then that many addresses of strings.
    pub(crate) unsafe fn at(stack: *const usize) -> Self {
        Self { stack }
    }

    /// How many there are, the program's name included.
    pub(crate) fn count(&self) -> usize {
        // SAFETY: `at` was promised the stack of program start, which begins with the count.
        unsafe { self.stack.read() }
    }

    /// The argument at `index`; 0 is the program's name.
    pub(crate) fn get(&self, index: usize) -> Option<&'static CStr> {
        let slot = (index < self.count()).then(|| self.stack.wrapping_add(index.wrapping_add(1)))?;
        // SAFETY: `index` is below the count, so this slot of the stack of program start holds an address.
        let address = unsafe { slot.read() };
        // SAFETY: execve(2) put a NUL-terminated string there, which nobody changes or takes away.
        Some(unsafe { CStr::from_ptr(ptr::with_exposed_provenance(address)) })
    }
}

/// openat(2) for reading, from a directory or from the working directory.
pub(crate) fn open_for_reading(at: Option<&Fd>, path: &CStr) -> Result<Fd, Errno> {
    let at = at.map_or(AT_FDCWD, |at| at.0);
    call!(nr::OPENAT, at, path.as_ptr(), O_RDONLY | O_CLOEXEC, 0).map(fd)
}

/// socket(2) of a byte stream.
pub(crate) fn stream(family: usize) -> Result<Fd, Errno> {
    call!(nr::SOCKET, family, SOCK_STREAM | SOCK_CLOEXEC, 0).map(fd)
}

/// connect(2); `address` has the layout of the socket's family.
pub(crate) fn connect(socket: &Fd, address: &[u8]) -> Result<(), Errno> {
    call!(nr::CONNECT, socket.0, address.as_ptr(), address.len()).map(drop)
}

/// bind(2).
pub(crate) fn bind(socket: &Fd, address: &[u8]) -> Result<(), Errno> {
    call!(nr::BIND, socket.0, address.as_ptr(), address.len()).map(drop)
}

/// listen(2).
pub(crate) fn listen(socket: &Fd) -> Result<(), Errno> {
    call!(nr::LISTEN, socket.0, 1).map(drop)
}

/// mmap(2) of a stack and of `shared` beside it, both for good.
pub(crate) fn leak_stack<T: Sync>(size: usize, shared: T) -> Result<(&'static mut [u8], &'static T), Errno> {
    let length = size.checked_add(size_of::<T>()).ok_or(Errno(EINVAL))?;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let base = ptr::with_exposed_provenance_mut::<u8>(call!(
        nr::MMAP,
        0,
        length,
        PROT_READ | PROT_WRITE,
        flags,
        -1i32,
        0
    )?);
    let value = base.cast::<T>();
    // SAFETY: a fresh mapping: page-aligned, large enough, nobody else's.
    unsafe { value.write(shared) };
    // SAFETY: written just now, never moved or unmapped.
    let shared = unsafe { &*value };
    // SAFETY: the rest of the mapping, disjoint from the value.
    let stack = unsafe { core::slice::from_raw_parts_mut(base.wrapping_add(size_of::<T>()), size) };
    Ok((stack, shared))
}

/// clone(CLONE_VM | CLONE_PIDFD): runs `entry(shared)` in a child that shares this memory and runs beside this
/// process.
pub(crate) fn assist<T: Sync>(
    stack: &'static mut [u8],
    entry: extern "C" fn(*mut u8) -> !,
    shared: &'static T,
) -> Result<(i32, Fd), Errno> {
    let flags = CLONE_VM | CLONE_PIDFD | SIGCHLD as usize;
    let argument = ptr::from_ref(shared).cast_mut().cast();
    let mut pidfd = -1i32;
    // SAFETY: the stack is the child's alone and stays for good; `shared` may be used from both sides.
    let pid = unsafe { arch::clone_call(flags, top(stack), entry, argument, &raw mut pidfd) };
    Ok((i32::try_from(check(pid)?).map_err(|_| Errno(EPROTO))?, Fd(pidfd)))
}

/// The argument that [`assist`] passed to its entry.
///
/// # Safety
/// `argument` must be what an entry of `assist::<T>` received.
pub(crate) unsafe fn shared_argument<T: Sync>(argument: *mut u8) -> &'static T {
    // SAFETY: the caller vouches that it is the `&'static T` given to `assist`.
    unsafe { &*argument.cast() }
}

/// futex(FUTEX_WAIT): sleeps while `word` is `value`.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32) -> Result<(), Errno> {
    match call!(nr::FUTEX, word.as_ptr(), FUTEX_WAIT, value, 0) {
        Ok(_) | Err(Errno(EINTR | EAGAIN)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// futex(FUTEX_WAKE): whoever waits for `word`.
pub(crate) fn futex_wake(word: &AtomicU32) {
    // Waking nobody is no error, and the address is valid.
    let _ = call!(nr::FUTEX, word.as_ptr(), FUTEX_WAKE, 1);
}

/// setns(2) into a namespace of the process behind a pidfd. Linux 5.8.
pub(crate) fn enter_namespace(pidfd: &Fd, kind: u32) -> Result<(), Errno> {
    call!(nr::SETNS, pidfd.0, kind).map(drop)
}

/// pause(2).
pub(crate) fn pause() {
    // It returns only to be called again.
    let _ = call!(nr::PAUSE);
}
