//! A private temporary directory: the only one that a command may write to.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crate::report::error::Error;

/// A directory that only this user enters. Dropping this removes it with all that is in it.
#[derive(Debug)]
pub(crate) struct TemporaryDirectory {
    path: PathBuf,
    /// Whether another process removes it.
    is_lent: bool,
}

impl TemporaryDirectory {
    /// Makes one in the user's own temporary directory.
    ///
    /// # Errors
    /// Those of mkdtemp(3).
    pub(crate) fn make() -> Result<Self, Error> {
        let make = || -> io::Result<PathBuf> {
            let made = nix::unistd::mkdtemp(&env::temp_dir().join("kennel-XXXXXX"))?;
            // Profiles compare real paths.
            fs::canonicalize(made)
        };
        make().map(|path| Self { path, is_lent: false }).map_err(Error::io("make a temporary directory"))
    }

    /// The directory of another process, which removes it.
    pub(crate) fn lent(path: PathBuf) -> Self {
        Self { path, is_lent: true }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if self.is_lent {
            return;
        }
        // The standard library follows no links here. A command may have closed a directory of its own.
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, directory = %self.path.display(), "a temporary directory is left");
        }
    }
}
