//! Paths inside a writable grant that stay read-only: what programs outside the sandbox trust and execute.
//!
//! A path that is there is bound read-only over itself, and every directory on the way to it is bound over itself
//! so that it cannot be renamed away. A path that is not there cannot be bound: `watch` looks after it.

mod gap;

use std::{
    collections::{BTreeMap, VecDeque},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use self::gap::{Gap, MOST_FOLLOWED, Why};
use super::{
    Parts,
    git::{self, Pointers, Way},
    pin,
    source::Source,
    view::{Access, Node, Origin, Place, View},
    walk::{Met, Walk},
};
use crate::{
    Enforcement, Error, Profile,
    enforcement::State,
    harmless::harmless,
    host::remedy::of_call,
    policy::Protection,
    watch::{self, Expected, Watch},
};

/// What came of protecting.
#[derive(Debug, Default)]
pub(super) struct Protected {
    /// To be looked at after the command, because it cannot be bound.
    pub(super) watches: Vec<Watch>,
    /// Directories of the host, there or not: what is put into them is to be protected too.
    pub(super) listed: Vec<PathBuf>,
    /// What is not protected in full.
    gaps: Vec<Gap>,
}

impl Protected {
    /// Says what protects the paths, or that not all of them are protected in full.
    ///
    /// # Errors
    /// With profile `ci-only`, where they are not.
    pub(super) fn report(&self, parts: &Parts<'_>, enforcement: &mut Enforcement) -> Result<(), Error> {
        if let Some(Gap { path, why }) = self.gaps.first() {
            let reason = format!("{} {}", harmless(&path.to_string_lossy()), why.reason());
            if parts.policy.profile == Profile::CiOnly {
                let remedy = Some(why.remedy().to_owned());
                return Err(Error::Unavailable { protection: Protection::ProtectedPaths, reason, remedy });
            }
            enforcement.set(Protection::ProtectedPaths, State::Degraded, reason);
            return Ok(());
        }
        let detail = match self.watches.len() {
            0 => "read-only".to_owned(),
            absent => {
                format!("read-only; {absent} that cannot be bound are looked at after the command and undone")
            }
        };
        enforcement.set(Protection::ProtectedPaths, State::Enforced, detail);
        Ok(())
    }
}

/// A writable grant: its place in the sandbox, and the directory of the host.
struct Grant {
    target: PathBuf,
    base: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Grant {
    /// The part of a path of the host that lies below the grant.
    fn below<'p>(&self, path: &'p Path) -> &'p Path {
        path.strip_prefix(&self.base).unwrap_or(path)
    }

    /// Whether the sandbox sees a cover in the place of the host's `path`.
    fn covers(&self, view: &View, path: &Path) -> bool {
        view.get(&self.target.join(self.below(path))).is_some_and(|place| is_cover(&place.node))
    }
}

/// Protects the policy's paths in the workspace, what git obeys in every writable grant, and the links that lead git to its
/// repository and programs to `secrets`: what they lead to is known by them.
///
/// # Errors
/// Where a path is being exchanged meanwhile, or where it is not allowed to look.
pub(super) fn protect(
    view: &mut View,
    parts: &Parts<'_>,
    workspace: Option<&Source>,
    secrets: &[Way],
) -> Result<Protected, Error> {
    let mut protected = Protected::default();
    let grants = writable_directories(view);
    let pointers = pointers(&grants)?;
    let ways = || pointers.iter().flat_map(|pointers| &pointers.ways).chain(secrets);
    let pointed: Vec<PathBuf> = pointers.iter().flat_map(|it| it.repositories.iter().cloned()).collect();
    for grant in grants {
        let obeyed = git::Obeyed::below(&grant.base, &pointed).map_err(|error| not_held(&grant, error))?;
        let git::Obeyed { mut paths, listed, unseen } = obeyed;
        protected.listed.extend(listed.iter().map(|path| grant.base.join(path)));
        let unseen = unseen.iter().map(|path| Gap { path: grant.base.join(path), why: Why::Unseen });
        protected.gaps.extend(unseen);
        if workspace.is_some_and(|workspace| grant.base == workspace.path) {
            paths.extend(parts.policy.protect.iter().map(|path| grant.below(path).to_owned()));
        }
        let walks = paths.iter().map(|path| Walk::new(&grant.base, &grant.base, path, 0)).collect();
        let others = protected.watches.len();
        protect_below(view, &grant, walks, &mut protected)?;
        for way in ways() {
            let mut walk = Walk::new(&grant.base, &way.from, &way.to, 0);
            protect_way(view, &grant, &mut walk, &mut protected)?;
        }
        let of_grant = protected.watches.iter_mut().skip(others);
        watch::hold(of_grant, &grant.base, grant.identity).map_err(|error| not_held(&grant, error))?;
    }
    close_pins(view);
    Ok(protected)
}

/// Where git is led from each grant.
fn pointers(grants: &[Grant]) -> Result<Vec<Pointers>, Error> {
    let of = |grant: &Grant| {
        Pointers::of(&grant.base).map_err(|source| {
            let (path, remedy) = (grant.base.join(".git"), of_call(&source).map(str::to_owned));
            Error::Grant { what: "repository that git is led to by", path, source, remedy }
        })
    };
    grants.iter().map(of).collect()
}

