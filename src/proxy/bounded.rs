//! A stream of which only so much may be read, for as long as somebody waits for the head of an answer: an endless one
//! would keep us busy without end.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is left to read.
#[derive(Clone, Default)]
pub(super) struct Allowance(Arc<AtomicUsize>);

impl Allowance {
    /// So many bytes from now on.
    pub(super) fn grant(&self, bytes: usize) {
        self.0.store(bytes, Relaxed);
    }

    /// As many as there are from now on.
    pub(super) fn lift(&self) {
        self.grant(usize::MAX);
    }

    fn take(&self, bytes: usize) -> io::Result<()> {
        let left = self.0.load(Relaxed);
        if left == usize::MAX {
            return Ok(());
        }
        let rest = left.checked_sub(bytes);
        let rest = rest
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the head of its answer has no end"));
        self.grant(rest?);
        Ok(())
    }
}

pub(super) struct Bounded<T> {
    inner: T,
    allowance: Allowance,
}

impl<T> Bounded<T> {
    pub(super) fn new(inner: T, allowance: &Allowance) -> Self {
        Self { inner, allowance: allowance.clone() }
    }

    pub(super) fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Bounded<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        Poll::Ready(self.allowance.take(buffer.filled().len() - before))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Bounded<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
