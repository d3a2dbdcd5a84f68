//! The source of a bind: canonical path, kind and identity of a file of the host. It only reads.

use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::fcntl::OFlag;

use crate::sys::dirfd::open_without_links;
use crate::sys::inode::Identity;
use crate::sys::lexical;
use crate::sys::lexical::clean;

/// A file, directory or device of the host that can be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BindSource {
    /// Absolute and clean. Canonical if it comes from [`resolve`](Self::resolve) or [`exact`](Self::exact),
    /// else as given.
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) kind: SourceKind,
}

/// The kind of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    Directory,
    /// A file, socket or FIFO: anything that is bound onto a file.
    File,
    Device,
}

impl BindSource {
    /// Resolves the absolute `path` to its canonical form.
    ///
    /// # Errors
    /// Those of realpath(3). `ESTALE` if another process replaced parts of the path meanwhile.
    pub(crate) fn resolve(path: &Path) -> io::Result<Self> {
        match metadata_without_links(path) {
            Err(error) if may_have_links(&error) => {
                let canonical = fs::canonicalize(path)?;
                let metadata = metadata_of_canonical(&canonical)?;
                Ok(Self::of(canonical, &metadata))
            }
            metadata => Ok(Self::of(path.to_owned(), &metadata?)),
        }
    }

    /// The source at `path`, which must have no link in it.
    ///
    /// # Errors
    /// Those of openat2(2). `ELOOP` if there is a link.
    pub(crate) fn exact(path: &Path) -> io::Result<Self> {
        Ok(Self::of(path.to_owned(), &metadata_without_links(path)?))
    }

    /// As [`exact`](Self::exact), and keeps it open. What the descriptor shows is what will be bound, because
    /// the inside compares the inode.
    ///
    /// # Errors
    /// As [`exact`](Self::exact).
    pub(crate) fn open_exact(path: &Path) -> io::Result<(fs::File, Self)> {
        let file = open_resolved(path)?;
        let source = Self::of(path.to_owned(), &file.metadata()?);
        Ok((file, source))
    }

    /// The source that `path` leads to, with the path as given. One system call, for places whose canonical
    /// path does not matter.
    ///
    /// # Errors
    /// Those of stat(2).
    pub(crate) fn stat(path: &Path) -> io::Result<Self> {
        Ok(Self::of(path.to_owned(), &fs::metadata(path)?))
    }

    /// From metadata that the caller has.
    pub(crate) fn of(path: PathBuf, metadata: &Metadata) -> Self {
        Self { path: clean(path), identity: Identity::of_metadata(metadata), kind: kind(metadata) }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == SourceKind::Directory
    }
}

/// Whether something exists at `path`. It need not be readable, and can be a dangling link.
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

/// Whether [`metadata_without_links`] failed in a way that resolving links may cure.
pub(crate) fn may_have_links(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP) || error.kind() == io::ErrorKind::InvalidInput
}

/// Metadata of a path that was just resolved, so it has no link in it. `ESTALE` if it has one now: following
/// it could lead anywhere.
pub(crate) fn metadata_of_canonical(canonical: &Path) -> io::Result<Metadata> {
    let changed = [libc::ELOOP, libc::ENOENT, libc::ENOTDIR];
    metadata_without_links(canonical).map_err(|error| match error.raw_os_error() {
        Some(errno) if changed.contains(&errno) => replaced(),
        _ => error,
    })
}

/// The error for a path that another process changed while Kennel looked at it.
pub(crate) fn replaced() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

/// Metadata of a path without symbolic links, `.` and `..`: two system calls instead of a walk.
pub(crate) fn metadata_without_links(path: &Path) -> io::Result<Metadata> {
    open_resolved(path)?.metadata()
}

fn open_resolved(path: &Path) -> io::Result<fs::File> {
    if !lexical::is_plain(path) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(open_without_links(path, OFlag::empty())?.into())
}
