//! System calls for signals, waiting, execve(2) and exit.

use super::*;

/// exit_group(2).
pub(crate) fn exit(code: i32) -> ! {
    loop {
        let _ = call!(nr::EXIT_GROUP, code);
    }
}

/// setsid(2).
pub(crate) fn new_session() -> Result<(), Errno> {
    call!(nr::SETSID).map(drop)
}

/// setpgid(2): this process leads a new process group of its session.
pub(crate) fn new_group() -> Result<(), Errno> {
    call!(nr::SETPGID, 0, 0).map(drop)
}

/// getpgid(2) of this process.
pub(crate) fn own_group() -> Result<i32, Errno> {
    call!(nr::GETPGID, 0).map(|group| group as i32)
}

pub(super) fn disposition(signal: u32, handler: usize) -> Result<(), Errno> {
    let action = Sigaction { handler, flags: 0, restorer: 0, mask: 0 };
    call!(nr::RT_SIGACTION, signal, &raw const action, 0, 8).map(drop)
}

/// rt_sigaction(2): resets every signal to its default, including signals that stayed ignored across
/// execve(2).
pub(crate) fn default_signals() -> Result<(), Errno> {
    let mut settable = (1..=64).filter(|&signal| signal != SIGKILL && signal != SIGSTOP);
    settable.try_for_each(|signal| disposition(signal, SIG_DFL))
}

/// rt_sigaction(SIGCHLD, SIG_IGN): the kernel reaps children when they end.
pub(crate) fn ignore_children() -> Result<(), Errno> {
    disposition(SIGCHLD, SIG_IGN)
}

/// clock_gettime(CLOCK_MONOTONIC), in microseconds.
// Inlining would add most of a kilobyte to the image.
#[inline(never)]
pub(crate) fn monotonic_us() -> u64 {
    let mut time = [0u64; 2];
    // It cannot fail for this clock.
    let _ = call!(nr::CLOCK_GETTIME, CLOCK_MONOTONIC, time.as_mut_ptr());
    let [seconds, nanoseconds] = time;
    seconds.saturating_mul(1_000_000).saturating_add(nanoseconds / 1000)
}

/// rt_sigaction(SIGCHLD, SIG_DFL): ended children stay until this process reaps them.
pub(crate) fn keep_children() -> Result<(), Errno> {
    disposition(SIGCHLD, SIG_DFL)
}

/// pidfd_open(2). Linux 5.3.
pub(crate) fn open_process(pid: usize) -> Result<Fd, Errno> {
    call!(nr::PIDFD_OPEN, pid, 0).map(fd)
}

/// getpid(2).
pub(crate) fn own_pid() -> usize {
    // It cannot fail.
    call!(nr::GETPID).unwrap_or(0)
}

/// poll(2): whether every thread of a process has ended. Nobody may have reaped it yet.
pub(crate) fn has_ended(process: &Fd) -> bool {
    let mut ended = PollFd { fd: process.0, events: POLLIN, answered: 0 };
    call!(nr::POLL, &raw mut ended, 1, 0) != Ok(0)
}

/// pidfd_send_signal(2). Linux 5.1.
pub(crate) fn signal_process(process: &Fd, signal: u32) -> Result<(), Errno> {
    call!(nr::PIDFD_SEND_SIGNAL, process.0, signal, 0, 0).map(drop)
}

/// rt_sigprocmask(SIG_SETMASK) to `mask`.
pub(crate) fn signal_mask(mask: u64) -> Result<(), Errno> {
    call!(nr::RT_SIGPROCMASK, SIG_SETMASK, &raw const mask, 0, 8).map(drop)
}

/// signalfd4(2) for the signals in `mask`, which are blocked.
pub(crate) fn signal_fd(mask: u64) -> Result<Fd, Errno> {
    call!(nr::SIGNALFD4, -1i32, &raw const mask, 8, SFD_CLOEXEC).map(fd)
}

/// read(2) of one `struct signalfd_siginfo`. Returns the signal's number.
pub(crate) fn take_signal(from: &Fd) -> Result<u32, Errno> {
    let mut siginfo = [0u32; 32];
    call!(nr::READ, from.0, siginfo.as_mut_ptr(), size_of_val(&siginfo))?;
    let [number, ..] = siginfo;
    Ok(number)
}

/// poll(2) for that many milliseconds; -1 is no limit.
pub(crate) fn poll(fds: &mut [PollFd], milliseconds: i32) -> Result<(), Errno> {
    match call!(nr::POLL, fds.as_mut_ptr(), fds.len(), milliseconds) {
        Ok(_) | Err(Errno(EINTR)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A reaped child.
pub(crate) struct Reaped {
    pub(crate) pid: i32,
    pub(crate) status: i32,
    pub(crate) usage: Rusage,
}

/// wait4(2) for any child, also for one that was stopped. `None` if there is none (`wait` false); `ECHILD` if
/// no child is left.
pub(crate) fn reap(wait: bool) -> Result<Option<Reaped>, Errno> {
    let mut status = 0i32;
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut usage: Rusage = unsafe { mem::zeroed() };
    let options = WUNTRACED | if wait { 0 } else { WNOHANG };
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
    /// Writes both arrays to `scratch`. The strings live as long as the plan.
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

    /// The number of arguments, including the program's name.
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

    /// The environment of this program, for execve(2).
    pub(super) fn environment(&self) -> *const usize {
        self.stack.wrapping_add(self.count()).wrapping_add(2)
    }
}
