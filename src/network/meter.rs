//! Traffic counters: one for each connection, and one with limits for the sandbox.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;

use crate::sys::locked;

/// What all connections of a sandbox may transfer together.
pub(crate) struct Meter {
    bytes: Option<u64>,
    passed: AtomicU64,
    rate: Option<Rate>,
}

/// A limit in bytes per second, kept as the time at which the next byte is due.
struct Rate {
    per_second: u64,
    due: Mutex<Instant>,
}

/// How far a stream may be ahead of its rate, so that it need not sleep after each packet.
const SLACK: Duration = Duration::from_millis(50);

impl Meter {
    pub(crate) fn new(bytes: Option<u64>, rate: Option<u64>) -> Self {
        let rate = rate.map(|per_second| Rate { per_second, due: Mutex::new(Instant::now()) });
        Self { bytes, passed: AtomicU64::new(0), rate }
    }

    /// Counts bytes. Returns when the next bytes may pass, if that is later. `None` if the limit is exceeded.
    pub(crate) fn count(&self, bytes: usize) -> Option<Option<Instant>> {
        let bytes = bytes as u64;
        let passed = self.passed.fetch_add(bytes, Relaxed) + bytes;
        if self.bytes.is_some_and(|most| passed > most) {
            return None;
        }
        Some(self.rate.as_ref().and_then(|rate| rate.delay(bytes)))
    }

    /// How many bytes may still pass.
    pub(crate) fn room(&self) -> usize {
        let left = |most: u64| most.saturating_sub(self.passed.load(Relaxed));
        self.bytes.map_or(usize::MAX, |most| usize::try_from(left(most)).unwrap_or(usize::MAX))
    }

    /// Whether the byte limit is used up.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.bytes.is_some_and(|most| self.passed.load(Relaxed) >= most)
    }
}

impl Rate {
    fn delay(&self, bytes: u64) -> Option<Instant> {
        let now = Instant::now();
        let mut due = locked(&self.due);
        let takes = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.per_second);
        *due = (*due).max(now) + takes;
        (*due > now + SLACK).then_some(*due)
    }
}

/// How long a connection may be silent after the client has closed its sending side. A killed command looks
/// the same, and must not occupy a connection slot.
pub(crate) const HALF_OPEN: Duration = Duration::from_secs(60);

/// The traffic of one connection, and the time of its last byte.
pub(crate) struct Traffic {
    pub(crate) up: AtomicU64,
    pub(crate) down: AtomicU64,
    begun: Instant,
    /// Milliseconds since `begun`.
    last: AtomicU64,
}

/// The direction of a transfer, seen from the client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

impl Traffic {
    pub(crate) fn new() -> Self {
        Self {
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            begun: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    pub(crate) fn add(&self, direction: Direction, bytes: usize) {
        let counter = if direction == Direction::Up { &self.up } else { &self.down };
        counter.fetch_add(bytes as u64, Relaxed);
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Relaxed);
    }

    pub(crate) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns once nothing has passed for `time`.
    pub(crate) async fn idle(&self, time: Duration) {
        loop {
            let last = self.begun + Duration::from_millis(self.last.load(Relaxed));
            let end = last + time;
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }

    /// Returns once nothing has passed for `time` and `nothing_will` says that nothing will pass again.
    pub(crate) async fn silent(&self, time: Duration, nothing_will: impl Fn() -> bool) {
        loop {
            self.idle(time).await;
            if nothing_will() {
                return;
            }
            tokio::time::sleep(time).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_are_counted_to_the_last() {
        let meter = Meter::new(Some(100), None);
        assert_eq!((meter.room(), meter.count(60), meter.is_exhausted()), (100, Some(None), false));
        assert_eq!(meter.room(), 40);
        assert_eq!((meter.count(40), meter.is_exhausted()), (Some(None), true));
        assert_eq!((meter.count(1), meter.room()), (None, 0));
        let unbounded = Meter::new(None, None);
        assert_eq!((unbounded.count(usize::MAX >> 1), unbounded.is_exhausted()), (Some(None), false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_holds_over_time() {
        let meter = Meter::new(None, Some(1000));
        let begun = Instant::now();
        for _ in 0..50 {
            if let Some(until) = meter.count(100).expect("no bound") {
                tokio::time::sleep_until(until).await;
            }
        }
        let took = begun.elapsed();
        assert!((Duration::from_millis(4900)..Duration::from_millis(5200)).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_is_from_the_last_byte_on() {
        let traffic = Traffic::new();
        let begun = Instant::now();
        tokio::join!(traffic.idle(Duration::from_secs(10)), async {
            tokio::time::sleep(Duration::from_secs(7)).await;
            traffic.add(Direction::Up, 1);
        });
        let took = begun.elapsed();
        assert!((Duration::from_secs(17)..Duration::from_secs(18)).contains(&took), "{took:?}");
    }
}
