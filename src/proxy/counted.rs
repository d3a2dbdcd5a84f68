//! A stream whose bytes somebody counts.

use std::{
    io,
    os::fd::{AsRawFd, RawFd},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Who counts.
pub(super) trait Count {
    /// # Errors
    /// They were too many: reading ends.
    fn read(&self, bytes: usize) -> io::Result<()>;

    fn written(&self, _bytes: usize) {}

    /// What was to be written found no room.
    fn full(&self) {}
}

pub(super) struct Counted<T, C> {
    inner: T,
    count: C,
}

impl<T, C> Counted<T, C> {
    pub(super) fn new(inner: T, count: C) -> Self {
        Self { inner, count }
    }

    pub(super) fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: AsRawFd, C> AsRawFd for Counted<T, C> {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl<T: AsyncRead + Unpin, C: Count + Unpin> AsyncRead for Counted<T, C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        Poll::Ready(self.count.read(buffer.filled().len() - before))
    }
}

impl<T: AsyncWrite + Unpin, C: Count + Unpin> AsyncWrite for Counted<T, C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        match &polled {
            Poll::Ready(Ok(written)) => self.count.written(*written),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.count.full(),
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
