//! The outside's hold on a reaper: a process that removes a group once this program is gone, however that ended.

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    time::Duration,
};

use nix::poll::PollTimeout;
use tokio::io::Interest;

use super::group::Parent;
use crate::{
    Error,
    afterwards::{Home, drop_at_end},
    compile::cgroup::GroupPlan,
    start::{self, Images},
    sys,
};

/// How long the last drop waits for a reaper that was let go, in milliseconds. It outlives that where it has more to do.
const LAST_WAIT: u16 = 200;

/// How long a call waits that can.
const PATIENCE: Duration = Duration::from_secs(1);

/// A reaper. Dropping it lets it go: it removes what is left, and ends.
#[derive(Debug)]
pub(super) struct Reaper {
    /// Taken at the end, which the reaper waits for.
    control: Option<OwnedFd>,
    left: Option<Left>,
    home: Home,
}

impl Reaper {
    pub(super) fn start(
        images: &Images,
        plan: &GroupPlan,
        parent: &Parent,
        name: &str,
    ) -> Result<Self, Error> {
        let (control, pidfd) = start::start_reaper(images, &plan.reaper, name, parent.as_fd())?;
        Ok(Self { control: Some(control), left: Some(Left { pidfd }), home: Home::here() })
    }

    /// Lets it go, and waits until it has ended, a second at most.
    pub(super) async fn gone(mut self) {
        drop(self.control.take());
        let Some(left) = self.left.take() else { return };
        if let Ok(left) = sys::watched(left, Interest::READABLE) {
            let _ = tokio::time::timeout(PATIENCE, left.readable()).await;
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        drop(self.control.take());
        let Some(left) = self.left.take() else { return };
        drop_at_end(left, self.home);
    }
}

/// A reaper that was let go. Dropping this takes its zombie away, if it is one by then.
#[derive(Debug)]
struct Left {
    pidfd: OwnedFd,
}

impl AsRef<OwnedFd> for Left {
    fn as_ref(&self) -> &OwnedFd {
        &self.pidfd
    }
}

impl AsRawFd for Left {
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        sys::has_ended(&self.pidfd, PollTimeout::from(LAST_WAIT));
        sys::reap(&self.pidfd);
    }
}
