//! Numbers of a session, and the guard that keeps them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use crate::command::source::Membership;
use crate::launch::inside::Inside;
use crate::network::serving::Witness;
use crate::report::enforcement::Enforcement;
use crate::session::live::Live;

/// How a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Workers that wait for a command, fully confined.
    pub ready: usize,
    /// Commands that run now.
    pub running: usize,
    /// Commands that were given to a worker and have ended, also those whose program could not be started.
    pub served: u64,
    /// How long the zygote took to make a worker, from fork to ready, on average so far.
    pub refill: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    running: AtomicUsize,
    served: AtomicU64,
    refills: AtomicU64,
    refill_us: AtomicU64,
}

impl Counts {
    pub(crate) fn refilled(&self, took_us: u64) {
        self.refills.fetch_add(1, Relaxed);
        self.refill_us.fetch_add(took_us, Relaxed);
    }

    pub(crate) fn stats(&self, ready: usize) -> Stats {
        let refills = self.refills.load(Relaxed).max(1);
        Stats {
            ready,
            running: self.running.load(Relaxed),
            served: self.served.load(Relaxed),
            refill: Duration::from_micros(self.refill_us.load(Relaxed) / refills),
        }
    }
}

/// Counts a command as running in its session for as long as it exists.
#[derive(Debug)]
pub(crate) struct CountedCommand {
    live: Arc<Live>,
}

impl CountedCommand {
    pub(crate) fn new(live: Arc<Live>) -> Self {
        live.counts().running.fetch_add(1, Relaxed);
        Self { live }
    }
}

impl Membership for CountedCommand {
    fn enforcement(&self) -> Enforcement {
        self.live.enforcement()
    }

    fn refilled(&self, took_us: u64) {
        self.live.counts().refilled(took_us);
    }

    fn keep(&self, inside: Inside) {
        self.live.keep(inside);
    }

    fn witness(&self) -> Option<Witness> {
        self.live.witness()
    }

    fn session_has_ended(&self) -> bool {
        self.live.has_ended()
    }
}

impl Drop for CountedCommand {
    fn drop(&mut self) {
        let counts = self.live.counts();
        counts.running.fetch_sub(1, Relaxed);
        counts.served.fetch_add(1, Relaxed);
    }
}
