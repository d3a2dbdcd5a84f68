//! A connection to an origin whose bytes are counted, bounded and hurried.

use std::io;
use std::net::IpAddr;
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

use crate::audit::record::{Egress, Record};
use crate::audit::trail::millis;
use crate::network::meter::{Heading, Tally};
use crate::network::proxy::Proxy;
use crate::network::refusal::{ProxyRefusal, Reason};
use crate::network::relay::HALF_OPEN;
use crate::network::stream::{Count, Counted};
use crate::policy::destination::{Destination, Host};
use crate::sys;

/// A connection, and what it has passed.
pub(crate) struct Metered {
    stream: TcpStream,
    proxy: Arc<Proxy>,
    passage: Passage,
    /// Until when nothing is read, because too much was.
    pause: Option<Pin<Box<Sleep>>>,
    idle: Pin<Box<Sleep>>,
}

impl Metered {
    pub(crate) fn new(stream: TcpStream, proxy: Arc<Proxy>, passage: Passage) -> Self {
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

// A client's connection whose traffic is noticed, so that one whose client is gone does not stay for ever: a client that
// has ended its side and waits for an answer looks the same as one that is dead. Nor does one stay whose client takes
// nothing of what there is for it.

pub(crate) type Watched = Counted<TcpStream, Arc<StreamMeter>>;

/// What was noticed.
pub(crate) struct StreamMeter {
    tally: Tally,
    /// Whether what there was for the client last found no room.
    is_full: AtomicBool,
}

impl Count for Arc<StreamMeter> {
    fn read(&self, bytes: usize) -> io::Result<()> {
        self.tally.add(Heading::Up, bytes);
        Ok(())
    }

    fn written(&self, bytes: usize) {
        self.is_full.store(false, Relaxed);
        self.tally.add(Heading::Down, bytes);
    }

    fn full(&self) {
        self.is_full.store(true, Relaxed);
    }
}

impl StreamMeter {
    pub(crate) fn new() -> Self {
        Self { tally: Tally::new(), is_full: AtomicBool::new(false) }
    }

    /// Returns once nothing has passed for too long, and nothing will: the client has ended its side, or takes nothing of
    /// what there is for it. (Of an answer that is not there yet nobody takes anything.) `socket` is that of a `Watched`,
    /// which must live as long as this is waited for.
    pub(crate) async fn is_over(&self, socket: RawFd, idle: Duration) {
        let is_stuck = || self.is_full.load(Relaxed);
        tokio::select! {
            () = self.tally.silent(HALF_OPEN.min(idle), || sys::has_hung_up(socket)) => {}
            () = self.tally.silent(idle, is_stuck) => {}
        }
    }
}

// What the proxy writes down: a record for each decision.

fn host(destination: &Destination) -> String {
    match &destination.host {
        Host::Name(name) => name.to_string(),
        Host::Address(address) => address.to_string(),
    }
}

fn passed(destination: &Destination, decision: &'static str, reason: &'static str) -> Egress {
    egress(host(destination), Some(destination.port), decision, reason)
}

fn egress(host: String, port: Option<u16>, decision: &'static str, reason: &'static str) -> Egress {
    let (address, class) = (None, None);
    Egress { host, port, address, decision, reason, class, bytes_up: 0, bytes_down: 0, duration_ms: 0 }
}

impl Proxy {
    /// Writes down what did not pass. It did not, whether that is written or not.
    pub(crate) fn record_refusal(&self, refusal: &ProxyRefusal) {
        let _ = self.trail.write(self.trail.only_command(), || {
            let decision = if refusal.is_denial() { "denied" } else { "failed" };
            let (host, port) = match &refusal.destination {
                Some(destination) => (host(destination), Some(destination.port)),
                None => (refusal.subject.clone(), None),
            };
            Record::Egress(Egress {
                class: Some(refusal.class()),
                ..egress(host, port, decision, refusal.word())
            })
        });
    }

    /// Writes down what will be dialled, where nothing may be that is not written down: its record comes at its end.
    ///
    /// # Errors
    /// It cannot be.
    pub(crate) fn record_begin(
        &self,
        destination: &Destination,
        reason: &'static str,
    ) -> Result<(), ProxyRefusal> {
        if !self.trail.is_fail_closed() {
            return Ok(());
        }
        let record = || Record::Egress(passed(destination, "begun", reason));
        match self.trail.write(self.trail.only_command(), record) {
            Ok(_) => Ok(()),
            Err(_) => Err(ProxyRefusal::of(destination, Reason::Unrecorded)),
        }
    }
}

/// A connection that passed; its record is written when it ends, however it ends.
pub(crate) struct Passage {
    proxy: Arc<Proxy>,
    pub(crate) tally: Arc<Tally>,
    destination: Destination,
    address: Option<IpAddr>,
    exec: Option<u64>,
    reason: &'static str,
}

impl Passage {
    pub(crate) fn new(
        proxy: &Arc<Proxy>,
        destination: &Destination,
        address: Option<IpAddr>,
        reason: &'static str,
    ) -> Self {
        Self {
            exec: proxy.trail.only_command(),
            proxy: Arc::clone(proxy),
            tally: Arc::new(Tally::new()),
            destination: destination.clone(),
            address,
            reason,
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let _ = self.proxy.trail.write(self.exec, || {
            Record::Egress(Egress {
                address: self.address,
                bytes_up: self.tally.up.load(Relaxed),
                bytes_down: self.tally.down.load(Relaxed),
                duration_ms: millis(self.tally.age()),
                ..passed(&self.destination, "allowed", self.reason)
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// Who is killed leaves unread what nobody has taken yet.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_is_noticed_behind_what_it_said() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("its number")).await.expect("a connection");
        client.write_all(b"unread").await.expect("room");
        let (served, _) = listener.accept().await.expect("the connection");
        let watch = StreamMeter::new();
        let over = async |within| {
            let idle = Duration::from_secs(900);
            timeout(Duration::from_secs(within), watch.is_over(served.as_raw_fd(), idle)).await.is_ok()
        };
        assert!(!over(300).await, "it may say more");
        drop(client);
        assert!(over(130).await);
    }
}
