//! The numbers of a session, and the guard that counts a command.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The numbers of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Fully confined workers that wait for a command.
    pub ready: usize,
    /// Running commands.
    pub running: usize,
    /// Ended commands that left processes in the background, which still run.
    pub background: usize,
    /// Commands that a worker received and that have ended, including those whose program could not start.
    pub served: u64,
    /// The average time from the fork of a worker until it was ready.
    #[serde(rename = "refill_us", with = "microseconds")]
    pub refill: Duration,
}

mod microseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_micros)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) running: AtomicUsize,
    pub(crate) served: AtomicU64,
    refills: AtomicU64,
    refill_us: AtomicU64,
}

impl Counts {
    pub(crate) fn refilled(&self, took_us: u64) {
        self.refills.fetch_add(1, Relaxed);
        self.refill_us.fetch_add(took_us, Relaxed);
    }

    pub(crate) fn stats(&self, ready: usize, background: usize) -> Stats {
        let refills = self.refills.load(Relaxed).max(1);
        Stats {
            ready,
            background,
            running: self.running.load(Relaxed),
            served: self.served.load(Relaxed),
            refill: Duration::from_micros(self.refill_us.load(Relaxed) / refills),
        }
    }
}
