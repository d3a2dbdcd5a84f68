//! A user namespace in which this process may read all files of its own user, whatever their modes say: trees
//! of images have files with mode 000. root needs none.

use std::fs;

use nix::{
    sched::{CloneFlags, unshare},
    unistd::{getegid, geteuid},
};

/// Enters a namespace with the caller's ids and no others. If the host refuses that, files with such modes
/// are refused later, by name. To be called before there are threads.
pub(super) fn enter() {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() || unshare(CloneFlags::CLONE_NEWUSER).is_err() {
        return;
    }
    // user_namespaces(7): an unprivileged process first gives up setgroups(2).
    let maps = [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{user} {user} 1")),
        ("/proc/self/gid_map", format!("{group} {group} 1")),
    ];
    for (file, text) in maps {
        // Without a map nobody may do more than before.
        let _ = fs::write(file, text);
    }
}
