//! A byte stream to or from the proxy, TCP or Unix, as relays use it: by shared reference, in both directions at once.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use tokio::net::{TcpStream, UnixStream};

/// One end of what is relayed.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

macro_rules! either {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self {
            Self::Tcp($stream) => $call,
            Self::Unix($stream) => $call,
        }
    };
}

impl Stream {
    pub(super) async fn readable(&self) -> io::Result<()> {
        either!(self, stream => stream.readable().await)
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        either!(self, stream => stream.writable().await)
    }

    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_read(buffer))
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_write(bytes))
    }

    /// Runs a system call that may say that the stream is not ready.
    pub(super) fn try_io<T>(
        &self,
        interest: tokio::io::Interest,
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        either!(self, stream => stream.try_io(interest, call))
    }

    /// shutdown(2) of the direction that is written to. A stream that is gone has no end to tell.
    pub(super) fn end(&self) {
        use nix::sys::socket::{Shutdown, shutdown};
        let _ = shutdown(self.as_fd().as_raw_fd(), Shutdown::Write);
    }

    /// Whether the other side sees a reset when this is closed, where there is such a thing: SO_LINGER of socket(7).
    pub(super) fn resets(&self, resets: bool) {
        use nix::sys::socket::{setsockopt, sockopt::Linger};
        if let Self::Tcp(stream) = self {
            let _ = setsockopt(stream, Linger, &libc::linger { l_onoff: resets.into(), l_linger: 0 });
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, stream => stream.as_fd())
    }
}
