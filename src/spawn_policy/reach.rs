//! What the host reads and writes for a spawn lies where no program of the manifest can lead it elsewhere: what an earlier one
//! left there would decide then.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    SpawnPolicy,
    error::SpawnError,
    paths::{expanded, is_written},
};
use crate::Error;

impl SpawnPolicy {
    /// Refuses a file that programs of the manifest could exchange for another, or for a link to any file of the host: it lies
    /// in `fs_write`, is there by its own name, or is reached through it. Ask this before you open a file for a spawn with
    /// rights that the program does not have, such as one with a credential. Messages call it `what`. That the file is there
    /// is not asked.
    ///
    /// ```
    /// use kennel::{Manifest, SpawnPolicy};
    ///
    /// let manifest = "[capabilities.spawn]\nprograms = []\nfs_write = ['/tmp']";
    /// let policy = SpawnPolicy::new(Manifest::from_toml(manifest)?);
    /// policy.check_outside("credential file", "/etc/token".as_ref())?;
    /// let error = policy.check_outside("credential file", "/tmp/token".as_ref()).unwrap_err();
    /// assert!(error.chain().contains("fs_write"));
    /// # Ok::<(), kennel::SpawnError>(())
    /// ```
    ///
    /// # Errors
    /// It does, or it is not allowed to look.
    pub fn check_outside(&self, what: &'static str, path: &Path) -> Result<(), SpawnError> {
        let absolute = std::path::absolute(path).map_err(Error::io("find the current directory"))?;
        if !is_written(what, &absolute, &self.writable())? {
            return Ok(());
        }
        let reason = "programs could put another there: it lies in fs_write, or is reached through it";
        let remedy = Some("keep it outside of what the manifest has in fs_write".to_owned());
        let (path, source) = (path.to_owned(), io::Error::other(reason));
        Err(Error::Grant { what, path, source, remedy }.into())
    }

    /// What programs may write, without links. Where there is nothing, there may be something again.
    fn writable(&self) -> Vec<PathBuf> {
        let written = &self.manifest.spawn.fs_write;
        let named = written.iter().filter_map(|path| expanded(path, &self.home).ok());
        named.map(|named| named.canonicalize().unwrap_or(named)).collect()
    }
}
