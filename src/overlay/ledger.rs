//! What a session knows of its changes: where it keeps them, which workspace they belong to, and which ones it
//! committed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::{fs, io};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::{FileStat, Mode, fchmod, mkdirat};
use nix::unistd::geteuid;
use xattr::FileExt;

use crate::overlay::clock::{Stamp, changed, is_coarse, is_since, modified, now_of_files};
use crate::overlay::tree::{OverlayTree, open_for_listing};
use crate::plan::overlay::Merged;
use crate::policy::glob::Pattern;
use crate::protect::commit_rule::CommitRule;
use crate::protect::recheck;
use crate::report::overlay_error::OverlayError;
use crate::sys::dirfd::{names, open_without_links};
use crate::sys::inode::{FileKind, Identity, kind};
use crate::sys::locked;
use crate::view::kept::{OTHERS, UPPER, WORK};

/// The upper directory and the workspace of a mounted overlay.
#[derive(Debug)]
pub(crate) struct Ledger {
    upper: OwnedFd,
    workspace: OwnedFd,
    /// The path of the workspace.
    path: PathBuf,
    never: Vec<CommitRule>,
    patterns: Vec<Pattern>,
    state: Mutex<LedgerState>,
    /// The host directory that holds the changes; `None` if they are in memory.
    claim: Option<Claim>,
}

/// State that lasts from one commit to the next.
#[derive(Debug)]
pub(crate) struct LedgerState {
    /// Anything changed at or after this time changed after the session began.
    since: Stamp,
    /// Whether the file system of the workspace stores whole seconds only.
    is_coarse: bool,
    applied: HashMap<PathBuf, Applied>,
    /// Files as they were right after a commit removed one of their hard links. The removal changes the change time
    /// seen through the other links too.
    unlinked: HashMap<Identity, (Stamp, Contents)>,
}

/// Size, mode and modification time of anything but a directory. They reveal a change by another program within the
/// same clock tick as ours, which leaves the change time equal.
type Contents = Option<(i64, u32, Stamp)>;

/// An entry that a commit put into the workspace.
#[derive(Clone, Copy, Debug)]
struct Applied {
    identity: Identity,
    changed: Stamp,
    contents: Contents,
    /// Whether the commit created it as a new directory.
    made: bool,
    /// Inode number and change time of the entry in the upper directory that it came from.
    from: Option<(u64, Stamp)>,
}

impl Ledger {
    /// Opens the ledger of a session. Its overlay is mounted and no command has run yet.
    ///
    /// # Errors
    /// The workspace was replaced meanwhile, or the upper directory does not support extended attributes.
    pub(crate) async fn open(
        merged: &Merged,
        upper: OwnedFd,
        claim: Option<Claim>,
    ) -> Result<Self, OverlayError> {
        let path = &merged.workspace.path;
        let failed = |source: io::Error| OverlayError::io("open the workspace", path, source);
        let workspace = open_without_links(path, OFlag::O_DIRECTORY).map_err(failed)?;
        let found = Identity::of_held(&workspace).map_err(|errno| failed(errno.into()))?;
        if found != merged.workspace.identity {
            return Err(failed(io::Error::from_raw_os_error(libc::ESTALE)));
        }
        let root =
            OverlayTree { root: upper.as_fd() }.open(Path::new(""), OFlag::O_RDONLY | OFlag::O_DIRECTORY);
        let directory = root.map_err(|errno| OverlayError::io("open the changes of", path, errno.into()))?;
        check_attributes(&directory).map_err(|source| OverlayError::Attributes { source })?;
        let state = LedgerState {
            since: now_of_files().await,
            is_coarse: is_coarse(&workspace).map_err(failed)?,
            applied: HashMap::new(),
            unlinked: HashMap::new(),
        };
        let (never, patterns) = (merged.never.clone(), merged.patterns.clone());
        let state = Mutex::new(state);
        Ok(Self { upper, workspace, path: path.clone(), never, patterns, state, claim })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LedgerState> {
        locked(&self.state)
    }

    /// The upper directory: the changes that commands made.
    pub(crate) fn upper(&self) -> OverlayTree<'_> {
        OverlayTree { root: self.upper.as_fd() }
    }

