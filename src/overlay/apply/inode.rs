//! Contents, attributes, modes and times of one file.

use std::{ffi::OsString, fs::File, io, os::fd::OwnedFd};

use nix::sys::{
    stat::{FileStat, Mode, UtimensatFlags, utimensat},
    time::TimeSpec,
};
use xattr::FileExt;

use crate::{
    overlay::{
        clock::modified,
        compare::{self, ordinary},
        place::Temporary,
    },
    sys::without_sigxfsz,
};

/// Gives a directory those user attributes and no others.
pub(super) fn set_attributes(wanted: &[(OsString, Vec<u8>)], of: &OwnedFd) -> io::Result<()> {
    let file = File::from(of.try_clone()?);
    for (name, _) in compare::attributes(of)? {
        if !wanted.iter().any(|(other, _)| *other == name) {
            file.remove_xattr(name)?;
        }
    }
    wanted.iter().try_for_each(|(name, value)| file.set_xattr(name, value))
}

/// `None` where there is no such attribute, or where there are none at all.
pub(super) fn without_attribute<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(None),
        result => result.map(Some),
    }
}

pub(super) fn mode(of: &FileStat) -> Mode {
    Mode::from_bits_truncate(of.st_mode & ordinary(of))
}

pub(super) fn times(of: &FileStat) -> [TimeSpec; 2] {
    let (seconds, nanos) = modified(of);
    [TimeSpec::new(of.st_atime, of.st_atime_nsec), TimeSpec::new(seconds, nanos)]
}

impl Temporary {
    /// The times of a link.
    pub(super) fn set_times(&self, accessed: &TimeSpec, modified: &TimeSpec) -> nix::Result<()> {
        let (parent, name) = self.place();
        utimensat(parent, name, accessed, modified, UtimensatFlags::NoFollowSymlink)
    }
}

/// Copies what is data; holes stay holes.
pub(super) fn copy(from: &File, to: &File) -> io::Result<()> {
    let size = from.metadata()?.len();
    let mut at = 0;
    while let Some(start) = compare::data(from, at)?.filter(|&start| start < size) {
        let end = compare::hole(from, start)?.unwrap_or(size).min(size);
        without_sigxfsz(|| copy_range(from, to, start, end))?;
        at = end;
    }
    without_sigxfsz(|| to.set_len(size))
}

/// Within the kernel, where it can.
fn copy_range(mut from: &File, mut to: &File, start: u64, end: u64) -> io::Result<()> {
    use io::{Read as _, Seek as _, SeekFrom::Start};
    from.seek(Start(start))?;
    to.seek(Start(start))?;
    io::copy(&mut from.take(end - start), &mut to).map(drop)
}
