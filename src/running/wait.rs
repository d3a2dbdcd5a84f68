//! What is waited for while a command runs, besides what init says.

use std::{future::pending, os::fd::OwnedFd, sync::Arc};

use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant as Deadline, sleep_until},
};

use crate::{flood::Flood, inside::Inside, sys};

/// Sleeps until `deadline`; forever where there is none.
pub(super) async fn until(deadline: Option<Deadline>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Waits until init has ended; forever where that cannot be watched. Put under watch last, when all else is waited for: that is
/// done while the command works.
pub(super) async fn ended(init: &mut Option<AsyncFd<Arc<OwnedFd>>>, inside: &Inside) {
    if init.is_none() {
        let pidfd = inside.pidfd().map(Arc::clone);
        *init = pidfd.and_then(|pidfd| sys::watched(pidfd, Interest::READABLE).ok());
    }
    match init {
        Some(init) if init.readable().await.is_ok() => {}
        _ => pending().await,
    }
}

/// Waits until the command has written too much; forever where that does not end it.
pub(super) async fn flooded(flood: Option<&Flood>) {
    match flood {
        Some(flood) => flood.wait().await,
        None => pending().await,
    }
}
