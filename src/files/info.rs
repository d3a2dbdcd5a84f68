//! What is told of a file.

use std::{
    ffi::OsString,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::sys::stat::FileStat;

use crate::below::{FileKind, kind};

/// What [`Session::stat`](crate::Session::stat) answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileInfo {
    /// What it is.
    pub kind: FileKind,
    /// Size in bytes; of a file what can be read from it.
    pub size: u64,
    /// Permission bits, as chmod(2) takes them.
    pub mode: u32,
    /// When its contents were changed last.
    pub modified: SystemTime,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileEntry {
    /// The name, without a slash. Any bytes but that and NUL.
    pub name: OsString,
    /// What it is. Links are not followed.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
}

impl FileInfo {
    pub(super) fn of(stat: &FileStat) -> Self {
        let seconds = Duration::from_secs(stat.st_mtime.unsigned_abs());
        let whole =
            if stat.st_mtime < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
        let more = Duration::from_nanos(stat.st_mtime_nsec.unsigned_abs());
        Self {
            kind: kind(stat),
            size: stat.st_size.unsigned_abs(),
            mode: stat.st_mode & 0o7777,
            modified: whole.and_then(|whole| whole.checked_add(more)).unwrap_or(UNIX_EPOCH),
        }
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

impl FileEntry {
    /// Whether it is a directory, and not a link to one.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}
