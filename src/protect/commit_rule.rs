//! Changes of an overlay that are never committed: those to protected paths and covers. Pure.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::sys::path_text;

/// A path below the workspace that must not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommitRule {
    #[serde(with = "path_text")]
    path: PathBuf,
    exception: Exception,
}

/// The exception: what may be at the path nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Exception {
    Nothing,
    /// What `git init` makes, if the repository is new: a configuration and samples of hooks.
    New,
    /// A directory with any entries.
    Directory,
    /// An empty directory.
    Empty,
    /// Anything but symbolic links, at the path and below it.
    NoLink,
}

/// What a change makes of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangedKind {
    Directory,
    File,
    Link,
    /// The path is removed.
    Nothing,
}

impl CommitRule {
    pub(crate) fn always(path: &Path) -> Self {
        Self { path: path.to_owned(), exception: Exception::Nothing }
    }

    pub(crate) fn unless_new(path: &Path) -> Self {
        Self { path: path.to_owned(), exception: Exception::New }
    }

    pub(crate) fn unless_directory(path: &Path) -> Self {
        Self { path: path.to_owned(), exception: Exception::Directory }
    }

    pub(crate) fn unless_empty(path: &Path) -> Self {
        Self { path: path.to_owned(), exception: Exception::Empty }
    }

    pub(crate) fn no_links(path: &Path) -> Self {
        Self { path: path.to_owned(), exception: Exception::NoLink }
    }

    /// Whether `path` must not become `becomes`. `is_new` says whether the repository is new.
    pub(crate) fn forbids(&self, path: &Path, becomes: ChangedKind, is_new: bool) -> bool {
        if let Ok(below) = path.strip_prefix(&self.path) {
            let is_itself = below.as_os_str().is_empty();
            return match self.exception {
                Exception::Nothing => true,
                Exception::New => !(is_new && self.is_made_by_init(below, becomes)),
                Exception::Directory => is_itself && becomes != ChangedKind::Directory,
                Exception::Empty => !is_itself || becomes != ChangedKind::Directory,
                Exception::NoLink => becomes == ChangedKind::Link,
            };
        }
        if self.exception == Exception::NoLink {
            return false;
        }
        // On the way to the path, anything but a directory would lead elsewhere.
        self.path.starts_with(path) && becomes != ChangedKind::Directory
    }

    /// Whether `path` is the configuration of a new repository: it may be committed, but git obeys it.
    pub(crate) fn is_new_configuration(&self, path: &Path, is_new: bool) -> bool {
        self.exception == Exception::New && is_new && path == self.path && self.is_configuration()
    }

    fn is_configuration(&self) -> bool {
        self.path.ends_with("config") || self.path.ends_with("config.worktree")
    }

    /// Whether `git init` makes this.
    fn is_made_by_init(&self, below: &Path, becomes: ChangedKind) -> bool {
        let is_itself = below.as_os_str().is_empty();
        if self.is_configuration() {
            return is_itself && becomes == ChangedKind::File;
        }
        if self.path.ends_with("branches") || self.path.ends_with("remotes") {
            return is_itself && becomes == ChangedKind::Directory;
        }
        let is_sample = below.extension().is_some_and(|extension| extension == "sample");
        let is_sample = is_sample && below.components().count() == 1 && becomes == ChangedKind::File;
        self.path.ends_with("hooks") && (is_sample || is_itself && becomes == ChangedKind::Directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_it_and_nothing_in_its_way() {
        let never = CommitRule::always(Path::new("a/b"));
        for is_new in [false, true] {
            for path in ["a/b", "a/b/c/d"] {
                assert!(never.forbids(Path::new(path), ChangedKind::File, is_new), "{path}");
            }
            assert!(never.forbids(Path::new("a"), ChangedKind::File, is_new));
            assert!(never.forbids(Path::new("a"), ChangedKind::Link, is_new));
            assert!(!never.forbids(Path::new("a"), ChangedKind::Directory, is_new));
            assert!(!never.forbids(Path::new("a/bc"), ChangedKind::Link, is_new));
        }
    }

    #[test]
    fn a_new_repository_has_a_configuration_and_samples() {
        let forbids = |never: &str, path: &str, becomes, is_new| {
            CommitRule::unless_new(Path::new(never)).forbids(Path::new(path), becomes, is_new)
        };
        assert!(!forbids(".git/config", ".git/config", ChangedKind::File, true));
        assert!(forbids(".git/config", ".git/config", ChangedKind::File, false));
        assert!(forbids(".git/config", ".git/config", ChangedKind::Link, true), "a link");
        assert!(forbids(".git/config", ".git", ChangedKind::File, true), "a pointer elsewhere");
        assert!(!forbids(".git/hooks", ".git/hooks", ChangedKind::Directory, true));
        assert!(!forbids(".git/hooks", ".git/hooks/pre-push.sample", ChangedKind::File, true));
        assert!(forbids(".git/hooks", ".git/hooks/pre-push", ChangedKind::File, true));
        assert!(forbids(".git/hooks", ".git/hooks/a/b.sample", ChangedKind::File, true));
        assert!(forbids(".git/hooks", ".git/hooks/x.sample", ChangedKind::File, false));
        assert!(forbids(".git/commondir", ".git/commondir", ChangedKind::File, true));
        assert!(!forbids(".git/config.worktree", ".git/config.worktree", ChangedKind::File, true));
        assert!(!forbids(".git/branches", ".git/branches", ChangedKind::Directory, true));
        assert!(forbids(".git/branches", ".git/branches/origin", ChangedKind::File, true));
    }

    #[test]
    fn a_repository_gets_no_link() {
        let never = CommitRule::no_links(Path::new(".git"));
        let forbids = |path: &str, becomes| never.forbids(Path::new(path), becomes, true);
        assert!(forbids(".git/logs/HEAD", ChangedKind::Link) && !forbids(".git/index", ChangedKind::File));
    }

    #[test]
    fn a_directory_may_be_where_a_file_must_not() {
        for (never, entry) in [
            (CommitRule::unless_directory(Path::new("a")), false),
            (CommitRule::unless_empty(Path::new("a")), true),
        ] {
            assert!(!never.forbids(Path::new("a"), ChangedKind::Directory, false));
            assert!(never.forbids(Path::new("a"), ChangedKind::File, false));
            assert!(never.forbids(Path::new("a"), ChangedKind::Link, false));
            assert_eq!(never.forbids(Path::new("a/b"), ChangedKind::File, false), entry);
        }
    }
}
