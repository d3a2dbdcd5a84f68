//! The names in a directory, which may be many, and long.

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

// Names of what is there for a while only, and names that nothing loses its own by.

/// How many names are tried.
const MOST_NAMES: u32 = 64;

/// A name that nobody else has.
///
/// # Errors
/// Those of getrandom(2).
pub(crate) fn temporary_name() -> nix::Result<OsString> {
    Ok(format!(".kennel-{:016x}.tmp", sys::random()?).into())
}

/// Whether [`temporary_name`] makes such names.
pub(crate) fn is_temporary_name(name: &OsStr) -> bool {
    let middle =
        name.as_encoded_bytes().strip_prefix(b".kennel-").and_then(|rest| rest.strip_suffix(b".tmp"));
    middle.is_some_and(|middle| middle.len() == 16 && middle.iter().all(u8::is_ascii_hexdigit))
}

/// Makes something under such a name, which is answered too. Where another has it after all, `make` says `EEXIST`.
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

/// renameat2(2), RENAME_NOREPLACE, in one directory. Some file systems answer `EINVAL`, which that flag is unknown to
/// (NFS, 9P): there it is renamed after a look.
///
/// # Errors
/// `EEXIST` where something has the name.
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
