//! The names in a directory, which may be many, and long.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
};

use nix::{dir::Dir, errno::Errno, fcntl::OFlag, sys::stat::Mode};

/// Names in one directory that take up more bytes are not listed.
const MOST_BYTES: usize = 128 << 20;

/// The names in a directory that is open for listing, sorted.
///
/// # Errors
/// `E2BIG` where there are too many.
pub(crate) fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut listing = Dir::openat(directory.as_fd(), ".", flags, Mode::empty())?;
    let (mut names, mut bytes) = (Vec::new(), 0);
    for entry in listing.iter() {
        let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
        if name != "." && name != ".." {
            bytes += size_of::<OsString>() + name.len();
            if bytes > MOST_BYTES {
                return Err(Errno::E2BIG.into());
            }
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
