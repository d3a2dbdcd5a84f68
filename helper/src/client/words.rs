//! Every word that the client says of its own accord, on stderr.

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

/// Why there is no command, or no end of it to tell.
pub(crate) enum Trouble {
    /// It was not told what to do.
    Usage,
    /// The path of the socket, or the call, is longer than can be.
    TooLong,
    /// connect(2) was refused.
    Connect(Errno),
    /// Somebody else's process listens.
    Stranger,
    /// The working directory has no path.
    Directory(Errno),
    /// The call could not be sent.
    Send(Errno),
    /// The session went away without telling the command's end.
    Lost,
    /// A call that is about this process only, and what it was for.
    Own(&'static [u8], Errno),
}

const START: &[u8] = b"hint: start a session there: kennel session start --name NAME\n";

const OUT_OF_REACH: &[u8] =
    b"hint: this runs in a sandbox, where sessions outside of it are out of reach: run the command \
                             without kennel-exec\n";

/// Says what went wrong, and what can be done. That stderr is gone, or nobody reads it, is nothing that could be told.
pub(crate) fn say(trouble: &Trouble, socket: Option<&CStr>) {
    let _ = tell(trouble, socket.unwrap_or_default().to_bytes());
}

/// Says why a signal ends this program and not the command.
pub(crate) fn unheard() {
    let _ = write(&[b"the session does not answer: its program is stopped or busy\n"]);
}

/// Writes lines that came from the session, likewise.
pub(crate) fn pass(message: &[u8]) {
    let _ = put(message);
}

fn tell(trouble: &Trouble, socket: &[u8]) -> Result<(), Errno> {
    match trouble {
        Trouble::Usage => write(&[b"usage: kennel-exec SOCKET [-C DIR] [--] CMD [ARG...]\n"]),
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

/// What this process has not enough of, and what can be done.
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

/// Ends a line with an errno: in words what this process has not enough of, else in three digits.
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

/// Begins a line. What a terminal could take for a command is not said: of bytes, not of characters, so that letters beyond ASCII
/// may suffer.
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

/// Ends where stderr takes nothing for long: no part is waited for once more.
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
