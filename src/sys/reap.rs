//! Waits for processes that have been killed or released, and reaps them in the background.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread;

use nix::poll::PollTimeout;
use tokio::io::Interest;
use tokio::runtime::{Handle, Id};

use crate::sys;

/// How long the last drop waits for a process that was killed or released, in milliseconds. A reaper with
/// more to do outlives that.
pub(crate) const LAST_WAIT: u16 = 200;

/// The runtime in which something was started. That runtime has I/O, so a process can be awaited there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuntimeHome(Option<Id>);

impl RuntimeHome {
    pub(crate) fn here() -> Self {
        Self(Handle::try_current().ok().map(|runtime| runtime.id()))
    }
}

/// A child that is about to end, and a value to drop after its end. Dropping this waits for the end, reaps
/// the child, and then drops the value.
#[derive(Debug)]
pub(crate) struct Unreaped<T> {
    pidfd: Arc<OwnedFd>,
    _after: T,
}

impl<T: Send + Sync + 'static> Unreaped<T> {
    pub(crate) fn of(pidfd: Arc<OwnedFd>, after: T) -> Self {
        Self { pidfd, _after: after }
    }

    /// Drops this once the process has ended. In the runtime where the process started, a task waits. Another
    /// runtime may have no I/O, and using it would panic, so there a thread waits. Without a runtime, it is
    /// dropped at once.
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
        // If no thread can start, the closure is dropped, and with it this value.
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
        // Either the process is a zombie by now, or nothing more can be done.
        sys::has_ended(&self.pidfd, PollTimeout::from(LAST_WAIT));
        sys::reap(&self.pidfd);
    }
}
