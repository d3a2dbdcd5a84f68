//! Every message of the client on stderr.

use core::ffi::CStr;

use crate::{
    kernel::{EACCES, ENOENT},
    sys::{self, Errno, Fd},
};

const ECONNREFUSED: i32 = 111;
pub(crate) const ETOOMANYREFS: i32 = 109;
pub(crate) const ENOMEM: i32 = 12;
pub(crate) const ENFILE: i32 = 23;
pub(crate) const EMFILE: i32 = 24;

/// Why no command ran, or why its end is unknown.
pub(crate) enum Trouble {
    /// The arguments are incomplete.
    Usage,
    /// The path of the socket, or the call, is too long.
    TooLong,
    /// connect(2) failed.
    Connect(Errno),
    /// A process of another user or namespace listens.
    Stranger,
    /// getcwd(2) failed.
    Directory(Errno),
    /// The call could not be sent.
    Send(Errno),
    /// The session went away without reporting the command's end.
    Lost,
    /// Another system call failed, and what it was for.
    Own(&'static [u8], Errno),
}

const START: &[u8] = b"hint: start a session there: kennel session start --name NAME\n";

const OUT_OF_REACH: &[u8] =
    b"hint: this runs in a sandbox, where sessions outside of it are out of reach: run the command \
                             without kennel-exec\n";

/// Prints what went wrong and a remedy. Errors of stderr are ignored.
pub(crate) fn say(trouble: &Trouble, socket: Option<&CStr>) {
    let _ = tell(trouble, socket.unwrap_or_default().to_bytes());
}

/// Prints why a signal ends this program instead of the command.
pub(crate) fn unread() {
    let _ = write(&[b"the session does not answer: its program is stopped or busy\n"]);
}

/// Prints lines that the session sent. Errors of stderr are ignored.
pub(crate) fn relay(message: &[u8]) {
    let _ = put(message);
}

fn tell(trouble: &Trouble, socket: &[u8]) -> Result<(), Errno> {
    match trouble {
        Trouble::Usage => write(&[b"usage: kennel-exec SOCKET [-C DIR] [--exit-code] [--] CMD [ARG...]\n"]),
        Trouble::TooLong => line(socket, b"the path is longer than a socket's can be"),
        Trouble::Connect(Errno(ENOENT | ECONNREFUSED)) => {
            line(socket, b"no session listens here")?;
            write(&[if sys::is_sandboxed() { OUT_OF_REACH } else { START }])
        }
        Trouble::Connect(Errno(EACCES)) => line(socket, b"permission denied"),
        Trouble::Connect(errno) => numbered(socket, b"cannot be connected to", *errno),
        Trouble::Stranger => {
            line(socket, b"is not ours: the listener is another user's, or one of us in a sandbox, so nothing was sent")?;
            if sys::is_sandboxed() { write(&[OUT_OF_REACH]) } else { Ok(()) }
        }
        Trouble::Directory(errno) => numbered(b"working directory", b"has no path", *errno),
        Trouble::Send(errno) => numbered(socket, b"the command could not be sent", *errno),
        Trouble::Lost => {
            line(socket, b"the session ended before it reported the command's status")?;
            write(&[START])
        }
        Trouble::Own(what, errno) => numbered(socket, what, *errno),
    }
}

/// Which resource of this process ran out, and the remedy.
fn shortage(errno: i32) -> Option<(&'static [u8], &'static [u8])> {
    Some(match errno {
        EMFILE => (b"too many open files", b"raise the limit of open files: ulimit -n"),
        ENFILE => {
            (b"too many open files on this machine", b"raise their limit on the whole machine: fs.file-max")
        }
        ENOMEM => {
            (b"not enough memory", b"free some, or raise its limits: ulimit -v, and memory.max of the cgroup")
        }
        ETOOMANYREFS => {
            (b"too many descriptors on their way in messages", b"raise the limit of open files: ulimit -n")
        }
        _ => return None,
    })
}

fn line(subject: &[u8], reason: &[u8]) -> Result<(), Errno> {
    about(subject)?;
    write_on(&[b": ", reason, b"\n"])
}

/// Ends a line with an errno: the resource that ran out in words, else three digits.
fn numbered(subject: &[u8], what: &[u8], Errno(errno): Errno) -> Result<(), Errno> {
    about(subject)?;
    write_on(&[b": ", what])?;
    if let Some((reason, remedy)) = shortage(errno) {
        write_on(&[b": ", reason, b"\n"])?;
        return write(&[b"hint: ", remedy, b"\n"]);
    }
    let errno = errno.unsigned_abs();
    let digits = [100, 10, 1].map(|place: u32| errno.checked_div(place).unwrap_or(0) % 10);
    let digits = digits.map(|digit| b'0'.wrapping_add(digit.to_le_bytes()[0]));
    write_on(&[b": errno ", &digits, b"\n"])
}

/// Starts a line. Replaces bytes that a terminal could take for a command. It checks bytes, not characters,
/// so some letters beyond ASCII suffer too.
fn about(subject: &[u8]) -> Result<(), Errno> {
    write(&[])?;
    for (at, piece) in
        subject.split(|&byte| byte.is_ascii_control() || matches!(byte, 0x80..=0x9f)).enumerate()
    {
        let between: &[u8] = if at > 0 { b"?" } else { b"" };
        write_on(&[between, piece])?;
    }
    Ok(())
}

/// Stops at the first part that stderr does not take in time.
fn write(parts: &[&[u8]]) -> Result<(), Errno> {
    put(b"kennel-exec: ")?;
    write_on(parts)
}

fn write_on(parts: &[&[u8]]) -> Result<(), Errno> {
    parts.iter().try_for_each(|part| put(part))
}

fn put(bytes: &[u8]) -> Result<(), Errno> {
    sys::write_waiting(Fd::STDERR, bytes)
}
