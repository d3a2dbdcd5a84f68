//! The directory of the host that changes are kept in: taken by one session at a time, empty before and after.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{fs, io};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::geteuid;
use xattr::FileExt;

use crate::overlay::tree::Tree;
use crate::plan::overlay::{OTHERS, UPPER, WORK};
use crate::protect::recheck;
use crate::report::overlay_error::OverlayError;
use crate::sys::dirfd::open_without_links;
use crate::sys::entries::names;

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
        let directory = crate::overlay::tree::open_for_listing(&held).map_err(failed)?;
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
    pub(crate) fn keep(&self) -> PathBuf {
        self.keeps.store(true, Relaxed);
        self.path.join(UPPER)
    }

    /// Whoever wrote there was killed, which may take a moment.
    fn remove(&self, name: &OsStr) -> io::Result<()> {
        for _ in 0..MOST_TRIES {
            match recheck::remove_tree(self.directory.as_fd(), name) {
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
pub(crate) fn check_attributes(directory: &OwnedFd) -> io::Result<()> {
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
