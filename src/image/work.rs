//! Directories below `tmp/`, in which things are made and from which they are deleted. The lock of each
//! tells whether its process still lives.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::image::store::{Store, file_names, lock_file};
use crate::report::error::image::ImageError;
use crate::sys;

/// Where they are in the store.
pub(crate) const TEMPORARY: &str = "tmp";

/// A file below `tmp/` without a name, so that nothing of it is left.
#[cfg(feature = "image")]
pub(crate) fn unnamed_file(store: &Store) -> io::Result<File> {
    let mut options = File::options();
    let unnamed = options.read(true).write(true).custom_flags(libc::O_TMPFILE | libc::O_EXCL);
    unnamed.open(store.path().join(TEMPORARY))
}

/// Removes a directory of the store, whatever modes are in it.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    sys::remove::tree(OwnedFd::from(File::open(parent)?).as_fd(), name, &|_, _, _| Ok(()))
}

/// A directory below `tmp/`, locked for as long as its writer lives. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct WorkDirectory {
    pub(crate) path: PathBuf,
    pub(crate) directory: Flock<File>,
}

impl WorkDirectory {
    /// Makes one. The store has been made.
    pub(crate) fn make(store: &Store) -> Result<Self, ImageError> {
        let above = store.path().join(TEMPORARY);
        let failed = || ImageError::io("make a directory in", &above);
        loop {
            let path = above.join(format!("{:016x}", sys::random().map_err(|errno| failed()(errno.into()))?));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.map_err(failed())?,
            }
            // A writer that cleans up may take it for left before it is locked.
            if let Some(made) = Self::lock(&path).map_err(failed())? {
                return Ok(made);
            }
        }
    }

    /// Locks a directory below `tmp/`; `None` if somebody else holds it, or has removed it.
    pub(crate) fn lock(path: &Path) -> io::Result<Option<Self>> {
        let mut options = fs::OpenOptions::new();
        let directory = match options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)
        {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            directory => directory?,
        };
        let directory = match lock_file(directory, FlockArg::LockExclusiveNonblock) {
            Err(Errno::EAGAIN) => return Ok(None),
            directory => directory?,
        };
        let inode = directory.metadata()?.ino();
        let is_there = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.ino() == inode);
        Ok(is_there.then(|| Self { path: path.to_owned(), directory }))
    }

    /// Removes those of killed processes.
    pub(crate) fn clean_up(store: &Store) -> Result<(), ImageError> {
        let above = store.path().join(TEMPORARY);
        for name in file_names(&above)? {
            // Dropping it removes it. What cannot be removed now hinders nobody.
            drop(Self::lock(&above.join(name)));
        }
        Ok(())
    }

    /// Removes it, and tells if that fails.
    #[cfg(feature = "image")]
    pub(crate) fn remove(self) -> Result<(), ImageError> {
        remove_tree(&self.path).map_err(ImageError::io("remove", &self.path))
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        // What stays is removed by the next writer.
        let _ = remove_tree(&self.path);
    }
}
