//! Layers as directories: the tree of a layer that is being made, and what the layers below it show
//! together. Every path is resolved by the kernel below the directory of its layer, without links.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, UtimensatFlags, futimens, mknodat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::image::extension::{Attribute, FileTime};
use crate::sys;
use crate::sys::dirfd::{self, DIRECTORY};
use crate::sys::inode::{FileKind, kind};

/// Attributes that are overlayfs's own.
pub(crate) const OF_OVERLAY: &[u8] = b"user.overlay.";

/// Opens a path below a layer's directory; the empty path is that directory.
pub(crate) fn open(root: impl AsFd, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    dirfd::open(
        root,
        path,
        OpenHow::new().flags(flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW).resolve(resolve),
    )
}

/// What a file of a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerFile {
    Directory,
    Link,
    /// A character device 0:0: there is no such file, also if a lower layer has it.
    Whiteout,
    /// A regular file or a FIFO.
    Other,
}

impl LayerFile {
    pub(crate) fn of(stat: &FileStat) -> Self {
        match kind(stat) {
            FileKind::Directory => Self::Directory,
            FileKind::Link => Self::Link,
            _ if sys::is_whiteout(stat) => Self::Whiteout,
            _ => Self::Other,
        }
    }

    /// What `name` in a directory of a layer is; `None` if the layer does not have it.
    pub(crate) fn at(directory: impl AsFd, name: &OsStr) -> nix::Result<Option<Self>> {
        Ok(dirfd::stat(directory, name)?.as_ref().map(Self::of))
    }
}

/// Makes a whiteout. An ordinary user may make this device, and no other.
pub(crate) fn make_whiteout(directory: impl AsFd, name: &OsStr) -> nix::Result<()> {
    mknodat(directory, name, SFlag::S_IFCHR, Mode::empty(), 0)
}

/// Marks a directory as opaque.
pub(crate) fn make_opaque(directory: impl AsFd) -> io::Result<()> {
    xattr::set_deref(sys::own_path(directory), sys::OPAQUE, b"y")
}

fn is_opaque(directory: impl AsFd) -> io::Result<bool> {
    Ok(xattr::get_deref(sys::own_path(directory), sys::OPAQUE)?.is_some_and(|value| value == b"y"))
}

/// The user's attributes of a file, without those of overlayfs.
pub(crate) fn attributes_of(held: impl AsFd) -> io::Result<Vec<Attribute>> {
    let path = sys::own_path(held);
    let mut attributes = Vec::new();
    for name in xattr::list_deref(&path)? {
        if is_kept(name.as_bytes())
            && let Some(value) = xattr::get_deref(&path, &name)?
        {
            attributes.push(Attribute { name: name.as_bytes().to_vec(), value });
        }
    }
    Ok(attributes)
}

/// Whether layers keep an attribute of this name.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") && !name.starts_with(OF_OVERLAY) && !name.contains(&0)
}

/// Gives a file these attributes.
pub(crate) fn set_attributes<'a>(
    held: impl AsFd,
    attributes: impl Iterator<Item = &'a Attribute>,
) -> io::Result<()> {
    let mut path = None;
    for Attribute { name, value } in attributes {
        let path = path.get_or_insert_with(|| sys::own_path(held.as_fd()));
        xattr::set_deref(path, OsStr::from_bytes(name), value)?;
    }
    Ok(())
}

/// Takes the user's attributes from a file.
pub(crate) fn clear_attributes(held: impl AsFd) -> io::Result<()> {
    for Attribute { name, .. } in attributes_of(held.as_fd())? {
        xattr::remove_deref(sys::own_path(held.as_fd()), OsStr::from_bytes(&name))?;
    }
    Ok(())
}

fn spec(time: FileTime) -> TimeSpec {
    TimeSpec::new(time.seconds, time.nanoseconds.into())
}

/// Gives an open file this time, as that of access too.
pub(crate) fn set_time(held: impl AsFd, time: FileTime) -> nix::Result<()> {
    futimens(held, &spec(time), &spec(time))
}

