//! Applying changes to the workspace, one after the other, parents first, deletions last. What is refused keeps no other
//! from being applied, but what lies in it, and deletions: what is deleted may be what was moved there.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::AccessFlags;

use crate::overlay::clock::changed;
use crate::overlay::ledger::{Ledger, LedgerState};
use crate::overlay::place;
use crate::overlay::record::{FinalMode, Opened, OtherNames, ParentDirectory};
use crate::overlay::scan::ChangedEntry;
use crate::overlay::tree::{Looked, OverlayTree, is_closed};
use crate::protect::never::NewKind;
use crate::protect::recheck;
use crate::report::change::{Change, ChangeKind, Committed, Refusal};
use crate::sys::dirfd;
use crate::sys::dirfd::{mode_of, open_up};
use crate::sys::inode::{FileKind, Identity, kind};

pub(crate) struct Commit<'c> {
    ledger: &'c Ledger,
    pub(crate) changed: &'c Looked<'c>,
    pub(crate) workspace: OverlayTree<'c>,
    /// Whether `.git` was not there.
    is_new: bool,
    /// What is deleted when all else is done, by path.
    deletions: &'c [ChangedEntry],
    /// Modes that directories get once everything in them is done.
    pub(crate) modes: Vec<Opened>,
    /// Modes that directories get last of all, the deepest first.
    last_modes: Vec<FinalMode>,
    /// Directories that this commit made, by what they are.
    pub(crate) made: HashMap<PathBuf, Identity>,
}

