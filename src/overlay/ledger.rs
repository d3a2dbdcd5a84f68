//! What a session knows of its changes: where it keeps them, which workspace they belong to, and which ones it
//! committed.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use nix::fcntl::OFlag;
use nix::sys::stat::FileStat;
use serde::{Deserialize, Serialize};

use crate::overlay::claim::{Claim, check_attributes};
use crate::overlay::clock::{Stamp, changed, is_coarse, is_since, modified, now_of_files, wait_for_tick};
use crate::overlay::record::{Heading, Record};
use crate::overlay::tree::{Closed, OverlayTree};
use crate::plan::overlay::Merged;
use crate::policy::glob::Pattern;
use crate::protect::commit_rule::CommitRule;
use crate::report::overlay_error::OverlayError;
use crate::sys::dirfd::open_without_links;
use crate::sys::inode::{FileKind, Identity, kind};
use crate::sys::locked;
use crate::sys::path_text::PathText;

/// The upper directory and the workspace of a mounted overlay.
#[derive(Debug)]
pub(crate) struct Ledger {
    upper: OwnedFd,
    workspace: OwnedFd,
    /// The path of the workspace.
    path: PathBuf,
    /// What no command was allowed to change.
    protected: Protected,
    state: Mutex<LedgerState>,
    /// The host directory that holds the changes; `None` if they are in memory.
    claim: Option<Claim>,
}

/// What a commit must leave alone.
#[derive(Clone, Debug)]
pub(crate) struct Protected {
    pub(crate) never: Vec<CommitRule>,
    pub(crate) patterns: Vec<Pattern>,
}

impl Protected {
    /// Adds what is protected by now.
    pub(crate) fn and(mut self, merged: Merged) -> Self {
        self.never.extend(merged.never);
        self.patterns.extend(merged.patterns);
        self
    }

    /// Whether a pattern of the policy protects `path`.
    pub(crate) fn is_matched(&self, path: &Path) -> bool {
        self.patterns.iter().any(|pattern| pattern.covers(path))
    }
}

/// State that lasts from one commit to the next, and with kept changes from one session to the next.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(into = "StoredState", from = "StoredState")]
pub(crate) struct LedgerState {
    /// Anything changed at or after this time changed after the session began.
    pub(crate) since: Stamp,
    /// The same for what commands of earlier sessions changed: the time of the session that changed it first. Holds for
    /// everything below a path that has none of its own.
    pub(crate) bases: BTreeMap<PathBuf, Stamp>,
    /// Whether each path in the upper directory has its base.
    pub(crate) is_settled: bool,
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
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
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
        let record = claim.as_ref().and_then(Claim::record);
        // Earlier commands may have written what these ones must not.
        let protected = match record {
            Some(record) => record.heading.protected().map_err(failed)?,
            None => Protected { never: merged.never.clone(), patterns: merged.patterns.clone() },
        };
        let earlier = record.map(|record| record.state.clone());
        let state = LedgerState {
            since: now_of_files().await,
            is_coarse: is_coarse(&workspace).map_err(failed)?,
            is_settled: false,
            ..earlier.unwrap_or_default()
        };
        let state = Mutex::new(state);
        let ledger = Self { upper, workspace, path: path.clone(), protected, state, claim };
        ledger.save(&ledger.state())?;
        Ok(ledger)
    }

    /// The ledger of kept changes that no session uses, or, without a claim, of those that one uses.
    ///
    /// # Errors
    /// The workspace is not there any more, or cannot be read.
    pub(crate) fn of_kept(
        record: Record,
        upper: OwnedFd,
        claim: Option<Claim>,
    ) -> Result<Self, OverlayError> {
        let Record { heading, mut state } = record;
        let path = heading.workspace.0.clone();
        let failed = |source: io::Error| OverlayError::io("open the workspace", &path, source);
        let workspace = heading.open_workspace()?;
        state.is_coarse = is_coarse(&workspace).map_err(failed)?;
        let protected = heading.protected().map_err(failed)?;
        Ok(Self { upper, workspace, path, protected, state: Mutex::new(state), claim })
    }

    /// Writes down the state of kept changes, for the next session.
    ///
    /// # Errors
    /// A full disk.
    pub(crate) fn save(&self, state: &LedgerState) -> Result<(), OverlayError> {
        let Some(claim) = &self.claim else { return Ok(()) };
        let Some(Record { heading, .. }) = claim.record() else { return Ok(()) };
        claim.save(&Record { heading: Heading::clone(heading), state: state.clone() })
    }

    /// The directory with the changes; `None` if they are in memory, or a session uses it.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.claim.as_ref()
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

    pub(crate) fn protected(&self) -> &Protected {
        &self.protected
    }
}

