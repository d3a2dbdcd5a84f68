//! Paths inside a writable grant that stay read-only: what programs outside the sandbox trust and execute.
//!
//! A path that is there is bound read-only over itself, and every directory on the way to it is bound over itself
//! so that it cannot be renamed away. A path that is not there cannot be bound: `watch` looks after it.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{
    Parts, git, pin,
    source::Source,
    view::{Access, Node, Origin, View},
};
use crate::{
    Error,
    policy::Protection,
    watch::{Expected, Watch},
};

/// What came of protecting.
#[derive(Debug, Default)]
pub(super) struct Protected {
    /// To be looked at after the command, because it cannot be bound.
    pub(super) watches: Vec<Watch>,
    /// Protected files that have other names, by which they can be written.
    pub(super) linked: Vec<PathBuf>,
}

/// A writable grant: its place in the sandbox, and the directory of the host.
struct Grant {
    target: PathBuf,
    base: PathBuf,
}

/// Protects the policy's paths in the workspace, and what git obeys in every writable grant.
///
/// # Errors
/// Where a path is being exchanged meanwhile.
pub(super) fn protect(view: &mut View, parts: &Parts<'_>, workspace: &Source) -> Result<Protected, Error> {
    let mut protected = Protected::default();
    for grant in writable_directories(view) {
        let mut paths = git::obeyed(&grant.base);
        if grant.base == workspace.path {
            let below = |path: &PathBuf| path.strip_prefix(&grant.base).unwrap_or(path).to_owned();
            paths.extend(parts.policy.protect.iter().map(below));
        }
        for path in paths {
            protect_one(view, &grant, &path, &mut protected)?;
        }
    }
    Ok(protected)
}

fn writable_directories(view: &View) -> Vec<Grant> {
    let writable = |(target, place): (&Path, &super::view::Place)| match &place.node {
        Node::Bind { source, access: Access::Write } if source.is_dir() && place.origin != Origin::Wall => {
            Some(Grant { target: target.to_owned(), base: source.path.clone() })
        }
        _ => None,
    };
    view.iter().filter_map(writable).collect()
}

/// Walks from the grant to `path` below it, and binds what is there over itself, read-only, wherever it is shown.
fn protect_one(view: &mut View, grant: &Grant, path: &Path, protected: &mut Protected) -> Result<(), Error> {
    let mut below = PathBuf::new();
    for part in path.components() {
        below.push(part);
        let on_host = grant.base.join(&below);
        if view.get(&grant.target.join(&below)).is_some_and(|place| is_cover(&place.node)) {
            return Ok(());
        }
        let Ok(metadata) = fs::symlink_metadata(&on_host) else {
            // The whole path is what must not appear, not only its first missing part.
            let expected =
                if is_new_repository(path, &below) { Expected::NoRepository } else { Expected::Absent };
            protected.watches.push(Watch::new(&grant.base, path, expected));
            return pin_everywhere(view, &on_host);
        };
        if metadata.is_symlink() {
            let to = fs::read_link(&on_host).unwrap_or_default();
            protected.watches.push(Watch::new(&grant.base, &below, Expected::Link(to)));
            pin_everywhere(view, &on_host)?;
            return follow(view, grant, &on_host, path.strip_prefix(&below).unwrap_or(path), protected);
        }
        if below == path || !metadata.is_dir() {
            protected.linked.extend(other_names(&on_host, &metadata));
            return bind_everywhere(view, &on_host);
        }
    }
    Ok(())
}

fn is_cover(node: &Node) -> bool {
    matches!(node, Node::Cover | Node::CoverFile)
}

/// Pins the way to the host's `path` in every place where it is shown.
fn pin_everywhere(view: &mut View, path: &Path) -> Result<(), Error> {
    view.shown_at(path).iter().try_for_each(|place| pin::way_to(view, place))
}

/// Binds the host's `path` over itself, read-only, in every place where it is shown.
fn bind_everywhere(view: &mut View, path: &Path) -> Result<(), Error> {
    let source = pin::exact(path)?;
    for place in view.shown_at(path) {
        pin::way_to(view, &place)?;
        if view.get(&place).is_none_or(|place| !is_cover(&place.node)) {
            let node = Node::Bind { source: source.clone(), access: Access::Read };
            view.wall("protected path", &place, node, Protection::ProtectedPaths);
        }
    }
    Ok(())
}

/// The file, or one directly in the directory, that has another name, by which it can be written.
fn other_names(path: &Path, metadata: &fs::Metadata) -> Option<PathBuf> {
    if !metadata.is_dir() {
        return (metadata.is_file() && metadata.nlink() > 1).then(|| path.to_owned());
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?))).find_map(|(path, metadata)| {
        let sample = path.extension().is_some_and(|extension| extension == "sample");
        (metadata.is_file() && metadata.nlink() > 1 && !sample).then_some(path)
    })
}

/// Where a link on the way leads within the same grant, what it leads to is protected too.
fn follow(
    view: &mut View,
    grant: &Grant,
    link: &Path,
    rest: &Path,
    protected: &mut Protected,
) -> Result<(), Error> {
    match fs::canonicalize(link).map(|canonical| canonical.strip_prefix(&grant.base).map(Path::to_owned)) {
        // Canonical: no further link can be met before the rest, which is shorter each time.
        Ok(Ok(inside)) => protect_one(view, grant, &inside.join(rest), protected),
        _ => Ok(()),
    }
}

/// Whether making `path` is legitimate because all of its repository is yet to be made (`git init`).
fn is_new_repository(path: &Path, missing: &Path) -> bool {
    missing == Path::new(".git") && path != missing
}