fn not_held(grant: &Grant, source: io::Error) -> Error {
    let remedy = match source.raw_os_error() {
        Some(libc::ESTALE) => Some("run again: it was being exchanged while the sandbox was prepared"),
        _ => of_call(&source),
    };
    let (path, remedy) = (grant.base.clone(), remedy.map(str::to_owned));
    Error::Grant { what: "writable grant", path, source, remedy }
}

fn writable_directories(view: &View) -> Vec<Grant> {
    let grant = |(target, source): (&Path, &Source)| Grant {
        target: target.to_owned(),
        base: source.path.clone(),
        identity: source.identity,
    };
    view.writable_directories().map(grant).collect()
}

/// Protects what each walk leads to, and then what the links in it lead to, and so on.
fn protect_below<'g>(
    view: &mut View,
    grant: &'g Grant,
    mut walks: VecDeque<Walk<'g>>,
    protected: &mut Protected,
) -> Result<(), Error> {
    // Links may lead in circles. Who comes back to a directory goes on only if he has more links left than before.
    let mut fewest: BTreeMap<PathBuf, u32> = BTreeMap::new();
    while let Some(mut walk) = walks.pop_front() {
        let Some(thing) = protect_one(view, grant, &mut walk, protected)? else { continue };
        if fewest.get(&thing).is_none_or(|&links| walk.links() < links) {
            let links = links_in(grant, &thing, walk.links()).unwrap_or_else(|_| {
                protected.gaps.push(Gap { path: thing.clone(), why: Why::Unseen });
                Vec::new()
            });
            if links.len() > MOST_FOLLOWED {
                protected.gaps.push(Gap { path: thing.clone(), why: Why::TooMany });
            }
            walks.extend(links.into_iter().take(MOST_FOLLOWED));
            fewest.insert(thing, walk.links());
        }
    }
    Ok(())
}

/// Walks to the end, and binds what is there over itself, read-only, wherever it is shown. Says what that is.
fn protect_one(
    view: &mut View,
    grant: &Grant,
    walk: &mut Walk<'_>,
    protected: &mut Protected,
) -> Result<Option<PathBuf>, Error> {
    let Some((at, metadata)) = protect_way(view, grant, walk, protected)? else { return Ok(None) };
    let linked = other_names(&at, &metadata).map(|path| Gap { path, why: Why::Linked });
    protected.gaps.extend(linked);
    bind_everywhere(view, &at)?;
    Ok(Some(at))
}

/// Walks to the end, so that the way leads nowhere else after the command than before. Says what is there.
fn protect_way(
    view: &mut View,
    grant: &Grant,
    walk: &mut Walk<'_>,
    protected: &mut Protected,
) -> Result<Option<(PathBuf, fs::Metadata)>, Error> {
    while let Some(met) = walk.go_on(|path| grant.covers(view, path))? {
        match met {
            Met::Link { at, to } => {
                let below = grant.below(&at);
                protected.watches.push(Watch::new(&grant.base, below, below, Expected::Link(to)));
                pin_everywhere(view, &at)?;
            }
            Met::Up { at } => pin_everywhere(view, &at)?,
            Met::Nothing { first, path } => {
                protected.watches.push(watch_absent(grant, &path, &first));
                pin_everywhere(view, &first)?;
                return Ok(None);
            }
            Met::Thing { at, metadata } => return Ok(Some((at, metadata))),
        }
    }
    Ok(None)
}

/// The whole path is what must not appear, not only its first missing part.
fn watch_absent(grant: &Grant, path: &Path, first: &Path) -> Watch {
    let (path, first) = (grant.below(path), grant.below(first));
    let repository = is_new_repository(path, first);
    let expected = if repository { Expected::NoRepository } else { Expected::Absent };
    Watch::new(&grant.base, path, first, expected)
}

/// Links that lie directly in a protected directory, such as hooks kept elsewhere: what they lead to is obeyed too. At
/// most one more than are followed.
///
/// # Errors
/// It cannot be looked at.
fn links_in<'g>(grant: &'g Grant, thing: &Path, links: u32) -> io::Result<Vec<Walk<'g>>> {
    let mut walks = Vec::new();
    let entries = match fs::read_dir(thing) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(walks),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_symlink() && walks.len() <= MOST_FOLLOWED {
            walks.push(Walk::new(&grant.base, thing, &fs::read_link(entry.path())?, links + 1));
        }
    }
    Ok(walks)
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

/// A pin that was there before the directory around it became read-only would be a writable place in it.
fn close_pins(view: &mut View) {
    let pin = |(at, place): (&Path, &Place)| match &place.node {
        Node::Bind { source, access: Access::Write } if place.origin == Origin::Wall => {
            Some((at.to_owned(), source.clone()))
        }
        _ => None,
    };
    // Parents come first: a pin that is closed closes those in it.
    let pins: Vec<(PathBuf, Source)> = view.iter().filter_map(pin).collect();
    for (at, source) in pins {
        let around = view.mount_above(&at).map(|(_, place)| &place.node);
        if matches!(around, Some(Node::Bind { access: Access::Read, .. })) {
            let node = Node::Bind { source, access: Access::Read };
            view.wall("protected path", &at, node, Protection::ProtectedPaths);
        }
    }
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

#[cfg(test)]
mod tests;
