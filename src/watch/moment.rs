//! Moments by the clock that files are stamped by: what was there at one, and what was made or changed since.

use std::io;

use nix::time::{ClockId, clock_gettime};

use crate::sys::Times;

/// A moment before which nothing is the command's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    seconds: i64,
    nanos: i64,
}

impl Moment {
    /// The moment that files which are made now are stamped with, at the earliest. No system call: the vDSO knows it.
    pub(crate) fn now() -> Self {
        // Where it cannot be told, nothing is new.
        let unknown = Self { seconds: i64::MAX, nanos: 0 };
        clock_gettime(ClockId::CLOCK_REALTIME_COARSE)
            .map_or(unknown, |now| Self { seconds: now.tv_sec(), nanos: now.tv_nsec() })
    }

    /// Whether that happened at it or later. Times without a fraction may be those of a file system that keeps no more
    /// than seconds.
    fn is_reached_by(self, (seconds, nanos): (i64, i64)) -> bool {
        if nanos == 0 { seconds >= self.seconds } else { (seconds, nanos) >= (self.seconds, self.nanos) }
    }

    /// Whether what is changed now may get that very change time. A file system that keeps no more than seconds cannot be
    /// waited for.
    pub(crate) fn may_stamp_again(self, changed: (i64, i64)) -> bool {
        changed.1 != 0 && self.is_reached_by(changed) && changed.0 <= self.seconds.saturating_add(1)
    }

    /// Whether what has these times was not there before. To be renamed is a change to most file systems, so the time of
    /// birth counts where there is one.
    fn is_new(self, times: &Times) -> bool {
        self.is_reached_by(times.changed) && times.born.is_none_or(|born| self.is_reached_by(born))
    }

    /// # Errors
    /// What has these times was there before.
    pub(super) fn check(self, times: &Times) -> io::Result<&Times> {
        if self.is_new(times) {
            return Ok(times);
        }
        Err(io::Error::other("something in it was there before the command"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_is_what_was_made_and_changed_since() {
        let since = Moment { seconds: 100, nanos: 500 };
        for (changed, born, expected) in [
            ((100, 500), None, true),
            ((100, 499), None, false),
            ((100, 0), None, true),
            ((99, 0), None, false),
            ((101, 1), Some((100, 501)), true),
            ((101, 1), Some((100, 499)), false),
            ((99, 1), Some((101, 1)), false),
        ] {
            let times = Times { changed, born, is_directory: false, blocks: 0 };
            assert_eq!(since.is_new(&times), expected, "{times:?}");
        }
    }

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
