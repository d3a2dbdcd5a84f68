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
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::protect::forbid::Creation;
use crate::session::files::replace::{
    FilePlace, NEW_FILE, Replacement, open, open_file, refuse_watched, undo_if_watched,
};
use crate::session::files::stream::{FileEntry, FileInfo, FileReader, HostWriter};
use crate::session::files::view_fd::FileCall;
use crate::sys::file_system::stores;
use crate::sys::inode::{is_regular, kind};
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
