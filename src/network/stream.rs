//! Sockets of the proxy, TCP or Unix, listening or connected: for relays (both directions by shared
//! reference), with counted or limited bytes.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use nix::sys::socket::sockopt::Linger;
use nix::sys::socket::{MsgFlags, Shutdown, recv, setsockopt, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// One end of a relay.
pub(crate) enum Stream {
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
    pub(crate) async fn readable(&self) -> io::Result<()> {
        either!(self, stream => stream.readable().await)
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        either!(self, stream => stream.writable().await)
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_read(buffer))
    }

    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_write(bytes))
    }

    /// Runs a system call that may return `EAGAIN`.
    pub(crate) fn try_io<T>(
        &self,
        interest: Interest,
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        either!(self, stream => stream.try_io(interest, call))
    }

    /// The first byte, which stays unread. `None` at the end of the stream.
    pub(crate) async fn first_byte(&self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let peek = |first: &mut [u8]| Ok(recv(self.as_fd().as_raw_fd(), first, MsgFlags::MSG_PEEK)?);
        loop {
            self.readable().await?;
            match self.try_io(Interest::READABLE, || peek(&mut first)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                count => return Ok((count? == 1).then_some(first[0])),
            }
        }
    }

    /// shutdown(2) of the sending direction. It fails only if the connection is already gone.
    pub(crate) fn end(&self) {
        let _ = shutdown(self.as_fd().as_raw_fd(), Shutdown::Write);
    }

    /// Whether close(2) resets a TCP connection: SO_LINGER of socket(7). Unix sockets have no reset.
    pub(crate) fn resets(&self, resets: bool) {
        if let Self::Tcp(stream) = self {
            let _ = setsockopt(stream, Linger, &libc::linger { l_onoff: resets.into(), l_linger: 0 });
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    /// Neither kind of socket has a buffer to flush.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, stream => stream.as_fd())
    }
}

/// A listening socket whose clients a [`SpawnProxy`](crate::network::SpawnProxy) serves. Those of the
/// standard library become one.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProxyListener {
    /// TCP, usually on an address of loopback.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl ProxyListener {
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.set_nonblocking(true),
            Self::Unix(listener) => listener.set_nonblocking(true),
        }
    }
}

impl From<TcpListener> for ProxyListener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for ProxyListener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

impl AsFd for ProxyListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

impl AsRawFd for ProxyListener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

// A stream that reports its bytes to a counter.

/// Observes the bytes of a stream.
pub(crate) trait ByteObserver {
    /// # Errors
    /// Too many bytes. Reading ends.
    fn read(&self, bytes: usize) -> io::Result<()>;

    fn written(&self, _bytes: usize) {}

    /// A write found the socket buffer full.
    fn full(&self) {}
}

pub(crate) struct ObservedStream<T, C> {
    inner: T,
    observer: C,
}

impl<T, C> ObservedStream<T, C> {
    pub(crate) fn new(inner: T, observer: C) -> Self {
        Self { inner, observer }
    }

    pub(crate) fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: AsRawFd, C> AsRawFd for ObservedStream<T, C> {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl<T: AsyncRead + Unpin, C: ByteObserver + Unpin> AsyncRead for ObservedStream<T, C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        Poll::Ready(self.observer.read(buffer.filled().len() - before))
    }
}

impl<T: AsyncWrite + Unpin, C: ByteObserver + Unpin> AsyncWrite for ObservedStream<T, C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        match &polled {
            Poll::Ready(Ok(written)) => self.observer.written(*written),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.observer.full(),
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

// A stream with a limit on what may be read while the proxy waits for the head of an answer: an endless head
// would keep it busy for ever.

/// How many bytes may still be read.
#[derive(Clone, Default)]
pub(crate) struct ReadLimit(Arc<AtomicUsize>);

impl ReadLimit {
    /// Allows this many bytes from now on.
    pub(crate) fn set(&self, bytes: usize) {
        self.0.store(bytes, Relaxed);
    }

    /// Removes the limit.
    pub(crate) fn remove(&self) {
        self.set(usize::MAX);
    }
}

impl ByteObserver for ReadLimit {
    fn read(&self, bytes: usize) -> io::Result<()> {
        let left = self.0.load(Relaxed);
        if left == usize::MAX {
            return Ok(());
        }
        let rest = left.checked_sub(bytes);
        let rest = rest
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the head of its answer is too long"));
        self.set(rest?);
        Ok(())
    }
}

/// A stream of which only a limited number of bytes may be read.
pub(crate) type Limited<T> = ObservedStream<T, ReadLimit>;
