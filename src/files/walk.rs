//! Ways through the view of a session: from its root, by the kernel, never out of it.

use std::{
    ffi::{CString, OsString},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat, readlinkat},
    sys::{
        stat::{FileStat, Mode},
        statvfs::{FsFlags, fstatvfs},
    },
};

use crate::{
    below::{self, MOST_LINKS, regular, stores},
    sys,
};

/// Opens a path in `root`, whose links lead nowhere else: openat2(2), `RESOLVE_IN_ROOT`. Linux 5.6.
pub(super) fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    below::open(root, path, how)
}

/// Opens a regular file for reading. What else lies there is not opened, whoever exchanges it meanwhile; no lease keeps the
/// thread.
pub(super) fn open_file(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let held = open(root, path, OFlag::O_PATH)?;
    regular(&held)?;
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(&below::own_path(&held), flags, Mode::empty())?)
}

/// A name in a directory that is held open, so that it stays the same directory whatever becomes of its path.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) parent: OwnedFd,
    pub(super) name: OsString,
}

impl Place {
    /// The name at the end of a path, whatever lies there; `None` where the path does not end in a name.
    pub(super) fn of(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Self>> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        let parent = open(root, above, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        stores(&parent)?;
        Ok(Some(Self { parent, name: name.to_owned() }))
    }

    /// The name that the links at the end of a path lead to, in the end.
    pub(super) fn behind_links(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Self>> {
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
    pub(super) fn stat(&self) -> io::Result<Option<FileStat>> {
        Ok(below::stat(&self.parent, &self.name)?)
    }

    /// Whether it can be replaced or removed. The kernel keeps mount points only from those who have them in their own
    /// mount namespace, and takes the mounts away from everybody else.
    ///
    /// # Errors
    /// `EROFS` for a read-only mount, `EBUSY` for another.
    pub(super) fn is_no_mount(&self) -> io::Result<()> {
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
