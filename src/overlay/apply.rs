//! Applies changes to the workspace one by one: parents first, deletions last.
//!
//! A refused change stops only the changes below it, and all deletions: a deleted file may be the source of a
//! move whose target was refused.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::AccessFlags;

use crate::overlay::clock::changed;
use crate::overlay::ledger::Ledger;
use crate::overlay::ledger_state::LedgerState;
use crate::overlay::record::CommitProtected;
use crate::overlay::scan::ChangedEntry;
use crate::overlay::tree::{OverlayTree, ReadableTree, is_closed};
use crate::overlay::{clock, part, place, scan};
use crate::protect::commit_rule::ChangedKind;
use crate::protect::place::Done;
use crate::protect::recheck;
use crate::report::change::{Change, ChangeKind, Committed, Conflicts, Refusal};
use crate::sys::dirfd;
use crate::sys::dirfd::{change_mode, mode_of, open_up, without_capabilities};
use crate::sys::inode::{FileKind, Identity, kind};

pub(crate) struct Commit<'c> {
    protected: &'c CommitProtected,
    pub(crate) changed: &'c ReadableTree<'c>,
    pub(crate) workspace: OverlayTree<'c>,
    /// Whether the workspace had no `.git` when the commit began.
    is_new: bool,
    /// Deletions, applied after everything else; sorted by path.
    deletions: &'c [ChangedEntry],
    /// Open directories, and the modes they get once everything in them is done.
    pub(crate) modes: Vec<Opened>,
    /// Modes that directories get at the very end, deepest first.
    final_modes: Vec<FinalMode>,
    /// Directories that this commit made.
    pub(crate) made: HashMap<PathBuf, Identity>,
}

/// All changes of a ledger, sorted by path.
pub(crate) fn found(ledger: &Ledger) -> io::Result<Vec<ChangedEntry>> {
    found_with(ledger, ReadableTree::new)
}

/// The same, but nothing is opened up.
pub(crate) fn found_as_it_is(ledger: &Ledger) -> io::Result<Vec<ChangedEntry>> {
    found_with(ledger, ReadableTree::as_it_is)
}

fn found_with<'l>(
    ledger: &'l Ledger,
    tree: impl Fn(OverlayTree<'l>) -> ReadableTree<'l>,
) -> io::Result<Vec<ChangedEntry>> {
    without_capabilities(|| {
        let (mut state, changed) = (ledger.state(), tree(ledger.upper()));
        scan::scan(&mut state, &changed, &tree(ledger.workspace()))
    })
}

/// Finds all changes of a ledger and applies those at `paths` and below them, or all if there are no paths.
/// What the scan had to open up, such as a directory without access rights, stays open for the commit.
pub(crate) fn commit_of(
    ledger: &Ledger,
    protected: &CommitProtected,
    paths: &[PathBuf],
    conflicts: Conflicts,
) -> io::Result<Committed> {
    without_capabilities(|| {
        let (mut state, changed) = (ledger.state(), ReadableTree::new(ledger.upper()));
        let overwrites = conflicts == Conflicts::Overwrite;
        let before = overwrites.then(|| state.count_anew(paths));
        let found = scan::scan(&mut state, &changed, &ReadableTree::new(ledger.workspace()));
        let committed = found.map(|found| {
            let (mut chosen, left) = part::split(found, paths);
            // What the workspace has lost has no time.
            chosen.iter_mut().for_each(|found| found.conflict &= !overwrites);
            let mut committed = commit(ledger, protected, &mut state, &changed, chosen);
            committed.left = left.iter().map(ChangedEntry::change).collect();
            committed
        });
        before.into_iter().for_each(|before| state.count_as(before));
        let committed = committed?;
        // Kennel may have moved a refused file aside and back, which changes the times of its directory.
        if !(committed.applied.is_empty() && committed.refused.is_empty()) {
            let _ = clock::wait_for_tick();
        }
        Ok(committed)
    })
}

