//! What is done when a process has ended for which nobody waits.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    thread,
};

use nix::poll::PollTimeout;
use tokio::{
    io::Interest,
    runtime::{Handle, Id},
};

use crate::sys;

/// The runtime that something was started in, which has I/O: without that it cannot be waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home(Option<Id>);

impl Home {
    pub(crate) fn here() -> Self {
        Self(Handle::try_current().ok().map(|runtime| runtime.id()))
    }
}

/// Drops `left` once the process has ended whose pidfd it has: in the background in the runtime that it comes from. Another one
/// may have no I/O, where to ask for it is a panic: then on a thread. Here where there is no runtime.
pub(crate) fn drop_at_end<T>(left: T, home: Home)
where
    T: AsRawFd + AsRef<OwnedFd> + Send + Sync + 'static,
{
    if sys::has_ended(left.as_ref(), PollTimeout::ZERO) {
        return;
    }
    let Ok(runtime) = Handle::try_current() else { return };
    if home.0 == Some(runtime.id()) {
        runtime.spawn(async move {
            if let Ok(left) = sys::watched(left, Interest::READABLE) {
                let _ = left.readable().await;
            }
        });
        return;
    }
    let thread = thread::Builder::new().name("kennel-end".to_owned());
    // Where there is no room for one it is dropped here.
    let _ = thread.spawn(move || sys::has_ended(left.as_ref(), PollTimeout::NONE));
}
