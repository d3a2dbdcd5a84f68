//! System calls, and files by descriptor. The only folder with `unsafe` code.
//!
//! What differs between Linux and macOS has the same name in `linux.rs` and `macos.rs`.

#![expect(unsafe_code, reason = "all raw system calls of the library are in this folder")]

#[cfg(target_os = "linux")]
pub(crate) mod birth;
pub(crate) mod closing;
pub(crate) mod descriptor;
#[cfg(target_os = "linux")]
pub(crate) mod dirfd;
#[cfg(target_os = "linux")]
pub(crate) mod file_system;
#[cfg(target_os = "macos")]
pub(crate) mod ignored_signals;
pub(crate) mod inode;
#[cfg(target_os = "linux")]
pub(crate) mod keyring;
pub(crate) mod lexical;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
pub(crate) mod memory_file;
pub(crate) mod mode;
#[cfg(any(target_os = "macos", test))]
pub(crate) mod own_session;
#[cfg(target_os = "linux")]
pub(crate) mod packet;
#[cfg(target_os = "linux")]
pub(crate) mod parent;
pub(crate) mod path_text;
#[cfg(target_os = "linux")]
pub(crate) mod reap;
#[cfg(target_os = "linux")]
pub(crate) mod remove;
mod runtime;
pub(crate) mod secret;
pub(crate) mod signal;

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::unistd::Pid;

pub(crate) use crate::sys::descriptor::received;
#[cfg(target_os = "linux")]
pub(crate) use crate::sys::linux::*;
#[cfg(target_os = "macos")]
pub(crate) use crate::sys::macos::*;
pub(crate) use crate::sys::runtime::{blocking, watched, watched_or_back};

/// wait4(2): reaps a child that has ended, or waits for that. Its status, and the resources that it used,
/// including its own children that it waited for.
///
/// # Errors
/// `ECHILD`: the kernel reaped it already, because this process ignores SIGCHLD.
pub(crate) fn wait_for_child(child: Pid) -> io::Result<(ExitStatus, libc::rusage)> {
    let mut status = 0;
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: the call writes one int and one rusage at the addresses.
        let answer = unsafe { libc::wait4(child.as_raw(), &raw mut status, 0, &raw mut used) };
        match Errno::result(answer) {
            Err(Errno::EINTR) => {}
            answer => return Ok(answer.map(|_| (ExitStatus::from_raw(status), used))?),
        }
    }
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
