//! The calls for files, blocking, within the view of a session.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat, renameat};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::protect::forbid::Creation;
use crate::protect::recheck;
use crate::session::files::replace::{
    FilePlace, NEW_FILE, Replacement, open, open_file, refuse_watched, undo_if_watched,
};
use crate::session::files::stream::{FileDetails, FileEntry, FileInfo, FileReader, HostWriter};
use crate::session::files::view_fd::FileCall;
use crate::sys::file_system::stores;
use crate::sys::inode::{FileKind, is_regular, kind};
use crate::sys::{blocking, dirfd, without_sigxfsz};

/// The most names of a listing.
const MOST_NAMES: usize = 100_000;

const NEW_DIRECTORY: Mode = Mode::from_bits_truncate(0o777);

pub(crate) fn read(call: &FileCall, path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::from(open_file(call.root(), path)?);
    if file.metadata()?.len() > most {
        return Err(Errno::EFBIG.into());
    }
    let mut bytes = Vec::new();
    // The file may grow meanwhile.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(Errno::EFBIG.into()) } else { Ok(bytes) }
}

pub(crate) fn write(call: FileCall, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (replacement, mut file) = Replacement::begin(call, path, NEW_FILE)?;
    without_sigxfsz(|| file.write_all(bytes))?;
    replacement.commit(&file)
}

pub(crate) fn list(call: &FileCall, path: &Path) -> io::Result<Vec<FileEntry>> {
    stores(open(call.root(), path, OFlag::O_PATH | OFlag::O_DIRECTORY)?)?;
    let directory = open(call.root(), path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    stores(&directory)?;
    let mut entries = Vec::new();
    for name in names(directory.try_clone()?)? {
        // The file may be gone meanwhile.
        if let Some(stat) = dirfd::stat(&directory, &name)? {
            entries.push(FileEntry { name, kind: kind(&stat), size: stat.st_size.unsigned_abs() });
        }
    }
    entries.sort_by(|first, second| first.name.cmp(&second.name));
    Ok(entries)
}

pub(crate) fn list_details(call: &FileCall, path: &Path) -> io::Result<Vec<FileDetails>> {
    let directory = open(call.root(), path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    stores(&directory)?;
    let mut all = Vec::new();
    for name in names(directory.try_clone()?)? {
        // The file may be gone meanwhile.
        all.extend(details_of(&directory, name)?);
    }
    all.sort_by(|first, second| first.name.cmp(&second.name));
    Ok(all)
}

pub(crate) fn details(call: &FileCall, path: &Path) -> io::Result<FileDetails> {
    match FilePlace::find(call.root(), path)? {
        Some(place) => Ok(details_of(&place.parent, place.name)?.ok_or(Errno::ENOENT)?),
        // A path such as `/` or `..` ends in no name, so it leads to a directory.
        None => {
            let there = open(call.root(), path, OFlag::O_PATH)?;
            Ok(FileDetails::new(OsString::new(), &fstat(there)?, None))
        }
    }
}

/// `None` if there is no file of this name.
fn details_of(directory: &OwnedFd, name: OsString) -> io::Result<Option<FileDetails>> {
    let Some(stat) = dirfd::stat(directory, &name)? else { return Ok(None) };
    // Somebody may have replaced the link meanwhile.
    let is_link = kind(&stat) == FileKind::Link;
    let points_to = is_link.then(|| readlinkat(directory, name.as_os_str()).ok()).flatten();
    Ok(Some(FileDetails::new(name, &stat, points_to.map(PathBuf::from))))
}

/// The names of a directory, up to [`MOST_NAMES`]. The names of `names` have a limit in bytes instead.
fn names(directory: OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for found in Dir::from_fd(directory)?.iter() {
        let Some(name) = dirfd::name(&found?) else { continue };
        if names.len() == MOST_NAMES {
            return Err(Errno::E2BIG.into());
        }
        names.push(name);
    }
    Ok(names)
}

pub(crate) fn stat(call: &FileCall, path: &Path) -> io::Result<FileInfo> {
    let there = open(call.root(), path, OFlag::O_PATH)?;
    stores(&there)?;
    Ok(FileInfo::new(&fstat(there)?))
}

pub(crate) fn mkdir(call: &FileCall, path: &Path) -> io::Result<()> {
    let place = FilePlace::find(call.root(), path)?.ok_or(Errno::EEXIST)?;
    refuse_watched(call, &place, Creation::DirectoryOrNothing)?;
    mkdirat(&place.parent, place.name.as_os_str(), NEW_DIRECTORY)?;
    undo_if_watched(call, &place, Creation::DirectoryOrNothing)
}

pub(crate) fn remove(call: &FileCall, path: &Path) -> io::Result<()> {
    let place = FilePlace::find(call.root(), path)?.ok_or(Errno::EBUSY)?;
    place.refuse_mount()?;
    refuse_watched(call, &place, Creation::DirectoryOrNothing)?;
    let remove = |how| unlinkat(&place.parent, place.name.as_os_str(), how);
    match remove(UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR) => remove(UnlinkatFlags::RemoveDir)?,
        removed => removed?,
    }
    undo_if_watched(call, &place, Creation::DirectoryOrNothing)
}

/// rename(2). What a directory brings to a protected path is undone at once.
pub(crate) fn rename(call: &FileCall, from: &Path, to: &Path) -> io::Result<()> {
    let from = FilePlace::find(call.root(), from)?.ok_or(Errno::EBUSY)?;
    let to = FilePlace::find(call.root(), to)?.ok_or(Errno::EEXIST)?;
    let moved = from.stat()?.ok_or(Errno::ENOENT)?;
    let making = match kind(&moved) {
        FileKind::Directory => Creation::DirectoryOrNothing,
        _ => Creation::File,
    };
    from.refuse_mount()?;
    to.refuse_mount()?;
    refuse_watched(call, &from, Creation::DirectoryOrNothing)?;
    refuse_watched(call, &to, making)?;
    renameat(&from.parent, from.name.as_os_str(), &to.parent, to.name.as_os_str())?;
    recheck::log(&recheck::undo(call.watches()));
    undo_if_watched(call, &to, making)
}

/// Opens a regular file of the host; returns its mode too.
pub(crate) fn open_host(path: &Path) -> io::Result<(File, u32)> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    is_regular(&fstat(&file)?)?;
    let mode = file.metadata()?.mode();
    Ok((file, mode))
}

/// Starts to write `path` on the host, with the mode of the file that `reader` reads.
pub(crate) async fn host_writer(reader: &FileReader, path: PathBuf) -> io::Result<HostWriter> {
    let mode = reader.mode().await?;
    blocking(move || HostWriter::begin(&path, mode)).await
}

// Lookups within the view of a session: the kernel resolves each path from the root and never leaves it.
