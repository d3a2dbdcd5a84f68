//! A directory tree whose paths the kernel resolves below its root: it follows no link and enters no mount,
//! even if another program changes the tree meanwhile.

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

/// A tree, given by its root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverlayTree<'t> {
    pub(crate) root: BorrowedFd<'t>,
}

impl OverlayTree<'_> {
    /// Opens a relative path; the empty path is the root.
    pub(crate) fn open(self, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        open(self.root, path, flags)
    }

    /// Opens the parent directory of `path`.
    pub(crate) fn parent(self, path: &Path) -> nix::Result<OwnedFd> {
        self.open(path.parent().unwrap_or(Path::new("")), DIRECTORY)
    }

    /// Opens the directory at `path`; `None` if it does not exist.
    pub(crate) fn directory(self, path: &Path) -> io::Result<Option<OwnedFd>> {
        match self.open(path, DIRECTORY) {
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            directory => Ok(Some(directory?)),
        }
    }

    /// Opens the directory at `path` if it still has that identity.
    pub(crate) fn open_if_same(self, path: &Path, identity: Identity) -> Option<OwnedFd> {
        let held = self.open(path, DIRECTORY).ok()?;
        (Identity::of_held(&held).ok()? == identity).then_some(held)
    }

    /// The state of `path`; `None` if it does not exist.
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

/// Opens a directory for listing, given a descriptor of it.
pub(crate) fn open_for_listing(directory: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(open(directory.as_fd(), Path::new(""), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?)
}

/// A tree to read: the upper directory or the workspace. It opens up directories that the caller owns but
/// cannot read, and restores their modes.
#[derive(Debug)]
pub(crate) struct ReadableTree<'t> {
    pub(crate) tree: OverlayTree<'t>,
    /// Whether it may open up anything.
    may_open: bool,
    /// The directories that were opened up: their state before, and their mode while open.
    opened: RefCell<BTreeMap<PathBuf, (FileStat, Mode)>>,
    /// The files that were opened up to read them.
    closed: RefCell<Vec<Closed>>,
}

/// A file or directory whose mode was restored: its state before it was opened up, and now.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) path: PathBuf,
    pub(crate) before: FileStat,
    pub(crate) now: FileStat,
}

impl<'t> ReadableTree<'t> {
    pub(crate) fn new(tree: OverlayTree<'t>) -> Self {
        Self { tree, may_open: true, opened: RefCell::default(), closed: RefCell::default() }
    }

    /// A tree that is left as it is: what its owner cannot read gives `EACCES`.
    pub(crate) fn as_it_is(tree: OverlayTree<'t>) -> Self {
        let mut tree = Self::new(tree);
        tree.may_open = false;
        tree
    }

    /// Makes sure that the caller can search the directories above `path`.
    pub(crate) fn open_above(&self, path: &Path) -> io::Result<()> {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        for above in above {
            if self.directory(above)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Opens a directory for listing, even if its mode denies that to the owner.
    pub(crate) fn list(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        match self.tree.open(path, flags) {
            // Search needs the `x` permission as well.
            Ok(directory) if dirfd::stat(&directory, OsStr::new(".")).is_ok() => return Ok(directory),
            Ok(_) | Err(Errno::EACCES) if self.may_open => {}
            Ok(_) => return Err(Errno::EACCES.into()),
            Err(errno) => return Err(errno.into()),
        }
        // If the root denies search, no path resolves from it, not even its own.
        let held = match path.as_os_str().is_empty() {
            true => self.tree.root.try_clone_to_owned()?,
            false => self.tree.open(path, DIRECTORY)?,
        };
        self.open_up(path, &held)?;
        Ok(self.tree.open(path, flags)?)
    }

    /// Opens the directory at `path` and makes sure that the caller can list and search it; `None` if it does
    /// not exist.
    pub(crate) fn directory(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        let Some(held) = self.tree.directory(path)? else { return Ok(None) };
        if self.may_open && is_closed(&held, AccessFlags::R_OK | AccessFlags::X_OK) {
            self.open_up(path, &held)?;
        }
        Ok(Some(held))
    }

    /// The state of `path`; for a directory that was opened up, its state before that.
    pub(crate) fn stat_before(&self, path: &Path) -> io::Result<Option<FileStat>> {
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

    /// Restores the modes of the directories that were opened up. It skips one that was replaced, or whose
    /// mode another program has changed. Returns what has other times now.
    pub(crate) fn close(&self) -> Vec<Closed> {
        let close = |(path, (before, open)): (PathBuf, (FileStat, Mode))| {
            let held = self.tree.open_if_same(&path, Identity::of(&before))?;
            if mode_of(&fstat(&held).ok()?) != open {
                return None;
            }
            change_mode(&held, mode_of(&before)).ok()?;
            Some(Closed { path, before, now: fstat(&held).ok()? })
        };
        // Deepest first.
        let directories = self.opened.take().into_iter().rev().filter_map(close);
        self.closed.take().into_iter().chain(directories).collect()
    }

    /// Opens a regular file for reading, even if its mode denies that to the owner. Other file types are
    /// refused (`EOPNOTSUPP`); `O_NONBLOCK` keeps one that is put there after the check from blocking.
    pub(crate) fn read(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let held = self.tree.open(path, OFlag::O_PATH)?;
        if kind(&fstat(&held)?) != FileKind::File {
            return Err(Errno::EOPNOTSUPP.into());
        }
        match self.tree.open(path, flags) {
            Err(Errno::EACCES) if self.may_open => {}
            opened => return Ok(opened?),
        }
        let before = fstat(&held)?;
        let mode = mode_of(&before);
        change_mode(&held, mode | Mode::S_IRUSR)?;
        let opened = self.tree.open(path, flags);
        change_mode(&held, mode)?;
        let (path, now) = (path.to_owned(), fstat(&held)?);
        self.closed.borrow_mut().push(Closed { path, before, now });
        Ok(opened?)
    }
}

impl Drop for ReadableTree<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether the directory denies the caller the `wanted` access.
pub(crate) fn is_closed(directory: &OwnedFd, wanted: AccessFlags) -> bool {
    faccessat(directory, ".", wanted, AtFlags::AT_EACCESS) == Err(Errno::EACCES)
}
