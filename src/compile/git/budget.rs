//! How much is looked at in the parts of repositories when a sandbox starts. Commands lay there as many repositories as they
//! like, as deep as they like, and under as long names.

use std::{
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use crate::failure::shown;

/// Parts of a path below a repository, and bytes. Nobody's submodules lie that deep.
pub(super) const DEEPEST: usize = 32;
const LONGEST: usize = 1024;

/// What one look costs goes by the way to it. A thousand submodules take less than this.
const MOST: usize = 1 << 17;

/// Bytes of a way, or of a config, that take as long as a part of a way.
const BYTES_OF_WAY: usize = 32;
const BYTES_OF_CONFIG: usize = 256;

/// Entries of repositories in parts.
const MOST_OF_REPOSITORIES: usize = 100_000;

/// What is left of it, for all repositories of a start.
#[derive(Debug)]
pub(super) struct Budget {
    looks: usize,
    of_repositories: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { looks: MOST, of_repositories: MOST_OF_REPOSITORIES }
    }
}

impl Budget {
    /// Counts a look at `path` in `repository`.
    ///
    /// # Errors
    /// It is too deep; there were too many.
    pub(super) fn look(&mut self, repository: &Path, path: &Path) -> io::Result<()> {
        let bytes = path.as_os_str().as_bytes();
        let parts = 1 + bytes.iter().filter(|byte| **byte == b'/').count();
        if parts > DEEPEST || bytes.len() > LONGEST {
            let above: PathBuf = path.iter().take(2).collect();
            return Err(cause(&format!("{} is too deep", shown(&above))));
        }
        self.take(parts + (repository.as_os_str().len() + bytes.len()) / BYTES_OF_WAY)
    }

    /// Counts what was read of a config.
    ///
    /// # Errors
    /// There was too much.
    pub(super) fn read(&mut self, config: &[u8]) -> io::Result<()> {
        self.take(config.len() / BYTES_OF_CONFIG)
    }

    /// Counts an entry of a repository.
    ///
    /// # Errors
    /// There were too many.
    pub(super) fn entry_of_repository(&mut self) -> io::Result<()> {
        self.of_repositories = self.of_repositories.checked_sub(1).ok_or_else(too_much)?;
        Ok(())
    }

    fn take(&mut self, cost: usize) -> io::Result<()> {
        self.looks = self.looks.checked_sub(cost).ok_or_else(too_much)?;
        Ok(())
    }
}

/// Why something is not looked at in full.
pub(super) fn cause(words: &str) -> io::Error {
    io::Error::other(words.to_owned())
}

pub(super) fn too_much() -> io::Error {
    cause("there is too much in it")
}
