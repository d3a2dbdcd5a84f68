//! What this process asks Linux about itself. `macos.rs` has the same names.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::{AsFd, AsRawFd},
    path::PathBuf,
};

use nix::sys::prctl::set_dumpable;

/// The directory of this process's descriptors: proc_pid_fd(5).
pub(super) const DESCRIPTORS: &str = "/proc/self/fd";

/// The name that a descriptor's file had when it was opened.
///
/// # Errors
/// /proc is not there.
pub(super) fn name_of(given: impl AsFd) -> io::Result<PathBuf> {
    fs::read_link(format!("{DESCRIPTORS}/{}", given.as_fd().as_raw_fd()))
}

/// The ignored signals as a bit mask, lowest bit for signal 1; see proc_pid_status(5). Returns 0 if it cannot
/// read them.
pub(super) fn ignored_signals() -> u64 {
    // The file does not tell its size. Without room for it, it would be read in small pieces.
    let mut status = String::with_capacity(4096);
    let _ = File::open("/proc/self/status").map(|file| file.take(u64::MAX).read_to_string(&mut status));
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Lets this process leave no core file.
pub(super) fn leave_no_core_file() {
    let _ = set_dumpable(false);
}