    /// The workspace.
    pub(crate) fn workspace(&self) -> OverlayTree<'_> {
        OverlayTree { root: self.workspace.as_fd() }
    }

    /// Keeps the changes in their host directory, if there is one, and returns its path.
    pub(crate) fn keep(&self) -> Option<PathBuf> {
        self.claim.as_ref().map(Claim::keep)
    }

    /// The path that the workspace had when the session began.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn never(&self) -> &[CommitRule] {
        &self.never
    }

    /// Whether a pattern of the policy protects `path`.
    pub(crate) fn is_matched(&self, path: &Path) -> bool {
        self.patterns.iter().any(|pattern| pattern.covers(path))
    }
}

impl LedgerState {
    /// Whether another program changed or created this entry since the session began. Changes by a commit do not
    /// count.
    pub(crate) fn is_newer(&self, path: &Path, stat: &FileStat) -> bool {
        is_since(self.since, changed(stat), self.is_coarse) && !self.is_ours(path, stat)
    }

    /// Whether a directory may have been moved or replaced. Adding and removing entries sets both of its times alike;
    /// anything else sets only the change time.
    pub(crate) fn was_moved(&self, path: &Path, stat: &FileStat) -> bool {
        self.is_newer(path, stat) && changed(stat) != modified(stat)
    }

    /// Whether a commit made a directory at `path`.
    pub(crate) fn made(&self, path: &Path) -> bool {
        self.applied.get(path).is_some_and(|applied| applied.made)
    }

    /// Whether a commit put an entry at `path`.
    pub(crate) fn is_committed(&self, path: &Path) -> bool {
        self.applied.contains_key(path)
    }

    fn is_ours(&self, path: &Path, stat: &FileStat) -> bool {
        let is_it = |applied: &Applied| {
            applied.identity == Identity::of(stat)
                && applied.changed == changed(stat)
                && applied.contents == contents(stat)
        };
        self.applied.get(path).is_some_and(is_it) || self.is_unlinked(stat)
    }

    /// Whether the last change of a file was that a commit removed one of its hard links.
    pub(crate) fn is_unlinked(&self, stat: &FileStat) -> bool {
        self.unlinked.get(&Identity::of(stat)) == Some(&(changed(stat), contents(stat)))
    }

    /// Records that a commit removed a hard link of the file that was `before`.
    pub(crate) fn unlinked(&mut self, before: &FileStat, now: &FileStat) {
        let what = |stat: &FileStat| (Identity::of(stat), contents(stat));
        if what(before) == what(now) {
            self.unlinked.insert(Identity::of(now), (changed(now), contents(now)));
        }
    }

    /// Whether this change was committed and no command has changed it since.
    pub(crate) fn is_applied(&self, path: &Path, upper: &FileStat) -> bool {
        let from = Some((upper.st_ino, changed(upper)));
        self.applied.get(path).is_some_and(|applied| applied.from == from)
    }

    /// Records what a commit left at `path`, and the entry `upper` it came from. Without `upper`, the source recorded
    /// earlier stays.
    pub(crate) fn record(
        &mut self,
        path: &Path,
        stat: Option<FileStat>,
        (upper, made): (Option<&FileStat>, bool),
    ) {
        let before = self.applied.remove(path);
        let Some(stat) = stat else { return };
        let made = made || before.as_ref().is_some_and(|before| before.made);
        let from = upper.map(|upper| (upper.st_ino, changed(upper)));
        let from = from.or(before.and_then(|before| before.from));
        let identity = Identity::of(&stat);
        let (changed, contents) = (changed(&stat), contents(&stat));
        let applied = Applied { identity, changed, contents, made, from };
        self.applied.insert(path.to_owned(), applied);
    }
}

