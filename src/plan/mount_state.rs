//! What the mounts in directories of the host depend on. A program outside that renames or removes a mount
//! point takes the mount away in every namespace. Files that were missing when a session was prepared can
//! appear later.
//!
//! This file reads the host and never writes.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use kennel_helper::plan::Step;

use crate::plan::worker_mounts::empty_directory;
use crate::plan::{Section, relative};
use crate::protect::paths::Protected;
use crate::protect::place::Done;
use crate::protect::recheck;
use crate::report::denial::Denial;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::failure;
use crate::sys::inode::Identity;
use crate::view::{Access, MountOnHost, Node, Origin, View, ViewEntry};

/// Paths of the host, and what was there at the time of the snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountSnapshot {
    seen: Vec<SnapshotEntry>,
}

#[derive(Clone, Debug)]
struct SnapshotEntry {
    path: PathBuf,
    role: Role,
    state: Option<FileState>,
}

/// What depends on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    /// The workspace or a writable grant, and everything in it; with the policy's word for it.
    Grant(&'static str),
    /// A mount that shows what commands write. No command can move its mount point.
    Mount,
    /// A mount that keeps commands from writing. No command can move its mount point.
    Wall,
    /// A watched path, or a secret that did not exist. A command can have created something there, or
    /// replaced a link.
    Watch,
    /// A directory whose new entries are to be protected too. A command can have added some.
    Listed,
}

/// What distinguishes a file from another one that took its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileState {
    identity: Identity,
    /// When it was created, if the file system knows: inode numbers are reused.
    born: Option<SystemTime>,
    /// When its inode was changed, in seconds and nanoseconds. Recorded for files that no command writes: a
    /// program outside can give the file a second name, remove the first, which takes the mount away, and
    /// then restore the first. Recorded also for listed directories: it changes with their entries.
    changed: Option<(i64, i64)>,
}