impl LedgerState {
    /// Whether another program changed or created this entry since the session began. Changes by a commit do not
    /// count.
    pub(crate) fn is_newer(&self, path: &Path, stat: &FileStat) -> bool {
        self.is_newer_than_base(path, path, stat)
    }

    /// Whether another program changed this entry since the session that first changed `of`.
    pub(crate) fn is_newer_than_base(&self, of: &Path, path: &Path, stat: &FileStat) -> bool {
        is_since(self.base(of), changed(stat), self.is_coarse) && !self.is_ours(path, stat)
    }

    /// When the session began that first changed this path.
    fn base(&self, path: &Path) -> Stamp {
        if self.bases.is_empty() {
            return self.since;
        }
        path.ancestors().find_map(|path| self.bases.get(path)).copied().unwrap_or(self.since)
    }

    /// Takes over the times of what was opened up and closed again, unless others had changed it before.
    pub(crate) fn note_closed(&mut self, closed: Vec<Closed>) {
        for Closed { path, before, now } in closed {
            if !self.is_newer(&path, &before) {
                self.record(&path, Some(now), (None, false));
            }
        }
    }

    /// Lets `paths` count from now: what others changed there before is no conflict. Returns the state before.
    pub(crate) fn count_anew(&mut self, paths: &[PathBuf]) -> Bases {
        let before = Bases(self.bases.clone());
        let now = wait_for_tick();
        let all = [PathBuf::new()];
        for path in if paths.is_empty() { &all } else { paths } {
            self.bases.retain(|base, _| !base.starts_with(path));
            self.bases.insert(path.clone(), now);
        }
        before
    }

    /// Undoes [`count_anew`](Self::count_anew).
    pub(crate) fn count_as(&mut self, Bases(before): Bases) {
        self.bases = before;
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

/// From when paths count.
#[must_use]
pub(crate) struct Bases(BTreeMap<PathBuf, Stamp>);

/// The state in a file: maps as lists, because their keys are no text.
#[derive(Serialize, Deserialize)]
struct StoredState {
    since: Stamp,
    bases: Vec<(PathText, Stamp)>,
    is_settled: bool,
    applied: Vec<(PathText, Applied)>,
    unlinked: Vec<(Identity, (Stamp, Contents))>,
}

impl From<LedgerState> for StoredState {
    fn from(LedgerState { since, bases, is_settled, applied, unlinked, .. }: LedgerState) -> Self {
        Self {
            since,
            bases: bases.into_iter().map(|(path, base)| (PathText(path), base)).collect(),
            is_settled,
            applied: applied.into_iter().map(|(path, applied)| (PathText(path), applied)).collect(),
            unlinked: unlinked.into_iter().collect(),
        }
    }
}

impl From<StoredState> for LedgerState {
    fn from(StoredState { since, bases, is_settled, applied, unlinked }: StoredState) -> Self {
        Self {
            since,
            bases: bases.into_iter().map(|(PathText(path), base)| (path, base)).collect(),
            is_settled,
            // Whoever opens the workspace finds out.
            is_coarse: false,
            applied: applied.into_iter().map(|(PathText(path), applied)| (path, applied)).collect(),
            unlinked: unlinked.into_iter().collect(),
        }
    }
}

fn contents(stat: &FileStat) -> Contents {
    (kind(stat) != FileKind::Directory).then(|| (stat.st_size, stat.st_mode, modified(stat)))
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
        let mut state = LedgerState::default();
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
