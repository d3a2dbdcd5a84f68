//! The host directory that holds the changes of an overlay: one session uses it at a time. It is empty before
//! and after, unless the changes are kept.

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

use crate::overlay::part;
use crate::overlay::record::{Heading, LedgerRecord, RECORD, UNFINISHED};
use crate::overlay::tree::{OverlayTree, open_for_listing};
use crate::protect::recheck;
use crate::report::error::overlay::OverlayError;
use crate::sys::dirfd::{names, open_without_links, without_capabilities};
use crate::view::cache_store::{OTHERS, UPPER, WORK};

/// The mode of a root.
const ROOT_MODE: u32 = 0o755;

/// An attribute that is set and removed to test whether the file system supports user attributes.
const PROBE: &str = "user.kennel.probe";

/// How often, and how far apart, dropping a claim tries to empty the directory.
const MAX_TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(2);

/// How often, and how far apart, to look whether a directory is free. A session that was just stopped tidies
/// it up.
const MAX_WAITS: u32 = 100;
const WAIT: Duration = Duration::from_millis(20);

/// A host directory locked for this session. Dropping the claim empties it, unless it keeps changes.
#[derive(Debug)]
pub(crate) struct Claim {
    directory: Flock<File>,
    path: PathBuf,
    /// Whether the contents stay when this is dropped.
    keeps: AtomicBool,
    /// What is known of the changes, if they are kept.
    record: Option<LedgerRecord>,
}

impl Claim {
    /// Locks the directory at `path` and makes the directories that overlayfs needs in it. With `keeps`, goes
    /// on with the changes that are there.
    ///
    /// # Errors
    /// The directory is in use, not empty, or accessible to others; its file system has no extended
    /// attributes; the workspace does not exist, or the changes belong to another one.
    pub(crate) fn take(path: &Path, workspace: &Path, keeps: Option<Heading>) -> Result<Self, OverlayError> {
        let mode = fs::metadata(workspace).map(|metadata| metadata.mode() & 0o1777);
        let mode = mode.map_err(|source| OverlayError::io("look at the workspace", workspace, source))?;
        let waits = if keeps.is_some() { MAX_WAITS } else { 0 };
        Self::take_with_mode(path, waits, mode, keeps)
    }

    /// The same for changes of another root, which nobody keeps. Waits a moment for a session that ends.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn take_for_root(path: &Path) -> Result<Self, OverlayError> {
        Self::take_with_mode(path, MAX_WAITS, ROOT_MODE, None)
    }

    fn take_with_mode(
        path: &Path,
        waits: u32,
        mode: u32,
        keeps: Option<Heading>,
    ) -> Result<Self, OverlayError> {
        let failed = |source: io::Error| OverlayError::io("use the overlay directory", path, source);
        let directory = lock(path, waits)?;
        let own = OwnedFd::from(directory.try_clone().map_err(failed)?);
        let mut claim = Self { directory, path: path.to_owned(), keeps: AtomicBool::new(true), record: None };
        let found = names(&own).map_err(failed)?;
        if let Some(heading) = keeps {
            claim.record = Some(claim.go_on(heading)?);
        } else if !found.is_empty() {
            return Err(OverlayError::NotEmpty { path: path.to_owned() });
        }
        check_attributes(&own).map_err(|source| OverlayError::Attributes { source })?;
        claim.keeps.store(claim.record.is_some(), Relaxed);
        if claim.record.is_some() {
            // overlayfs leaves its marks there.
            claim.remove(WORK.as_ref()).map_err(failed)?;
        }
        for (name, mode) in [(UPPER, mode), (WORK, 0o700)] {
            match make(&claim.directory, name, mode) {
                Err(Errno::EEXIST) if claim.record.is_some() => {}
                made => made.map_err(|errno| failed(errno.into()))?,
            }
        }
        Ok(claim)
    }

    /// Joins what is known of the changes here with what the next commands bring.
    fn go_on(&self, heading: Heading) -> Result<LedgerRecord, OverlayError> {
        let failed = |source: io::Error| OverlayError::io("read the kept changes in", &self.path, source);
        let Some(mut record) = LedgerRecord::read(&*self.directory).map_err(failed)? else {
            // The record is written before the first command runs.
            let left = OverlayTree { root: self.directory.as_fd() }
                .open(Path::new(UPPER), OFlag::O_RDONLY | OFlag::O_DIRECTORY);
            let is_empty = left.is_err() || left.is_ok_and(|left| names(&left).is_ok_and(|it| it.is_empty()));
            let others = names(&self.directory.as_fd().try_clone_to_owned().map_err(failed)?)
                .map_err(failed)?
                .into_iter()
                .any(|name| name != UPPER && name != WORK && name != UNFINISHED);
            if others || !is_empty {
                return Err(OverlayError::NotEmpty { path: self.path.clone() });
            }
            self.remove(UPPER.as_ref()).map_err(failed)?;
            return Ok(LedgerRecord::new(heading));
        };
        if !record.heading.is_of(&heading) {
            return Err(OverlayError::Replaced { path: record.heading.workspace.0 });
        }
        let upper = self.upper().map_err(failed)?;
        without_capabilities(|| part::settle(&upper, &mut record.state)).map_err(OverlayError::list)?;
        record.heading.follow(heading);
        Ok(record)
    }

    /// Opens the directory with what commands wrote.
    pub(crate) fn upper(&self) -> io::Result<OwnedFd> {
        Ok(OverlayTree { root: self.directory.as_fd() }
            .open(Path::new(UPPER), OFlag::O_PATH | OFlag::O_DIRECTORY)?)
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What is known of the changes, if they are kept.
    pub(crate) fn record(&self) -> Option<&LedgerRecord> {
        self.record.as_ref()
    }

    /// Writes what is known of the changes.
    ///
    /// # Errors
    /// A full disk.
    pub(crate) fn save(&self, record: &LedgerRecord) -> Result<(), OverlayError> {
        let saved = record.write(&*self.directory);
        saved.map_err(|source| OverlayError::io("record the kept changes in", &self.path, source))
    }

    /// Claims kept changes that no session uses. Waits a moment for one that ends, or not at all.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn of_kept(path: &Path, waits: bool) -> Result<Option<Self>, OverlayError> {
        let directory = lock(path, if waits { MAX_WAITS } else { 0 })?;
        let failed = |source: io::Error| OverlayError::io("read the kept changes in", path, source);
        let record = LedgerRecord::read(&*directory).map_err(failed)?;
        let claim = Self { directory, path: path.to_owned(), keeps: AtomicBool::new(true), record };
        Ok(claim.record.is_some().then_some(claim))
    }

    /// Keeps the contents and returns the path of the upper directory.
    pub(crate) fn keep(&self) -> PathBuf {
        self.keeps.store(true, Relaxed);
        self.path.join(UPPER)
    }

    /// Empties the directory when this is dropped.
    pub(crate) fn give_up(&self) {
        self.keeps.store(false, Relaxed);
    }

    /// Removes everything now.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub(crate) fn clear(&self) -> io::Result<()> {
        // The record goes last: without it, nobody would find what is left.
        [UPPER, WORK, UNFINISHED, RECORD].iter().try_for_each(|name| self.remove(name.as_ref()))
    }

    /// Removes one entry. It retries, because a killed command may take a moment to stop writing.
    fn remove(&self, name: &OsStr) -> io::Result<()> {
        for _ in 0..MAX_TRIES {
            match recheck::remove_tree(self.directory.as_fd(), name) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => std::thread::sleep(PAUSE),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                removed => return removed,
            }
        }
        Err(Errno::ENOTEMPTY.into())
    }
}

