//! What the walls in directories of the host's stand on. Whoever renames or removes a mount point outside takes the
//! mount away, in every namespace; and what was not there when a session was prepared may be there later. Reads, never
//! writes.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use kennel_helper::plan::Step;

use crate::plan::emit::relative;
use crate::plan::{Section, emit};
use crate::protect::paths::Protected;
use crate::protect::recheck;
use crate::protect::recheck::Done;
use crate::report::denial::Denial;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::failure;
use crate::sys::inode::Identity;
use crate::view::{Access, MountOnHost, Node, Origin, View, ViewEntry};

/// Paths of the host, and what was there.
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

/// What stands on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The workspace or a writable grant, and everything in it: what the policy calls it.
    Grant(&'static str),
    /// A mount that shows what commands write. No command can move its mount point.
    Mount,
    /// A mount that keeps commands from writing, likewise.
    Wall,
    /// A watch, or a secret that was not there. A command can have put something there, or exchanged the link.
    Watch,
    /// A directory in which what is added is to be protected too. A command can have added something.
    Listed,
}

/// What tells one thing from another that took its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thing {
    identity: Identity,
    /// When it was made, where the file system knows: numbers are used again.
    born: Option<SystemTime>,
    /// When a file that no command writes was changed, in seconds and nanoseconds: who gives it a second name and takes
    /// the first has taken the mount away, and can give the first back. Of a directory that is listed, when its entries
    /// were.
    changed: Option<(i64, i64)>,
}

impl What {
    /// The mounts of a view that lie in the host's directories.
    fn of(view: &View, mount: &MountOnHost) -> Self {
        match view.get(&mount.target).map(|place| &place.node) {
            Some(Node::Bind { access: Access::Write, .. }) => Self::Mount,
            _ => Self::Wall,
        }
    }
}

/// What has changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MountChange {
    None,
    Some,
    /// A grant is not what it was; what the policy calls it.
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
        // Commands would find an empty directory, or one that nobody else sees.
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
        // Several watches wait for the same part of their ways, one after the other.
        paths.dedup();
        let seen = |(path, what): (PathBuf, What)| Seen { thing: look(&path, what), path, what };
        Self { seen: paths.into_iter().map(seen).collect() }
    }

    /// Of a one-shot what protects the protected paths; where it has its mounts `ahead` of its command, its grants and its other
    /// mounts too. Nobody has looked yet: a sandbox has many commands, and what is replaced between them may have the same
    /// inode.
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

    /// Tells of walls that were taken away since, with what they stood on: the command could write there from then on.
    /// Nothing is undone, because it may be the user's: git outside replaces its config by renaming.
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

    /// Looks again. What commands can change counts only where none can have: `is_idle`.
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

    /// Takes what lies at mount points now for what was there.
    pub(crate) fn settle_mounts(&mut self) {
        for seen in self.seen.iter_mut().filter(|seen| matches!(seen.what, What::Mount | What::Wall)) {
            seen.thing = look(&seen.path, seen.what);
        }
    }
}

/// The error for a writable grant that is not the directory that was granted, or is not there any more.
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

/// What is at a path; `None` where nothing is. Change times are those of a clock that ticks every 1 to 10 ms before Linux
/// 6.13: a change in the tick of the last one goes unseen.
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

/// The steps of a worker whose zygote may have lost mounts: each that is gone is put up again.
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
            // What it showed is out of a worker's reach.
            Node::Bind { source, .. } => (c"", 0, source.identity),
            _ => (c"", 0, Identity::NOTHING),
        };
        let step = Step::MountAgain { from, target: to, attributes, device, inode };
        worker.push(place.protection, &step);
    }
    worker
}
