//! Writing beyond a limit on the size of files: an error, and not the death of the embedding program.

use std::{io, ptr};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Does `write` on this thread, with `EFBIG` where setrlimit(2) would have SIGXFSZ end the program.
///
/// # Errors
/// Those of `write`.
pub(crate) fn without_sigxfsz<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let signal = SigSet::from(Signal::SIGXFSZ);
    let before = signal.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    // Who blocks it has it wait.
    if before.contains(Signal::SIGXFSZ) {
        return write();
    }
    let _unblock = Unblock;
    let written = write();
    if written.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EFBIG)) {
        take(&signal);
    }
    written
}

/// sigtimedwait(2) without waiting: takes a signal that waits for this thread.
fn take(signal: &SigSet) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call reads the set and the time, and writes nothing where the information would be.
    let _ = unsafe { libc::sigtimedwait(signal.as_ref(), ptr::null_mut(), &raw const now) };
}

struct Unblock;

impl Drop for Unblock {
    fn drop(&mut self) {
        // It is a valid set.
        let _ = SigSet::from(Signal::SIGXFSZ).thread_unblock();
    }
}
