//! A private temporary directory: the only one that a command may write to.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crate::report::error::Error;

/// A directory that only this user enters. Dropping this removes it with all that is in it.
#[derive(Debug)]
pub(crate) struct TemporaryDirectory(PathBuf);

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
        make().map(Self).map_err(Error::io("make a temporary directory"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // The standard library follows no links here. A command may have closed a directory of its own.
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, directory = %self.0.display(), "a temporary directory is left");
        }
    }
}