impl Role {
    /// What depends on the mount point of `mount`.
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
            .map(|(target, source)| (source.path.clone(), Role::Grant(called(target))));
        // If it was replaced, commands would find an empty directory, or one that nobody else sees.
        let read_only = view.iter().filter_map(|(_, place)| match &place.node {
            Node::Bind { source, access: Access::Read } if place.what == "workspace" => {
                Some((source.path.clone(), Role::Grant(place.what)))
            }
            _ => None,
        });
        let mounts = mounts.iter().map(|mount| (mount.path.clone(), Role::of(view, mount)));
        let watches = protected.watches.iter().map(|watch| (watch.depends_on(), Role::Watch));
        let listed = protected.listed.iter().chain(&view.awaited.listed);
        let listed = listed.map(|path| (path.clone(), Role::Listed));
        let secrets = secrets.iter().chain(&view.awaited.absent).map(|path| (path.clone(), Role::Watch));
        let of_view = grants.chain(read_only).chain(mounts);
        let mut paths: Vec<(PathBuf, Role)> = of_view.chain(watches).chain(listed).chain(secrets).collect();
        // Several watches can depend on the same path, one after the other.
        paths.dedup();
        let seen =
            |(path, role): (PathBuf, Role)| SnapshotEntry { state: read_state(&path, role), path, role };
        Self { seen: paths.into_iter().map(seen).collect() }
    }

    /// The paths to compare after a one-shot: the mount points over protected paths. If its mounts are made
    /// `ahead` of its command, also its grants and other mounts.
    ///
    /// Nothing is recorded about them yet: [`now`](Self::now) does that for each command. A sandbox runs many
    /// commands, and what is replaced between two of them may have the same inode number.
    pub(crate) fn of_one_shot(view: &View, mounts: &[MountOnHost], ahead: bool) -> Self {
        let protects = |mount: &MountOnHost| {
            view.get(&mount.target).is_some_and(|place| place.protection == Protection::ProtectedPaths)
        };
        let of_mount = |mount: &MountOnHost| match protects(mount) {
            true => Some((mount.path.clone(), Role::Wall)),
            false => ahead.then(|| (mount.path.clone(), Role::Mount)),
        };
        let of_grant = |(_, place): (&Path, &ViewEntry)| match &place.node {
            Node::Bind { source, .. } if ahead && place.origin == Origin::Policy => {
                Some((source.path.clone(), Role::Grant(place.what)))
            }
            _ => None,
        };
        let paths: BTreeSet<(PathBuf, Role)> =
            mounts.iter().filter_map(of_mount).chain(view.iter().filter_map(of_grant)).collect();
        let seen = |(path, role): (PathBuf, Role)| SnapshotEntry { state: None, path, role };
        Self { seen: paths.into_iter().map(seen).collect() }
    }

    /// The same paths as they are now.
    pub(crate) fn now(&self) -> Self {
        let seen =
            |seen: &SnapshotEntry| SnapshotEntry { state: read_state(&seen.path, seen.role), ..seen.clone() };
        Self { seen: self.seen.iter().map(seen).collect() }
    }

    /// Reports the walls whose mount point was replaced, changed or removed: from then on the command could
    /// write there. Kennel undoes nothing, because the change may be the user's. For example, git outside
    /// replaces its config by renaming.
    pub(crate) fn denials(&self) -> Vec<Denial> {
        let denial = |seen: &SnapshotEntry| {
            let what = match fs::symlink_metadata(&seen.path) {
                Ok(now) if Some(file_state(&now, seen.role)) == seen.state => return None,
                Ok(_) => {
                    "the command or another program replaced or changed it while the command ran: look at it \
                     before you trust it"
                        .to_owned()
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    "another program removed it while the command ran".to_owned()
                }
                Err(error) => format!("it cannot be read any more: {}", failure::words(&error)),
            };
            Some(recheck::denial(&seen.path, &Done::Told(what)))
        };
        self.seen.iter().filter(|seen| seen.role == Role::Wall).filter_map(denial).collect()
    }

    /// Compares with the host. Paths that commands may modify are compared only if no command is running
    /// (`is_idle`).
    pub(crate) fn change(&self, is_idle: bool) -> MountChange {
        let counts = |seen: &&SnapshotEntry| is_idle || !matches!(seen.role, Role::Watch | Role::Listed);
        let mut changed =
            self.seen.iter().filter(counts).filter(|seen| read_state(&seen.path, seen.role) != seen.state);
        let Some(first) = changed.next() else { return MountChange::None };
        let grant = |seen: &SnapshotEntry| match seen.role {
            Role::Grant(called) => Some(MountChange::Grant(called, seen.path.clone())),
            _ => None,
        };
        [first].into_iter().chain(changed).find_map(grant).unwrap_or(MountChange::Some)
    }

    /// Records the mount points anew.
    pub(crate) fn record_mount_points(&mut self) {
        for seen in self.seen.iter_mut().filter(|seen| matches!(seen.role, Role::Mount | Role::Wall)) {
            seen.state = read_state(&seen.path, seen.role);
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
/// ms: a change in the same tick as the recorded one goes unnoticed.
fn read_state(path: &Path, role: Role) -> Option<FileState> {
    fs::symlink_metadata(path).ok().map(|metadata| file_state(&metadata, role))
}

fn file_state(metadata: &fs::Metadata, role: Role) -> FileState {
    let is_recorded = match role {
        Role::Wall => !metadata.is_dir(),
        Role::Listed => metadata.is_dir(),
        Role::Grant(_) | Role::Mount | Role::Watch => false,
    };
    let changed = is_recorded.then(|| (metadata.ctime(), metadata.ctime_nsec()));
    FileState { identity: Identity::of_metadata(metadata), born: metadata.created().ok(), changed }
}

/// Steps of a worker whose zygote may have lost mounts. Each step repeats a mount if it is gone.
pub(crate) fn repair_steps(view: &View, mounts: &[MountOnHost]) -> Section {
    let mut worker = Section::default();
    let empty = &*relative(empty_directory(view));
    for MountOnHost { target, path } in mounts {
        let Some(place) = view.get(target) else { continue };
        let to = &*relative(target);
        let own;
        let (from, attributes, Identity { device, inode }) = match &place.node {
            Node::Bind { source, access } if source.path == *path => {
                (to, crate::plan::attributes(*access), Identity::NOTHING)
            }
            Node::Cover => (empty, crate::plan::RDONLY, Identity::NOTHING),
            Node::CoverFile => (crate::plan::NULL, crate::plan::RDONLY, Identity::NOTHING),
            Node::OwnFile { source } => {
                own = relative(source);
                (&*own, crate::plan::RDONLY, Identity::NOTHING)
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
