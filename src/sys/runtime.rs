//! Descriptors and blocking calls on the runtime of tokio.

use std::io;
use std::os::fd::AsRawFd;

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdRegisterError};

/// Registers a descriptor with the tokio runtime. Only for types of this crate that own one descriptor for
/// life.
///
/// # Errors
/// `ENOSPC` if the user is at the limit fs.epoll.max_user_watches.
pub(crate) fn watched<T: AsRawFd>(inner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    watched_or_back(inner, interest).map_err(io::Error::from)
}

/// Like [`watched`], but the error returns `inner`.
pub(crate) fn watched_or_back<T: AsRawFd>(
    inner: T,
    interest: Interest,
) -> Result<AsyncFd<T>, AsyncFdRegisterError<T>> {
    // SAFETY: `CommandInit`, `Unreaped`, `HeldFd`, `OwnedFd`, `File`, sockets, and `Arc`s of them keep the
    // descriptor of as_raw_fd open until they are dropped, and none of them replaces it.
    unsafe { AsyncFd::register_with_interest(inner, interest) }
}

/// Runs `act` on a blocking thread.
pub(crate) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::task::spawn_blocking(act).await {
        Ok(done) => done,
        Err(error) => Err(io::Error::other(error)),
    }
}
