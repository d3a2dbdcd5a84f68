//! Moments by the clock that files are stamped by.

use nix::time::{ClockId, clock_gettime};

/// A moment of that clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    seconds: i64,
    nanos: i64,
}

impl Moment {
    /// The moment that files which are made now are stamped with, at the earliest. No system call: the vDSO knows it.
    pub(crate) fn now() -> Self {
        let unknown = Self { seconds: i64::MAX, nanos: 0 };
        clock_gettime(ClockId::CLOCK_REALTIME_COARSE)
            .map_or(unknown, |now| Self { seconds: now.tv_sec(), nanos: now.tv_nsec() })
    }

    /// Whether what is changed now may get that very change time. A file system that keeps no more than seconds cannot be
    /// waited for.
    pub(crate) fn may_stamp_again(self, changed: (i64, i64)) -> bool {
        changed.1 != 0 && changed >= (self.seconds, self.nanos) && changed.0 <= self.seconds.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_changed_again_unseen_has_the_time_of_the_present_tick() {
        let now = Moment { seconds: 100, nanos: 500 };
        for (changed, expected) in [
            ((100, 500), true),
            ((100, 700), true),
            ((101, 1), true),
            ((100, 499), false),
            ((99, 999), false),
            ((100, 0), false),
            ((102, 1), false),
        ] {
            assert_eq!(now.may_stamp_again(changed), expected, "{changed:?}");
        }
    }
}
