//! Standard descriptors of a command, and the pipes to it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::stat::fstat;
use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

use crate::command::ending::Cause;
use crate::sys::inode::{FileKind, kind};

/// What a standard descriptor of a command is.
#[derive(Debug)]
pub struct Stdio(pub(crate) StdioKind);

#[derive(Debug)]
pub(crate) enum StdioKind {
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
        Self(StdioKind::Inherit)
    }

    /// `/dev/null`.
    #[must_use]
    pub fn null() -> Self {
        Self(StdioKind::Null)
    }

    /// A new pipe, whose other end is in [`Child`](crate::command::child::Child).
    #[must_use]
    pub fn piped() -> Self {
        Self(StdioKind::Piped)
    }
}

impl From<OwnedFd> for Stdio {
    fn from(fd: OwnedFd) -> Self {
        Self(StdioKind::Given(fd))
    }
}

impl From<File> for Stdio {
    fn from(file: File) -> Self {
        Self(StdioKind::Given(file.into()))
    }
}

/// One side each of what connects a command with its caller.
pub(crate) struct Connected {
    pub(crate) theirs: OwnedFd,
    pub(crate) ours: Option<OwnedFd>,
}

/// Opens what `kind` asks for; `inherited` is the embedding program's descriptor, `reads` whether the command
/// reads from it.
pub(crate) fn connect(kind: StdioKind, inherited: impl AsFd, reads: bool) -> io::Result<Connected> {
    let theirs = match kind {
        StdioKind::Inherit => checked(inherited_from(inherited.as_fd())?)?,
        StdioKind::Null => File::options().read(true).write(true).open("/dev/null")?.into(),
        StdioKind::Given(fd) => checked(fd)?,
        StdioKind::Piped => {
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

// How a reader of output tells that a command has written more than is kept of it, where the policy says that this
// ends it. The reader may be in another task or thread than who ends the command.

/// Told once, by the stream that is beyond its cap first.
#[derive(Debug, Default)]
pub(crate) struct Flood {
    cause: OnceLock<Cause>,
    told: Notify,
}

impl Flood {
    /// A stream of which `cap` bytes are kept has had `seen` by now.
    pub(crate) fn tell(&self, seen: u64, cap: u64) {
        if self.cause.set(Cause::Flooded { seen, cap }).is_ok() {
            self.told.notify_one();
        }
    }

    /// What was told.
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause.get().copied()
    }

    /// Waits until it is told; not at all where it was. For one who waits.
    pub(crate) async fn wait(&self) {
        while self.cause.get().is_none() {
            self.told.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn the_first_word_counts_and_wakes_who_waits() {
        let flood = Arc::new(Flood::default());
        let waiting = tokio::spawn({
            let flood = Arc::clone(&flood);
            async move { flood.wait().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished() && flood.cause().is_none());
        std::thread::spawn({
            let flood = Arc::clone(&flood);
            move || flood.tell(11, 10)
        })
        .join()
        .expect("a thread");
        waiting.await.expect("woken");
        flood.tell(21, 20);
        flood.wait().await;
        assert_eq!(flood.cause(), Some(Cause::Flooded { seen: 11, cap: 10 }));
    }
}
