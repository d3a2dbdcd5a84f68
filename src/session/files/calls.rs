//! The calls themselves, blocking, in a view that was looked up.

use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, fstat, mkdirat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::protect::forbid::Creation;
use crate::session::files::blocking;
use crate::session::files::replace::{Replacement, refuse_watched, undo_watched};
use crate::session::files::stream::{FileEntry, FileInfo, FileReader, HostWriter};
use crate::session::view_fd::FileCall;
use crate::sys;
use crate::sys::dirfd::MOST_LINKS;
use crate::sys::inode::{is_regular, kind, regular, stores};
use crate::sys::{dirfd, entries, without_sigxfsz};

/// More names than that are not listed.
const MOST_NAMES: usize = 100_000;

const NEW_DIRECTORY: Mode = Mode::from_bits_truncate(0o777);

pub(crate) fn read(visit: &FileCall, path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::from(open_file(visit.root(), path)?);
    if file.metadata()?.len() > most {
        return Err(Errno::EFBIG.into());
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(Errno::EFBIG.into()) } else { Ok(bytes) }
}

pub(crate) fn write(visit: FileCall, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (replacement, mut file) = Replacement::begin(visit, path, crate::session::files::NEW_FILE)?;
    without_sigxfsz(|| file.write_all(bytes))?;
    replacement.commit(&file)
}

pub(crate) fn list(visit: &FileCall, path: &Path) -> io::Result<Vec<FileEntry>> {
    stores(open(visit.root(), path, OFlag::O_PATH | OFlag::O_DIRECTORY)?)?;
    let directory = open(visit.root(), path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    stores(&directory)?;
    let mut entries = Vec::new();
    for name in names(directory.try_clone()?)? {
        // It may be gone meanwhile.
        if let Some(stat) = dirfd::stat(&directory, &name)? {
            entries.push(FileEntry { name, kind: kind(&stat), size: stat.st_size.unsigned_abs() });
        }
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}

/// As many as callers are told of; the names of [`entries`] are limited by the memory that they take.
fn names(directory: OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for found in Dir::from_fd(directory)?.iter() {
        let Some(name) = entries::name(&found?) else { continue };
        if names.len() == MOST_NAMES {
            return Err(Errno::E2BIG.into());
        }
        names.push(name);
    }
    Ok(names)
}

pub(crate) fn stat(visit: &FileCall, path: &Path) -> io::Result<FileInfo> {
    let there = open(visit.root(), path, OFlag::O_PATH)?;
    stores(&there)?;
    Ok(FileInfo::of(&fstat(there)?))
}

pub(crate) fn mkdir(visit: &FileCall, path: &Path) -> io::Result<()> {
    let place = FilePlace::of(visit.root(), path)?.ok_or(Errno::EEXIST)?;
    refuse_watched(visit, &place, Creation::DirectoryOrNothing)?;
    mkdirat(&place.parent, place.name.as_os_str(), NEW_DIRECTORY)?;
    undo_watched(visit, &place, Creation::DirectoryOrNothing)
}

pub(crate) fn remove(visit: &FileCall, path: &Path) -> io::Result<()> {
    let place = FilePlace::of(visit.root(), path)?.ok_or(Errno::EBUSY)?;
    place.is_no_mount()?;
    refuse_watched(visit, &place, Creation::DirectoryOrNothing)?;
    let remove = |how| unlinkat(&place.parent, place.name.as_os_str(), how);
    match remove(UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR) => remove(UnlinkatFlags::RemoveDir)?,
        removed => removed?,
    }
    undo_watched(visit, &place, Creation::DirectoryOrNothing)
}

/// A file of the host's, and its mode.
pub(crate) fn open_host(path: &Path) -> io::Result<(File, u32)> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    is_regular(&fstat(&file)?)?;
    let mode = file.metadata()?.mode();
    Ok((file, mode))
}

/// What writes `path` on the host with the mode of what `reader` reads.
pub(crate) async fn host_writer(reader: &FileReader, path: PathBuf) -> io::Result<HostWriter> {
    let mode = reader.mode().await?;
    blocking(move || HostWriter::begin(&path, mode)).await
}

// Ways through the view of a session: from its root, by the kernel, never out of it.

/// Opens a path in `root`, whose links lead nowhere else: openat2(2), `RESOLVE_IN_ROOT`. Linux 5.6.
pub(crate) fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    dirfd::open(root, path, how)
}

/// Opens a regular file for reading. What else lies there is not opened, whoever exchanges it meanwhile; no lease keeps the
/// thread.
pub(crate) fn open_file(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let held = open(root, path, OFlag::O_PATH)?;
    regular(&held)?;
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(&dirfd::own_path(&held), flags, Mode::empty())?)
}

/// A name in a directory that is held open, so that it stays the same directory whatever becomes of its path.
#[derive(Debug)]
pub(crate) struct FilePlace {
    pub(crate) parent: OwnedFd,
    pub(crate) name: OsString,
}

impl FilePlace {
    /// The name at the end of a path, whatever lies there; `None` where the path does not end in a name.
    pub(crate) fn of(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Self>> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        let parent = open(root, above, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        stores(&parent)?;
        Ok(Some(Self { parent, name: name.to_owned() }))
    }

    /// The name that the links at the end of a path lead to, in the end.
    pub(crate) fn behind_links(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Self>> {
        let mut path = PathBuf::from(path);
        for _ in 0..MOST_LINKS {
            let Some(place) = Self::of(root, &path)? else { return Ok(None) };
            let to = match readlinkat(&place.parent, place.name.as_os_str()) {
                Err(Errno::EINVAL | Errno::ENOENT) => return Ok(Some(place)),
                to => to?,
            };
            // A path that begins with a slash takes the place of the whole.
            path = path.parent().unwrap_or(Path::new("/")).join(to);
        }
        Err(Errno::ELOOP.into())
    }

    /// What lies there; `None` where nothing does.
    pub(crate) fn stat(&self) -> io::Result<Option<FileStat>> {
        Ok(dirfd::stat(&self.parent, &self.name)?)
    }

    /// Whether it can be replaced or removed. The kernel keeps mount points only from those who have them in their own
    /// mount namespace, and takes the mounts away from everybody else.
    ///
    /// # Errors
    /// `EROFS` for a read-only mount, `EBUSY` for another.
    pub(crate) fn is_no_mount(&self) -> io::Result<()> {
        let name = CString::new(self.name.as_bytes())?;
        let is_mount = match sys::is_mount_root(self.parent.as_fd(), &name) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => false,
            is_mount => is_mount?,
        };
        if !is_mount {
            return Ok(());
        }
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mounted = openat(&self.parent, name.as_c_str(), flags, Mode::empty())?;
        let is_read_only = fstatvfs(mounted)?.flags().contains(FsFlags::ST_RDONLY);
        Err(if is_read_only { Errno::EROFS } else { Errno::EBUSY }.into())
    }
}
