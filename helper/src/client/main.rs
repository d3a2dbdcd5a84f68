//! `kennel-exec SOCKET [-C DIR] [--exit-code] [--] CMD [ARG…]`: runs a command in a session, with this
//! process's standard descriptors, directory (or `DIR`, a path in the sandbox) and environment. It passes
//! signals on and exits with the command's status.
//!
//! Freestanding like the inside, for a fast start: it runs once for every command. It has no allocator, no
//! panic and no library. All its messages are in `words`.
#![no_std]
#![no_main]
#![deny(unsafe_code, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
#![deny(clippy::multiple_unsafe_ops_per_block, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod call;
#[path = "../client_wire.rs"]
mod client_wire;
#[path = "../inside"]
#[expect(dead_code, reason = "shared with the inside, which uses all of it")]
mod inside {
    pub(crate) mod arch;
    pub(crate) mod digits;
    pub(crate) mod kernel;
    pub(crate) mod sys;
}
#[path = "../wire.rs"]
#[expect(dead_code, reason = "shared with the inside, which uses all of it")]
mod wire;
mod words;

use core::ffi::CStr;

use client_wire::{Answer, LONGEST_ANSWER};
use inside::{
    arch,
    digits::decimal,
    kernel::{self, EINVAL, POLLERR, POLLHUP, POLLIN, PollFd, SIGCONT, SIGSTOP},
    sys::{self, Arguments, Errno, Fd, Strings},
};
use wire::{Cursor, Field};
use words::{EMFILE, ENFILE, ENOMEM, Trouble};

/// Exit status if no command could run, or its end is unknown.
const FAILED: i32 = 125;

const SIGPIPE: u32 = 13;
const SIGXFSZ: u32 = 25;
const SIGTSTP: u32 = 20;
const EPIPE: i32 = 32;
const ECONNRESET: i32 = 104;

/// SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGCONT, SIGTSTP, SIGXCPU, SIGVTALRM,
/// SIGPROF, SIGWINCH.
const FORWARDED: u64 = bit(1)
    | bit(2)
    | bit(3)
    | bit(10)
    | bit(12)
    | bit(14)
    | bit(15)
    | bit(SIGCONT)
    | bit(SIGTSTP)
    | bit(24)
    | bit(26)
    | bit(27)
    | bit(28);

/// SIGHUP, SIGINT, SIGQUIT, SIGTERM: the signals in `FORWARDED` that end programs.
const ENDING_SIGNALS: u64 = bit(1) | bit(2) | bit(3) | bit(15);

const fn bit(signal: u32) -> u64 {
    1 << signal.wrapping_sub(1)
}

/// The entry point, with the stack as execve(2) left it.
extern "C" fn run(stack: *const usize) -> ! {
    #[expect(unsafe_code, reason = "the stack of program start has no other type")]
    // SAFETY: `_start` passes the stack pointer that the kernel gave it.
    let arguments = unsafe { Arguments::at(stack) };
    #[expect(unsafe_code, reason = "the stack of program start has no other type")]
    // SAFETY: as above.
    let environment = unsafe { Strings::environment(stack) };
    let (code, signal) = exec(&arguments, environment).unwrap_or_else(|trouble| {
        words::say(&trouble, arguments.get(1));
        (FAILED, 0)
    });
    if signal != 0 {
        // It returns where this process is PID 1 of a container.
        sys::die_of(signal);
    }
    sys::exit(code)
}

/// Names the check of the listening process in error messages.
const CHECK_LISTENER: &[u8] = b"look who listens";

fn own(what: &'static [u8]) -> impl FnOnce(Errno) -> Trouble {
    move |errno| Trouble::Own(what, errno)
}

/// The exit status, and the signal that ends this process too; 0 for none.
type End = (i32, u32);

