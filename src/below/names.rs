//! The names in a directory, which may be many, and long.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
};

use nix::{
    dir::{Dir, Entry},
    errno::Errno,
    fcntl::OFlag,
    sys::stat::Mode,
};

/// Names in one directory that take up more bytes are not listed.
const MOST_BYTES: usize = 128 << 20;

/// The names in a directory that is open for listing, sorted.
///
/// # Errors
/// `E2BIG` where there are too many.
pub(crate) fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let (mut names, mut room) = (Vec::new(), MOST_BYTES);
    for found in listing(directory)?.iter() {
        if let Some(name) = name(&found?) {
            room = room.checked_sub(bytes(&name)).ok_or(Errno::E2BIG)?;
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The first of the names, as many as fit into so many bytes, and one at least.
pub(crate) fn some(directory: &OwnedFd, mut room: usize) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for found in listing(directory)?.iter() {
        let Some(name) = name(&found?) else { continue };
        let needed = bytes(&name);
        names.push(name);
        match room.checked_sub(needed) {
            Some(left) => room = left,
            None => break,
        }
    }
    Ok(names)
}

/// A listing of its own of a directory.
pub(crate) fn listing(directory: &OwnedFd) -> io::Result<Dir> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(Dir::openat(directory.as_fd(), ".", flags, Mode::empty())?)
}

/// The name that was found, where it is one.
pub(crate) fn name(found: &Entry) -> Option<OsString> {
    let name = found.file_name().to_bytes();
    (name != b"." && name != b"..").then(|| OsString::from_vec(name.to_vec()))
}

/// What a name takes up in a list.
pub(crate) fn bytes(name: &OsStr) -> usize {
    size_of::<OsString>() + name.len()
}