/// Gives `name`, which may be a link or a FIFO, this time.
pub(crate) fn set_time_at(directory: impl AsFd, name: &OsStr, time: FileTime) -> nix::Result<()> {
    utimensat(directory, name, &spec(time), &spec(time), UtimensatFlags::NoFollowSymlink)
}

/// The time of a file.
pub(crate) fn time_of(stat: &FileStat) -> FileTime {
    FileTime { seconds: stat.st_mtime, nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}

/// Removes `name` in a directory of a layer, with all that is in it.
pub(crate) fn remove(directory: BorrowedFd<'_>, name: &OsStr, file: LayerFile) -> io::Result<()> {
    match file {
        LayerFile::Directory => sys::remove::tree(directory, name, &|_, _, _| Ok(())),
        _ => Ok(unlinkat(directory, name, UnlinkatFlags::NoRemoveDir)?),
    }
}

/// The layers below the one that is being made.
#[derive(Debug, Default)]
pub(crate) struct LowerLayers {
    /// Highest first.
    roots: Vec<OwnedFd>,
}

/// A file that the lower layers show.
#[derive(Debug)]
pub(crate) struct LowerEntry {
    directory: OwnedFd,
    name: std::ffi::OsString,
    pub(crate) stat: FileStat,
}

impl LowerEntry {
    pub(crate) fn file(&self) -> LayerFile {
        LayerFile::of(&self.stat)
    }

    /// Opens it for reading; it does not wait for writers of a FIFO.
    pub(crate) fn open(&self, flags: OFlag) -> nix::Result<OwnedFd> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        openat(&self.directory, self.name.as_os_str(), flags, Mode::empty())
    }

    pub(crate) fn target(&self) -> nix::Result<std::ffi::OsString> {
        readlinkat(&self.directory, self.name.as_os_str())
    }
}

impl LowerLayers {
    /// The layers in these directories, lowest first.
    pub(crate) fn open<'p>(paths: impl DoubleEndedIterator<Item = &'p Path>) -> io::Result<Self> {
        let open = |path| dirfd::open_without_links(path, OFlag::O_DIRECTORY);
        Ok(Self { roots: paths.rev().map(open).collect::<io::Result<_>>()? })
    }

    /// What the layers show together at a path that has no link in it: the first layer that has something
    /// there decides, or one that hides it. `EACCES` if a directory keeps its owner out.
    pub(crate) fn find(&self, path: &Path) -> io::Result<Option<LowerEntry>> {
        for root in &self.roots {
            match find_in(root.as_fd(), path)? {
                LayerLookup::Found(found) => return Ok(Some(found)),
                LayerLookup::Hidden => return Ok(None),
                LayerLookup::Missing => {}
            }
        }
        Ok(None)
    }
}

/// What one layer says about a path.
enum LayerLookup {
    Found(LowerEntry),
    /// Lower layers do not count.
    Hidden,
    Missing,
}

fn find_in(root: BorrowedFd<'_>, path: &Path) -> io::Result<LayerLookup> {
    let missing = |is_opaque| if is_opaque { LayerLookup::Hidden } else { LayerLookup::Missing };
    let mut parts = path.iter().peekable();
    let mut directory = openat(root, ".", OFlag::O_PATH | DIRECTORY, Mode::empty())?;
    let mut opaque = is_opaque(&directory)?;
    while let Some(part) = parts.next() {
        let Some(stat) = dirfd::stat(&directory, part)? else { return Ok(missing(opaque)) };
        match LayerFile::of(&stat) {
            LayerFile::Whiteout => return Ok(LayerLookup::Hidden),
            _ if parts.peek().is_none() => {
                return Ok(LayerLookup::Found(LowerEntry { directory, name: part.to_owned(), stat }));
            }
            LayerFile::Directory => {
                directory = openat(&directory, part, OFlag::O_PATH | DIRECTORY, Mode::empty())?;
                opaque |= is_opaque(&directory)?;
            }
            _ => return Ok(LayerLookup::Hidden),
        }
    }
    Ok(missing(opaque))
}

/// Whether an error says that a directory keeps its owner out.
pub(crate) fn keeps_out(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}
