//! Looking at what a grant names on the host: canonical path, kind and identity. Reads, never writes.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::fcntl::OFlag;

use crate::sys::dirfd::open_without_links;
use crate::sys::inode::Identity;
use crate::sys::lexical::clean;

/// A thing on the host that can be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BindSource {
    /// Absolute and clean; canonical where [`resolve`](Self::resolve) or [`exact`](Self::exact) made it, else as named.
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) kind: SourceKind,
}

/// What kind of thing it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    Directory,
    /// A file, socket or fifo: anything that is bound onto a file.
    File,
    Device,
}

impl BindSource {
    /// Resolves `path`, which is absolute, to its canonical form.
    ///
    /// # Errors
    /// Those of realpath(3); `ESTALE` where parts of the path were exchanged meanwhile.
    pub(crate) fn resolve(path: &Path) -> io::Result<Self> {
        match plain(path) {
            Err(error) if may_have_links(&error) => {
                let canonical = fs::canonicalize(path)?;
                let metadata = end(&canonical)?;
                Ok(Self::of(canonical, &metadata))
            }
            metadata => Ok(Self::of(path.to_owned(), &metadata?)),
        }
    }

    /// What lies at `path`, which must have no link in it.
    ///
    /// # Errors
    /// Those of openat2(2); `ELOOP` where there is a link.
    pub(crate) fn exact(path: &Path) -> io::Result<Self> {
        Ok(Self::of(path.to_owned(), &plain(path)?))
    }

    /// What lies at `path`, which must have no link in it, held open: what is asked of the descriptor is asked of
    /// what will be bound, because the inside compares the inode.
    ///
    /// # Errors
    /// As [`exact`](Self::exact).
    pub(crate) fn open_exact(path: &Path) -> io::Result<(fs::File, Self)> {
        let file = open_plain(path)?;
        let source = Self::of(path.to_owned(), &file.metadata()?);
        Ok((file, source))
    }

    /// What `path` leads to, under that very name: one call, for places whose canonical name nobody needs.
    ///
    /// # Errors
    /// Those of stat(2).
    pub(crate) fn look(path: &Path) -> io::Result<Self> {
        Ok(Self::of(path.to_owned(), &fs::metadata(path)?))
    }

    /// From metadata at hand.
    pub(crate) fn of(path: PathBuf, metadata: &Metadata) -> Self {
        Self { path: clean(path), identity: Identity::of_metadata(metadata), kind: kind(metadata) }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == SourceKind::Directory
    }
}

/// Whether something is there, whatever it is and whoever may read it.
pub(crate) fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn kind(metadata: &Metadata) -> SourceKind {
    let kind = metadata.file_type();
    if kind.is_dir() {
        SourceKind::Directory
    } else if kind.is_char_device() || kind.is_block_device() {
        SourceKind::Device
    } else {
        SourceKind::File
    }
}

/// Whether a plain walk failed in a way that a walk through links need not.
pub(crate) fn may_have_links(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP) || error.kind() == io::ErrorKind::InvalidInput
}

/// Metadata of what lies at the end of a way that was just gone: there is no link in its path. Asked over links again, it
/// could be that of anything.
pub(crate) fn end(canonical: &Path) -> io::Result<Metadata> {
    let gone = [libc::ELOOP, libc::ENOENT, libc::ENOTDIR];
    plain(canonical).map_err(|error| match error.raw_os_error() {
        Some(errno) if gone.contains(&errno) => exchanged(),
        _ => error,
    })
}

/// What is said of a path that did not stay what it was while it was looked at.
pub(crate) fn exchanged() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

/// Metadata of a path that has no symbolic link and no `.` or `..` in it: two calls instead of a walk in user space.
pub(crate) fn plain(path: &Path) -> io::Result<Metadata> {
    open_plain(path)?.metadata()
}

fn open_plain(path: &Path) -> io::Result<fs::File> {
    if clean(path).as_os_str() != path.as_os_str()
        || path.components().any(|part| part.as_os_str() == OsStr::new(".."))
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(open_without_links(path, OFlag::empty())?.into())
}
