//! The calls themselves, blocking, in a view that was looked up.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::OFlag,
    sys::stat::{Mode, fstat, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{
    FileEntry, FileInfo, blocking,
    replace::{Replacement, refuse_watched, undo_watched},
    stream::{FileReader, HostWriter},
    walk::{self, Place},
};
use crate::{
    below::{self, is_regular, kind, stores},
    session::Visit,
    sys::without_sigxfsz,
    watch::Making,
};

/// More names than that are not listed.
const MOST_NAMES: usize = 100_000;

const NEW_DIRECTORY: Mode = Mode::from_bits_truncate(0o777);

pub(super) fn read(visit: &Visit, path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::from(walk::open_file(visit.root(), path)?);
    if file.metadata()?.len() > most {
        return Err(Errno::EFBIG.into());
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(Errno::EFBIG.into()) } else { Ok(bytes) }
}

pub(super) fn write(visit: Visit, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (replacement, mut file) = Replacement::begin(visit, path, super::NEW_FILE)?;
    without_sigxfsz(|| file.write_all(bytes))?;
    replacement.commit(&file)
}

pub(super) fn list(visit: &Visit, path: &Path) -> io::Result<Vec<FileEntry>> {
    stores(walk::open(visit.root(), path, OFlag::O_PATH | OFlag::O_DIRECTORY)?)?;
    let directory = walk::open(visit.root(), path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    stores(&directory)?;
    let mut entries = Vec::new();
    for name in names(directory.try_clone()?)? {
        // It may be gone meanwhile.
        if let Some(stat) = below::stat(&directory, &name)? {
            entries.push(FileEntry { name, kind: kind(&stat), size: stat.st_size.unsigned_abs() });
        }
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}

/// As many as callers are told of; the names of [`below`] are limited by the memory that they take.
fn names(directory: OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for found in Dir::from_fd(directory)?.iter() {
        let Some(name) = below::names::name(&found?) else { continue };
        if names.len() == MOST_NAMES {
            return Err(Errno::E2BIG.into());
        }
        names.push(name);
    }
    Ok(names)
}

pub(super) fn stat(visit: &Visit, path: &Path) -> io::Result<FileInfo> {
    let there = walk::open(visit.root(), path, OFlag::O_PATH)?;
    stores(&there)?;
    Ok(FileInfo::of(&fstat(there)?))
}

pub(super) fn mkdir(visit: &Visit, path: &Path) -> io::Result<()> {
    let place = Place::of(visit.root(), path)?.ok_or(Errno::EEXIST)?;
    refuse_watched(visit, &place, Making::DirectoryOrNothing)?;
    mkdirat(&place.parent, place.name.as_os_str(), NEW_DIRECTORY)?;
    undo_watched(visit, &place, Making::DirectoryOrNothing)
}

pub(super) fn remove(visit: &Visit, path: &Path) -> io::Result<()> {
    let place = Place::of(visit.root(), path)?.ok_or(Errno::EBUSY)?;
    place.is_no_mount()?;
    refuse_watched(visit, &place, Making::DirectoryOrNothing)?;
    let remove = |how| unlinkat(&place.parent, place.name.as_os_str(), how);
    match remove(UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR) => remove(UnlinkatFlags::RemoveDir)?,
        removed => removed?,
    }
    undo_watched(visit, &place, Making::DirectoryOrNothing)
}

/// A file of the host's, and its mode.
pub(super) fn open_host(path: &Path) -> io::Result<(File, u32)> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    is_regular(&fstat(&file)?)?;
    let mode = file.metadata()?.mode();
    Ok((file, mode))
}

/// What writes `path` on the host with the mode of what `reader` reads.
pub(super) async fn host_writer(reader: &FileReader, path: PathBuf) -> io::Result<HostWriter> {
    let mode = reader.mode().await?;
    blocking(move || HostWriter::begin(&path, mode)).await
}
