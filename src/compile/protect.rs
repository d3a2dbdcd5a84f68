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
            protect_one(view, (&target, &base), &path, &mut watches);
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
fn protect_one(view: &mut View, (target, base): (&Path, &Path), path: &Path, watches: &mut Vec<Watch>) {
    let mut below = PathBuf::new();
    for part in path.components() {
        below.push(part);
        let on_host = base.join(&below);
        let Ok(metadata) = fs::symlink_metadata(&on_host) else {
            // The whole path is what must not appear, not only its first missing part.
            let expected =
                if is_new_repository(path, &below) { Expected::NoRepository } else { Expected::Absent };
            watches.push(Watch { base: base.to_owned(), path: path.to_owned(), expected });
            return;
        };
        if metadata.is_symlink() {
            let to = fs::read_link(&on_host).unwrap_or_default();
            watches.push(Watch { base: base.to_owned(), path: below.clone(), expected: Expected::Link(to) });
            return follow(
                view,
                (target, base),
                &on_host,
                path.strip_prefix(&below).unwrap_or(path),
                watches,
            );
        }
        let last = below == path || !metadata.is_dir();
        let Ok(source) = Source::resolve(&on_host) else { return };
        let access = if last { Access::Read } else { Access::Write };
        let node = Node::Bind { source, access };
        view.wall("protected path", &target.join(&below), node, Protection::ProtectedPaths);
        if last {
            return;
        }
    }
}

/// Where a link on the way leads within the same grant, what it leads to is protected too.
fn follow(view: &mut View, grant: (&Path, &Path), link: &Path, rest: &Path, watches: &mut Vec<Watch>) {
    if let Ok(canonical) = fs::canonicalize(link)
        && let Ok(inside) = canonical.strip_prefix(grant.1)
    {
        // Canonical: no further link can be met before the rest.
        protect_one(view, grant, &inside.join(rest), watches);
    }
}

/// Whether making `path` is legitimate because all of its repository is yet to be made (`git init`).
fn is_new_repository(path: &Path, missing: &Path) -> bool {
    missing == Path::new(".git") && path != missing
}
