//! What may be removed when a command is undone: nothing that was there before it, and no more than takes a moment. The
//! thread that undoes may be the only one of the program around us.

use std::{cell::Cell, io};

use nix::errno::Errno;

use super::Moment;
use crate::sys::Times;

/// Looks at entries, two at least at each that is removed: some 100 ms for all that one command has left.
const MOST_LOOKS: u32 = 1 << 13;

/// What may be removed after one command.
#[derive(Debug)]
pub(super) struct Allowance {
    since: Moment,
    looks: Cell<u32>,
}

impl Allowance {
    pub(super) fn of(since: Moment) -> Self {
        Self { since, looks: Cell::new(MOST_LOOKS) }
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
    /// `E2BIG` where there were too many.
    pub(super) fn look(&self) -> io::Result<()> {
        self.looks.set(self.looks.get().checked_sub(1).ok_or(Errno::E2BIG)?);
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
        self.look()?;
        self.since.check(times)
    }
}
