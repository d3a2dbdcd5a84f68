//! A client's connection whose traffic is noticed, so that one whose client is gone does not stay for ever: a client that
//! has ended its side and waits for an answer looks the same as one that is dead. Nor does one stay whose client takes
//! nothing of what there is for it.

use std::{
    io,
    os::fd::RawFd,
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use tokio::net::TcpStream;

use super::{
    counted::{Count, Counted},
    meter::{Heading, Tally},
    relay::HALF_OPEN,
};
use crate::sys;

pub(super) type Watched = Counted<TcpStream, Arc<Watch>>;

/// What was noticed.
pub(super) struct Watch {
    tally: Tally,
    /// Whether what there was for the client last found no room.
    is_full: AtomicBool,
}

impl Count for Arc<Watch> {
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

impl Watch {
    pub(super) fn new() -> Self {
        Self { tally: Tally::new(), is_full: AtomicBool::new(false) }
    }

    /// Returns once nothing has passed for too long, and nothing will: the client has ended its side, or takes nothing of
    /// what there is for it. (Of an answer that is not there yet nobody takes anything.) `socket` is that of a `Watched`,
    /// which must live as long as this is waited for.
    pub(super) async fn is_over(&self, socket: RawFd, idle: Duration) {
        let is_stuck = || self.is_full.load(Relaxed);
        tokio::select! {
            () = self.tally.silent(HALF_OPEN.min(idle), || sys::has_hung_up(socket)) => {}
            () = self.tally.silent(idle, is_stuck) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use tokio::{io::AsyncWriteExt, net::TcpListener, time::timeout};

    use super::*;

    /// Who is killed leaves unread what nobody has taken yet.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_is_noticed_behind_what_it_said() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("its number")).await.expect("a connection");
        client.write_all(b"unread").await.expect("room");
        let (served, _) = listener.accept().await.expect("the connection");
        let watch = Watch::new();
        let over = async |within| {
            let idle = Duration::from_secs(900);
            timeout(Duration::from_secs(within), watch.is_over(served.as_raw_fd(), idle)).await.is_ok()
        };
        assert!(!over(300).await, "it may say more");
        drop(client);
        assert!(over(130).await);
    }
}
