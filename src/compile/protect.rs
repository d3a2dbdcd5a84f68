//! Paths inside a writable grant that stay read-only: what programs outside the sandbox trust and execute.
//!
//! A path that is there is bound read-only over itself, and every directory on the way to it is bound over itself
//! so that it cannot be renamed away. A path that is not there cannot be bound: `watch` looks after it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    Parts, git,
    source::Source,
    view::{Access, Node, View},
};
use crate::{
    policy::Protection,
    watch::{Expected, Watch},
};

/// Protected in every writable directory that is granted: git outside would run what they say.
const OF_WORKTREE: &[&str] = &[".git/hooks", ".git/config"];

/// The same for a directory that is a repository itself.
const OF_REPOSITORY: &[&str] = &["hooks", "config"];

/// Protects the policy's paths in the workspace and what git runs in every writable grant; answers what is to be
/// watched because it cannot be bound.
pub(super) fn protect(view: &mut View, parts: &Parts<'_>, workspace: &Source) -> Vec<Watch> {
    let mut watches = Vec::new();
    for (target, base) in writable_directories(view) {
        let always = if git::is_repository(&base) { OF_REPOSITORY } else { OF_WORKTREE };
        let mut paths: Vec<PathBuf> = always.iter().map(PathBuf::from).collect();
        if base == workspace.path {
            let below = |path: &PathBuf| path.strip_prefix(&base).unwrap_or(path).to_owned();
            paths.extend(parts.policy.protect.iter().map(below));
        }
        for path in paths {
            watches.extend(protect_one(view, &target, &base, &path));
        }
    }
    watches
}

fn writable_directories(view: &View) -> Vec<(PathBuf, PathBuf)> {
    let writable = |(target, place): (&Path, &super::view::Place)| match &place.node {
        Node::Bind { source, access: Access::Write } if source.is_dir() => {
            Some((target.to_owned(), source.path.clone()))
        }
        _ => None,
    };
    view.iter().filter_map(writable).collect()
}

/// Walks from the granted directory `base` to `path` below it and pins every step of the way.
fn protect_one(view: &mut View, target: &Path, base: &Path, path: &Path) -> Option<Watch> {
    let mut below = PathBuf::new();
    for part in path.components() {
        let parent_of_all = below.as_os_str().is_empty();
        below.push(part);
        let watch = |expected| Watch { base: base.to_owned(), path: below.clone(), expected };
        let Ok(metadata) = fs::symlink_metadata(base.join(&below)) else {
            // The whole path is what must not appear, not only its first missing part. Where even the first
            // part is missing, making it is legitimate (`git init`).
            let fresh = parent_of_all && path.components().count() > 1;
            let expected = if fresh { Expected::AbsentInAbsent } else { Expected::Absent };
            return Some(Watch { base: base.to_owned(), path: path.to_owned(), expected });
        };
        if metadata.is_symlink() {
            return Some(watch(Expected::Link(fs::read_link(base.join(&below)).unwrap_or_default())));
        }
        let last = below == path || !metadata.is_dir();
        let Ok(source) = Source::resolve(&base.join(&below)) else { return None };
        let access = if last { Access::Read } else { Access::Write };
        view.wall(
            "protected path",
            &target.join(&below),
            Node::Bind { source, access },
            Protection::ProtectedPaths,
        );
        if last {
            return None;
        }
    }
    None
}
