//! Connections to origins and from clients with their traffic counted and limited.

use std::io;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::network::meter::{Direction, HALF_OPEN, Traffic};
use crate::network::proxy::{ConnectionRecord, Proxy};
use crate::network::stream::{ByteObserver, ObservedStream, Stream};
use crate::sys;

/// A connection to an origin, limited by the meter of the sandbox and by the idle time.
pub(crate) struct Metered {
    stream: TcpStream,
    proxy: Arc<Proxy>,
    record: ConnectionRecord,
    /// Waits here while the rate limit is exceeded.
    pause: Option<Pin<Box<Sleep>>>,
    idle: Pin<Box<Sleep>>,
}

impl Metered {
    pub(crate) fn new(stream: TcpStream, proxy: Arc<Proxy>, record: ConnectionRecord) -> Self {
        let idle = Box::pin(sleep_until(Instant::now() + proxy.gate.settings().limits.idle_time));
        Self { stream, proxy, record, pause: None, idle }
    }

    /// The connection, of which somebody else counts the rest.
    pub(crate) fn into_parts(self) -> (TcpStream, ConnectionRecord) {
        (self.stream, self.record)
    }

    fn passed(&mut self, direction: Direction, bytes: usize) -> io::Result<()> {
        self.record.traffic.add(direction, bytes);
        let end = Instant::now() + self.proxy.gate.settings().limits.idle_time;
        self.idle.as_mut().reset(end);
        match self.proxy.relays.meter.count(bytes) {
            Some(until) => {
                self.pause = until.map(|until| Box::pin(sleep_until(until)));
                Ok(())
            }
            None => Err(io::ErrorKind::QuotaExceeded.into()),
        }
    }

    /// Waits until the rate limit allows more bytes.
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
                Poll::Ready(self.passed(Direction::Down, buffer.filled().len() - before))
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
        let room = self.proxy.relays.meter.room();
        if room == 0 {
            return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into()));
        }
        let bytes = bytes.get(..room).unwrap_or(bytes);
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.passed(Direction::Up, written)?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

// The connection of a client. Two kinds must not stay open for ever: the client has closed its sending side,
// and may be waiting or dead; or the client does not read what the proxy sends.

pub(crate) type Watched = ObservedStream<Stream, Arc<ClientTraffic>>;

/// What the proxy has seen on a client connection.
pub(crate) struct ClientTraffic {
    traffic: Traffic,
    /// Whether the last write to the client found its socket buffer full.
    is_full: AtomicBool,
}

impl ByteObserver for Arc<ClientTraffic> {
    fn read(&self, bytes: usize) -> io::Result<()> {
        self.traffic.add(Direction::Up, bytes);
        Ok(())
    }

    fn written(&self, bytes: usize) {
        self.is_full.store(false, Relaxed);
        self.traffic.add(Direction::Down, bytes);
    }

    fn full(&self) {
        self.is_full.store(true, Relaxed);
    }
}

impl ClientTraffic {
    pub(crate) fn new() -> Self {
        Self { traffic: Traffic::new(), is_full: AtomicBool::new(false) }
    }

    /// Returns once nothing has passed for too long and nothing will: the client has closed its side, or does
    /// not read what the proxy sends. A client that waits for an answer does not count as one that does not
    /// read. `socket` is the descriptor of a `Watched`, which must stay open during the call.
    pub(crate) async fn is_over(&self, socket: RawFd, idle: Duration) {
        let is_stuck = || self.is_full.load(Relaxed);
        tokio::select! {
            () = self.traffic.silent(HALF_OPEN.min(idle), || sys::has_hung_up(socket)) => {}
            () = self.traffic.silent(idle, is_stuck) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// A killed client may leave unread bytes in the socket.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_is_noticed_behind_what_it_said() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("its number")).await.expect("a connection");
        client.write_all(b"unread").await.expect("room");
        let (served, _) = listener.accept().await.expect("the connection");
        let watch = ClientTraffic::new();
        let over = async |within| {
            let idle = Duration::from_secs(900);
            timeout(Duration::from_secs(within), watch.is_over(served.as_raw_fd(), idle)).await.is_ok()
        };
        assert!(!over(300).await, "it may say more");
        drop(client);
        assert!(over(130).await);
    }
}
