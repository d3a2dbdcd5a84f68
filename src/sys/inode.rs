//! The identity and the kind of a file, independent of its name.

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag, fstat};
use serde::{Deserialize, Serialize};

use crate::sys::{device_of, known_stat};

/// Device and inode number. After a file is removed, a new one may get the same pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    /// No file has this identity.
    pub(crate) const NOTHING: Self = Self { device: 0, inode: 0 };

    pub(crate) fn of(stat: &FileStat) -> Self {
        Self { device: device_of(stat), inode: stat.st_ino }
    }

    /// The identity of the file that a path leads to.
    ///
    /// # Errors
    /// Those of stat(2).
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of_metadata(&fs::metadata(path)?))
    }

    pub(crate) fn of_metadata(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    /// The identity of an open file.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(crate) fn of_held(held: impl AsFd) -> nix::Result<Self> {
        Ok(Self::of(&fstat(held)?))
    }
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link. [`Session::stat`](crate::session::Session::stat) follows links and never answers
    /// this.
    Link,
    /// A FIFO, socket or device.
    Other,
}

/// Refuses everything but regular files.
///
/// `EISDIR` for a directory, `ELOOP` for a link, `EOPNOTSUPP` for a FIFO, socket or device.
pub(crate) fn is_regular(stat: &FileStat) -> io::Result<()> {
    match kind(stat) {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Errno::EISDIR.into()),
        FileKind::Link => Err(Errno::ELOOP.into()),
        FileKind::Other => Err(Errno::EOPNOTSUPP.into()),
    }
}

/// Whether stdout and stderr are the same pipe, socket or file, so that one order holds for both. The order
/// in a device does not show: two that are one device count as two.
///
/// ```
/// let (_, pipe) = std::io::pipe()?;
/// assert!(kennel::internal::is_one_file(&pipe, &pipe.try_clone()?));
/// assert!(!kennel::internal::is_one_file(&pipe, &std::io::pipe()?.1));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn is_one_file(stdout: impl AsFd, stderr: impl AsFd) -> bool {
    let (Ok(stdout), Ok(stderr)) = (known_stat(stdout), known_stat(stderr)) else { return false };
    let is_device = SFlag::from_bits_truncate(stdout.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR;
    Identity::of(&stdout) == Identity::of(&stderr) && !is_device
}

pub(crate) fn kind(stat: &FileStat) -> FileKind {
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => FileKind::File,
        SFlag::S_IFDIR => FileKind::Directory,
        SFlag::S_IFLNK => FileKind::Link,
        _ => FileKind::Other,
    }
}
