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
    seen: Vec<(PathBuf, Option<Thing>)>,
}

/// What tells one thing from another that took its place: device and inode, and because numbers are used again, when it
/// was made, where the file system knows.
type Thing = ((u64, u64), Option<SystemTime>);

impl Footing {
    pub(super) fn of(mounts: &[OnHost], watches: &[Watch]) -> Self {
        let mounts = mounts.iter().map(|mount| mount.path.clone());
        let paths = mounts.chain(watches.iter().map(Watch::stands_on));
        let seen = paths.map(|path| (look(&path), path)).map(|(thing, path)| (path, thing));
        Self { seen: seen.collect() }
    }

    /// Whether something else is there now. What was missing and is there counts only where nobody inside can have put
    /// it there: `is_idle`.
    pub(crate) fn has_changed(&self, is_idle: bool) -> bool {
        self.seen.iter().filter(|(_, then)| is_idle || then.is_some()).any(|(path, then)| look(path) != *then)
    }
}

fn look(path: &Path) -> Option<Thing> {
    fs::symlink_metadata(path).ok().map(|metadata| (identity(&metadata), metadata.created().ok()))
}

/// The steps of a worker whose zygote may have lost mounts: each that is gone is put up again.
pub(super) fn again(view: &View, mounts: &[OnHost], worker: &mut Section) {
    let empty = &*relative(emit::empty_directory(view));
    for OnHost { target, path } in mounts {
        let Some(place) = view.get(target) else { continue };
        let to = &*relative(target);
        let (from, attributes) = match &place.node {
            Node::Bind { source, access } if source.path == *path => (to, emit::attributes(*access)),
            Node::Cover => (empty, emit::RDONLY),
            Node::CoverFile => (emit::NULL, emit::RDONLY),
            // What it showed is out of a worker's reach.
            _ => (c"", 0),
        };
        worker.push(place.protection, &Step::MountAgain { from, target: to, attributes });
    }
}
