//! The calls for files, blocking, within the view of a session.

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
use crate::session::files::replace::{Replacement, refuse_watched, undo_if_watched};
use crate::session::files::stream::{FileEntry, FileInfo, FileReader, HostWriter};
use crate::session::view_fd::FileCall;
use crate::sys;
use crate::sys::dirfd::MOST_LINKS;
use crate::sys::inode::{is_regular, kind, regular, stores};
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
    entries.sort_by(|one, other| one.name.cmp(&other.name));
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

/// Opens a path in `root`. Links stay in `root`: openat2(2) with `RESOLVE_IN_ROOT`, Linux 5.6.
pub(crate) fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    dirfd::open(root, path, how)
}

/// Opens a regular file for reading. It never opens anything else, even if others replace the file meanwhile. A lease on the file
/// (fcntl(2), `F_SETLEASE`) does not block the thread.
pub(crate) fn open_file(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let held = open(root, path, OFlag::O_PATH)?;
    regular(&held)?;
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(&dirfd::own_path(&held), flags, Mode::empty())?)
}

/// A name in an open directory. It stays in the same directory, even if others rename the directory.
#[derive(Debug)]
pub(crate) struct FilePlace {
    pub(crate) parent: OwnedFd,
    pub(crate) name: OsString,
}

impl FilePlace {
    /// The last name of a path, which need not exist; `None` if the path does not end in a name.
    pub(crate) fn find(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Self>> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        let parent = open(root, above, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        stores(&parent)?;
        Ok(Some(Self { parent, name: name.to_owned() }))
    }

    /// Like [`find`](Self::find), but follows links at the end of the path.
    pub(crate) fn follow_links(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Self>> {
        let mut path = PathBuf::from(path);
        for _ in 0..MOST_LINKS {
            let Some(place) = Self::find(root, &path)? else { return Ok(None) };
            let to = match readlinkat(&place.parent, place.name.as_os_str()) {
                Err(Errno::EINVAL | Errno::ENOENT) => return Ok(Some(place)),
                to => to?,
            };
            // An absolute target replaces the whole path.
            path = path.parent().unwrap_or(Path::new("/")).join(to);
        }
        Err(Errno::ELOOP.into())
    }

    /// The file of this name; `None` if there is none.
    pub(crate) fn stat(&self) -> io::Result<Option<FileStat>> {
        Ok(dirfd::stat(&self.parent, &self.name)?)
    }

    /// Refuses to replace or remove a mount point. The kernel refuses it only in the mount namespace of the mount; from this
    /// namespace, it would remove the mount.
    ///
    /// # Errors
    /// `EROFS` for a read-only mount, `EBUSY` for another one.
    pub(crate) fn refuse_mount(&self) -> io::Result<()> {
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

/// The mode of new files; the umask of this program applies.
pub(crate) const NEW_FILE: u32 = 0o666;
