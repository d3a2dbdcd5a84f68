//! What is done when a process has ended for which nobody waits.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread;

use nix::poll::PollTimeout;
use tokio::io::Interest;
use tokio::runtime::{Handle, Id};

use crate::sys;

/// How long the last drop waits for a process that was killed or let go, in milliseconds. A reaper outlives that where it has
/// more to do.
pub(crate) const LAST_WAIT: u16 = 200;

/// The runtime that something was started in, which has I/O: without that it cannot be waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuntimeHome(Option<Id>);

impl RuntimeHome {
    pub(crate) fn here() -> Self {
        Self(Handle::try_current().ok().map(|runtime| runtime.id()))
    }
}

/// A child of which the end is near, and what comes after that. Dropping this waits for the end, takes the zombie away, and drops
/// the rest.
#[derive(Debug)]
pub(crate) struct Unreaped<T> {
    pidfd: Arc<OwnedFd>,
    _after: T,
}

impl<T: Send + Sync + 'static> Unreaped<T> {
    pub(crate) fn of(pidfd: Arc<OwnedFd>, after: T) -> Self {
        Self { pidfd, _after: after }
    }

    /// Drops it once the process has ended: in the background in the runtime that it comes from. Another one may have no I/O,
    /// where to ask for it is a panic: then on a thread. Here where there is no runtime.
    pub(crate) fn drop_at_end(self, home: RuntimeHome) {
        if sys::has_ended(&self.pidfd, PollTimeout::ZERO) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if home.0 == Some(runtime.id()) {
            runtime.spawn(async move {
                if let Ok(left) = sys::watched(self, Interest::READABLE) {
                    let _ = left.readable().await;
                }
            });
            return;
        }
        let thread = thread::Builder::new().name("kennel-end".to_owned());
        // Where there is no room for one it is dropped here.
        let _ = thread.spawn(move || {
            sys::has_ended(&self.pidfd, PollTimeout::NONE);
            drop(self);
        });
    }
}

impl<T> AsRawFd for Unreaped<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

impl<T> Drop for Unreaped<T> {
    fn drop(&mut self) {
        // Whatever comes of it, there is either a zombie to take away now or nothing that could be done.
        sys::has_ended(&self.pidfd, PollTimeout::from(LAST_WAIT));
        sys::reap(&self.pidfd);
    }
}
