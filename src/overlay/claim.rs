//! The directory of the host that changes are kept in: taken by one session at a time, empty before and after.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg, OFlag},
    sys::stat::{Mode, fchmod, mkdirat},
    unistd::geteuid,
};
use xattr::FileExt;

use super::{OverlayError, tree::Tree};
use crate::{
    below::{names, open_without_links},
    compile::overlay::{OTHERS, UPPER, WORK},
    watch,
};

/// An attribute of ours, set and removed again to see whether there are any.
const PROBE: &str = "user.kennel.probe";

/// How often, and how long apart, it is tried to empty the directory.
const MOST_TRIES: u32 = 100;
const MOMENT: Duration = Duration::from_millis(2);

/// A directory that is in use. Dropping it empties it.
#[derive(Debug)]
pub(crate) struct Claim {
    directory: Flock<File>,
    path: PathBuf,
    /// Whether what is in it shall stay.
    keeps: AtomicBool,
}

impl Claim {
    /// Takes the directory at `path` and makes in it what an overlay of that workspace needs.
    ///
    /// # Errors
    /// One that is in use, or not empty, or that others can reach; a file system without extended attributes; a workspace
    /// that is gone.
    pub(crate) fn take(path: &Path, workspace: &Path) -> Result<Self, OverlayError> {
        let mode = fs::metadata(workspace).map(|metadata| metadata.mode() & 0o1777);
        let mode = mode.map_err(|source| OverlayError::io("look at the workspace", workspace, source))?;
        let failed = |source: io::Error| OverlayError::io("use the overlay directory", path, source);
        let held = open_without_links(path, OFlag::O_DIRECTORY).map_err(failed)?;
        let directory = super::tree::open_for_listing(&held).map_err(failed)?;
        let directory = match Flock::lock(File::from(directory), FlockArg::LockExclusiveNonblock) {
            Err((_, Errno::EWOULDBLOCK)) => return Err(OverlayError::InUse { path: path.to_owned() }),
            locked => locked.map_err(|(_, errno)| failed(errno.into()))?,
        };
        let own = OwnedFd::from(directory.try_clone().map_err(failed)?);
        let metadata = directory.metadata().map_err(failed)?;
        let is_own = metadata.uid() == geteuid().as_raw();
        if is_own && metadata.mode() & OTHERS != 0 {
            return Err(OverlayError::Reachable { path: path.to_owned() });
        }
        if !is_own || !names(&own).map_err(failed)?.is_empty() {
            return Err(OverlayError::NotEmpty { path: path.to_owned() });
        }
        check_attributes(&own).map_err(|source| OverlayError::Attributes { source })?;
        let claim = Self { directory, path: path.to_owned(), keeps: AtomicBool::new(false) };
        for (name, mode) in [(UPPER, mode), (WORK, 0o700)] {
            make(&claim.directory, name, mode).map_err(|errno| failed(errno.into()))?;
        }
        Ok(claim)
    }
}

fn make(directory: &File, name: &str, mode: u32) -> nix::Result<()> {
    mkdirat(directory, name, Mode::S_IRWXU)?;
    let made =
        Tree { root: directory.as_fd() }.open(Path::new(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    fchmod(made, Mode::from_bits_truncate(mode))
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.keeps.load(Relaxed) {
            return;
        }
        for name in [UPPER, WORK] {
            if let Err(error) = self.remove(name.as_ref()) {
                tracing::warn!(%error, "what an overlay left in its directory could not be removed");
            }
        }
    }
}

impl Claim {
    /// Leaves what is in it; answers where that is.
    pub(super) fn keep(&self) -> PathBuf {
        self.keeps.store(true, Relaxed);
        self.path.join(UPPER)
    }

    /// Whoever wrote there was killed, which may take a moment.
    fn remove(&self, name: &OsStr) -> io::Result<()> {
        for _ in 0..MOST_TRIES {
            match watch::remove_tree(self.directory.as_fd(), name) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => std::thread::sleep(MOMENT),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                removed => return removed,
            }
        }
        Err(Errno::ENOTEMPTY.into())
    }
}

/// # Errors
/// `EOPNOTSUPP` where a directory keeps no user attributes.
pub(super) fn check_attributes(directory: &OwnedFd) -> io::Result<()> {
    let directory = File::from(directory.try_clone()?);
    match directory.set_xattr(PROBE, b"y") {
        // A workspace that its owner does not write in has such a directory of changes.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        set => set.and_then(|()| directory.remove_xattr(PROBE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_that_is_gone_is_named_and_nothing_taken() {
        let upper = tempfile::tempdir().expect("a directory");
        let workspace = upper.path().join("gone");
        let error = Claim::take(upper.path(), &workspace).expect_err("there is no workspace");
        assert_eq!(error.to_string(), format!("look at the workspace {}", workspace.display()));
        assert_eq!(fs::read_dir(upper.path()).expect("a listing").count(), 0);
    }
}
