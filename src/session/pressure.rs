//! How many workers to keep ready: as many as asked for, and fewer while the machine is short of memory.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use procfs::{Current, MemoryPressure};

/// How long one look at the pressure holds, in milliseconds.
const HOLDS_MS: u64 = 1000;

/// Share of the last ten seconds in which some task waited for memory, in percent, from which on it is short.
const SHORT: f32 = 10.0;

#[derive(Debug)]
pub(super) struct Depth {
    wanted: usize,
    begun: Instant,
    /// When the next look is due, in milliseconds since `begun`.
    due_ms: AtomicU64,
    is_short: AtomicBool,
}

impl Depth {
    pub(super) fn of(wanted: usize) -> Self {
        Self { wanted, begun: Instant::now(), due_ms: AtomicU64::new(0), is_short: AtomicBool::new(false) }
    }

    /// How many shall be ready now.
    pub(super) fn now(&self) -> usize {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now >= self.due_ms.load(Relaxed) {
            self.due_ms.store(now.saturating_add(HOLDS_MS), Relaxed);
            // Kernels without pressure information never say that memory is short.
            let pressure = MemoryPressure::current().map_or(0.0, |pressure| pressure.some.avg10);
            self.is_short.store(pressure >= SHORT, Relaxed);
        }
        under(self.wanted, self.is_short.load(Relaxed))
    }
}

fn under(wanted: usize, is_short: bool) -> usize {
    if is_short { wanted / 2 } else { wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_are_kept_while_memory_is_short() {
        assert_eq!([under(4, false), under(4, true), under(1, true), under(0, false)], [4, 2, 0, 0]);
    }

    #[test]
    fn the_pressure_is_not_read_for_every_command() {
        let depth = Depth::of(3);
        depth.now();
        depth.is_short.store(true, Relaxed);
        assert_eq!(depth.now(), 1, "the answer of less than a second ago still holds");
    }
}
