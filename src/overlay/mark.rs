//! What overlayfs marks what it keeps with: overlayfs.rst of the kernel, as an ordinary user's mount has it (`userxattr`).

use std::{io, os::fd::OwnedFd};

use nix::sys::stat::FileStat;
use xattr::FileExt as _;

/// A directory that takes the place of one below it, instead of adding to it.
pub(super) const OPAQUE: &str = "user.overlay.opaque";

/// Copied up from the workspace. Where it came from is not said to an ordinary user's overlay.
pub(super) const ORIGIN: &str = "user.overlay.origin";

/// The value of a mark, if it is there.
pub(super) fn mark(of: &OwnedFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = std::fs::File::from(of.try_clone()?);
    match file.get_xattr(name) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        value => value,
    }
}

/// Whether it stands for something that was deleted.
pub(super) fn is_whiteout(stat: &FileStat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == 0
}
