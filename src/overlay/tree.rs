//! A directory and what lies below it, by paths that the kernel keeps in it: no link is followed, no mount entered,
//! whatever somebody makes of the tree meanwhile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::{AccessFlags, faccessat};

use crate::sys::dirfd;
use crate::sys::dirfd::{change_mode, mode_of, open_up};
use crate::sys::inode::{FileKind, Identity, kind};

const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY);

/// A tree by its root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverlayTree<'t> {
    pub(crate) root: BorrowedFd<'t>,
}

impl OverlayTree<'_> {
    /// Opens what lies at a relative path; the empty one is the root.
    pub(crate) fn open(self, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        open(self.root, path, flags)
    }

    /// The directory that `path` lies in.
    pub(crate) fn parent(self, path: &Path) -> nix::Result<OwnedFd> {
        self.open(path.parent().unwrap_or(Path::new("")), DIRECTORY)
    }

    /// The directory at `path`; `None` where there is none.
    pub(crate) fn directory(self, path: &Path) -> io::Result<Option<OwnedFd>> {
        match self.open(path, DIRECTORY) {
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            directory => Ok(Some(directory?)),
        }
    }

    /// The directory at `path`, if it is that one still.
    pub(crate) fn same(self, path: &Path, which: Identity) -> Option<OwnedFd> {
        let held = self.open(path, DIRECTORY).ok()?;
        (Identity::of_held(&held).ok()? == which).then_some(held)
    }

    /// What lies at `path`; `None` where nothing does.
    pub(crate) fn stat(self, path: &Path) -> io::Result<Option<FileStat>> {
        let Some(name) = path.file_name() else { return Ok(Some(fstat(self.root)?)) };
        match self.directory(path.parent().unwrap_or(Path::new("")))? {
            Some(parent) => Ok(dirfd::stat(parent, name)?),
            None => Ok(None),
        }
    }
}

fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW).resolve(resolve);
    dirfd::open(root, path, how)
}

/// Opens a directory that is held for listing.
pub(crate) fn open_for_listing(directory: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(open(directory.as_fd(), Path::new(""), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?)
}

/// A tree that is looked at: what commands wrote, or the workspace. Directories of the caller's own are opened up for that,
/// whatever modes commands gave them.
#[derive(Debug)]
pub(crate) struct Looked<'t> {
    pub(crate) tree: OverlayTree<'t>,
    /// Directories that were opened up, as they were, to get their modes back; and the modes by which they are open.
    opened: RefCell<BTreeMap<PathBuf, (FileStat, Mode)>>,
}

/// A directory that was opened up and closed again, as it was before and is now.
pub(crate) struct Closed {
    pub(crate) path: PathBuf,
    pub(crate) before: FileStat,
    pub(crate) now: FileStat,
}

impl<'t> Looked<'t> {
    pub(crate) fn of(tree: OverlayTree<'t>) -> Self {
        Self { tree, opened: RefCell::default() }
    }

    /// Opens a directory for listing, also one whose owner took the right to do so from himself.
    pub(crate) fn list(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        match self.tree.open(path, flags) {
            // To search it takes a right of its own.
            Ok(directory) if dirfd::stat(&directory, OsStr::new(".")).is_ok() => return Ok(directory),
            Ok(_) | Err(Errno::EACCES) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Nothing is opened from a root that is closed, not even itself.
        let held = match path.as_os_str().is_empty() {
            true => self.tree.root.try_clone_to_owned()?,
            false => self.tree.open(path, DIRECTORY)?,
        };
        self.open_up(path, &held)?;
        Ok(self.tree.open(path, flags)?)
    }

    /// The directory at `path`, in which everything can be found; `None` where there is none.
    pub(crate) fn directory(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        let Some(held) = self.tree.directory(path)? else { return Ok(None) };
        if is_closed(&held, AccessFlags::R_OK | AccessFlags::X_OK) {
            self.open_up(path, &held)?;
        }
        Ok(Some(held))
    }

    /// What lies at `path`, or was there before it was opened up.
    pub(crate) fn was(&self, path: &Path) -> io::Result<Option<FileStat>> {
        match self.opened.borrow().get(path) {
            Some((before, _)) => Ok(Some(*before)),
            None => self.tree.stat(path),
        }
    }

    fn open_up(&self, path: &Path, held: &OwnedFd) -> io::Result<()> {
        let before = open_up(held)?;
        let open = mode_of(&fstat(held)?);
        self.opened.borrow_mut().entry(path.to_owned()).or_insert((before, open));
        Ok(())
    }

    /// Gives directories that were opened up their modes back. What took the place of one meanwhile stays as it is, and
    /// so does one that somebody else has given another mode.
    pub(crate) fn close(&self) -> Vec<Closed> {
        let close = |(path, (before, open)): (PathBuf, (FileStat, Mode))| {
            let held = self.tree.same(&path, Identity::of(&before))?;
            if mode_of(&fstat(&held).ok()?) != open {
                return None;
            }
            change_mode(&held, mode_of(&before)).ok()?;
            Some(Closed { path, before, now: fstat(&held).ok()? })
        };
        // What lies deeper first.
        self.opened.take().into_iter().rev().filter_map(close).collect()
    }

    /// Opens a regular file for reading. What else lies there is not opened, or not for long.
    pub(crate) fn read(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let held = self.tree.open(path, OFlag::O_PATH)?;
        if kind(&fstat(&held)?) != FileKind::File {
            return Err(Errno::EOPNOTSUPP.into());
        }
        match self.tree.open(path, flags) {
            Err(Errno::EACCES) => {}
            opened => return Ok(opened?),
        }
        let mode = mode_of(&fstat(&held)?);
        change_mode(&held, mode | Mode::S_IRUSR)?;
        let opened = self.tree.open(path, flags);
        change_mode(&held, mode)?;
        Ok(opened?)
    }
}

impl Drop for Looked<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether the caller may not do in a directory what is `wanted`.
pub(crate) fn is_closed(directory: &OwnedFd, wanted: AccessFlags) -> bool {
    faccessat(directory, ".", wanted, AtFlags::AT_EACCESS) == Err(Errno::EACCES)
}
