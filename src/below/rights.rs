//! The rights that calls for files have: those of a command, so none that root has over others' files.

use std::io;

use caps::{CapSet, Capability, CapsHashSet};
use nix::unistd::{Uid, geteuid};

/// What a thread keeps that has the rights of a command: neither gives any over a file. Where another thread changes the ids
/// of the program, glibc has every thread do so, and ends the program where only some of them may.
const KEPT: [Capability; 2] = [Capability::CAP_SETUID, Capability::CAP_SETGID];

/// Does `act` on this thread without capabilities over files. The thread has them back afterwards.
///
/// Without them the kernel also takes set-user-id bits away from what is written, and keeps others' files from root.
pub(crate) fn of_a_command<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let held = caps::read(None, CapSet::Effective).map_err(io::Error::other)?;
    let kept: CapsHashSet = held.iter().copied().filter(|capability| KEPT.contains(capability)).collect();
    if held.len() == kept.len() {
        return act();
    }
    let _back = Back { held, user: geteuid() };
    caps::set(None, CapSet::Effective, &kept).map_err(io::Error::other)?;
    act()
}

/// Gives the thread back what it had.
struct Back {
    held: CapsHashSet,
    user: Uid,
}

impl Drop for Back {
    fn drop(&mut self) {
        // The program became somebody else meanwhile, and has what the kernel left it.
        if geteuid() != self.user {
            return;
        }
        // What is permitted can be had again at any time.
        if let Err(error) = caps::set(None, CapSet::Effective, &self.held) {
            tracing::error!(%error, "a thread of the runtime has lost its capabilities");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_its_rights_back_also_after_a_panic() {
        let before = caps::read(None, CapSet::Effective).expect("readable");
        let within = of_a_command(|| caps::read(None, CapSet::Effective).map_err(io::Error::other));
        assert!(within.expect("readable").is_subset(&KEPT.into()));
        let panics = std::panic::catch_unwind(|| of_a_command(|| -> io::Result<()> { panic!("meant") }));
        assert!(panics.is_err());
        assert_eq!(caps::read(None, CapSet::Effective).expect("readable"), before);
    }
}
