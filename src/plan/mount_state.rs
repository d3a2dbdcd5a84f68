//! What the mounts in directories of the host depend on. A program outside that renames or removes a mount
//! point takes the
//! mount away in every namespace. Files that were missing when a session was prepared can appear later.
//!
//! This file reads the host and never writes.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use kennel_helper::plan::Step;

use crate::plan::emit::relative;
use crate::plan::{Section, emit};
use crate::protect::paths::Protected;
use crate::protect::place::Done;
use crate::protect::recheck;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::failure;
use crate::report::outcome::Denial;
use crate::sys::inode::Identity;
use crate::view::{Access, MountOnHost, Node, Origin, View, ViewEntry};

/// Paths of the host, and what was there at the time of the snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountSnapshot {
    seen: Vec<Seen>,
}

#[derive(Clone, Debug)]
struct Seen {
    path: PathBuf,
    what: What,
    thing: Option<Thing>,
}

/// What depends on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The workspace or a writable grant, and everything in it; with the policy's word for it.
    Grant(&'static str),
    /// A mount that shows what commands write. No command can move its mount point.
    Mount,
    /// A mount that keeps commands from writing. No command can move its mount point.
    Wall,
    /// A watched path, or a secret that did not exist. A command can have created something there, or replaced
    /// a link.
    Watch,
    /// A directory whose new entries are to be protected too. A command can have added some.
    Listed,
}

/// What distinguishes a file from another one that took its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thing {
    identity: Identity,
    /// When it was created, if the file system knows: inode numbers are reused.
    born: Option<SystemTime>,
    /// When its inode was changed, in seconds and nanoseconds. Recorded for files that no command writes: a
    /// program outside can
    /// give the file a second name, remove the first, which takes the mount away, and then restore the first.
    /// Recorded also for
    /// listed directories: it changes with their entries.
    changed: Option<(i64, i64)>,
}

impl What {
    /// What depends on the mount point of this mount.
    fn of(view: &View, mount: &MountOnHost) -> Self {
        match view.get(&mount.target).map(|place| &place.node) {
            Some(Node::Bind { access: Access::Write, .. }) => Self::Mount,
            _ => Self::Wall,
        }
    }
}

/// The difference between a snapshot and the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MountChange {
    None,
    Some,
    /// A grant is not what it was: the policy's word for it, and its path.
    Grant(&'static str, PathBuf),
}

impl MountSnapshot {
    pub(crate) fn of(
        view: &View,
        mounts: &[MountOnHost],
        protected: &Protected,
        secrets: Vec<PathBuf>,
    ) -> Self {
        let called = |target: &Path| view.get(target).map_or("writable grant", |place| place.what);
        let grants = view
            .writable_directories()
            .map(|(target, source)| (source.path.clone(), What::Grant(called(target))));
        // If it was replaced, commands would find an empty directory, or one that nobody else sees.
        let read_only = view.iter().filter_map(|(_, place)| match &place.node {
            Node::Bind { source, access: Access::Read } if place.what == "workspace" => {
                Some((source.path.clone(), What::Grant(place.what)))
            }
            _ => None,
        });
        let mounts = mounts.iter().map(|mount| (mount.path.clone(), What::of(view, mount)));
        let watches = protected.watches.iter().map(|watch| (watch.stands_on(), What::Watch));
        let listed = protected.listed.iter().map(|path| (path.clone(), What::Listed));
        let secrets = secrets.into_iter().map(|path| (path, What::Watch));
        let of_view = grants.chain(read_only).chain(mounts);
        let mut paths: Vec<(PathBuf, What)> = of_view.chain(watches).chain(listed).chain(secrets).collect();
        // Several watches can depend on the same path, one after the other.
        paths.dedup();
        let seen = |(path, what): (PathBuf, What)| Seen { thing: look(&path, what), path, what };
        Self { seen: paths.into_iter().map(seen).collect() }
    }

    /// The paths to compare after a one-shot: the mount points over protected paths. If its mounts are made
    /// `ahead` of its
    /// command, also its grants and other mounts.
    ///
    /// Nothing is recorded about them yet: [`now`](Self::now) does that for each command. A sandbox runs many
    /// commands, and what
    /// is replaced between two of them may have the same inode number.
    pub(crate) fn of_one_shot(view: &View, mounts: &[MountOnHost], ahead: bool) -> Self {
        let protects = |mount: &MountOnHost| {
            view.get(&mount.target).is_some_and(|place| place.protection == Protection::ProtectedPaths)
        };
        let of_mount = |mount: &MountOnHost| match protects(mount) {
            true => Some((mount.path.clone(), What::Wall)),
            false => ahead.then(|| (mount.path.clone(), What::Mount)),
        };
        let of_grant = |(_, place): (&Path, &ViewEntry)| match &place.node {
            Node::Bind { source, .. } if ahead && place.origin == Origin::Policy => {
                Some((source.path.clone(), What::Grant(place.what)))
            }
            _ => None,
        };
        let paths: BTreeSet<(PathBuf, What)> =
            mounts.iter().filter_map(of_mount).chain(view.iter().filter_map(of_grant)).collect();
        let seen = |(path, what): (PathBuf, What)| Seen { thing: None, path, what };
        Self { seen: paths.into_iter().map(seen).collect() }
    }

