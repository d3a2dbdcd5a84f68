//! The outside's hold on a reaper: a process that removes a group once this program is gone, however that ended.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use tokio::io::Interest;

use super::group::Parent;
use crate::{
    Error,
    afterwards::{Home, Left},
    compile::cgroup::GroupPlan,
    start::{self, Images},
    sys,
};

/// How long a call waits that can.
const PATIENCE: Duration = Duration::from_secs(1);

/// A reaper. Dropping it lets it go: it removes what is left, and ends.
#[derive(Debug)]
pub(super) struct Reaper {
    /// Taken at the end, which the reaper waits for.
    control: Option<OwnedFd>,
    left: Option<Left<()>>,
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
        Ok(Self { control: Some(control), left: Some(Left::of(Arc::new(pidfd), ())), home: Home::here() })
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
        if let Some(left) = self.left.take() {
            left.drop_at_end(self.home);
        }
    }
}
