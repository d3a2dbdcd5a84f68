//! Which signals this process ignores. On Linux, proc(5) says so.

use std::ptr;

/// sigaction(2): the ignored signals of this process as a bit mask, lowest bit for signal 1.
#[must_use]
pub fn ignored_signals() -> u64 {
    let is_ignored = |number: i32| {
        // SAFETY: all-zero bytes are a valid value of this plain record.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call reads nothing and writes one sigaction at the address.
        let answer = unsafe { libc::sigaction(number, ptr::null(), &raw mut action) };
        answer == 0 && action.sa_sigaction == libc::SIG_IGN
    };
    (1..=31).filter(|number| is_ignored(*number)).fold(0, |mask, number| mask | 1 << (number - 1))
}
