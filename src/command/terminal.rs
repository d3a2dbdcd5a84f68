//! The master side of a command's pseudoterminal.

use std::fs::File;
use std::io;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use crate::sys;

/// The terminal that a command runs on: what is written here is typed there.
///
/// A read returns nothing while no process has the other side open. A running command may open it again, as `/dev/tty`,
/// and a later read returns what is written then; if all clones are dropped before its end, it is hung up. Clones are the same
/// terminal: one may be read while another is written to, but only one at a time each.
#[derive(Clone, Debug)]
pub struct Terminal {
    master: Arc<AsyncFd<File>>,
}

impl Terminal {
    pub(crate) fn new(master: OwnedFd) -> io::Result<Self> {
        let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&master, flags)?;
        Self::watched(master.into())
    }

    fn watched(master: File) -> io::Result<Self> {
        Ok(Self { master: Arc::new(sys::watched(master, Interest::READABLE | Interest::WRITABLE)?) })
    }

    /// Whether no process has the other side open now.
    fn is_hung_up(&self) -> bool {
        let mut now = [PollFd::new(self.as_fd(), PollFlags::empty())];
        let _ = poll(&mut now, PollTimeout::ZERO);
        now.iter().filter_map(PollFd::revents).any(|events| events.contains(PollFlags::POLLHUP))
    }

    /// The same terminal, watched from now on. tokio takes a hangup for final: where somebody has opened the other side
    /// again, it would say for ever that there is something to read.
    fn anew(&self) -> io::Result<Self> {
        Self::watched(self.master.get_ref().try_clone()?)
    }

    /// Rows and columns of any terminal, such as the embedding program's own.
    ///
    /// # Errors
    /// Those of ioctl(TIOCGWINSZ): `ENOTTY` if `of` is not a terminal.
    pub fn size(of: impl AsFd) -> io::Result<(u16, u16)> {
        sys::window(of.as_fd().as_raw_fd())
    }

    /// Sets rows and columns of any terminal; of a pseudoterminal by either side.
    ///
    /// # Errors
    /// Those of ioctl(TIOCSWINSZ): `ENOTTY` if `of` is not a terminal.
    pub fn set_size(of: impl AsFd, rows: u16, columns: u16) -> io::Result<()> {
        sys::set_window(of.as_fd().as_raw_fd(), rows, columns)
    }

    /// Tells the command the window's size, in characters. It gets a SIGWINCH.
    ///
    /// # Errors
    /// Those of ioctl(TIOCSWINSZ).
    pub fn resize(&self, rows: u16, columns: u16) -> io::Result<()> {
        sys::set_window(self.master.get_ref().as_raw_fd(), rows, columns)
    }
}

/// The master side itself, not blocking. Whoever gets a copy holds the terminal too.
impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.master.get_ref().as_fd()
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.master.poll_read_ready(cx))?;
            let was_hung_up = ready.ready().is_read_closed();
            let room = buffer.initialize_unfilled();
            match ready.try_io(|master| master.get_ref().read(room)) {
                Ok(Ok(count)) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                // Nobody has the other side open: that is no fault.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Poll::Ready(Ok(())),
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) if was_hung_up && !self.is_hung_up() => *self = self.anew()?,
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.master.poll_write_ready(cx))?;
            let was_hung_up = ready.ready().is_write_closed();
            match ready.try_io(|master| master.get_ref().write(bytes)) {
                Ok(written) => return Poll::Ready(written),
                // It is full, and nobody is there who could read it.
                Err(_would_block) if was_hung_up && self.is_hung_up() => {
                    return Poll::Ready(Err(Errno::EIO.into()));
                }
                Err(_would_block) if was_hung_up => *self = self.anew()?,
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
