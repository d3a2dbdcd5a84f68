//! A connection to an origin whose bytes are counted, bounded and hurried.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep_until},
};

use super::{Proxy, audit::Passage, meter::Heading};

/// A connection, and what it has passed.
pub(super) struct Metered {
    stream: TcpStream,
    proxy: Arc<Proxy>,
    passage: Passage,
    /// Until when nothing is read, because too much was.
    pause: Option<Pin<Box<Sleep>>>,
    idle: Pin<Box<Sleep>>,
}

impl Metered {
    pub(super) fn new(stream: TcpStream, proxy: Arc<Proxy>, passage: Passage) -> Self {
        let idle = Box::pin(sleep_until(Instant::now() + proxy.gate.settings().limits.idle_time));
        Self { stream, proxy, passage, pause: None, idle }
    }

    fn passed(&mut self, heading: Heading, bytes: usize) -> io::Result<()> {
        self.passage.tally.add(heading, bytes);
        let end = Instant::now() + self.proxy.gate.settings().limits.idle_time;
        self.idle.as_mut().reset(end);
        match self.proxy.meter.count(bytes) {
            Some(until) => {
                self.pause = until.map(|until| Box::pin(sleep_until(until)));
                Ok(())
            }
            None => Err(io::ErrorKind::QuotaExceeded.into()),
        }
    }

    /// Waits while too much has passed.
    fn poll_pause(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.pause {
            Some(pause) => pause.as_mut().poll(context).map(|()| self.pause = None),
            None => Poll::Ready(()),
        }
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_pause(context));
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(read) => {
                read?;
                Poll::Ready(self.passed(Heading::Down, buffer.filled().len() - before))
            }
            Poll::Pending if self.idle.as_mut().poll(context).is_ready() => {
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_pause(context));
        let room = self.proxy.meter.room();
        if room == 0 {
            return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into()));
        }
        let bytes = bytes.get(..room).unwrap_or(bytes);
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.passed(Heading::Up, written)?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
