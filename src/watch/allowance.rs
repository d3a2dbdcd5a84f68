//! What may be removed when a command is undone: nothing that was there before it, and no more than takes a moment. The
//! thread that undoes may be the only one of the program around us.

use std::{
    cell::Cell,
    io,
    time::{Duration, Instant},
};

use nix::errno::Errno;

use super::Moment;
use crate::sys::Times;

/// Looks at entries, two at least at each that is removed: some 100 ms for all that one command has left. Counted, so that
/// it comes out the same each time.
const MOST_LOOKS: u32 = 1 << 13;

/// Blocks of 512 bytes that are freed in about the time that one look takes: a file that takes up 256 MiB is too much.
const BLOCKS_A_LOOK: u64 = 1 << 7;

/// How long it may take in any case: in a directory with FS_DIRSYNC_FL, which a command may give its own, each removal waits
/// for the disk.
const MOST_TIME: Duration = Duration::from_millis(250);

/// What may be removed after one command.
#[derive(Debug)]
pub(super) struct Allowance {
    since: Moment,
    looks: Cell<u32>,
    /// Nothing is removed after that.
    until: Option<Instant>,
}

impl Allowance {
    pub(super) fn of(since: Moment) -> Self {
        Self { since, looks: Cell::new(MOST_LOOKS), until: Instant::now().checked_add(MOST_TIME) }
    }

    /// One of which no time is left.
    #[cfg(test)]
    pub(super) fn over(since: Moment) -> Self {
        Self { until: Some(Instant::now()), ..Self::of(since) }
    }

    /// As much once more.
    pub(super) fn again(&self) -> Self {
        Self::of(self.since)
    }

    /// Whether what has these times was not there before.
    pub(super) fn is_new(&self, times: &Times) -> bool {
        self.since.check(times).is_ok()
    }

    /// Counts one look.
    ///
    /// # Errors
    /// `E2BIG` where there were too many, or the time is up.
    pub(super) fn look(&self) -> io::Result<()> {
        self.take(1)
    }

    fn take(&self, looks: u32) -> io::Result<()> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Err(Errno::E2BIG.into());
        }
        self.looks.set(self.looks.get().checked_sub(looks).ok_or(Errno::E2BIG)?);
        Ok(())
    }

    /// Does `looking`, so that as much can be looked at once more: what is begun shall be ended.
    ///
    /// # Errors
    /// Those of `looking`; `E2BIG`.
    pub(super) fn twice(&self, looking: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let before = self.looks.get();
        looking()?;
        let left = self.looks.get();
        if left < before.saturating_sub(left) { Err(Errno::E2BIG.into()) } else { Ok(()) }
    }

    /// # Errors
    /// What has these times was there before, or there is too much.
    pub(super) fn check<'t>(&self, times: &'t Times) -> io::Result<&'t Times> {
        self.take(u32::try_from(times.blocks / BLOCKS_A_LOOK).unwrap_or(u32::MAX).saturating_add(1))?;
        self.since.check(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_much_is_looked_at_and_no_longer() {
        let is_over = |allowance: &Allowance| {
            allowance.look().is_err_and(|error| error.raw_os_error() == Some(libc::E2BIG))
        };
        let allowance = Allowance::of(Moment::now());
        assert!((0..=MOST_LOOKS).any(|_| is_over(&allowance)) && is_over(&allowance));
        assert!(!is_over(&allowance.again()));
        assert!(is_over(&Allowance::over(Moment::now())));
    }

    #[test]
    fn what_takes_up_much_counts_for_much() {
        let since = Moment::now();
        let of = |bytes: u64| {
            let (changed, blocks) = ((i64::MAX, 0), bytes / 512);
            Allowance::of(since).check(&Times { changed, born: None, is_directory: false, blocks }).map(drop)
        };
        assert!(of(0).is_ok() && of(64 << 20).is_ok());
        assert!(of(1 << 30).is_err() && of(1 << 50).is_err());
    }
}