/// Applies the changes in `found`, in path order.
fn commit(
    ledger: &Ledger,
    protected: &CommitProtected,
    state: &mut LedgerState,
    changed: &ReadableTree<'_>,
    found: Vec<ChangedEntry>,
) -> Committed {
    let workspace = ledger.workspace();
    let is_new = matches!(workspace.stat(Path::new(".git")), Ok(None));
    // A move appears as a deletion and an addition: delete only after all additions are done.
    let (additions, deletions): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|found| found.upper.is_some() || found.unreadable.is_some());
    let mut commit = Commit {
        protected,
        changed,
        workspace,
        is_new,
        deletions: &deletions,
        modes: Vec::new(),
        final_modes: Vec::new(),
        made: HashMap::new(),
    };
    let mut done = Committed::default();
    let failed = commit.apply_additions(additions, state, &mut done);
    for found in &deletions {
        let applied = commit.delete(found, failed, state);
        done.add(found, applied);
    }
    commit.finish(state);
    let is_watched = |change: &&Change| {
        protected.never.iter().any(|never| never.is_new_configuration(&change.path, is_new))
    };
    let watched = done.applied.iter().filter(|change| change.kind != ChangeKind::Deleted).filter(is_watched);
    done.denials =
        watched.map(|change| recheck::denial(&ledger.path().join(&change.path), &Done::Kept)).collect();
    done.applied.sort_by(|one, other| one.path.cmp(&other.path));
    done.refused.sort_by(|one, other| one.change.path.cmp(&other.change.path));
    done
}

impl Committed {
    fn add(&mut self, found: &ChangedEntry, applied: Result<(), Refusal>) {
        let change = found.change();
        match applied {
            Ok(()) => self.applied.push(change),
            Err(refusal) => self.refused.push(change.refused(refusal)),
        }
    }
}