fn contents(stat: &FileStat) -> Contents {
    (kind(stat) != FileKind::Directory).then(|| (stat.st_size, stat.st_mode, modified(stat)))
}

// The host directory that holds the changes: one session uses it at a time, and it is empty before and after.

/// An attribute that is set and removed to test whether the file system supports user attributes.
const PROBE: &str = "user.kennel.probe";

/// How often, and how far apart, dropping a claim tries to empty the directory.
const MAX_TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(2);

/// A host directory locked for this session. Dropping the claim empties it.
#[derive(Debug)]
pub(crate) struct Claim {
    directory: Flock<File>,
    path: PathBuf,
    /// Whether the contents stay when this is dropped.
    keeps: AtomicBool,
}

impl Claim {
    /// Locks the directory at `path` and makes the directories that overlayfs needs in it.
    ///
    /// # Errors
    /// The directory is in use, not empty, or accessible to others; its file system has no extended attributes; or
    /// the workspace does not exist.
    pub(crate) fn take(path: &Path, workspace: &Path) -> Result<Self, OverlayError> {
        let mode = fs::metadata(workspace).map(|metadata| metadata.mode() & 0o1777);
        let mode = mode.map_err(|source| OverlayError::io("look at the workspace", workspace, source))?;
        let failed = |source: io::Error| OverlayError::io("use the overlay directory", path, source);
        let held = open_without_links(path, OFlag::O_DIRECTORY).map_err(failed)?;
        let directory = open_for_listing(&held).map_err(failed)?;
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
    let made = OverlayTree { root: directory.as_fd() }
        .open(Path::new(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    fchmod(made, Mode::from_bits_truncate(mode))
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.keeps.load(Relaxed) {
            return;
        }
        for name in [UPPER, WORK] {
            if let Err(error) = self.remove(name.as_ref()) {
                tracing::warn!(%error, "could not empty the overlay directory");
            }
        }
    }
}

impl Claim {
    /// Keeps the contents and returns the path of the upper directory.
    pub(crate) fn keep(&self) -> PathBuf {
        self.keeps.store(true, Relaxed);
        self.path.join(UPPER)
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

/// The ledger of a session, also held by a running commit.
pub(crate) type SharedLedger = Arc<Ledger>;

#[cfg(test)]
mod tests {
    use nix::sys::stat::fstat;

    use super::*;

    /// The file clock may not have ticked between the two changes.
    #[test]
    fn a_change_in_the_same_tick_as_an_unlink_is_seen() {
        let file = tempfile::tempfile().expect("a file");
        let stat = fstat(&file).expect("its state");
        let (applied, unlinked) = (HashMap::new(), HashMap::new());
        let mut state = LedgerState { since: (0, 0), is_coarse: false, applied, unlinked };
        state.unlinked(&stat, &stat);
        let seen = |change: fn(&mut FileStat)| {
            let mut now = stat;
            change(&mut now);
            state.is_newer(Path::new("other"), &now)
        };
        assert!(!seen(|_| ()), "only the commit changed it");
        assert!(seen(|now| now.st_ctime_nsec += 1));
        assert!(seen(|now| now.st_size += 1));
        assert!(seen(|now| now.st_mode ^= 0o100));
        assert!(seen(|now| now.st_mtime_nsec += 1));
    }
}

#[cfg(test)]
mod claim_tests {
    use super::*;

    #[test]
    fn a_missing_workspace_is_named_and_the_directory_stays_empty() {
        let upper = tempfile::tempdir().expect("a directory");
        let workspace = upper.path().join("gone");
        let error = Claim::take(upper.path(), &workspace).expect_err("there is no workspace");
        assert_eq!(error.to_string(), format!("look at the workspace {}", workspace.display()));
        assert_eq!(fs::read_dir(upper.path()).expect("a listing").count(), 0);
    }
}
