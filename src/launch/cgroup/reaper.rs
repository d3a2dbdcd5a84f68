//! The reaper: a process that removes a cgroup once this program is gone, however it ended.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use kennel_helper::control::Role;
use kennel_helper::wire::Field;
use tokio::io::Interest;

use crate::launch::cgroup::group::ParentCgroup;
use crate::launch::control::ignore_epipe;
use crate::launch::image::{Images, SpawnedInit};
use crate::plan::cgroup::CgroupTree;
use crate::report::error::Error;
use crate::sys;
use crate::sys::birth::Placement;
use crate::sys::packet;
use crate::sys::reap::{RuntimeHome, Unreaped};

/// How long to wait for the end of a reaper.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running reaper. Dropping it makes it remove what is left, and end.
#[derive(Debug)]
pub(crate) struct Reaper {
    /// The reaper acts when this closes.
    control: Option<OwnedFd>,
    left: Option<Unreaped<()>>,
    home: RuntimeHome,
}

impl Reaper {
    /// Starts a reaper for the cgroup `name` in `parent`. The cgroup need not exist yet.
    ///
    /// # Errors
    /// Those of the start.
    pub(crate) fn start(
        images: &Images,
        plan: &CgroupTree,
        parent: &ParentCgroup,
        name: &str,
    ) -> Result<Self, Error> {
        let begin = || {
            // clone(2) without namespaces: only a process of this user namespace may remove the cgroup.
            let SpawnedInit { control, pidfd, birth, .. } = images.begin(Placement::Beside)?;
            let left = Some(Unreaped::of(Arc::new(pidfd), ()));
            let reaper = Self { control: Some(control), left, home: RuntimeHome::here() };
            Ok::<_, Error>((reaper, birth.executed()))
        };
        let (mut reaper, mut executed) = begin()?;
        for is_last in [false, true] {
            let Err(error) = executed else { break };
            images.after(error, is_last)?;
            (reaper, executed) = begin()?;
        }
        let name = CString::new(name).map_err(|error| Error::io("name a cgroup")(error.into()))?;
        // sendmsg(2) with SCM_RIGHTS of unix(7): its role, and the directory that contains the cgroup.
        let mut message = Vec::new();
        Role::Reaper { namespaces: &plan.reaper.bytes, name: &name }.put(&mut message);
        if let Some(control) = &reaper.control {
            ignore_epipe(packet::send(control, &message, &[parent.as_fd()]))
                .map_err(Error::io("hand over the first steps"))?;
        }
        Ok(reaper)
    }

    /// Closes its control socket and waits up to a second for its end.
    pub(crate) async fn gone(mut self) {
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
