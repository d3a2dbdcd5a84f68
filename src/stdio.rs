//! Standard descriptors of a command, and the pipes to it.

mod output;

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    sys::stat::fstat,
};
use tokio::{io::AsyncWrite, net::unix::pipe};

pub use self::output::ChildOutput;
pub(crate) use self::output::Collected;
use crate::below::{FileKind, kind};

/// What a standard descriptor of a command is.
#[derive(Debug)]
pub struct Stdio(pub(crate) Kind);

#[derive(Debug)]
pub(crate) enum Kind {
    Inherit,
    Null,
    Piped,
    Given(OwnedFd),
}

impl Stdio {
    /// The embedding program's own descriptor. Where it has closed that, starting the command fails with `EBADF`, also if
    /// something else that is closed on execve(2) has its number by now.
    #[must_use]
    pub fn inherit() -> Self {
        Self(Kind::Inherit)
    }

    /// `/dev/null`.
    #[must_use]
    pub fn null() -> Self {
        Self(Kind::Null)
    }

    /// A new pipe, whose other end is in [`Child`](crate::Child).
    #[must_use]
    pub fn piped() -> Self {
        Self(Kind::Piped)
    }
}

impl From<OwnedFd> for Stdio {
    fn from(fd: OwnedFd) -> Self {
        Self(Kind::Given(fd))
    }
}

impl From<File> for Stdio {
    fn from(file: File) -> Self {
        Self(Kind::Given(file.into()))
    }
}

/// One side each of what connects a command with its caller.
pub(crate) struct Connected {
    pub(crate) theirs: OwnedFd,
    pub(crate) ours: Option<OwnedFd>,
}

/// Opens what `kind` asks for; `inherited` is the embedding program's descriptor, `reads` whether the command
/// reads from it.
pub(crate) fn connect(kind: Kind, inherited: impl AsFd, reads: bool) -> io::Result<Connected> {
    let theirs = match kind {
        Kind::Inherit => checked(inherited_from(inherited.as_fd())?)?,
        Kind::Null => File::options().read(true).write(true).open("/dev/null")?.into(),
        Kind::Given(fd) => checked(fd)?,
        Kind::Piped => {
            let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
            let (theirs, ours) = if reads { (reader, writer) } else { (writer, reader) };
            return Ok(Connected { theirs, ours: Some(ours) });
        }
    };
    Ok(Connected { theirs, ours: None })
}

/// The embedding program's own.
fn inherited_from(own: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    is_standard(own)?;
    own.try_clone_to_owned()
}

/// Refuses a descriptor with the number of a standard stream that is none: one that is closed on execve(2). Where a program
/// closed its own, what is opened next has their numbers, such as the socket by which a zygote takes orders.
pub(crate) fn is_standard(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = FdFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFD)?);
    let is_other = fd.as_raw_fd() <= libc::STDERR_FILENO && flags.contains(FdFlag::FD_CLOEXEC);
    if is_other { Err(Errno::EBADF.into()) } else { Ok(()) }
}

/// Refuses a descriptor that leads to other files: a directory, or one that was opened as a path only. The command
/// could walk from it past every mount.
pub(crate) fn checked(fd: OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    if flags.contains(OFlag::O_PATH) {
        return Err(Errno::EBADF.into());
    }
    if kind(&fstat(&fd)?) == FileKind::Directory { Err(Errno::EISDIR.into()) } else { Ok(fd) }
}

/// The writing end of a command's stdin. Dropping it is the end of input.
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