impl Commit<'_> {
    /// Applies everything except deletions. Returns why deletions must not run, if so: a change failed, or a
    /// refused change may be the target of a move.
    fn apply_additions(
        &mut self,
        additions: Vec<ChangedEntry>,
        state: &mut LedgerState,
        done: &mut Committed,
    ) -> Option<Refusal> {
        let (mut failed, mut withheld) = (None, None);
        // The last directory that could not be made, and why.
        let mut not_made: Option<(PathBuf, Refusal)> = None;
        for found in additions {
            let above = not_made.as_ref().filter(|(above, _)| found.path.starts_with(above));
            let (is_below_refused, applied) = match above {
                Some((_, refusal)) => (true, Err(*refusal)),
                None => (false, self.apply(&found, state)),
            };
            if let Err(refusal) = applied {
                let exists = found.lower.as_ref().is_some_and(|lower| kind(lower) == FileKind::Directory);
                if matches!(refusal, Refusal::Failed(_)) {
                    failed = failed.or(Some(refusal));
                } else if refusal != Refusal::Unsupported && !(exists && found.file == FileKind::Directory) {
                    withheld = Some(Refusal::Withheld);
                }
                if !is_below_refused && !exists && found.file == FileKind::Directory && found.upper.is_some()
                {
                    not_made = Some((found.path.clone(), refusal));
                }
            }
            done.add(&found, applied);
        }
        failed.or(withheld)
    }

    /// Reports the deletion's own refusal if it has one, else the earlier failure.
    fn delete(
        &mut self,
        found: &ChangedEntry,
        failed: Option<Refusal>,
        state: &mut LedgerState,
    ) -> Result<(), Refusal> {
        match failed {
            Some(refusal) => self.check(found, state).and(Err(refusal)),
            None => self.apply(found, state),
        }
    }

    /// Checks that the change may be applied.
    fn check(&self, found: &ChangedEntry, state: &LedgerState) -> Result<(), Refusal> {
        let path = &*found.path;
        if let Some(errno) = found.unreadable {
            return Err(errno.into());
        }
        let is_forbidden =
            self.protected.never.iter().any(|never| never.forbids(path, becomes(found), self.is_new));
        if is_forbidden || self.protected.is_matched(path) {
            return Err(Refusal::Protected);
        }
        if found.conflict || !self.is_as_it_was(found, state)? {
            return Err(Refusal::Conflict);
        }
        Ok(())
    }

    fn apply(&mut self, found: &ChangedEntry, state: &mut LedgerState) -> Result<(), Refusal> {
        let path = &*found.path;
        self.close_finished(path, state);
        match self.check(found, state) {
            Err(Refusal::Failed(libc::EACCES)) if found.unreadable.is_none() => {
                self.open_ancestors(path)?;
                self.check(found, state)?;
            }
            checked => checked?,
        }
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        let parent = self.parent(found)?;
        let above = ParentDirectory::new(path, &parent, state)?;
        let applied = self.put_or_remove(found, parent, name, above.held.as_fd(), state);
        // A refused change also touches the parent: the entry was moved away and back.
        above.record(state)?;
        applied
    }

    fn put_or_remove(
        &mut self,
        found: &ChangedEntry,
        parent: OwnedFd,
        name: &OsStr,
        held: BorrowedFd<'_>,
        state: &mut LedgerState,
    ) -> Result<(), Refusal> {
        let path = &*found.path;
        let lower = found.lower.as_ref();
        let others = OtherNames::open(found, &parent, name)?;
        let Some(upper) = &found.upper else {
            if let Some(lower) = lower {
                place::remove(parent, name, path, lower, state)?;
            }
            state.record(path, None, None, false);
            return others.record(state);
        };
        let mut made = false;
        match found.file {
            FileKind::File => {
                let copy = self.file(path, upper, lower, parent)?;
                // Copying may take long: check again.
                self.check(found, state)?;
                copy.put(name, path, lower, state)?;
            }
            FileKind::Link => self.link(path, upper, parent)?.put(name, path, lower, state)?,
            FileKind::Directory => {
                made = !lower.is_some_and(|lower| kind(lower) == FileKind::Directory);
                match lower.filter(|_| !made) {
                    Some(lower) => self.directory(path, upper, lower, &parent)?,
                    None => self.new_directory(found, upper, parent, state)?,
                }
            }
            FileKind::Other => return Err(Refusal::Unsupported),
        }
        state.record(path, dirfd::stat(held, name)?, Some(upper), made);
        others.record(state)
    }

    /// Opens up the directories above `path` that the caller owns but cannot search.
    fn open_ancestors(&mut self, path: &Path) -> Result<(), Refusal> {
        let mut ancestors: Vec<&Path> = path.ancestors().skip(1).collect();
        ancestors.reverse();
        for path in ancestors {
            let Some(held) = self.workspace.directory(path)? else { return Ok(()) };
            self.open_up(path, &held, AccessFlags::X_OK)?;
        }
        Ok(())
    }

    /// Adds owner permissions to a directory, unless the caller already has `wanted` access.
    fn open_up(&mut self, path: &Path, directory: &OwnedFd, wanted: AccessFlags) -> Result<(), Refusal> {
        if is_closed(directory, wanted) {
            // Duplicate the descriptor first: without it, the mode could not be restored.
            let held = directory.try_clone()?;
            let last = mode_of(&open_up(&held)?);
            self.modes.push(Opened::new(path, held, last)?);
        }
        Ok(())
    }

    /// Opens the parent directory of `found`. If the parent is not writable, the command opened it up to
    /// write there, so this does too. The parent must be the directory that the scan saw or that this commit
    /// made; anybody could have put another one there.
    fn parent(&mut self, found: &ChangedEntry) -> Result<OwnedFd, Refusal> {
        let parent = self.workspace.parent(&found.path)?;
        let path = found.path.parent().unwrap_or(Path::new(""));
        if self.made.get(path).copied().or(found.above) != Some(Identity::of_held(&parent)?) {
            return Err(Refusal::Conflict);
        }
        self.open_up(path, &parent, AccessFlags::W_OK | AccessFlags::X_OK)?;
        Ok(parent)
    }

    /// Whether the workspace entry is still as the scan saw it.
    fn is_as_it_was(&self, found: &ChangedEntry, state: &LedgerState) -> io::Result<bool> {
        let now = self.workspace.stat(&found.path)?;
        Ok(match (&now, &found.lower) {
            (None, None) => true,
            (Some(now), Some(lower)) => {
                let is_directory = kind(now) == FileKind::Directory;
                (Identity::of(now), now.st_mode) == (Identity::of(lower), lower.st_mode)
                    && (is_directory || changed(now) == changed(lower) || state.is_unlinked(now))
            }
            _ => false,
        })
    }

    /// Sets the final modes of directories that the commit has left before it goes on to `next`, so it holds
    /// only the ancestors of `next` open. A directory with deletions still to come is opened up again later.
    /// If its final mode denies search (`x`), it stays open until the deletions are done, because they could
    /// not be looked up.
    fn close_finished(&mut self, next: &Path, state: &mut LedgerState) {
        while let Some(opened) = self.modes.pop_if(|opened| !next.starts_with(&opened.path)) {
            match FinalMode::from_opened(&opened) {
                Ok(final_mode) if final_mode.closes() && self.deletes_in(&opened.path) => {
                    self.final_modes.push(final_mode)
                }
                _ => opened.close(state),
            }
        }
    }

    /// Whether a deletion lies below `directory`.
    fn deletes_in(&self, directory: &Path) -> bool {
        let before = self.deletions.partition_point(|found| *found.path < *directory);
        self.deletions.get(before).is_some_and(|found| found.path.starts_with(directory))
    }

    fn finish(&mut self, state: &mut LedgerState) {
        // These are found by path, through directories that are still open.
        for final_mode in self.final_modes.drain(..) {
            final_mode.close(self.workspace, state);
        }
        for opened in self.modes.drain(..).rev() {
            opened.close(state);
        }
    }
}

