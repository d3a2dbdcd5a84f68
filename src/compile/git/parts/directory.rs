//! A directory of git's own in a repository: what is kept in it, and what of it a look passes over.

use std::{ffi::OsStr, path::PathBuf};

/// Parts of a repository in which there are other directories of git.
pub(in crate::compile::git) const PARTS: [(&str, Holds); 2] =
    [("worktrees", Holds::Worktrees), ("modules", Holds::Submodules)];

/// What a repository has for itself. Git puts no submodule into a repository; what it does not take for one may have some
/// anywhere.
const OWN: &[&str] = &["hooks", "info", "lfs", "logs", "objects", "refs"];

/// Directories of git's own in a repository, by what lies in them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::compile::git) enum Holds {
    /// What a linked worktree has for itself: `worktrees`.
    Worktrees,
    /// Repositories of submodules: `modules`. Their names may have slashes.
    Submodules,
}

/// A directory to look at.
pub(super) struct Directory {
    pub(super) path: PathBuf,
    pub(super) holds: Holds,
    /// How many directories, itself included, are the beginning of submodules' names.
    pub(super) within: usize,
    /// Whether git takes it for a repository.
    pub(super) is_repository: bool,
}

impl Directory {
    pub(super) fn new(path: PathBuf, holds: Holds) -> Self {
        Self { path, holds, within: 0, is_repository: false }
    }

    /// Whether what is called `name` in it is not looked at: of a repository its own, and its parts, which have a look of
    /// their own.
    pub(super) fn passes_over(&self, name: &OsStr) -> bool {
        let is_part = PARTS.iter().any(|(part, _)| *part == name);
        self.is_repository && (is_part || OWN.iter().any(|own| *own == name))
    }
}
