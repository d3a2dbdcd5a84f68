//! The clock that the kernel stamps files with: it advances in ticks, and some file systems store coarser
//! times.

use std::os::fd::OwnedFd;
use std::time::Duration;
use std::{io, thread};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::time::{ClockId, clock_gettime};

use crate::sys::file_system::FileSystem;

/// A file time: seconds and nanoseconds.
pub(crate) type Stamp = (i64, i64);

/// How long to wait for the file clock. It ticks at least a hundred times a second.
const TICK: Duration = Duration::from_millis(1);
const MAX_TICKS: u32 = 50;

/// How many parent directories `is_coarse` looks at.
const MAX_PARENTS: usize = 16;

/// The coarsest rounding of file times, in seconds.
const MAX_ROUNDING: i64 = 2;

/// Whether the file system of a directory appears to store whole seconds only.
///
/// It looks at the change time, which no program can set. That can be a whole second by chance, so it also
/// looks at the type of the file system and at the parent directories.
pub(crate) fn is_coarse(directory: &OwnedFd) -> io::Result<bool> {
    if FileSystem::of(directory)?.stores_nanoseconds() {
        return Ok(false);
    }
    let mut directory = directory.try_clone()?;
    for _ in 0..MAX_PARENTS {
        let stat = fstat(&directory)?;
        if stat.st_ctime_nsec != 0 {
            return Ok(false);
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let Ok(above) = openat(&directory, "..", flags, Mode::empty()) else { break };
        let next = fstat(&above)?;
        if next.st_dev != stat.st_dev || next.st_ino == stat.st_ino {
            break;
        }
        directory = above;
    }
    Ok(true)
}

/// The file clock's time, once it is later than `begun`.
fn later_than(begun: Stamp) -> Option<Stamp> {
    let now = read(ClockId::CLOCK_REALTIME_COARSE);
    (now > begun).then_some(now)
}

fn read(clock: ClockId) -> Stamp {
    clock_gettime(clock).map(|time| (time.tv_sec(), time.tv_nsec())).unwrap_or_default()
}

/// Waits for a tick and returns the new time: everything changed before this call has an earlier time.
pub(crate) async fn now_of_files() -> Stamp {
    let begun = read(ClockId::CLOCK_REALTIME);
    for _ in 0..MAX_TICKS {
        if let Some(now) = later_than(begun) {
            return now;
        }
        tokio::time::sleep(TICK).await;
    }
    begun
}

/// Waits for a tick, as [`now_of_files`] does: what changes after this call has a later time than what
/// changed before it.
pub(crate) fn wait_for_tick() -> Stamp {
    let begun = read(ClockId::CLOCK_REALTIME);
    for _ in 0..MAX_TICKS {
        if let Some(now) = later_than(begun) {
            return now;
        }
        thread::sleep(TICK);
    }
    begun
}

/// Whether something with this change time may have changed at or after `since`.
///
/// File systems that store whole seconds (ext4 with small inodes) or every second one (FAT) round down, so
/// this prefers a false conflict. On other file systems a whole second is taken as exact: with 4 ms ticks,
/// every 250th change has one.
pub(crate) fn is_since(since: Stamp, (seconds, nanos): Stamp, is_coarse: bool) -> bool {
    if is_coarse && nanos == 0 { seconds >= since.0 - MAX_ROUNDING } else { (seconds, nanos) >= since }
}

pub(crate) fn changed(stat: &FileStat) -> Stamp {
    (stat.st_ctime, stat.st_ctime_nsec)
}

pub(crate) fn modified(stat: &FileStat) -> Stamp {
    (stat.st_mtime, stat.st_mtime_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rounded_time_counts_as_a_conflict() {
        let since = (100, 500);
        for (changed, expected) in [
            ((100, 499), false),
            ((100, 500), true),
            ((101, 1), true),
            ((99, 999_999_999), false),
            // 100.9 rounded down to one second, and to two.
            ((100, 0), true),
            ((98, 0), true),
            ((97, 0), false),
        ] {
            assert_eq!(is_since(since, changed, true), expected, "{changed:?}");
        }
        for (changed, expected) in [((100, 0), false), ((101, 0), true), ((100, 500), true)] {
            assert_eq!(is_since(since, changed, false), expected, "{changed:?}");
        }
    }
}
