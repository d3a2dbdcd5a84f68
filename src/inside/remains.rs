//! What is left when a sandbox was killed and nobody waits for its end.

use std::{
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::Arc,
};

use nix::poll::PollTimeout;

use super::LAST_WAIT;
use crate::{
    cgroup::Leaf,
    compile::footing::Footing,
    session::Hold,
    sys,
    watch::{self, Moment, Undone, Watch},
};

/// An init that was killed. Dropping this waits for its end, takes its zombie away and undoes what it left.
pub(super) struct Remains {
    pub(super) pidfd: Arc<OwnedFd>,
    pub(super) watches: Arc<[Watch]>,
    pub(super) footing: Footing,
    pub(super) since: Moment,
    /// Let go after the rest.
    pub(super) _hold: Option<Hold>,
    /// Removed after the rest, when nobody is in it any more.
    pub(super) _leaf: Option<Leaf>,
}

impl AsRef<OwnedFd> for Remains {
    fn as_ref(&self) -> &OwnedFd {
        &self.pidfd
    }
}

impl AsRawFd for Remains {
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        // Whatever comes of it, there is either a zombie to take away now or nothing that could be done.
        sys::has_ended(&self.pidfd, PollTimeout::from(LAST_WAIT));
        sys::reap(&self.pidfd);
        watch::log(&undo(&self.watches, self.since, &self.footing));
    }
}

/// Undoes what was done to watched paths, and tells of walls that somebody took away.
pub(super) fn undo(watches: &[Watch], since: Moment, footing: &Footing) -> Undone {
    let mut undone = watch::undo(watches, since);
    undone.denials.extend(footing.denials());
    undone
}
