//! The numbers of a session, and the guard of those who use it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sys::locked;

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
    /// How long nobody has used the session; `None` while somebody does, and from a session of an older
    /// version. It is used while a command runs or a client asks it for something else than what is known
    /// about it. Processes that ended commands left do not count, nor a shell that waits for a snippet.
    #[serde(rename = "idle_ms", with = "milliseconds", default)]
    pub idle: Option<Duration>,
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

mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

/// Who uses a session.
#[derive(Debug)]
struct Users {
    count: usize,
    /// When the last one ended.
    since: Instant,
}

impl Default for Users {
    fn default() -> Self {
        Self { count: 0, since: Instant::now() }
    }
}

/// Keeps a session from being idle.
#[derive(Debug)]
pub(crate) struct Using(Arc<Counts>);

impl Using {
    pub(crate) fn new(counts: &Arc<Counts>) -> Self {
        counts.use_begins();
        Self(Arc::clone(counts))
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        self.0.use_ends();
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    running: AtomicUsize,
    served: AtomicU64,
    refills: AtomicU64,
    refill_us: AtomicU64,
    users: Mutex<Users>,
}

impl Counts {
    /// The keeper of a shell is not what uses the session.
    pub(crate) fn command_begins(&self, is_keeper: bool) {
        self.running.fetch_add(1, Relaxed);
        if !is_keeper {
            self.use_begins();
        }
    }

    pub(crate) fn command_ends(&self, is_keeper: bool) {
        self.running.fetch_sub(1, Relaxed);
        self.served.fetch_add(1, Relaxed);
        if !is_keeper {
            self.use_ends();
        }
    }

    /// How many commands run.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Relaxed)
    }

    fn use_begins(&self) {
        locked(&self.users).count += 1;
    }

    fn use_ends(&self) {
        let mut users = locked(&self.users);
        users.count -= 1;
        users.since = Instant::now();
    }

    pub(crate) fn refilled(&self, took_us: u64) {
        self.refills.fetch_add(1, Relaxed);
        self.refill_us.fetch_add(took_us, Relaxed);
    }

    pub(crate) fn idle(&self) -> Option<Duration> {
        let users = locked(&self.users);
        (users.count == 0).then(|| users.since.elapsed())
    }

    pub(crate) fn stats(&self, ready: usize, background: usize) -> Stats {
        let refills = self.refills.load(Relaxed).max(1);
        Stats {
            ready,
            background,
            running: self.running.load(Relaxed),
            served: self.served.load(Relaxed),
            refill: Duration::from_micros(self.refill_us.load(Relaxed) / refills),
            idle: self.idle(),
        }
    }
}
