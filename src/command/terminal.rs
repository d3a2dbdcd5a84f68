//! The master side of a command's pseudoterminal, for tokio.

use std::fs::File;
use std::io;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{FlushArg, tcflush};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use crate::command::tail::ErrorTail;
use crate::process::output::Tail;
use crate::report::outcome::Outcome;
use crate::sys;
use crate::sys::locked;

/// The terminal of a command: what you write here, the command reads as typed.
///
/// A read waits while the command runs, even if the command has closed the terminal: it may open `/dev/tty`
/// again. After the end of the command, a read returns nothing while no process that it left behind has the
/// other side open. If you drop all clones while the command runs, its terminal hangs up (SIGHUP). All clones
/// are one terminal: one task may read while another writes, but no two may read, and no two may write.
#[derive(Clone, Debug)]
pub struct Terminal {
    master: Arc<AsyncFd<File>>,
    /// The last bytes read, if Kennel looks for errors in them.
    tail: Option<Arc<Mutex<ErrorTail>>>,
}

impl Terminal {
    pub(crate) fn new(master: OwnedFd) -> io::Result<Self> {
        let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&master, flags)?;
        Ok(Self { master: Self::watched(master.into())?, tail: None })
    }

    fn watched(master: File) -> io::Result<Arc<AsyncFd<File>>> {
        Ok(Arc::new(sys::watched(master, Interest::READABLE | Interest::WRITABLE)?))
    }

    /// Keeps the last bytes that are read, so that errors in them can be explained.
    pub(crate) fn explain_errors(&mut self, tail: ErrorTail) {
        self.tail = Some(Arc::new(Mutex::new(tail)));
    }

    /// The last bytes that were read.
    pub(crate) fn tail(&self) -> Option<MutexGuard<'_, ErrorTail>> {
        self.tail.as_deref().map(locked)
    }

    /// Whether no process has the other side open.
    fn is_hung_up(&self) -> bool {
        let mut now = [PollFd::new(self.as_fd(), PollFlags::empty())];
        let _ = poll(&mut now, PollTimeout::ZERO);
        now.iter().filter_map(PollFd::revents).any(|events| events.contains(PollFlags::POLLHUP))
    }

    /// The same terminal, registered with tokio again. tokio treats a hangup as final: after a process opens
    /// the other side again, the old registration would report it readable forever.
    fn reopened(&self) -> io::Result<Self> {
        let master = Self::watched(self.master.get_ref().try_clone()?)?;
        Ok(Self { master, ..self.clone() })
    }

    /// Rows and columns of any terminal, such as the terminal of this program.
    ///
    /// # Errors
    /// Errors of ioctl(TIOCGWINSZ): `ENOTTY` if `of` is not a terminal.
    pub fn size(of: impl AsFd) -> io::Result<(u16, u16)> {
        sys::window(of.as_fd().as_raw_fd())
    }

    /// Sets rows and columns of any terminal. Both sides of a pseudoterminal work.
    ///
    /// # Errors
    /// Errors of ioctl(TIOCSWINSZ): `ENOTTY` if `of` is not a terminal.
    pub fn set_size(of: impl AsFd, rows: u16, columns: u16) -> io::Result<()> {
        sys::set_window(of.as_fd().as_raw_fd(), rows, columns)
    }

    /// Discards what was typed into a command's terminal and not read yet. `of` is its master side.
    ///
    /// # Errors
    /// Errors of ioctl(TIOCGPTPEER): `ENOTTY` if `of` is no master side.
    pub fn discard_typed(of: impl AsFd) -> io::Result<()> {
        Ok(tcflush(sys::peer(of.as_fd())?, FlushArg::TCIFLUSH)?)
    }

    /// Sets the size of the terminal, in characters. The command gets SIGWINCH.
    ///
    /// # Errors
    /// Errors of ioctl(TIOCSWINSZ).
    pub fn resize(&self, rows: u16, columns: u16) -> io::Result<()> {
        sys::set_window(self.master.get_ref().as_raw_fd(), rows, columns)
    }
}

/// The descriptor of the master side. It does not block. A duplicate keeps the terminal open.
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
                    if let Some(mut tail) = self.tail() {
                        tail.add(room.get(..count).unwrap_or_default());
                    }
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                // No process has the other side open. That is not an error.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Poll::Ready(Ok(())),
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) if was_hung_up && !self.is_hung_up() => *self = self.reopened()?,
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
                // The buffer is full and no process can read it.
                Err(_would_block) if was_hung_up && self.is_hung_up() => {
                    return Poll::Ready(Err(Errno::EIO.into()));
                }
                Err(_would_block) if was_hung_up => *self = self.reopened()?,
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

impl Outcome {
    /// Like [`count`](Self::count), for a command with a terminal that was read to the end: adds hints for
    /// errors there that the sandbox may have caused.
    pub fn explain(&mut self, terminal: &Terminal) {
        if let Some(tail) = terminal.tail() {
            tail.explain(self);
        }
    }
}
