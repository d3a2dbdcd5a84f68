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

use nix::sys::socket::{MsgFlags, recv};
use tokio::{net::TcpStream, time::sleep};

use super::{
    counted::{Count, Counted},
    meter::{Heading, Tally},
    relay::HALF_OPEN,
};

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

    /// Returns once nothing has passed for too long, and nothing will. `socket` is that of a `Watched`, which must live as
    /// long as this is waited for.
    pub(super) async fn is_over(&self, socket: RawFd, idle: Duration) {
        tokio::select! {
            () = self.is_left(socket, HALF_OPEN.min(idle)) => {}
            () = self.is_stuck(idle) => {}
        }
    }

    /// Returns once the client has ended its side and nothing has passed for so long.
    async fn is_left(&self, socket: RawFd, time: Duration) {
        loop {
            self.tally.idle(time).await;
            // At its end there is nothing to see, and nothing is to come.
            let seen = recv(socket, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
            if seen == Ok(0) {
                return;
            }
            sleep(time).await;
        }
    }

    /// Returns once the client has taken nothing for so long. Of an answer that is not there yet nobody takes anything.
    async fn is_stuck(&self, time: Duration) {
        loop {
            self.tally.idle(time).await;
            if self.is_full.load(Relaxed) {
                return;
            }
            sleep(time).await;
        }
    }
}
