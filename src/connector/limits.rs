//! The limits of a call.

use std::time::Duration;

use wasmtime::ResourceLimiter;

use crate::broker::manifest::Manifest;

/// The limits of one call. `None` means the manifest's value, or the default. Values above the maximum become
/// the maximum.
///
/// ```
/// use std::time::Duration;
/// use kennel::connector::{Call, CallLimits};
///
/// let limits = CallLimits { memory_bytes: Some(16 << 20), wall_time: Some(Duration::from_secs(5)) };
/// let call = Call::new("list").limits(limits);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// Memory of the program, in bytes, rounded up to pages of 64 KiB: 64 MiB by default, 1 GiB at most.
    pub memory_bytes: Option<u64>,
    /// Wall time of the call with all its requests and spawns: 30 s by default, 5 min at most.
    pub wall_time: Option<Duration>,
}

/// A page of WebAssembly, in bytes.
const PAGE: u64 = 64 << 10;

const DEFAULT_MEMORY: u64 = 64 << 20;
/// The most memory that a program can have, in bytes.
pub(crate) const MAX_MEMORY: u64 = 1 << 30;

const DEFAULT_WALL_TIME: Duration = Duration::from_secs(30);
const MAX_WALL_TIME: Duration = Duration::from_secs(300);

/// The entries that all tables of a program may have together.
pub(crate) const MAX_TABLE: usize = 100_000;
/// The handles of resources that a component may have at the same time.
pub(crate) const MAX_HANDLES: usize = 10_000;

/// The limits in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitsInForce {
    pub(crate) memory: usize,
    pub(crate) wall_time: Duration,
}

impl LimitsInForce {
    pub(crate) fn of(call: &CallLimits, manifest: &Manifest) -> Self {
        let memory = call.memory_bytes.or(manifest.limits.memory_bytes).unwrap_or(DEFAULT_MEMORY);
        let memory = memory.min(MAX_MEMORY).next_multiple_of(PAGE);
        let wall_time = call.wall_time.or(manifest.limits.wall_seconds.map(Duration::from_secs));
        Self {
            memory: usize::try_from(memory).unwrap_or(usize::MAX),
            wall_time: wall_time.unwrap_or(DEFAULT_WALL_TIME).min(MAX_WALL_TIME),
        }
    }
}

/// Keeps the memories and tables of one instance within its limits.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_left: usize,
    table_left: usize,
    /// Whether the program asked for more than it may have.
    pub(crate) is_exceeded: bool,
}

impl Limiter {
    pub(crate) fn new(limits: LimitsInForce) -> Self {
        Self { memory_left: limits.memory, table_left: MAX_TABLE, is_exceeded: false }
    }

    fn take(left: &mut usize, growth: usize) -> bool {
        left.checked_sub(growth).inspect(|rest| *left = *rest).is_some()
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, now: usize, wanted: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let is_granted = Self::take(&mut self.memory_left, wanted.saturating_sub(now));
        self.is_exceeded |= !is_granted;
        Ok(is_granted)
    }

    fn table_growing(&mut self, now: usize, wanted: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let is_granted = Self::take(&mut self.table_left, wanted.saturating_sub(now));
        self.is_exceeded |= !is_granted;
        Ok(is_granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_then_manifest_then_default_below_the_maximum() {
        let manifest = |text: &str| Manifest::from_toml(text).expect("a manifest");
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let of = |memory_bytes, wall_time, manifest: &Manifest| {
            let LimitsInForce { memory, wall_time } =
                LimitsInForce::of(&CallLimits { memory_bytes, wall_time }, manifest);
            (memory, wall_time.as_secs())
        };
        let none = manifest("[capabilities]");
        let some = manifest("[capabilities.limits]\nmemory_bytes = 70000\nwall_seconds = 7");
        assert_eq!(of(None, None, &none), (64 << 20, 30));
        assert_eq!(of(None, None, &some), (128 << 10, 7), "rounded up to pages");
        assert_eq!(of(Some(1), seconds(9), &some), (64 << 10, 9));
        assert_eq!(of(Some(u64::MAX), Some(Duration::MAX), &some), (1 << 30, 300));
    }

    #[test]
    fn all_memories_count_together() {
        let mut limiter = Limiter::new(LimitsInForce { memory: 3 << 16, wall_time: DEFAULT_WALL_TIME });
        assert!(limiter.memory_growing(0, 1 << 16, None).expect("no error"));
        assert!(limiter.memory_growing(1 << 16, 2 << 16, None).expect("no error"));
        assert!(!limiter.is_exceeded);
        assert!(!limiter.memory_growing(0, 2 << 16, None).expect("no error"));
        assert!(limiter.is_exceeded);
        assert!(limiter.memory_growing(0, 1 << 16, None).expect("no error"), "a refused one took nothing");
    }
}
