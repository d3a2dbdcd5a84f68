//! What a session knows of its changes: where they are kept, what they are changes of, and what of them was committed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use std::{fs, io};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::{FileStat, Mode, fchmod, mkdirat};
use nix::unistd::geteuid;
use xattr::FileExt;

use crate::overlay::clock::{Stamp, changed, is_coarse, is_since, modified, now_of_files};
use crate::overlay::tree::OverlayTree;
use crate::plan::overlay::{Merged, OTHERS, UPPER, WORK};
use crate::protect::never::NeverCommitted;
use crate::protect::recheck;
use crate::report::overlay_error::OverlayError;
use crate::sys::dirfd::open_without_links;
use crate::sys::entries::names;
use crate::sys::inode::{FileKind, Identity, kind};
use crate::sys::locked;

/// What an overlay was mounted with.
#[derive(Debug)]
pub(crate) struct Ledger {
    upper: OwnedFd,
    workspace: OwnedFd,
    /// What it is called.
    path: PathBuf,
    never: Vec<NeverCommitted>,
    state: Mutex<LedgerState>,
    /// The directory that changes are kept in, if they are not in memory.
    claim: Option<Claim>,
}

/// What commits know of each other.
#[derive(Debug)]
pub(crate) struct LedgerState {
    /// What was changed at that time or later was not changed when the session began.
    since: Stamp,
    /// Whether the file system of the workspace keeps no more than seconds.
    is_coarse: bool,
    applied: HashMap<PathBuf, Applied>,
    /// Files as they were that had lost one of their names to us, which is a change of the others too.
    unlinked: HashMap<Identity, (Stamp, Contents)>,
}

/// Size, mode and modification time of what is no directory: who changes it in the tick that we did something to it in gives
/// it no other change time.
type Contents = Option<(i64, u32, Stamp)>;

/// Something that we put into the workspace.
#[derive(Clone, Copy, Debug)]
struct Applied {
    identity: Identity,
    changed: Stamp,
    contents: Contents,
    /// Whether it is a directory that was not there.
    made: bool,
    /// What of the changes it was made from, and when that was changed.
    from: Option<(u64, Stamp)>,
}

impl Ledger {
    /// For a session whose overlay is mounted and that has run nothing yet.
    ///
    /// # Errors
    /// A workspace that was replaced meanwhile, or a place for changes that does not keep extended attributes.
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
        let (never, state) = (merged.never.clone(), Mutex::new(state));
        Ok(Self { upper, workspace, path: path.clone(), never, state, claim })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LedgerState> {
        locked(&self.state)
    }

    /// Where commands' changes are.
    pub(crate) fn upper(&self) -> OverlayTree<'_> {
        OverlayTree { root: self.upper.as_fd() }
    }

    /// What they are changes of.
    pub(crate) fn workspace(&self) -> OverlayTree<'_> {
        OverlayTree { root: self.workspace.as_fd() }
    }

    /// Has changes stay in their directory, if they have one; answers where.
    pub(crate) fn keep(&self) -> Option<PathBuf> {
        self.claim.as_ref().map(Claim::keep)
    }

    /// Where the workspace lies, by the name that it had at the start.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn never(&self) -> &[NeverCommitted] {
        &self.never
    }
}

impl LedgerState {
    /// Whether something in the workspace was changed, or put there, since the session began; but not by us.
    pub(crate) fn is_newer(&self, path: &Path, stat: &FileStat) -> bool {
        is_since(self.since, changed(stat), self.is_coarse) && !self.is_ours(path, stat)
    }

    /// Whether a directory may be another one than it was: it was changed other than by what is put into it and taken
    /// out, which gives it both times alike.
    pub(crate) fn was_moved(&self, path: &Path, stat: &FileStat) -> bool {
        self.is_newer(path, stat) && changed(stat) != modified(stat)
    }

    /// Whether it is a directory that a commit made.
    pub(crate) fn made(&self, path: &Path) -> bool {
        self.applied.get(path).is_some_and(|applied| applied.made)
    }

    /// Whether it came there by a commit.
    pub(crate) fn has(&self, path: &Path) -> bool {
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

    /// Whether the last change of a file was that we took one of its names.
    pub(crate) fn is_unlinked(&self, stat: &FileStat) -> bool {
        self.unlinked.get(&Identity::of(stat)) == Some(&(changed(stat), contents(stat)))
    }

    /// Takes down that we took a name from what was `before`.
    pub(crate) fn unlinked(&mut self, before: &FileStat, now: &FileStat) {
        let what = |stat: &FileStat| (Identity::of(stat), contents(stat));
        if what(before) == what(now) {
            self.unlinked.insert(Identity::of(now), (changed(now), contents(now)));
        }
    }

    /// Whether it was committed, and no command has changed it since.
    pub(crate) fn is_applied(&self, path: &Path, upper: &FileStat) -> bool {
        let from = Some((upper.st_ino, changed(upper)));
        self.applied.get(path).is_some_and(|applied| applied.from == from)
    }

    /// Takes down what a commit left at `path`, made from `upper`; without that one, of what it made before.
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

// The directory of the host that changes are kept in: taken by one session at a time, empty before and after.

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
    use nix::sys::stat::fstat;

    use super::*;

    /// The clock of files may not have gone on between the two.
    #[test]
    fn who_changes_a_file_in_the_tick_that_it_lost_a_name_in_is_seen() {
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
        assert!(!seen(|_| ()), "it was us");
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
    fn a_workspace_that_is_gone_is_named_and_nothing_taken() {
        let upper = tempfile::tempdir().expect("a directory");
        let workspace = upper.path().join("gone");
        let error = Claim::take(upper.path(), &workspace).expect_err("there is no workspace");
        assert_eq!(error.to_string(), format!("look at the workspace {}", workspace.display()));
        assert_eq!(fs::read_dir(upper.path()).expect("a listing").count(), 0);
    }
}
