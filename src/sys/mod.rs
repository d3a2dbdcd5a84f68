//! System calls, and files by descriptor. The only folder with `unsafe` code.
//!
//! What differs between Linux and macOS has the same name in `linux.rs` and `macos.rs`.

#![expect(unsafe_code, reason = "all raw system calls of the library are in this folder")]

#[cfg(target_os = "linux")]
pub(crate) mod birth;
#[cfg(target_os = "linux")]
pub(crate) mod closing;
pub(crate) mod descriptor;
#[cfg(target_os = "linux")]
pub(crate) mod dirfd;
#[cfg(target_os = "linux")]
pub(crate) mod file_system;
pub(crate) mod inode;
#[cfg(target_os = "linux")]
pub(crate) mod keyring;
pub(crate) mod lexical;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
pub(crate) mod mode;
#[cfg(target_os = "linux")]
pub(crate) mod packet;
#[cfg(target_os = "linux")]
pub(crate) mod parent;
pub(crate) mod path_text;
#[cfg(target_os = "linux")]
pub(crate) mod reap;
pub(crate) mod secret;
pub(crate) mod signal;

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdRegisterError};

pub(crate) use crate::sys::descriptor::received;
#[cfg(target_os = "linux")]
pub(crate) use crate::sys::linux::*;
#[cfg(target_os = "macos")]
pub(crate) use crate::sys::macos::*;

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

/// ioctl(TIOCGWINSZ): rows and columns.
pub(crate) fn window(terminal: RawFd) -> io::Result<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call writes one winsize at the address.
    let answer = unsafe { libc::ioctl(terminal, libc::TIOCGWINSZ, &raw mut size) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok((size.ws_row, size.ws_col)) }
}

/// ioctl(TIOCSWINSZ).
pub(crate) fn set_window(terminal: RawFd, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call reads one winsize at the address.
    let answer = unsafe { libc::ioctl(terminal, libc::TIOCSWINSZ, &raw const size) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Locks a mutex and ignores poisoning: between any two statements of a holder, the data of this crate's
/// locks is consistent.
pub(crate) fn locked<T: ?Sized>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
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

// SIGXFSZ: a write beyond RLIMIT_FSIZE is an error and does not kill the embedding program.

/// Calls `write` with SIGXFSZ blocked on this thread. A write beyond RLIMIT_FSIZE then fails with `EFBIG`.
///
/// # Errors
/// Those of `write`.
pub(crate) fn without_sigxfsz<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let signal = SigSet::from(Signal::SIGXFSZ);
    let before = signal.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    // If the program itself blocks the signal, it stays pending.
    if before.contains(Signal::SIGXFSZ) {
        return write();
    }
    let _unblock = Unblock;
    let written = write();
    if written.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EFBIG)) {
        take_pending(&signal);
    }
    written
}

/// Unblocks SIGXFSZ when dropped.
struct Unblock;

impl Drop for Unblock {
    fn drop(&mut self) {
        // The set is valid, so this cannot fail.
        let _ = SigSet::from(Signal::SIGXFSZ).thread_unblock();
    }
}