fn becomes(found: &ChangedEntry) -> ChangedKind {
    match (&found.upper, found.file) {
        (Some(_), FileKind::Directory) => ChangedKind::Directory,
        (Some(_), FileKind::File) => ChangedKind::File,
        (Some(_), FileKind::Link) => ChangedKind::Link,
        _ => ChangedKind::Nothing,
    }
}

// Records the side effects of a commit (times, modes, link counts), so that the next commit does not take
// them for changes by another program.

/// A directory that was opened up, and the mode it gets when everything in it is done.
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    held: OwnedFd,
    last: Mode,
    /// Its mode while it is open.
    open: Mode,
}

impl Opened {
    /// `held` is open already.
    pub(crate) fn new(path: &Path, held: OwnedFd, last: Mode) -> nix::Result<Self> {
        let open = mode_of(&fstat(&held)?);
        Ok(Self { path: path.to_owned(), held, last, open })
    }

    /// Sets the final mode, unless another program has changed the mode meanwhile.
    pub(crate) fn close(self, state: &mut LedgerState) {
        if fstat(&self.held).is_ok_and(|stat| mode_of(&stat) != self.open) {
            return;
        }
        let _ = change_mode(&self.held, self.last);
        if let Ok(stat) = fstat(&self.held) {
            state.record(&self.path, Some(stat), None, false);
        }
    }
}

/// A directory that gets its mode at the very end. It holds no descriptor, as there may be any number of
/// these.
pub(crate) struct FinalMode {
    path: PathBuf,
    identity: Identity,
    last: Mode,
    open: Mode,
}

impl FinalMode {
    pub(crate) fn from_opened(opened: &Opened) -> nix::Result<Self> {
        let identity = Identity::of_held(&opened.held)?;
        Ok(Self { path: opened.path.clone(), identity, last: opened.last, open: opened.open })
    }

    /// Whether the final mode denies search to the owner.
    pub(crate) fn closes(&self) -> bool {
        !self.last.contains(Mode::S_IXUSR)
    }

    /// Sets the final mode, unless another directory has taken its place.
    pub(crate) fn close(self, workspace: OverlayTree<'_>, state: &mut LedgerState) {
        let Self { path, identity, last, open } = self;
        if let Some(held) = workspace.open_if_same(&path, identity) {
            Opened { path, held, last, open }.close(state);
        }
    }
}

/// A directory whose times change because the commit adds or removes an entry.
pub(crate) struct ParentDirectory {
    path: PathBuf,
    pub(crate) held: OwnedFd,
    /// Whether no other program has changed it since the session began.
    is_known: bool,
}

impl ParentDirectory {
    pub(crate) fn new(path: &Path, parent: &OwnedFd, state: &LedgerState) -> Result<Self, Refusal> {
        let path = path.parent().unwrap_or(Path::new("")).to_owned();
        let is_known = !state.is_newer(&path, &fstat(parent)?);
        Ok(Self { path, held: parent.try_clone()?, is_known })
    }

    pub(crate) fn record(self, state: &mut LedgerState) -> Result<(), Refusal> {
        if self.is_known {
            state.record(&self.path, Some(fstat(&self.held)?), None, false);
        }
        Ok(())
    }
}

/// A file that may have other hard links in the workspace, and its state before the commit.
pub(crate) struct OtherNames(Option<(OwnedFd, FileStat)>);

impl OtherNames {
    pub(crate) fn open(found: &ChangedEntry, parent: &OwnedFd, name: &OsStr) -> Result<Self, Refusal> {
        let has = |lower: &&FileStat| kind(lower) != FileKind::Directory && lower.st_nlink > 1;
        let lower = found.lower.as_ref().filter(has);
        let parent = OverlayTree { root: parent.as_fd() };
        let hold = |lower: &FileStat| Ok::<_, Errno>((parent.open(Path::new(name), OFlag::O_PATH)?, *lower));
        Ok(Self(lower.map(hold).transpose()?))
    }

    pub(crate) fn record(self, state: &mut LedgerState) -> Result<(), Refusal> {
        if let Some((held, before)) = self.0 {
            state.unlinked(&before, &fstat(&held)?);
        }
        Ok(())
    }
}
