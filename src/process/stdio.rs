//! The standard streams of a command and their pipes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Poll};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;

use crate::policy::limits::Limits;
use crate::process::output::ChildOutput;
use crate::report::error::{Error, STREAMS};
use crate::sys;
use crate::sys::closing::HeldFd;
use crate::sys::inode::{FileKind, kind};
use crate::sys::known_stat;

/// What a standard stream of a command is connected to.
#[derive(Debug)]
pub struct Stdio(pub(crate) StdioKind);

#[derive(Debug)]
pub(crate) enum StdioKind {
    Inherit,
    Null,
    Piped,
    Given(HeldFd),
}

/// What a standard stream is if the caller does not say.
#[derive(Clone, Copy)]
pub(crate) enum DefaultStdio {
    /// All three are inherited.
    Inherit,
    /// No input; both outputs go to pipes.
    Collect,
}

impl DefaultStdio {
    pub(crate) fn stdin(self) -> StdioKind {
        match self {
            Self::Inherit => StdioKind::Inherit,
            Self::Collect => StdioKind::Null,
        }
    }

    pub(crate) fn output(self) -> StdioKind {
        match self {
            Self::Inherit => StdioKind::Inherit,
            Self::Collect => StdioKind::Piped,
        }
    }
}

impl Stdio {
    /// The stream of this program. If that is a terminal, the command can read what is typed there at any
    /// time, and processes that it leaves behind can too: give it a
    /// [`Pseudoterminal`](crate::plan::pseudoterminal::Pseudoterminal) or a pipe.
    ///
    /// If this program has closed it, the start fails with `EBADF`. That also holds if another
    /// descriptor with close-on-exec has the number now.
    #[must_use]
    pub fn inherit() -> Self {
        Self(StdioKind::Inherit)
    }

    /// `/dev/null`.
    #[must_use]
    pub fn null() -> Self {
        Self(StdioKind::Null)
    }

    /// A new pipe. Its other end is in [`Child`](crate::command::child::Child).
    #[must_use]
    pub fn piped() -> Self {
        Self(StdioKind::Piped)
    }
}

impl From<OwnedFd> for Stdio {
    fn from(fd: OwnedFd) -> Self {
        Self(StdioKind::Given(fd.into()))
    }
}

impl From<File> for Stdio {
    fn from(file: File) -> Self {
        OwnedFd::from(file).into()
    }
}

impl From<HeldFd> for Stdio {
    fn from(fd: HeldFd) -> Self {
        Self(StdioKind::Given(fd))
    }
}

/// A connected stream. The caller has an end only if it is a pipe.
pub(crate) struct Connected {
    pub(crate) command_end: HeldFd,
    pub(crate) caller_end: Option<OwnedFd>,
}

/// Opens what `kind` asks for. `own` is the stream of this program; `is_input` says that the command reads
/// from the stream.
pub(crate) fn connect(kind: StdioKind, own: impl AsFd, is_input: bool) -> io::Result<Connected> {
    let command_end = match kind {
        StdioKind::Inherit => checked(inherited(own.as_fd())?)?.into(),
        StdioKind::Null => OwnedFd::from(File::options().read(true).write(true).open("/dev/null")?).into(),
        StdioKind::Given(fd) => checked(fd)?,
        StdioKind::Piped => {
            let (reader, writer) = sys::pipe()?;
            let (command_end, caller_end) = if is_input { (reader, writer) } else { (writer, reader) };
            return Ok(Connected { command_end: command_end.into(), caller_end: Some(caller_end) });
        }
    };
    Ok(Connected { command_end, caller_end: None })
}

/// Gives a command of the standard library its three streams, and returns the other ends of pipes.
///
/// # Errors
/// A stream cannot be opened or must not be given to a command.
pub(crate) fn connect_all(
    [stdin, stdout, stderr]: [StdioKind; 3],
    command: &mut Command,
) -> Result<Ends, Error> {
    let [input, output, error] = STREAMS;
    let stdin = connect(stdin, io::stdin(), true).map_err(Error::io(input))?;
    let stdout = connect(stdout, io::stdout(), false).map_err(Error::io(output))?;
    let stderr = connect(stderr, io::stderr(), false).map_err(Error::io(error))?;
    command.stdin(stdin.command_end.into_own());
    command.stdout(stdout.command_end.into_own()).stderr(stderr.command_end.into_own());
    Ok(Ends { stdin: stdin.caller_end, stdout: stdout.caller_end, stderr: stderr.caller_end })
}

/// The caller's ends of pipes.
pub(crate) struct Ends {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

impl Ends {
    /// As streams of the runtime; outputs are cut at the limit.
    ///
    /// # Errors
    /// The runtime does not accept them.
    pub(crate) fn streams(
        self,
        limits: &Limits,
    ) -> Result<(Option<ChildStdin>, [Option<ChildOutput>; 2]), Error> {
        let cap = limits.output.map(|size| size.bytes());
        let output = |fd: Option<OwnedFd>| fd.map(|fd| ChildOutput::new(nonblocking(fd)?, cap)).transpose();
        let streams = || {
            let stdin = self.stdin.map(|fd| ChildStdin::new(nonblocking(fd)?)).transpose()?;
            Ok((stdin, [output(self.stdout)?, output(self.stderr)?]))
        };
        streams().map_err(Error::io("connect the command's streams"))
    }
}

fn nonblocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(fd)
}

/// A copy of a stream of this program.
fn inherited(own: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    check_standard(own)?;
    own.try_clone_to_owned()
}

/// Refuses a descriptor that only has the number of a standard stream. If a program closes its own stream,
/// the next descriptor it opens gets that number, for example the control socket of a zygote. Close-on-exec
/// gives such a descriptor away.
pub(crate) fn check_standard(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = FdFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFD)?);
    let is_other = fd.as_raw_fd() <= libc::STDERR_FILENO && flags.contains(FdFlag::FD_CLOEXEC);
    if is_other { Err(Errno::EBADF.into()) } else { Ok(()) }
}

/// Refuses a directory and an `O_PATH` descriptor. From either, the command could reach files behind every
/// mount.
pub(crate) fn checked<F: AsFd>(fd: F) -> io::Result<F> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    if sys::only_holds(flags) {
        return Err(Errno::EBADF.into());
    }
    if kind(&known_stat(&fd)?) == FileKind::Directory { Err(Errno::EISDIR.into()) } else { Ok(fd) }
}

/// The writing end of a command's stdin. Dropping it ends the input.
#[derive(Debug)]
pub struct ChildStdin(pipe::Sender);

impl ChildStdin {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        pipe::Sender::from_owned_fd(fd).map(Self)
    }
}

impl AsyncWrite for ChildStdin {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}
