//! Mounts. What comes from the host is copied detached, checked, given its attributes, and only then attached.

use core::ffi::CStr;

use crate::{
    kernel::{ESTALE, MOUNT_ATTR_RDONLY, MS_MOVE, MS_NODEV, MS_NOSUID},
    plan::Within,
    sys::{self, Errno, Fd},
};

/// A tmpfs on top of the old root, entered; it becomes the root in [`pivot`]. Until then the working directory is
/// where targets start and `/` is where sources do.
pub(crate) fn new_root(options: &CStr) -> Result<Fd, Errno> {
    // Any directory will do as a place to stand on, and this one is always there; the old root goes away whole.
    sys::mount(None, c"/proc", Some(c"tmpfs"), MS_NOSUID | MS_NODEV, Some(options))?;
    let root = sys::open_path(None, c"/proc")?;
    sys::change_dir_to(&root)?;
    Ok(root)
}

/// Swaps the root for the working directory that [`new_root`] entered, and lets go of everything old.
pub(crate) fn pivot(root: &Fd) -> Result<(), Errno> {
    sys::change_dir_to(root)?;
    sys::pivot_root_here()?;
    sys::detach(c".")?;
    sys::change_dir(c"/")
}

/// The root of a mount namespace that is a copy, entered; descriptors from before lead into the original.
pub(crate) fn enter_root() -> Result<Fd, Errno> {
    let root = sys::open_path(None, c"/")?;
    sys::change_dir_to(&root)?;
    Ok(root)
}

/// Makes the host's `source` and all mounts below it visible at the target.
///
/// The outside looked at `source` before; whoever exchanged it or a part of its path for something else in the
/// meantime is caught by comparing the inode that is about to be shown. `ESTALE` says so.
pub(crate) fn bind(
    root: &Fd,
    source: &CStr,
    identity: (u64, u64),
    (target, within): (&CStr, Within),
    attributes: u64,
) -> Result<(), Errno> {
    let tree = sys::clone_tree(None, source)?;
    if sys::identity(&tree)? != identity {
        return Err(Errno(ESTALE));
    }
    sys::set_attributes(&tree, attributes, true)?;
    attach(root, &tree, (target, within))
}

/// Lays something empty of the root's own, a directory or /dev/null, over the target.
pub(crate) fn cover(root: &Fd, empty: &CStr, place: (&CStr, Within)) -> Result<(), Errno> {
    let tree = sys::clone_tree(Some(root), empty)?;
    sys::set_attributes(&tree, MOUNT_ATTR_RDONLY, false)?;
    attach(root, &tree, place)
}

/// Lays what lies at the target, a place of the view where others may exchange parts of the path, over itself.
pub(crate) fn pin(root: &Fd, target: &CStr, attributes: u64) -> Result<(), Errno> {
    let place = sys::open_path(Some(root), target)?;
    let tree = sys::clone_tree_of(&place)?;
    sys::set_attributes(&tree, attributes, true)?;
    sys::attach(&tree, &place)
}

fn attach(root: &Fd, tree: &Fd, (target, within): (&CStr, Within)) -> Result<(), Errno> {
    match within {
        Within::Root => sys::attach_at(tree, root, target),
        Within::Granted => sys::attach(tree, &sys::open_path(Some(root), target)?),
    }
}

/// Moves a mount and all below it.
pub(crate) fn relocate(root: &Fd, (from, to): (&CStr, &CStr), within: Within) -> Result<(), Errno> {
    match within {
        Within::Root => sys::mount(Some(from), to, None, MS_MOVE, None),
        Within::Granted => sys::attach(&sys::open_path(Some(root), from)?, &sys::open_path(Some(root), to)?),
    }
}

/// Mounts `from` at the target, both of the view; see `MountAgain`.
pub(crate) fn mount_again(
    root: &Fd,
    (from, target): (&CStr, &CStr),
    attributes: u64,
    identity: (u64, u64),
) -> Result<(), Errno> {
    let place = sys::open_path(Some(root), target)?;
    if from.is_empty() {
        let is_it = identity == (0, 0) || sys::identity(&place)? == identity;
        return if is_it && sys::is_mount_root(&place)? { Ok(()) } else { Err(Errno(ESTALE)) };
    }
    // Any mount keeps a directory in its place. What makes something read-only or covers it must be the topmost: what
    // lies there may have come with a directory that was renamed.
    if attributes & MOUNT_ATTR_RDONLY == 0 && sys::is_mount_root(&place)? {
        return Ok(());
    }
    let tree = match from == target {
        true => sys::clone_tree_of(&place)?,
        false => sys::clone_tree_of(&sys::open_path(Some(root), from)?)?,
    };
    sys::set_attributes(&tree, attributes, true)?;
    sys::attach(&tree, &place)
}

/// Mounts a file system of the kernel's at the target.
pub(crate) fn mount(
    root: &Fd,
    kind: &CStr,
    (target, within): (&CStr, Within),
    flags: u64,
    options: &CStr,
) -> Result<(), Errno> {
    if within == Within::Root {
        return sys::mount(None, target, Some(kind), flags, Some(options));
    }
    sys::change_dir_to(&sys::open_path(Some(root), target)?)?;
    let mounted = sys::mount(None, c".", Some(kind), flags, Some(options));
    sys::change_dir_to(root)?;
    mounted
}