/// Locks a directory of the caller's own that nobody else may enter. If somebody has locked it, looks that
/// often again.
fn lock(path: &Path, mut waits: u32) -> Result<Flock<File>, OverlayError> {
    let failed = |source: io::Error| OverlayError::io("use the overlay directory", path, source);
    let mut directory = open_own(path)?;
    loop {
        match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Err((_, Errno::EWOULDBLOCK)) if waits == 0 => {
                return Err(OverlayError::InUse { path: path.to_owned() });
            }
            Err((unlocked, Errno::EWOULDBLOCK)) => directory = unlocked,
            locked => return locked.map_err(|(_, errno)| failed(errno.into())),
        }
        waits -= 1;
        std::thread::sleep(WAIT);
    }
}

/// Opens a directory of the caller's own that nobody else may enter.
pub(crate) fn open_own(path: &Path) -> Result<File, OverlayError> {
    let failed = |source: io::Error| OverlayError::io("use the overlay directory", path, source);
    let held = open_without_links(path, OFlag::O_DIRECTORY).map_err(failed)?;
    let directory = File::from(open_for_listing(&held).map_err(failed)?);
    let metadata = directory.metadata().map_err(failed)?;
    if metadata.uid() != geteuid().as_raw() {
        return Err(OverlayError::NotEmpty { path: path.to_owned() });
    }
    match metadata.mode() & OTHERS {
        0 => Ok(directory),
        _ => Err(OverlayError::Reachable { path: path.to_owned() }),
    }
}

fn make(directory: &File, name: &str, mode: u32) -> nix::Result<()> {
    mkdirat(directory, name, Mode::S_IRWXU)?;
    let made = OverlayTree { root: directory.as_fd() }
        .open(Path::new(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    fchmod(made, Mode::from_bits_truncate(mode))
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.keeps.load(Relaxed)
            && let Err(error) = self.clear()
        {
            tracing::warn!(%error, "could not empty the overlay directory");
        }
    }
}

/// # Errors
/// `EOPNOTSUPP` if the directory does not support user attributes.
pub(crate) fn check_attributes(directory: &OwnedFd) -> io::Result<()> {
    let directory = File::from(directory.try_clone()?);
    match directory.set_xattr(PROBE, b"y") {
        // The upper directory has the workspace's mode, which may deny writing to the owner.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        set => set.and_then(|()| directory.remove_xattr(PROBE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_workspace_is_named_and_the_directory_stays_empty() {
        let upper = tempfile::tempdir().expect("a directory");
        let workspace = upper.path().join("gone");
        let error = Claim::take(upper.path(), &workspace, None).expect_err("there is no workspace");
        assert_eq!(error.to_string(), format!("look at the workspace {}", workspace.display()));
        assert_eq!(fs::read_dir(upper.path()).expect("a listing").count(), 0);
    }
}
