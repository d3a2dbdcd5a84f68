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

    /// Returns once nothing has passed for too long, and nothing will: the client has ended its side, or takes nothing of
    /// what there is for it. (Of an answer that is not there yet nobody takes anything.) `socket` is that of a `Watched`,
    /// which must live as long as this is waited for.
    pub(super) async fn is_over(&self, socket: RawFd, idle: Duration) {
        // At its end there is nothing to see, and nothing is to come.
        let has_ended = || recv(socket, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) == Ok(0);
        let is_stuck = || self.is_full.load(Relaxed);
        tokio::select! {
            () = self.silent(HALF_OPEN.min(idle), has_ended) => {}
            () = self.silent(idle, is_stuck) => {}
        }
    }

    /// Returns once nothing has passed for so long, where `nothing_will` says that this is for ever.
    async fn silent(&self, time: Duration, nothing_will: impl Fn() -> bool) {
        loop {
            self.tally.idle(time).await;
            if nothing_will() {
                return;
            }
            sleep(time).await;
        }
    }
}
