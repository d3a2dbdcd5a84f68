//! Names of what is there for a while only, and names that nothing loses its own by.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::AsFd,
};

use nix::{
    errno::Errno,
    fcntl::{RenameFlags, renameat, renameat2},
};

use super::stat;
use crate::sys;

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
