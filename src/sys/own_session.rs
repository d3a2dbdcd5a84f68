//! Commands that are sessions of their own, with three descriptors. Where there are no namespaces, this is
//! what they have.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::setsid;

/// Makes a command the leader of a session of its own, with these limits, soft and hard. A session without a
/// controlling terminal cannot type into one (TIOCSTI), and the process group of the leader has its number.
pub(crate) fn own_session(command: &mut Command, limits: Vec<(Resource, u64)>) {
    three_descriptors(command);
    let start = move || {
        for &(resource, most) in &limits {
            // The caller may have a lower limit, which it cannot raise.
            let (_, hard) = getrlimit(resource)?;
            setrlimit(resource, most.min(hard), most.min(hard))?;
        }
        setsid()?;
        Ok(())
    };
    // SAFETY: between fork(2) and execve(2), the closure only makes system calls: it neither allocates nor
    // locks, and an error is a number.
    unsafe { command.pre_exec(start) };
}

/// How many descriptors are looked at, if this process may open more and has no higher one.
const MOST_DESCRIPTORS: RawFd = 1 << 16;

/// Closes all descriptors of a command but the standard ones when it is executed.
pub(crate) fn three_descriptors(command: &mut Command) {
    let end = end_of_descriptors();
    let start = move || {
        for number in 3..end {
            // SAFETY: fcntl(2) with integer arguments only; it fails if the number is no descriptor.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        Ok(())
    };
    // SAFETY: between fork(2) and execve(2), the closure only makes system calls.
    unsafe { command.pre_exec(start) };
}

/// A number above every descriptor of this process. After fork(2) nothing may list them, because that needs
/// memory. What another thread opens until then gets the lowest free number.
fn end_of_descriptors() -> RawFd {
    let number = |name: &OsStr| name.to_str()?.parse::<RawFd>().ok();
    let listed = fs::read_dir("/dev/fd").into_iter().flatten().flatten();
    let highest = listed.filter_map(|entry| number(&entry.file_name())).max().unwrap_or(0);
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, u64::MAX));
    let may_open = RawFd::try_from(soft).map_or(MOST_DESCRIPTORS, |soft| soft.min(MOST_DESCRIPTORS));
    may_open.max(highest.saturating_add(1))
}
