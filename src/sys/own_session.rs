//! Commands that are sessions of their own. Where there are no namespaces, this is what they have.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::setsid;

/// Makes a command the leader of a session of its own, with these limits, soft and hard. A session without a
/// controlling terminal cannot type into one (TIOCSTI), and the process group of the leader has its number.
pub(crate) fn own_session(command: &mut Command, limits: Vec<(Resource, u64)>) {
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
