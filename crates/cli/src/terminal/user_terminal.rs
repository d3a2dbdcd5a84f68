//! The user's terminal: which of this program's descriptors it is, its modes, and whether this program has
//! its foreground.

use std::{
    fs::File,
    io::{self, IsTerminal},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
};

use kennel::{Error, Pseudoterminal, Terminal};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    sys::{
        stat::fstat,
        termios::{OutputFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr},
    },
    unistd::{getpgrp, tcgetpgrp},
};

/// Whether this process may read from the terminal. A terminal that is not its controlling terminal has no
/// foreground for it, and everybody may.
pub(crate) fn is_in_foreground(terminal: impl AsFd) -> bool {
    match tcgetpgrp(terminal) {
        Ok(group) => group == getpgrp(),
        Err(errno) => errno == Errno::ENOTTY,
    }
}

/// The terminal that this program's standard descriptors are.
pub(crate) struct UserTerminal {
    /// Where keys are read.
    pub(crate) input: File,
    /// Where the command's output is shown.
    output: OwnedFd,
    /// The standard descriptors that become the command's terminal.
    pub(crate) streams: [bool; 3],
    /// Whether others write to the terminal meanwhile, or could: a pipeline, or output that Kennel reads.
    pub(crate) is_shared: bool,
    /// Its modes before the command had it. In the background they are those with which the shell reads its
    /// line.
    pub(crate) before: Termios,
    /// Whether the command owns its terminal from the start.
    pub(crate) is_at_once: bool,
}

impl UserTerminal {
    /// The terminal behind the standard descriptors, or `None` if there is none. Descriptors that are `piped`
    /// do not go to the command anyway.
    ///
    /// # Errors
    /// The terminal cannot be asked for its modes.
    pub(crate) fn find(piped: [bool; 3]) -> Result<Option<Self>, Error> {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let all = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        let is_terminal = all.map(|fd| fd.is_terminal());
        let candidates = all.into_iter().zip(is_terminal).zip(piped);
        let mut own = candidates.filter(|((_, is_terminal), piped)| *is_terminal && !piped);
        let Some(((first, _), _)) = own.next() else { return Ok(None) };
        Self::behind(all, is_terminal, piped, first).map(Some).map_err(failed)
    }

    fn behind(
        all: [BorrowedFd<'_>; 3],
        is_terminal: [bool; 3],
        piped: [bool; 3],
        first: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let device = |fd: BorrowedFd<'_>| fstat(fd).map(|it| it.st_rdev);
        let wanted = device(first)?;
        let mut streams = [false; 3];
        for (((stream, fd), is_terminal), piped) in streams.iter_mut().zip(all).zip(is_terminal).zip(piped) {
            *stream = is_terminal && !piped && device(fd)? == wanted;
        }
        let own = || all.into_iter().zip(streams).filter(|(_, is_own)| *is_own).map(|(fd, _)| fd);
        let access = |fd: &BorrowedFd<'_>| fcntl(fd, FcntlArg::F_GETFL).unwrap_or(0) & libc::O_ACCMODE;
        let readable = own().find(|fd| access(fd) != libc::O_WRONLY).unwrap_or(first);
        // The one for output comes first.
        let writable = own().rfind(|fd| access(fd) != libc::O_RDONLY).unwrap_or(first);
        let [_, stdout, stderr] = streams;
        let [_, stdout_shows, stderr_shows] = is_terminal;
        Ok(Self {
            before: tcgetattr(first)?,
            input: for_keys(readable)?,
            output: writable.try_clone_to_owned()?,
            streams,
            is_shared: !stdout || !stdout_shows || stderr_shows && !stderr,
            is_at_once: false,
        })
    }

    /// The terminal on stdin, for `--tty`: the command's terminal is all three standard descriptors.
    ///
    /// # Errors
    /// Standard input is not a terminal, or is open for writing only.
    pub(crate) fn whole() -> Result<Self, Error> {
        check_stdin()?;
        let make = || {
            Ok(Self {
                before: tcgetattr(io::stdin())?,
                input: for_keys(io::stdin().as_fd())?,
                output: io::stdout().as_fd().try_clone_to_owned()?,
                streams: [true; 3],
                is_shared: false,
                is_at_once: is_in_foreground(io::stdin()),
            })
        };
        make().map_err(failed)
    }

    /// The terminal that the command gets.
    ///
    /// # Errors
    /// The user's terminal is gone.
    pub(crate) fn pseudoterminal(&self) -> Result<Pseudoterminal, Error> {
        let terminal = if is_in_foreground(&self.input) {
            Pseudoterminal::like(&self.input).map_err(failed)?
        } else {
            let (rows, columns) = Terminal::size(&self.input).map_err(failed)?;
            Pseudoterminal::new(rows, columns)
        };
        let terminal = terminal.streams(self.streams);
        Ok(if self.is_at_once { terminal } else { terminal.in_background() })
    }

    /// Where the command's output is shown.
    pub(crate) fn output(&self) -> io::Result<OwnedFd> {
        self.output.try_clone()
    }

    /// Whether its modes before the command had it make no two characters of a line end.
    pub(crate) fn shows_bytes_as_they_are(&self) -> bool {
        !self.before.output_flags.contains(OutputFlags::OPOST | OutputFlags::ONLCR)
    }

    pub(crate) fn set_raw(&self) {
        let mut raw = self.before.clone();
        cfmakeraw(&mut raw);
        if self.is_shared {
            raw.output_flags = self.before.output_flags;
        }
        // The terminal may be gone.
        let _ = tcsetattr(&self.input, SetArg::TCSANOW, &raw);
    }

    pub(crate) fn restore(&self) {
        // TCSADRAIN would block if nobody reads the terminal.
        let _ = tcsetattr(&self.input, SetArg::TCSANOW, &self.before);
    }
}

/// The error of a terminal that cannot be used.
pub(crate) fn failed(source: io::Error) -> Error {
    Error::Io { what: "use the terminal", source }
}

/// Opens a terminal again for reading, so that a read never waits; a copy if that is not possible.
fn for_keys(fd: BorrowedFd<'_>) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    match File::options().read(true).custom_flags(flags).open(path) {
        Ok(opened) => Ok(opened),
        Err(_) => Ok(fd.try_clone_to_owned()?.into()),
    }
}

/// Checks that standard input is a readable terminal.
///
/// # Errors
/// Standard input is not a terminal, or is open for writing only.
fn check_stdin() -> Result<(), Error> {
    Terminal::size(io::stdin()).map_err(no_terminal)?;
    let access =
        fcntl(io::stdin(), FcntlArg::F_GETFL).map_err(|errno| no_terminal(errno.into()))? & libc::O_ACCMODE;
    if access == libc::O_WRONLY {
        let reason = "needs a readable standard input; this terminal is open only for writing";
        return Err(Error::Io { what: "--tty", source: io::Error::other(reason) });
    }
    Ok(())
}

/// The error of `--tty` without a terminal. The message leaves out `ENOTTY`, which would repeat it.
fn no_terminal(source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::ENOTTY) => {
            Error::Io { what: "--tty", source: io::Error::other("needs a terminal as standard input") }
        }
        _ => Error::Io { what: "--tty needs a terminal as standard input", source },
    }
}

/// Gives the command's terminal the size of the user's terminal, unless that is gone.
///
/// # Errors
/// Those of [`Terminal::set_size`].
pub(crate) fn copy_size(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let size = Terminal::size(from);
    size.map_or(Ok(()), |(rows, columns)| Terminal::set_size(to, rows, columns))
}
