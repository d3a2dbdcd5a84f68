//! What a thing is known by, whatever name it has by now.

use std::{
    fs::{self, Metadata},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
};

use nix::sys::stat::{FileStat, fstat};

/// Device and inode. When a thing is gone, another may get them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    /// Nothing has it.
    pub(crate) const NOTHING: Self = Self { device: 0, inode: 0 };

    pub(crate) fn of(stat: &FileStat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }

    /// Of what a path leads to.
    ///
    /// # Errors
    /// Those of stat(2).
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of_metadata(&fs::metadata(path)?))
    }

    pub(crate) fn of_metadata(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    /// Of what is open.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(crate) fn of_held(held: impl AsFd) -> nix::Result<Self> {
        Ok(Self::of(&fstat(held)?))
    }
}