/// Applies what was found, in the order of its paths.
pub(crate) fn commit(
    ledger: &Ledger,
    state: &mut LedgerState,
    changed: &Looked<'_>,
    found: Vec<ChangedEntry>,
) -> Committed {
    let workspace = ledger.workspace();
    let is_new = matches!(workspace.stat(Path::new(".git")), Ok(None));
    // What a command moved is a deletion and an addition: nothing goes before all that can come has come.
    let (puts, deletions): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|found| found.upper.is_some() || found.unreadable.is_some());
    let mut commit = Commit {
        ledger,
        changed,
        workspace,
        is_new,
        deletions: &deletions,
        modes: Vec::new(),
        last_modes: Vec::new(),
        made: HashMap::new(),
    };
    let mut done = Committed::default();
    let failed = commit.puts(puts, state, &mut done);
    for found in &deletions {
        let applied = commit.deletion(found, failed, state);
        done.add(found, applied);
    }
    commit.finish(state);
    let obeyed = |change: &&Change| ledger.never().iter().any(|never| never.lets_pass(&change.path, is_new));
    let told = done.applied.iter().filter(|change| change.kind != ChangeKind::Deleted).filter(obeyed);
    done.denials = told
        .map(|change| recheck::denial(&ledger.path().join(&change.path), &crate::protect::place::Done::Kept))
        .collect();
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
    /// Applies all but deletions; answers why there shall be none of these, if so: that something has failed, or that
    /// something is left that may be what was moved from there.
    fn puts(
        &mut self,
        puts: Vec<ChangedEntry>,
        state: &mut LedgerState,
        done: &mut Committed,
    ) -> Option<Refusal> {
        let (mut failed, mut withheld) = (None, None);
        // The last directory that was not made, and why.
        let mut without: Option<(PathBuf, Refusal)> = None;
        for found in puts {
            let above = without.as_ref().filter(|(above, _)| found.path.starts_with(above));
            let (is_above, applied) = match above {
                Some((_, refusal)) => (true, Err(*refusal)),
                None => (false, self.one(&found, state)),
            };
            if let Err(refusal) = applied {
                let is_there = found.lower.as_ref().is_some_and(|lower| kind(lower) == FileKind::Directory);
                if matches!(refusal, Refusal::Failed(_)) {
                    failed = failed.or(Some(refusal));
                } else if refusal != Refusal::Unsupported && !(is_there && found.file == FileKind::Directory)
                {
                    withheld = Some(Refusal::Withheld);
                }
                if !is_above && !is_there && found.file == FileKind::Directory && found.upper.is_some() {
                    without = Some((found.path.clone(), refusal));
                }
            }
            done.add(&found, applied);
        }
        failed.or(withheld)
    }

    /// What would be refused anyway says why; what would not, that something else has failed.
    fn deletion(
        &mut self,
        found: &ChangedEntry,
        failed: Option<Refusal>,
        state: &mut LedgerState,
    ) -> Result<(), Refusal> {
        match failed {
            Some(refusal) => self.check(found, state).and(Err(refusal)),
            None => self.one(found, state),
        }
    }

    /// Whether it may be applied.
    fn check(&self, found: &ChangedEntry, state: &LedgerState) -> Result<(), Refusal> {
        let path = &*found.path;
        if let Some(errno) = found.unreadable {
            return Err(errno.into());
        }
        if self.ledger.never().iter().any(|never| never.forbids(path, becomes(found), self.is_new)) {
            return Err(Refusal::Protected);
        }
        if found.conflict || !self.is_as_it_was(found, state)? {
            return Err(Refusal::Conflict);
        }
        Ok(())
    }

    fn one(&mut self, found: &ChangedEntry, state: &mut LedgerState) -> Result<(), Refusal> {
        let path = &*found.path;
        self.leave(path, state);
        match self.check(found, state) {
            Err(Refusal::Failed(libc::EACCES)) if found.unreadable.is_none() => {
                self.open_way(path)?;
                self.check(found, state)?;
            }
            checked => checked?,
        }
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        let parent = self.parent(found)?;
        let above = ParentDirectory::of(path, &parent, state)?;
        let applied = self.change(found, (parent, name), above.held.as_fd(), state);
        // What was refused has changed it too: it was moved there and back.
        above.record(state)?;
        applied
    }

    fn change(
        &mut self,
        found: &ChangedEntry,
        (parent, name): (OwnedFd, &OsStr),
        held: BorrowedFd<'_>,
        state: &mut LedgerState,
    ) -> Result<(), Refusal> {
        let path = &*found.path;
        let lower = found.lower.as_ref();
        let others = OtherNames::of(found, &parent, name)?;
        let Some(upper) = &found.upper else {
            if let Some(lower) = lower {
                place::remove(parent, name, path, lower, state)?;
            }
            state.record(path, None, (None, false));
            return others.record(state);
        };
        let mut made = false;
        match found.file {
            FileKind::File => {
                let copy = self.file(path, upper, lower, parent)?;
                // To copy it may have taken long.
                self.check(found, state)?;
                copy.put(name, path, lower, state)?;
            }
            FileKind::Link => self.link(path, upper, parent)?.put(name, path, lower, state)?,
            FileKind::Directory => {
                made = !lower.is_some_and(|lower| kind(lower) == FileKind::Directory);
                match lower.filter(|_| !made) {
                    Some(lower) => self.directory(path, (upper, lower), &parent)?,
                    None => self.new_directory(found, upper, parent, state)?,
                }
            }
            FileKind::Other => return Err(Refusal::Unsupported),
        }
        state.record(path, dirfd::stat(held, name)?, (Some(upper), made));
        others.record(state)
    }

    /// Opens directories up on the way to `path` that are closed to the caller, and his.
    fn open_way(&mut self, path: &Path) -> Result<(), Refusal> {
        let mut way: Vec<&Path> = path.ancestors().skip(1).collect();
        way.reverse();
        for path in way {
            let Some(held) = self.workspace.directory(path)? else { return Ok(()) };
            self.open_up(path, &held, AccessFlags::X_OK)?;
        }
        Ok(())
    }

    /// Opens a directory up, unless it is open for what is `wanted`.
    fn open_up(&mut self, path: &Path, directory: &OwnedFd, wanted: AccessFlags) -> Result<(), Refusal> {
        if is_closed(directory, wanted) {
            // Held first: who could not close it again may not open it.
            let held = directory.try_clone()?;
            let last = mode_of(&open_up(&held)?);
            self.modes.push(Opened::of(path, held, last)?);
        }
        Ok(())
    }

    /// The directory that `path` lies in. A command that wrote in one whose owner may not has opened it up meanwhile; so
    /// is it here. It is the one that was looked at, or that we made: another one may be anybody's.
    fn parent(&mut self, found: &ChangedEntry) -> Result<OwnedFd, Refusal> {
        let parent = self.workspace.parent(&found.path)?;
        let path = found.path.parent().unwrap_or(Path::new(""));
        if self.made.get(path).copied().or(found.above) != Some(Identity::of_held(&parent)?) {
            return Err(Refusal::Conflict);
        }
        self.open_up(path, &parent, AccessFlags::W_OK | AccessFlags::X_OK)?;
        Ok(parent)
    }

    /// Whether nobody has changed the workspace there since it was looked at.
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

    /// Gives the directories their modes that are done with before `next`, so that no more are held than lie in each
    /// other. In one that is closed by that something may be deleted later: it is opened up again then. Where nobody could
    /// even look for what is deleted, it stays open until that is gone.
    fn leave(&mut self, next: &Path, state: &mut LedgerState) {
        while let Some(opened) = self.modes.pop_if(|opened| !next.starts_with(&opened.path)) {
            match FinalMode::of(&opened) {
                Ok(parting) if parting.closes() && self.deletes_in(&opened.path) => {
                    self.last_modes.push(parting)
                }
                _ => opened.close(state),
            }
        }
    }

    /// Whether something is to be deleted in a directory.
    fn deletes_in(&self, directory: &Path) -> bool {
        let before = self.deletions.partition_point(|found| *found.path < *directory);
        self.deletions.get(before).is_some_and(|found| found.path.starts_with(directory))
    }

    fn finish(&mut self, state: &mut LedgerState) {
        // By their paths, which lead through what is held.
        for parting in self.last_modes.drain(..) {
            parting.close(self.workspace, state);
        }
        for opened in self.modes.drain(..).rev() {
            opened.close(state);
        }
    }
}

fn becomes(found: &ChangedEntry) -> NewKind {
    match (&found.upper, found.file) {
        (Some(_), FileKind::Directory) => NewKind::Directory,
        (Some(_), FileKind::File) => NewKind::File,
        (Some(_), FileKind::Link) => NewKind::Link,
        _ => NewKind::Nothing,
    }
}
