//! What is never committed, however a command came to change it: protected paths and covers. Pure.

use std::path::{Path, PathBuf};

/// A path below the workspace that stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Never {
    path: PathBuf,
    /// Whether a repository around it may be made that was not there: it has a configuration and samples of hooks.
    unless_new: bool,
}

/// What shall be at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Becomes {
    Directory,
    File,
    /// A link, or nothing any more.
    Other,
}

impl Never {
    pub(crate) fn always(path: &Path) -> Self {
        Self { path: path.to_owned(), unless_new: false }
    }

    pub(crate) fn unless_new(path: &Path) -> Self {
        Self { path: path.to_owned(), unless_new: true }
    }

    /// Whether `path` must not become that. `is_new` says whether the repository is.
    pub(super) fn forbids(&self, path: &Path, becomes: Becomes, is_new: bool) -> bool {
        if let Ok(below) = path.strip_prefix(&self.path) {
            return !(self.unless_new && is_new && self.is_harmless(below, becomes));
        }
        // What is no directory would lead the way to the path elsewhere.
        self.path.starts_with(path) && becomes != Becomes::Directory
    }

    /// Whether `path` came with a new repository and is obeyed all the same.
    pub(super) fn lets_pass(&self, path: &Path, is_new: bool) -> bool {
        self.unless_new && is_new && path == self.path && path.ends_with("config")
    }

    /// Whether it is what `git init` makes.
    fn is_harmless(&self, below: &Path, becomes: Becomes) -> bool {
        let is_itself = below.as_os_str().is_empty();
        if self.path.ends_with("config") {
            return is_itself && becomes == Becomes::File;
        }
        let is_sample = below.extension().is_some_and(|extension| extension == "sample");
        let is_sample = is_sample && below.components().count() == 1 && becomes == Becomes::File;
        self.path.ends_with("hooks") && (is_sample || is_itself && becomes == Becomes::Directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_it_and_nothing_in_its_way() {
        let never = Never::always(Path::new("a/b"));
        for is_new in [false, true] {
            for path in ["a/b", "a/b/c/d"] {
                assert!(never.forbids(Path::new(path), Becomes::File, is_new), "{path}");
            }
            assert!(never.forbids(Path::new("a"), Becomes::File, is_new));
            assert!(never.forbids(Path::new("a"), Becomes::Other, is_new));
            assert!(!never.forbids(Path::new("a"), Becomes::Directory, is_new));
            assert!(!never.forbids(Path::new("a/bc"), Becomes::Other, is_new));
        }
    }

    #[test]
    fn a_new_repository_has_a_configuration_and_samples() {
        let forbids = |never: &str, path: &str, becomes, is_new| {
            Never::unless_new(Path::new(never)).forbids(Path::new(path), becomes, is_new)
        };
        assert!(!forbids(".git/config", ".git/config", Becomes::File, true));
        assert!(forbids(".git/config", ".git/config", Becomes::File, false));
        assert!(forbids(".git/config", ".git/config", Becomes::Other, true), "a link");
        assert!(forbids(".git/config", ".git", Becomes::File, true), "a pointer elsewhere");
        assert!(!forbids(".git/hooks", ".git/hooks", Becomes::Directory, true));
        assert!(!forbids(".git/hooks", ".git/hooks/pre-push.sample", Becomes::File, true));
        assert!(forbids(".git/hooks", ".git/hooks/pre-push", Becomes::File, true));
        assert!(forbids(".git/hooks", ".git/hooks/a/b.sample", Becomes::File, true));
        assert!(forbids(".git/hooks", ".git/hooks/x.sample", Becomes::File, false));
        assert!(forbids(".git/commondir", ".git/commondir", Becomes::File, true));
    }
}