/// Runs the command and returns how it ended.
fn exec(arguments: &Arguments, environment: Strings) -> Result<End, Trouble> {
    let path = arguments.get(1).ok_or(Trouble::Usage)?;
    let (directory, next) = match arguments.get(2) {
        Some(option) if option == c"-C" => (Some(arguments.get(3).ok_or(Trouble::Usage)?), 4usize),
        _ => (None, 2),
    };
    let wants_status = arguments.get(next).is_some_and(|argument| argument == c"--exit-code");
    let next = next.saturating_add(wants_status.into());
    let separated = arguments.get(next).is_some_and(|argument| argument == c"--");
    let first = next.saturating_add(separated.into());
    arguments.get(first).ok_or(Trouble::Usage)?;
    // Skip inherited ignored signals, from nohup(1) or a shell's `&`: without this program they would not
    // have reached the command either.
    let forwarded = FORWARDED & !sys::ignored(FORWARDED);
    standard_descriptors().map_err(own(b"open the null device for a closed standard stream"))?;
    keep_terminals().map_err(own(b"keep the terminal from the command"))?;
    // connect(2) blocks while the session does not accept. There is no command yet, so signals still end this
    // process.
    let socket = connect(path)?;
    // From here on other signals go to the command. SIGPIPE and SIGXFSZ must not end this process before it
    // returns the status.
    sys::signal_mask(forwarded | bit(SIGPIPE) | bit(SIGXFSZ)).map_err(own(b"block signals"))?;
    let command = (first..arguments.count()).map_while(|at| arguments.get(at));
    let end = match call::send(&socket, directory, command, environment) {
        Ok(()) => follow(&socket, forwarded),
        // The session refused the call. It may have sent a reason.
        Err(trouble @ Trouble::Send(Errno(EPIPE | ECONNRESET))) => {
            follow(&socket, forwarded).map_err(|_| trouble)
        }
        Err(trouble) => Err(trouble),
    };
    end.map(|(code, signal)| (code, if wants_status { 0 } else { signal }))
}

/// Opens the null device for each closed standard descriptor: a missing descriptor cannot be passed on.
fn standard_descriptors() -> Result<(), Errno> {
    (0..=2).try_for_each(|number| sys::keep_across_exec(number).or_else(|_| sys::open_null()))
}

/// Keeps what the user types: the command could read it in the background too, and after its end. A terminal
/// on stdin becomes the null device, and output to a terminal can only be written.
fn keep_terminals() -> Result<(), Errno> {
    if sys::is_terminal(0) {
        sys::duplicate_to(&sys::open_terminal(c"/dev/null")?, 0)?;
    }
    for (number, path) in [(1, c"/proc/self/fd/1"), (2, c"/proc/self/fd/2")] {
        if sys::is_terminal(number) {
            sys::duplicate_to(&sys::open_for_writing_only(path)?, number)?;
        }
    }
    Ok(())
}

/// Connects to a session of this user.
fn connect(path: &CStr) -> Result<Fd, Trouble> {
    let mut address = [0; 110];
    let [family, _, ..] = kernel::AF_UNIX.to_le_bytes();
    let path = path.to_bytes_with_nul();
    for (to, &from) in address.iter_mut().zip([family, 0].iter().chain(path)) {
        *to = from;
    }
    let used = address.get(..path.len().saturating_add(2)).ok_or(Trouble::TooLong)?;
    let socket = sys::packets().map_err(own(b"make a socket"))?;
    sys::connect(&socket, used).map_err(Trouble::Connect)?;
    // The listening process is about to get this process's descriptors and environment, so check who owns it.
    let (process, user) = sys::peer(&socket).map_err(own(CHECK_LISTENER))?;
    let held = match sys::peer_process(&socket) {
        Err(Errno(EINVAL)) => return Err(Trouble::Stranger),
        held => held.map_err(own(CHECK_LISTENER))?,
    };
    let is_ours = |kind| is_in_our_namespace(process, kind);
    // Root's sandboxes may share the host's user namespace, but each has its own pid namespace.
    if user != sys::effective_user() || !is_ours(c"/ns/user")? || (user == 0 && !is_ours(c"/ns/pid")?) {
        return Err(Trouble::Stranger);
    }
    // The PID refers to that process only while it lives, and so does what was read through the PID.
    if held.is_some_and(|held| sys::has_ended(&held)) {
        return Err(Trouble::Stranger);
    }
    Ok(socket)
}

