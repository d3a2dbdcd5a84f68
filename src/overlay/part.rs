//! Changes the upper directory of an overlay that is not mounted: drops what is no change, and what a person
//! discards.
//!
//! Everything here keeps what commands will see: the workspace with the changes that are left.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, fstat, mknodat};
use xattr::FileExt;

use crate::overlay::compare::mark;
use crate::overlay::ledger_state::LedgerState;
use crate::overlay::scan::{ChangedEntry, MAX_BYTES, MAX_DEPTH};
use crate::overlay::tree::{OverlayTree, ReadableTree};
use crate::protect::recheck;
use crate::report::change::Change;
use crate::sys;
use crate::sys::dirfd;
use crate::sys::dirfd::{change_mode, mode_of, names, open_up};
use crate::sys::inode::{FileKind, kind};

/// Notes which session first changed each path: those without a note were changed by the last one.
///
/// # Errors
/// `E2BIG` if there are too many paths.
pub(crate) fn settle(upper: &OwnedFd, state: &mut LedgerState) -> io::Result<()> {
    if state.is_settled {
        return Ok(());
    }
    let tree = ReadableTree::new(OverlayTree { root: upper.as_fd() });
    let (mut bases, mut bytes) = (BTreeMap::new(), 0);
    let mut levels = vec![PathBuf::new()];
    while let Some(level) = levels.pop() {
        // The scan reports a directory that cannot be read.
        let Ok(directory) = tree.list(&level) else { continue };
        for name in names(&directory)? {
            let Some(stat) = dirfd::stat(&directory, &name)? else { continue };
            let path = level.join(&name);
            bytes += size_of::<PathBuf>() + path.as_os_str().len();
            if bytes > MAX_BYTES {
                return Err(Errno::E2BIG.into());
            }
            if kind(&stat) == FileKind::Directory && path.components().count() <= MAX_DEPTH {
                levels.push(path.clone());
            }
            let base = state.bases.get(&path).copied().unwrap_or(state.since);
            bases.insert(path, base);
        }
    }
    (state.bases, state.is_settled) = (bases, true);
    Ok(())
}

/// A change, for which its path is enough.
pub(crate) trait HasPath {
    fn path(&self) -> &Path;
}

impl HasPath for ChangedEntry {
    fn path(&self) -> &Path {
        &self.path
    }
}

impl HasPath for Change {
    fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether there is a change at `path` or below it. `found` is sorted.
pub(crate) fn is_any(found: &[impl HasPath], path: &Path) -> bool {
    let first = found.get(found.partition_point(|found| found.path() < path));
    first.is_some_and(|first| first.path().starts_with(path))
}

/// The changes that concern `paths`, with the new directories above them, and the others. `found` is sorted.
pub(crate) fn split(found: Vec<ChangedEntry>, paths: &[PathBuf]) -> (Vec<ChangedEntry>, Vec<ChangedEntry>) {
    if paths.is_empty() {
        return (found, Vec::new());
    }
    let has_changes: Vec<&PathBuf> = paths.iter().filter(|path| is_any(&found, path)).collect();
    let is_needed = |found: &ChangedEntry| {
        let becomes_directory = found.file == FileKind::Directory
            && found.upper.is_some()
            && found.lower.as_ref().is_none_or(|lower| kind(lower) != FileKind::Directory);
        has_changes
            .iter()
            .any(|path| found.path.starts_with(path) || becomes_directory && path.starts_with(&found.path))
    };
    found.into_iter().partition(is_needed)
}

/// The two directories of an overlay that is not mounted.
pub(crate) struct LayerDirectories<'l> {
    pub(crate) changed: &'l ReadableTree<'l>,
    pub(crate) workspace: &'l ReadableTree<'l>,
    pub(crate) state: &'l LedgerState,
}

impl LayerDirectories<'_> {
    /// Removes what is no change: files that a command opened but did not change, and what was committed. So
    /// commands see what the workspace has there later. `left` are all changes.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub(crate) fn prune(&self, left: &[Change], path: &Path) -> io::Result<()> {
        let directory = self.changed.list(path)?;
        for name in names(&directory)? {
            let path = path.join(&name);
            if !is_any(left, &path) {
                recheck::remove_tree(directory.as_fd(), &name)?;
                continue;
            }
            let Some(stat) = dirfd::stat(&directory, &name)? else { continue };
            let is_merged = kind(&stat) == FileKind::Directory
                && path.components().count() <= MAX_DEPTH
                && self.lower_directory(&path)?;
            if !is_merged {
                continue;
            }
            match self.is_opaque(&path) {
                Ok(false) => self.prune(left, &path)?,
                // A commit made the directory below it.
                Ok(true) if self.state.made(&path) => {
                    self.merge(&path)?;
                    self.prune(left, &path)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Drops every change at `path` and below it: commands then see what the workspace has there.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub(crate) fn discard(&self, path: &Path) -> io::Result<()> {
        let mut above: Vec<&Path> =
            path.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
        above.reverse();
        for above in above {
            match self.changed.tree.stat(above)? {
                Some(stat) if kind(&stat) == FileKind::Directory => {}
                // The whole of it is one change.
                _ => return Ok(()),
            }
            if self.lower_directory(above)? && self.is_opaque(above)? {
                self.merge(above)?;
            }
        }
        let Some(name) = path.file_name() else { return Ok(()) };
        let parent = self.changed.list(path.parent().unwrap_or(Path::new("")))?;
        match recheck::remove_tree(parent.as_fd(), name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn lower_directory(&self, path: &Path) -> io::Result<bool> {
        self.workspace.open_above(path)?;
        Ok(self.workspace.tree.stat(path)?.is_some_and(|lower| kind(&lower) == FileKind::Directory))
    }

    fn is_opaque(&self, path: &Path) -> io::Result<bool> {
        Ok(mark(&self.changed.list(path)?, sys::OPAQUE)?.is_some_and(|value| value == b"y"))
    }

    /// Lets a directory that hides the workspace's one merge with it, and shows the same: what it lacked gets
    /// a whiteout, and its directories hide those of the workspace themselves. The mark goes last, so a crash
    /// changes nothing.
    fn merge(&self, path: &Path) -> io::Result<()> {
        let upper = self.changed.list(path)?;
        let own = names(&upper)?;
        let listed = names(&self.workspace.list(path)?)?;
        with_rights(&upper, || {
            for name in &listed {
                let below = path.join(name);
                let counts = !self.state.made(path) || self.state.is_committed(&below);
                if own.binary_search(name).is_err() {
                    if counts {
                        mknodat(&upper, name.as_os_str(), SFlag::S_IFCHR, Mode::empty(), 0)?;
                    }
                    continue;
                }
                let is_directory =
                    dirfd::stat(&upper, name)?.is_some_and(|it| kind(&it) == FileKind::Directory);
                if is_directory && self.lower_directory(&below)? {
                    let directory = self.changed.list(&below)?;
                    with_rights(&directory, || {
                        File::from(directory.try_clone()?).set_xattr(sys::OPAQUE, b"y")
                    })?;
                }
            }
            File::from(upper.try_clone()?).remove_xattr(sys::OPAQUE)
        })
    }
}

/// Runs `act` while the owner has all rights on a directory.
fn with_rights(directory: &OwnedFd, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let before = mode_of(&fstat(directory)?);
    if before.contains(Mode::S_IRWXU) {
        return act();
    }
    open_up(directory)?;
    let done = act();
    change_mode(directory, before)?;
    done
}
