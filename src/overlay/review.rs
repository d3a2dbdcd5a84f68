//! Kept changes, opened to look at them: what a person sees before the changes count.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use crate::overlay::contents::Side;
use crate::overlay::kept_changes::KeptChanges;
use crate::overlay::ledger::Ledger;
use crate::overlay::scan::MAX_DEPTH;
use crate::overlay::tree::ReadableTree;
use crate::report::change::{Change, ChangeKind};
use crate::sys::dirfd;
use crate::sys::dirfd::{names, without_capabilities};
use crate::sys::inode::{FileKind, kind};

/// The most files of deleted directories that a review shows one by one.
const MOST_FILES: usize = 10_000;

/// Kept changes, opened to look at them.
#[derive(Debug)]
pub struct Review {
    pub(crate) kept: KeptChanges,
    pub(crate) ledger: Ledger,
    /// The changes, sorted by path.
    pub(crate) changes: Vec<Change>,
}

impl Review {
    /// The changes, sorted by path.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The changes, with each file of a deleted directory. A directory with very many files stands for them.
    #[must_use]
    pub fn files(&self) -> Vec<Change> {
        let mut room = MOST_FILES;
        let mut all = Vec::new();
        for change in &self.changes {
            let is_deleted = change.kind == ChangeKind::Deleted && change.file == FileKind::Directory;
            let inside = is_deleted.then(|| self.inside(&change.path, &mut room)).flatten();
            match inside {
                Some(inside) => all.extend(inside),
                None => all.push(change.clone()),
            }
        }
        all
    }

    /// The files in a directory of the workspace; `None` if they are too many, or it cannot be read.
    fn inside(&self, path: &Path, room: &mut usize) -> Option<Vec<Change>> {
        let found = self.read(|[tree, _]| {
            let (mut levels, mut found) = (vec![path.to_owned()], Vec::new());
            while let Some(level) = levels.pop() {
                let directory = tree.list(&level)?;
                let names = names(&directory)?;
                if found.len() + names.len() > *room || level.components().count() > MAX_DEPTH {
                    return Err(Errno::E2BIG.into());
                }
                for name in names {
                    let Some(stat) = dirfd::stat(&directory, &name)? else { continue };
                    let (path, file) = (level.join(name), kind(&stat));
                    match file {
                        FileKind::Directory => levels.push(path),
                        _ => found.push(Change { path, kind: ChangeKind::Deleted, file }),
                    }
                }
            }
            Ok(found)
        });
        let mut found = found.ok().filter(|found| !found.is_empty())?;
        *room -= found.len();
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Some(found)
    }

    /// What is in the workspace at the path of a change, and what a commit would put there. Reads at most
    /// `most` bytes of each.
    #[must_use]
    pub fn sides(&self, change: &Change, most: u64) -> [Side; 2] {
        let side = |is_there: bool, at: usize| match is_there {
            true => self
                .read(|trees| Side::read(&trees[at], &change.path, most))
                .unwrap_or_else(|error| Side::unreadable(&error)),
            false => Side::default(),
        };
        [side(change.kind != ChangeKind::Added, 0), side(change.kind != ChangeKind::Deleted, 1)]
    }

    /// Reads in the workspace and in the changes. Opens up what its owner cannot read, if no session uses it.
    fn read<T>(&self, act: impl Fn(&[ReadableTree<'_>; 2]) -> io::Result<T>) -> io::Result<T> {
        let trees = [self.ledger.workspace(), self.ledger.upper()];
        let read = without_capabilities(|| act(&trees.map(ReadableTree::as_it_is)));
        let Err(error) = &read else { return read };
        if error.kind() != io::ErrorKind::PermissionDenied {
            return read;
        }
        let opened = self.kept.look(|ledger| {
            without_capabilities(|| {
                let trees = [ledger.workspace(), ledger.upper()].map(ReadableTree::new);
                let read = act(&trees);
                ledger.state().note_closed(trees[0].close());
                read
            })
        });
        opened.unwrap_or(read)
    }
}
