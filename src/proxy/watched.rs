//! A client's connection whose traffic is noticed, so that one whose client is gone does not stay for ever: a client that
//! has ended its side and waits for an answer looks the same as one that is dead.

use std::{
    io,
    os::fd::{AsRawFd, RawFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use nix::sys::socket::{MsgFlags, recv};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::sleep,
};

use super::meter::{Heading, Tally};

pub(super) struct Watched {
    stream: TcpStream,
    tally: Arc<Tally>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, tally: &Arc<Tally>) -> Self {
        Self { stream, tally: Arc::clone(tally) }
    }

    pub(super) fn into_inner(self) -> TcpStream {
        self.stream
    }
}

/// Returns once the client has ended its side and nothing has passed for so long. `socket` is that of a `Watched`, which
/// must live as long as this is waited for.
pub(super) async fn is_left(socket: RawFd, tally: &Tally, time: Duration) {
    loop {
        tally.idle(time).await;
        // At its end there is nothing to see, and nothing is to come.
        let seen = recv(socket, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
        if seen == Ok(0) {
            return;
        }
        sleep(time).await;
    }
}

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.tally.add(Heading::Up, buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.tally.add(Heading::Down, written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
