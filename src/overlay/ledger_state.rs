//! What was committed, and from when changes by others count. It lasts from one commit to the next, and with
//! kept changes from one session to the next.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use nix::sys::stat::FileStat;
use serde::{Deserialize, Serialize};

use crate::overlay::clock::{Stamp, changed, is_since, modified, wait_for_tick};
use crate::overlay::tree::Closed;
use crate::sys::inode::{FileKind, Identity, kind};
use crate::sys::path_text::PathText;

/// State that lasts from one commit to the next, and with kept changes from one session to the next.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(into = "StoredState", from = "StoredState")]
pub(crate) struct LedgerState {
    /// Anything changed at or after this time changed after the session began.
    pub(crate) since: Stamp,
    /// The same for what commands of earlier sessions changed: the time of the session that changed it first.
    /// Holds for everything below a path that has none of its own.
    pub(crate) bases: BTreeMap<PathBuf, Stamp>,
    /// Whether each path in the upper directory has its base.
    pub(crate) is_settled: bool,
    /// Whether the file system of the workspace stores whole seconds only.
    pub(crate) is_coarse: bool,
    applied: HashMap<PathBuf, Applied>,
    /// Files as they were right after a commit removed one of their hard links. The removal changes the
    /// change time seen through the other links too.
    unlinked: HashMap<Identity, (Stamp, Contents)>,
}

/// Size, mode and modification time of anything but a directory. They reveal a change by another program
/// within the same clock tick as ours, which leaves the change time equal.
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

impl LedgerState {
    /// Whether another program changed or created this entry since the session began. Changes by a commit do
    /// not count.
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

    /// Lets `paths` count from now: what others changed there before is no conflict. Returns the state
    /// before.
    pub(crate) fn count_anew(&mut self, paths: &[PathBuf]) -> BaseStamps {
        let before = BaseStamps(self.bases.clone());
        let now = wait_for_tick();
        let all = [PathBuf::new()];
        for path in if paths.is_empty() { &all } else { paths } {
            self.bases.retain(|base, _| !base.starts_with(path));
            self.bases.insert(path.clone(), now);
        }
        before
    }

    /// Undoes [`count_anew`](Self::count_anew).
    pub(crate) fn count_as(&mut self, BaseStamps(before): BaseStamps) {
        self.bases = before;
    }

    /// Whether a directory may have been moved or replaced. Adding and removing entries sets both of its
    /// times alike; anything else sets only the change time.
    pub(crate) fn was_moved(&self, path: &Path, stat: &FileStat) -> bool {
        self.is_newer(path, stat) && changed(stat) != modified(stat)
    }

    /// Takes over the times of what was opened up and closed again, unless others had changed it before.
    pub(crate) fn note_closed(&mut self, closed: Vec<Closed>) {
        for Closed { path, before, now } in closed {
            if !self.is_newer(&path, &before) {
                self.record(&path, Some(now), None, false);
            }
        }
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

    /// Records what a commit left at `path`, and the entry `upper` it came from. Without `upper`, the source
    /// recorded earlier stays.
    pub(crate) fn record(
        &mut self,
        path: &Path,
        stat: Option<FileStat>,
        upper: Option<&FileStat>,
        made: bool,
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
pub(crate) struct BaseStamps(BTreeMap<PathBuf, Stamp>);

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
