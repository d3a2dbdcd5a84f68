//! What the walls in directories of the host's stand on. Whoever renames or removes a mount point outside takes the
//! mount away, in every namespace; and what was not there when a session was prepared may be there later. Reads, never
//! writes.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use kennel_helper::plan::Step;

use super::{
    emit::{self, OnHost, relative},
    section::Section,
    view::{Node, View},
};
use crate::{host::identity, watch::Watch};

/// Paths of the host, and what was there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footing {
    seen: Vec<Seen>,
}

#[derive(Clone, Debug)]
struct Seen {
    path: PathBuf,
    what: What,
    thing: Option<Thing>,
}

/// What stands on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A writable grant, and everything in it.
    Grant,
    /// A mount. No command can move its mount point.
    Mount,
    /// A watch, or a secret that was not there. A command can have put something there, or exchanged the link.
    Watch,
}

/// What tells one thing from another that took its place: device and inode, and because numbers are used again, when it
/// was made, where the file system knows.
type Thing = ((u64, u64), Option<SystemTime>);

/// What has changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Some,
    /// A grant is not what it was.
    Grant(PathBuf),
}

impl Footing {
    pub(super) fn of(view: &View, mounts: &[OnHost], watches: &[Watch], secrets: Vec<PathBuf>) -> Self {
        let grants = view.writable_directories().map(|(_, source)| (source.path.clone(), What::Grant));
        let mounts = mounts.iter().map(|mount| (mount.path.clone(), What::Mount));
        let watches = watches.iter().map(|watch| (watch.stands_on(), What::Watch));
        let secrets = secrets.into_iter().map(|path| (path, What::Watch));
        let mut paths: Vec<(PathBuf, What)> = grants.chain(mounts).chain(watches).chain(secrets).collect();
        // Several watches wait for the same part of their ways, one after the other.
        paths.dedup();
        let seen = |(path, what): (PathBuf, What)| Seen { thing: look(&path), path, what };
        Self { seen: paths.into_iter().map(seen).collect() }
    }

    /// Looks again. What is watched counts only where no command can have changed it: `is_idle`.
    pub(crate) fn change(&self, is_idle: bool) -> Change {
        let counts = |seen: &&Seen| is_idle || seen.what != What::Watch;
        let mut changed = self.seen.iter().filter(counts).filter(|seen| look(&seen.path) != seen.thing);
        let Some(first) = changed.next() else { return Change::None };
        match [first].into_iter().chain(changed).find(|seen| seen.what == What::Grant) {
            Some(grant) => Change::Grant(grant.path.clone()),
            None => Change::Some,
        }
    }

    /// Takes what lies at mount points now for what was there.
    pub(crate) fn settle_mounts(&mut self) {
        for seen in self.seen.iter_mut().filter(|seen| seen.what == What::Mount) {
            seen.thing = look(&seen.path);
        }
    }
}

fn look(path: &Path) -> Option<Thing> {
    fs::symlink_metadata(path).ok().map(|metadata| (identity(&metadata), metadata.created().ok()))
}

/// The steps of a worker whose zygote may have lost mounts: each that is gone is put up again.
pub(super) fn again(view: &View, mounts: &[OnHost]) -> Section {
    let mut worker = Section::default();
    let empty = &*relative(emit::empty_directory(view));
    for OnHost { target, path } in mounts {
        let Some(place) = view.get(target) else { continue };
        let to = &*relative(target);
        let own;
        let (from, attributes, (device, inode)) = match &place.node {
            Node::Bind { source, access } if source.path == *path => (to, emit::attributes(*access), (0, 0)),
            Node::Cover => (empty, emit::RDONLY, (0, 0)),
            Node::CoverFile => (emit::NULL, emit::RDONLY, (0, 0)),
            Node::OwnFile { source } => {
                own = relative(source);
                (&*own, emit::RDONLY, (0, 0))
            }
            // What it showed is out of a worker's reach.
            Node::Bind { source, .. } => (c"", 0, source.identity),
            _ => (c"", 0, (0, 0)),
        };
        let step = Step::MountAgain { from, target: to, attributes, device, inode };
        worker.push(place.protection, &step);
    }
    worker
}