/// Whether a process is in the same namespace as this one; a sandboxed process is not. `kind` is `/ns/user`
/// or `/ns/pid`.
fn is_in_our_namespace(process: u32, kind: &CStr) -> Result<bool, Trouble> {
    let ours = namespace(b"self", kind)?;
    let mut digits = [0u8; 10];
    let number = decimal(process, &mut digits);
    Ok(matches!((ours, namespace(number, kind)?), (Some(ours), Some(theirs)) if ours == theirs))
}

/// Device and inode of a namespace. `process` is a PID or `self`. Returns `None` if this process may not
/// look.
///
/// # Errors
/// Errors that say nothing about the other process, such as a lack of memory.
fn namespace(process: &[u8], kind: &CStr) -> Result<Option<(u64, u64)>, Trouble> {
    let mut path = [0u8; 32];
    let text = b"/proc/".iter().chain(process).chain(kind.to_bytes());
    for (to, &from) in path.iter_mut().zip(text) {
        *to = from;
    }
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    match sys::open_for_reading(path).and_then(|opened| sys::identity(&opened)) {
        Ok(identity) => Ok(Some(identity)),
        Err(errno @ Errno(ENOMEM | ENFILE | EMFILE)) => Err(Trouble::Own(CHECK_LISTENER, errno)),
        Err(_) => Ok(None),
    }
}

/// Passes signals on until the command ends.
fn follow(socket: &Fd, forwarded: u64) -> Result<End, Trouble> {
    let signals = sys::signal_fd(forwarded).map_err(own(b"listen for signals"))?;
    let (buffer, _) = sys::map(None, LONGEST_ANSWER, 0).map_err(own(b"make room for the answer"))?;
    // Whether the session has read the call. From then on signals go to the command.
    let mut is_read = false;
    loop {
        let [signalled, spoken] = wait(&signals, socket).map_err(own(b"wait for the command"))?;
        if spoken {
            let (count, _) = match sys::receive(socket, buffer) {
                // The session closed its end with signals unread. The kernel reports that once, before the
                // last messages.
                Err(Errno(ECONNRESET)) => continue,
                received => received.map_err(|_| Trouble::Lost)?,
            };
            let answer = buffer.get(..count).unwrap_or_default();
            match Answer::take(&mut Cursor::new(answer)) {
                Some(Answer::Ended { code, signal, message, .. }) => {
                    words::relay(message);
                    return Ok((code.cast_signed(), signal));
                }
                Some(_) => {}
                None => return Err(Trouble::Lost),
            }
        }
        if signalled {
            let number = sys::take_signal(&signals).map_err(own(b"read a signal"))?;
            // The session has not read the call, so there is no command to pass the signal on to.
            is_read |= !sys::is_unread(socket);
            if ENDING_SIGNALS & bit(number) != 0 && !is_read {
                words::unread();
                return Ok((128i32.saturating_add_unsigned(number), number));
            }
            forward(socket, number);
        }
    }
}

/// Sleeps until a signal arrives, or the session sends a message or goes away.
fn wait(signals: &Fd, socket: &Fd) -> Result<[bool; 2], Errno> {
    let ready = |fd: &Fd| PollFd { fd: fd.number().cast_signed(), events: POLLIN, answered: 0 };
    let mut fds = [ready(signals), ready(socket)];
    sys::poll(&mut fds, -1)?;
    Ok(fds.map(|fd| fd.answered & (POLLIN | POLLHUP | POLLERR) != 0))
}

/// Passes one signal on. If the session is gone, the caller notices that next.
fn forward(socket: &Fd, number: u32) {
    if number != SIGTSTP {
        let _ = call::signal(socket, number);
        return;
    }
    let _ = call::signal(socket, SIGSTOP);
    // Stop as the shell expects. The SIGCONT that resumes this process is passed on like any other signal.
    let _ = sys::stop();
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: scripts/inside-is-freestanding proves that nothing refers to it.
    sys::exit(FAILED)
}
