//! Paths inside a writable grant that stay read-only: what programs outside the sandbox trust and execute.
//!
//! A path that is there is bound read-only over itself, and every directory on the way to it is bound over itself
//! so that it cannot be renamed away. A path that is not there cannot be bound: `watch` looks after it.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
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

/// As many links as path_resolution(7) follows.
const MOST_LINKS: u32 = 40;

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
            protect_one(view, &grant, &path, 0, &mut protected)?;
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
fn protect_one(
    view: &mut View,
    grant: &Grant,
    path: &Path,
    links: u32,
    protected: &mut Protected,
) -> Result<(), Error> {
    let mut below = PathBuf::new();
    for part in path.components() {
        below.push(part);
        let on_host = grant.base.join(&below);
        if view.get(&grant.target.join(&below)).is_some_and(|place| is_cover(&place.node)) {
            return Ok(());
        }
        let Some(metadata) = look(&on_host)? else {
            // The whole path is what must not appear, not only its first missing part.
            let repository = is_new_repository(path, &below);
            let expected = if repository { Expected::NoRepository } else { Expected::Absent };
            protected.watches.push(Watch::new(&grant.base, path, &below, expected));
            return pin_everywhere(view, &on_host);
        };
        if metadata.is_symlink() {
            let to = fs::read_link(&on_host).unwrap_or_default();
            protected.watches.push(Watch::new(&grant.base, &below, &below, Expected::Link(to.clone())));
            pin_everywhere(view, &on_host)?;
            let rest = path.strip_prefix(&below).unwrap_or(path);
            return match beneath(grant, &on_host, &to) {
                Some(target) if links < MOST_LINKS => {
                    protect_one(view, grant, &target.join(rest), links + 1, protected)
                }
                _ => Ok(()),
            };
        }
        if below == path || !metadata.is_dir() {
            protected.linked.extend(other_names(&on_host, &metadata));
            bind_everywhere(view, &on_host)?;
            return protect_links_in(view, grant, &below, links, protected);
        }
    }
    Ok(())
}

/// What is at `path`; `None` where nothing is. Not being allowed to look is not nothing.
fn look(path: &Path) -> Result<Option<fs::Metadata>, Error> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        Err(source) => Err(Error::Grant {
            what: "protected path",
            path: path.to_owned(),
            source,
            remedy: Some("give yourself access to its directory".to_owned()),
        }),
    }
}

/// Links that lie directly in a protected directory, such as hooks kept elsewhere: what they lead to is obeyed too.
fn protect_links_in(
    view: &mut View,
    grant: &Grant,
    directory: &Path,
    links: u32,
    protected: &mut Protected,
) -> Result<(), Error> {
    let entries = fs::read_dir(grant.base.join(directory)).into_iter().flatten().flatten();
    let is_link = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_symlink());
    for entry in entries.filter(is_link).take(MOST_LINKS as usize) {
        let on_host = entry.path();
        let to = fs::read_link(&on_host).unwrap_or_default();
        if let (Some(target), true) = (beneath(grant, &on_host, &to), links < MOST_LINKS) {
            protect_one(view, grant, &target, links + 1, protected)?;
        }
    }
    Ok(())
}

/// Where a link leads within its grant, by its text: the way to the link has no other, so its text tells.
fn beneath(grant: &Grant, link: &Path, to: &Path) -> Option<PathBuf> {
    let mut target = PathBuf::new();
    for part in link.parent()?.join(to).components() {
        match part {
            Component::ParentDir => drop(target.pop()),
            Component::CurDir => {}
            part => target.push(part),
        }
    }
    target.strip_prefix(&grant.base).ok().map(Path::to_owned)
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

/// Whether making `path` is legitimate because all of its repository is yet to be made (`git init`).
fn is_new_repository(path: &Path, missing: &Path) -> bool {
    missing == Path::new(".git") && path != missing
}
