//! Compares two files: contents, modes, times, attributes, access lists.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt as _;

use nix::errno::Errno;
use nix::sys::stat::FileStat;
use nix::unistd::{Whence, lseek};
use xattr::FileExt as _;

use crate::caller::writers::ACCESS_LIST;
use crate::sys::inode::{FileKind, kind};

/// Mode bits that a commit carries over: never set-user-ID or set-group-ID. The sticky bit of a directory
/// stays, as it keeps users from deleting each other's files.
pub(crate) fn ordinary(of: &FileStat) -> u32 {
    if kind(of) == FileKind::Directory { 0o1777 } else { 0o777 }
}

/// The prefix of overlayfs's own attributes.
const MARKS: &[u8] = b"user.overlay.";

const CHUNK: usize = 128 << 10;

pub(crate) fn same_mode(one: &FileStat, other: &FileStat) -> bool {
    one.st_mode & ordinary(one) == other.st_mode & ordinary(other)
}

/// Whether both were modified at the same time. The file system of the upper directory may store whole
/// seconds only.
pub(crate) fn same_time(upper: &FileStat, lower: &FileStat) -> bool {
    upper.st_mtime == lower.st_mtime && [lower.st_mtime_nsec, 0].contains(&upper.st_mtime_nsec)
}

/// The attributes that hold POSIX access control lists, acl(5): of files and directories, and for what is
/// made in a directory.
pub(crate) const ACCESS_LISTS: [&str; 2] = [ACCESS_LIST, "system.posix_acl_default"];

/// The access lists of a file or directory, in the order of [`ACCESS_LISTS`]. `None` where its mode says all.
pub(crate) type AccessLists = [Option<Vec<u8>>; 2];

/// Reads the access lists of a file or directory.
pub(crate) fn access_lists(of: &OwnedFd) -> io::Result<AccessLists> {
    let file = File::from(of.try_clone()?);
    let [access, default] = ACCESS_LISTS.map(|name| without_attribute(file.get_xattr(name)));
    Ok([access?.flatten(), default?.flatten()])
}

/// `None` if the attribute does not exist or the file system has no attributes.
pub(crate) fn without_attribute<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(None),
        result => result.map(Some),
    }
}

/// The most bytes of attributes read from one file.
const MAX_BYTES: usize = 1 << 20;

/// The user attributes of a file or directory, without those of overlayfs, sorted.
///
/// # Errors
/// `E2BIG` if they exceed [`MAX_BYTES`].
pub(crate) fn attributes(of: &OwnedFd) -> io::Result<Vec<(OsString, Vec<u8>)>> {
    let file = File::from(of.try_clone()?);
    let names = match file.list_xattr() {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
        names => names?,
    };
    let is_users =
        |name: &OsString| name.as_bytes().starts_with(b"user.") && !name.as_bytes().starts_with(MARKS);
    let (mut attributes, mut bytes) = (Vec::new(), 0);
    for name in names.filter(is_users) {
        if let Some(value) = file.get_xattr(&name)? {
            bytes += name.len() + value.len();
            if bytes > MAX_BYTES {
                return Err(Errno::E2BIG.into());
            }
            attributes.push((name, value));
        }
    }
    attributes.sort();
    Ok(attributes)
}

/// Whether two regular files of the same size have the same contents. Skips holes that both have.
pub(crate) fn same_contents(one: &OwnedFd, other: &OwnedFd, size: u64) -> io::Result<bool> {
    let files = [File::from(one.try_clone()?), File::from(other.try_clone()?)];
    let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
    let mut at = 0;
    while let Some(start) = next_data(&files, at)?.filter(|&start| start < size) {
        let length = usize::try_from(size - start).unwrap_or(CHUNK).min(CHUNK);
        for (file, buffer) in files.iter().zip(&mut buffers) {
            read_or_zeroes(file, &mut buffer[..length], start)?;
        }
        if buffers[0][..length] != buffers[1][..length] {
            return Ok(false);
        }
        at = start + length as u64;
    }
    Ok(true)
}

/// The first offset at or after `at` where either file has data.
fn next_data(files: &[File; 2], at: u64) -> io::Result<Option<u64>> {
    let [one, other] = [data(&files[0], at)?, data(&files[1], at)?];
    Ok([one, other].into_iter().flatten().min())
}

/// The first offset at or after `at` with data (`SEEK_DATA`, lseek(2)).
pub(crate) fn data(file: impl AsFd, at: u64) -> io::Result<Option<u64>> {
    seek(file, at, Whence::SeekData)
}

/// The end of the data around `at` (`SEEK_HOLE`, lseek(2)).
pub(crate) fn hole(file: impl AsFd, at: u64) -> io::Result<Option<u64>> {
    seek(file, at, Whence::SeekHole)
}

fn seek(file: impl AsFd, at: u64, whence: Whence) -> io::Result<Option<u64>> {
    let at = i64::try_from(at).map_err(|_| Errno::EFBIG)?;
    match lseek(file, at, whence) {
        Err(Errno::ENXIO) => Ok(None),
        found => Ok(Some(found?.unsigned_abs())),
    }
}

fn read_or_zeroes(file: &File, buffer: &mut [u8], at: u64) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64)? {
            // The file was truncated meanwhile.
            0 => break,
            count => filled += count,
        }
    }
    buffer[filled..].fill(0);
    Ok(())
}

// Marks of overlayfs; the others are in `sys`.

/// Marks an entry copied up from the workspace. An unprivileged overlay does not record its origin.
pub(crate) const ORIGIN: &str = "user.overlay.origin";

/// The value of a mark, if present.
pub(crate) fn mark(of: &OwnedFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = std::fs::File::from(of.try_clone()?);
    match file.get_xattr(name) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        value => value,
    }
}

/// Whether the access lists of an entry in the upper directory count: it has some, or it was copied up and
/// lost them.
pub(crate) fn has_own_lists(upper: &OwnedFd, lists: &AccessLists) -> io::Result<bool> {
    if lists.iter().any(Option::is_some) {
        return Ok(true);
    }
    // The owner may list the attributes of a file that the mode lets nobody read.
    match File::from(upper.try_clone()?).list_xattr() {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        names => Ok(names?.any(|name| name == ORIGIN)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file of that size with single bytes written at the given offsets.
    fn file(size: u64, writes: &[(u64, u8)]) -> OwnedFd {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(size).expect("set");
        for &(at, byte) in writes.iter().filter(|(at, _)| *at < size) {
            file.write_at(&[byte], at).expect("written");
        }
        file.into()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn contents_are_the_same_if_every_byte_is(
            size in 1..600_000_u64,
            one in proptest::collection::vec((0..600_000_u64, 0..2_u8), 0..4),
            other in proptest::collection::vec((0..600_000_u64, 0..2_u8), 0..4),
        ) {
            let read = |file: &OwnedFd| {
                let mut bytes = vec![0; usize::try_from(size).expect("small")];
                File::from(file.try_clone().expect("open")).read_exact_at(&mut bytes, 0).expect("read");
                bytes
            };
            let (one, other) = (file(size, &one), file(size, &other));
            prop_assert_eq!(same_contents(&one, &other, size).expect("compared"), read(&one) == read(&other));
            prop_assert!(same_contents(&one, &one, size).expect("compared"));
        }
    }
}