    /// The same paths as they are now.
    pub(crate) fn now(&self) -> Self {
        let seen = |seen: &Seen| Seen { thing: look(&seen.path, seen.what), ..seen.clone() };
        Self { seen: self.seen.iter().map(seen).collect() }
    }

    /// Reports the walls whose mount point was replaced, changed or removed: from then on the command could
    /// write there. Kennel
    /// undoes nothing, because the change may be the user's. For example, git outside replaces its config by
    /// renaming.
    pub(crate) fn denials(&self) -> Vec<Denial> {
        let tell = |seen: &Seen| {
            let what = match fs::symlink_metadata(&seen.path) {
                Ok(now) if Some(thing(&now, seen.what)) == seen.thing => return None,
                Ok(_) => {
                    "it was replaced or changed while the command ran, by it or by somebody outside: look at it \
                          before you trust it"
                        .to_owned()
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    "it was removed from outside while the command ran".to_owned()
                }
                Err(error) => format!("it cannot be looked at any more: {}", failure::words(&error)),
            };
            Some(recheck::denial(&seen.path, &Done::Told(what)))
        };
        self.seen.iter().filter(|seen| seen.what == What::Wall).filter_map(tell).collect()
    }

    /// Compares with the host. Paths that commands may modify are compared only if no command is running
    /// (`is_idle`).
    pub(crate) fn change(&self, is_idle: bool) -> MountChange {
        let counts = |seen: &&Seen| is_idle || !matches!(seen.what, What::Watch | What::Listed);
        let mut changed =
            self.seen.iter().filter(counts).filter(|seen| look(&seen.path, seen.what) != seen.thing);
        let Some(first) = changed.next() else { return MountChange::None };
        let grant = |seen: &Seen| match seen.what {
            What::Grant(called) => Some(MountChange::Grant(called, seen.path.clone())),
            _ => None,
        };
        [first].into_iter().chain(changed).find_map(grant).unwrap_or(MountChange::Some)
    }

    /// Records the mount points anew.
    pub(crate) fn settle_mounts(&mut self) {
        for seen in self.seen.iter_mut().filter(|seen| matches!(seen.what, What::Mount | What::Wall)) {
            seen.thing = look(&seen.path, seen.what);
        }
    }
}

/// The error for a grant whose directory was replaced or removed.
pub(crate) fn replaced(what: &'static str, path: PathBuf, remedy: &str) -> Error {
    let (source, remedy) = match fs::symlink_metadata(&path) {
        Ok(_) => {
            let remedy = format!("another directory is in its place: {remedy}");
            (io::Error::from_raw_os_error(libc::ESTALE), remedy)
        }
        Err(error) => {
            (error, format!("it was there when this was prepared: have it there again, and {remedy}"))
        }
    };
    Error::Grant { what, path, source, remedy: Some(remedy) }
}

/// What is at a path; `None` if nothing is. Before Linux 6.13, the clock of change times ticks every 1 to 10
/// ms: a change in
/// the same tick as the recorded one goes unnoticed.
fn look(path: &Path, what: What) -> Option<Thing> {
    fs::symlink_metadata(path).ok().map(|metadata| thing(&metadata, what))
}

fn thing(metadata: &fs::Metadata, what: What) -> Thing {
    let is_told = match what {
        What::Wall => !metadata.is_dir(),
        What::Listed => metadata.is_dir(),
        What::Grant(_) | What::Mount | What::Watch => false,
    };
    let changed = is_told.then(|| (metadata.ctime(), metadata.ctime_nsec()));
    Thing { identity: Identity::of_metadata(metadata), born: metadata.created().ok(), changed }
}

/// Steps of a worker whose zygote may have lost mounts. Each step repeats a mount if it is gone.
pub(crate) fn again(view: &View, mounts: &[MountOnHost]) -> Section {
    let mut worker = Section::default();
    let empty = &*relative(emit::empty_directory(view));
    for MountOnHost { target, path } in mounts {
        let Some(place) = view.get(target) else { continue };
        let to = &*relative(target);
        let own;
        let (from, attributes, Identity { device, inode }) = match &place.node {
            Node::Bind { source, access } if source.path == *path => {
                (to, emit::attributes(*access), Identity::NOTHING)
            }
            Node::Cover => (empty, emit::RDONLY, Identity::NOTHING),
            Node::CoverFile => (emit::NULL, emit::RDONLY, Identity::NOTHING),
            Node::OwnFile { source } => {
                own = relative(source);
                (&*own, emit::RDONLY, Identity::NOTHING)
            }
            // The worker cannot reach what the mount showed.
            Node::Bind { source, .. } => (c"", 0, source.identity),
            _ => (c"", 0, Identity::NOTHING),
        };
        let step = Step::MountAgain { from, target: to, attributes, device, inode };
        worker.push(place.protection, &step);
    }
    worker
}
