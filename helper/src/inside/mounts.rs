//! Mounts, always in the same way: made detached, given their attributes, then attached at an opened place.
//! No path of a mount point is ever walked through a symbolic link.

use core::ffi::CStr;

use crate::{
    kernel::{ESTALE, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY},
    sys::{self, Errno, Fd},
};

/// A tmpfs on top of the old root, entered; it becomes the root in [`pivot`].
pub(crate) fn new_root(size: u64, inodes: u64) -> Result<Fd, Errno> {
    let root = tmpfs(0o755, size, inodes, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)?;
    sys::attach(&root, &sys::open_path(None, c"/")?)?;
    sys::change_dir_to(&root)?;
    Ok(root)
}

/// Swaps the root for the working directory that [`new_root`] entered, and lets go of everything old.
pub(crate) fn pivot(root: &Fd) -> Result<(), Errno> {
    sys::change_dir_to(root)?;
    sys::pivot_root_here()?;
    sys::detach_here()?;
    sys::change_dir(c"/")
}

/// Attaches a detached mount at `target` inside `root`.
pub(crate) fn attach(root: &Fd, mount: &Fd, target: &CStr) -> Result<(), Errno> {
    sys::attach(mount, &sys::open_path(Some(root), target)?)
}

/// Makes the host's `source` and all mounts below it visible at `target`.
///
/// The outside checked `source` by descriptor; whoever could exchange it for something else in the meantime is
/// caught by comparing the inode. `ESTALE` says so.
pub(crate) fn bind(
    root: &Fd,
    source: &CStr,
    identity: (u64, u64),
    target: &CStr,
    attributes: u64,
) -> Result<(), Errno> {
    let source = sys::open_path(None, source)?;
    if sys::identity(&source)? != identity {
        return Err(Errno(ESTALE));
    }
    let tree = sys::clone_tree(&source)?;
    sys::set_attributes(&tree, attributes, true)?;
    attach(root, &tree, target)
}

/// A detached tmpfs.
pub(crate) fn tmpfs(mode: u32, size: u64, inodes: u64, attributes: u64) -> Result<Fd, Errno> {
    let context = sys::fs_open(c"tmpfs")?;
    sys::fs_set(&context, c"mode", Some(Number::octal(mode.into()).text()))?;
    for (key, value) in [(c"size", size), (c"nr_inodes", inodes)] {
        if value > 0 {
            sys::fs_set(&context, key, Some(Number::decimal(value).text()))?;
        }
    }
    sys::fs_mount(&context, attributes)
}

/// A detached procfs of this pid namespace.
pub(crate) fn proc() -> Result<Fd, Errno> {
    let context = sys::fs_open(c"proc")?;
    let attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
    sys::fs_mount(&context, attributes)
}

/// A detached devpts instance of its own.
pub(crate) fn dev_pts() -> Result<Fd, Errno> {
    let context = sys::fs_open(c"devpts")?;
    sys::fs_set(&context, c"newinstance", None)?;
    sys::fs_set(&context, c"ptmxmode", Some(c"0666"))?;
    sys::fs_set(&context, c"mode", Some(c"0620"))?;
    sys::fs_mount(&context, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC)
}

/// A number in the text form that fsconfig(2) wants.
struct Number {
    digits: [u8; 24],
    start: usize,
}

impl Number {
    fn octal(value: u64) -> Self {
        Self::new(value, 3)
    }

    fn decimal(value: u64) -> Self {
        Self::new(value, 0)
    }

    /// Digits from the last to the first: base 2^`shift`, or ten where `shift` is zero.
    fn new(mut value: u64, shift: u32) -> Self {
        let mut number = Self { digits: [0; 24], start: 23 };
        while value > 0 && number.start > 0 {
            number.start = number.start.saturating_sub(1);
            let (rest, digit) =
                if shift == 0 { (value / 10, value % 10) } else { (value >> shift, value & 7) };
            if let Some(slot) = number.digits.get_mut(number.start) {
                *slot = b'0'.wrapping_add(digit as u8);
            }
            value = rest;
        }
        number
    }

    fn text(&self) -> &CStr {
        let digits = self.digits.get(self.start..).unwrap_or_default();
        CStr::from_bytes_with_nul(digits).unwrap_or(c"0")
    }
}
