//! The clock that files are stamped by: it ticks, and some file systems keep less of it than it has.

use std::os::fd::OwnedFd;
use std::time::Duration;
use std::{io, thread};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, FsType, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs};
use nix::time::{ClockId, clock_gettime};

/// A time as files have it: seconds and nanoseconds.
pub(crate) type Stamp = (i64, i64);

/// How long the clock of files is waited for. It ticks a hundred times a second, or more often.
const TICK: Duration = Duration::from_millis(1);
const MOST_TICKS: u32 = 50;

/// File systems that keep nanoseconds.
const FINE: [FsType; 3] = [TMPFS_MAGIC, BTRFS_SUPER_MAGIC, XFS_SUPER_MAGIC];

/// How many directories above tell what times a file system keeps.
const MOST_ABOVE: usize = 16;

/// What times of files are rounded to at most, in seconds.
const COARSEST: i64 = 2;

/// Whether the file system of a directory keeps no more than seconds, as far as can be seen: its change time tells, which
/// nobody sets as he likes. By chance that is a whole second too; then the kind of file system tells, and those of the
/// directories above.
pub(crate) fn is_coarse(directory: &OwnedFd) -> io::Result<bool> {
    if FINE.contains(&fstatfs(directory)?.filesystem_type()) {
        return Ok(false);
    }
    let mut directory = directory.try_clone()?;
    for _ in 0..MOST_ABOVE {
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

/// What the clock of files says, once that is later than `begun`.
fn later_than(begun: Stamp) -> Option<Stamp> {
    let now = read(ClockId::CLOCK_REALTIME_COARSE);
    (now > begun).then_some(now)
}

fn read(clock: ClockId) -> Stamp {
    clock_gettime(clock).map(|time| (time.tv_sec(), time.tv_nsec())).unwrap_or_default()
}

/// A time of the clock that files are stamped by, which ticks, such that whatever was changed before this call has an
/// earlier one.
pub(crate) async fn now_of_files() -> Stamp {
    let begun = read(ClockId::CLOCK_REALTIME);
    for _ in 0..MOST_TICKS {
        if let Some(now) = later_than(begun) {
            return now;
        }
        tokio::time::sleep(TICK).await;
    }
    begun
}

/// Waits until that clock has gone on: what is changed after this call has a later time than what was changed before.
pub(crate) fn wait_for_tick() {
    let begun = read(ClockId::CLOCK_REALTIME);
    for _ in 0..MOST_TICKS {
        if later_than(begun).is_some() {
            return;
        }
        thread::sleep(TICK);
    }
}

/// Whether something that was changed at that time may have been changed `since`. File systems that keep no more than
/// seconds (ext4 with small inodes), or every other one (FAT), round down: rather a conflict too many. On others a whole
/// second is one; where the clock goes in ticks of 4 ms and nothing finer, every 250th change is at one.
pub(crate) fn is_since(since: Stamp, (seconds, nanos): Stamp, is_coarse: bool) -> bool {
    if is_coarse && nanos == 0 { seconds >= since.0 - COARSEST } else { (seconds, nanos) >= since }
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
    fn times_that_were_rounded_are_rather_a_conflict() {
        let since = (100, 500);
        for (changed, expected) in [
            ((100, 499), false),
            ((100, 500), true),
            ((101, 1), true),
            ((99, 999_999_999), false),
            // 100.9 in whole seconds, and in every other one.
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
