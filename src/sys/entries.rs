//! The entries of a directory: lists of their names, temporary names, and renames that replace nothing.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use nix::dir::{Dir, Entry};
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, renameat, renameat2};
use nix::sys::stat::Mode;

use crate::sys;
use crate::sys::dirfd::stat;

/// Most memory that a list of names may take, in bytes.
const MOST_BYTES: usize = 128 << 20;

/// The names in a directory that is open for reading, sorted.
///
/// # Errors
/// `E2BIG` if they take more than 128 MiB.
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

/// The first names of a directory, as many as fit into `room` bytes, but at least one.
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

/// Opens a directory again, so that the listing has its own position.
pub(crate) fn listing(directory: &OwnedFd) -> io::Result<Dir> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(Dir::openat(directory.as_fd(), ".", flags, Mode::empty())?)
}

/// The name of an entry; `None` for `.` and `..`.
pub(crate) fn name(found: &Entry) -> Option<OsString> {
    let name = found.file_name().to_bytes();
    (name != b"." && name != b"..").then(|| OsString::from_vec(name.to_vec()))
}

/// The memory that a name takes in a list, in bytes.
pub(crate) fn bytes(name: &OsStr) -> usize {
    size_of::<OsString>() + name.len()
}

// Temporary names, and renames that replace nothing.

/// How many temporary names are tried.
const MOST_NAMES: u32 = 64;

/// A random name of a temporary file.
///
/// # Errors
/// Those of getrandom(2).
pub(crate) fn temporary_name() -> nix::Result<OsString> {
    Ok(format!(".kennel-{:016x}.tmp", sys::random()?).into())
}

/// Whether `name` has the form of a [`temporary_name`].
pub(crate) fn is_temporary_name(name: &OsStr) -> bool {
    let middle =
        name.as_encoded_bytes().strip_prefix(b".kennel-").and_then(|rest| rest.strip_suffix(b".tmp"));
    middle.is_some_and(|middle| middle.len() == 16 && middle.iter().all(u8::is_ascii_hexdigit))
}

/// Calls `make` with temporary names until one is free, and returns that name too. `make` fails with `EEXIST` if the name
/// is taken.
pub(crate) fn under_temporary_name<T>(make: impl Fn(&OsStr) -> nix::Result<T>) -> io::Result<(OsString, T)> {
    for _ in 0..MOST_NAMES {
        let name = temporary_name()?;
        match make(&name) {
            Err(Errno::EEXIST) => {}
            made => return Ok((name, made?)),
        }
    }
    Err(Errno::EEXIST.into())
}

/// renameat2(RENAME_NOREPLACE) in one directory. File systems without that flag (NFS, 9P) answer `EINVAL`; there it
/// checks that the name is free and then renames.
///
/// # Errors
/// `EEXIST` if `to` exists.
pub(crate) fn rename_without_replacing(directory: impl AsFd, from: &OsStr, to: &OsStr) -> nix::Result<()> {
    let directory = directory.as_fd();
    match renameat2(directory, from, directory, to, RenameFlags::RENAME_NOREPLACE) {
        Err(Errno::EINVAL) => match stat(directory, to)? {
            Some(_) => Err(Errno::EEXIST),
            None => renameat(directory, from, directory, to),
        },
        renamed => renamed,
    }
}
