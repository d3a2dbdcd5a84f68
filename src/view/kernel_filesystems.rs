//! File systems of the kernel's own, wherever the host has mounted them: a chroot has a procfs, the root of a container a
//! sysfs. Root owns the knobs in them, also without a capability, and a procfs shows the host's processes. Reads only.

use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::host::mounts::mounts_of;
use crate::report::error::Error;
use crate::sys::dirfd::open_without_links;
use crate::sys::inode::{is_proc, stores};
use crate::view::inputs::Parts;
use crate::view::place::{Access, Node, Place};
use crate::view::source::{Kind, Source};
use crate::view::{View, pin, secrets};

/// The one that is never shown: the sandbox has its own.
const PROC: &str = "proc";

/// Those in which something is set, or which hold the host's devices, by their names in /proc/self/mountinfo.
const KNOBS: [&str; 17] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "pstore",
    "resctrl",
    "securityfs",
    "selinuxfs",
    "smackfs",
    "sysfs",
    "tracefs",
    "xenfs",
];

/// What one is called in messages.
const WHAT: &str = "file system of the kernel's";

/// Whether a grant may show what lies there, a device aside.
///
/// # Errors
/// It lies in a procfs, or is to be writable and lies in another file system of the kernel's.
pub(crate) fn may_show(source: &Source, access: Access) -> io::Result<()> {
    let refuse = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    // As a directory, so that what is mounted when it is asked for is.
    let flags = if source.is_dir() { OFlag::O_DIRECTORY } else { OFlag::empty() };
    let held = open_without_links(&source.path, flags)?;
    if is_proc(&held)? {
        return refuse("lies in a procfs of the host, which is never shown");
    }
    if access == Access::Write && stores(&held).is_err() {
        return refuse("lies in a file system of the kernel's, which can only be shown read-only");
    }
    Ok(())
}

/// Covers those that a grant would bring along: every procfs, and the others where commands could write.
///
/// # Errors
/// /proc does not say what is mounted; one cannot be looked at that commands may yet see.
pub(crate) fn mask(view: &mut View, parts: &Parts<'_>) -> Result<(), Error> {
    let is_any = |kind: &[u8]| kind == PROC.as_bytes() || KNOBS.iter().any(|knobs| kind == knobs.as_bytes());
    let mut found = mounts_of(is_any).map_err(Error::io("read /proc/self/mountinfo"))?;
    // What lies in another is covered with it.
    found.sort_by(|one, other| one.mount_point.cmp(&other.mount_point));
    for mount in found {
        let path = &*mount.mount_point;
        for target in brought_along(view, path, mount.fs_type == PROC) {
            let Some(Source { kind, .. }) = secrets::look(view, parts, WHAT, path)? else { continue };
            pin::way_to(view, &target)?;
            secrets::cover(view, WHAT, &target, if kind == Kind::Directory { kind } else { Kind::File });
        }
    }
    Ok(())
}

/// Where commands would see what is mounted at the host's `path`, and may not.
fn brought_along(view: &View, path: &Path, is_proc: bool) -> Vec<PathBuf> {
    let may_not = |target: &PathBuf| {
        let writes =
            |(_, place): (&Path, &Place)| matches!(place.node, Node::Bind { access: Access::Write, .. });
        let is_there = view.host_path(target).is_some_and(|shown| shown == path);
        is_there && (is_proc || view.mount_above(target).is_some_and(writes))
    };
    view.shown_at(path).into_iter().filter(may_not).collect()
}
