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

use crate::plan::{Section, empty_directory, relative};
use crate::protect::paths::Protected;
use crate::protect::place::Done;
use crate::protect::recheck;
use crate::report::denial::Denial;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::failure;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{Remedy, remedy};
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
    /// What a grant shows; with its name in messages. It is mounted once, for the whole session.
    Source(&'static str),
    /// The same for what the profile shows besides.
    Offer,
    /// A mount that shows what commands write. No command can move its mount point.
    Mount,
    /// A mount that keeps commands from writing. No command can move its mount point.
    Wall,
    /// A directory that is merged with the sandbox's own files. Overlayfs goes on showing a file of it that
    /// was replaced, until a new worker looks again.
    Merged,
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
    /// then restore the first. Recorded also for listed and merged directories: it changes with their
    /// entries.
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
    /// Another file or directory is at the path of a bind, or none: its name in messages, and the path. Only
    /// new mounts can show it.
    Source(&'static str, PathBuf),
}

impl MountSnapshot {
    pub(crate) fn of(
        view: &View,
        mounts: &[MountOnHost],
        protected: &Protected,
        secrets: Vec<PathBuf>,
    ) -> Self {
        let sources = view.iter().filter_map(|(target, place)| source_role(view, target, place, mounts));
        let mounts = mounts.iter().map(|mount| (mount.path.clone(), Role::of(view, mount)));
        let watches = protected.watches.iter().map(|watch| (watch.depends_on(), Role::Watch));
        let listed = protected.listed.iter().chain(&view.awaited.listed);
        let listed = listed.map(|path| (path.clone(), Role::Listed));
        let secrets = secrets.iter().chain(&view.awaited.absent).map(|path| (path.clone(), Role::Watch));
        let of_view = sources.chain(mounts);
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
                Some((source.path.clone(), Role::Grant(place.what.as_str())))
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
    /// (`is_idle`), and what the profile shows only if the caller makes new mounts for it (`renews`).
    pub(crate) fn change(&self, is_idle: bool, renews: bool) -> MountChange {
        let counts = |seen: &&SnapshotEntry| match seen.role {
            Role::Watch | Role::Listed => is_idle,
            Role::Offer => renews,
            _ => true,
        };
        // What nobody can mend comes first. Of equals, `max_by_key` takes the last.
        let severity = |seen: &&SnapshotEntry| match seen.role {
            Role::Grant(_) => 2,
            Role::Source(_) => 1,
            _ => 0,
        };
        let changed = self.seen.iter().rev().filter(counts).filter(|seen| seen.has_changed());
        match changed.max_by_key(severity) {
            None => MountChange::None,
            Some(SnapshotEntry { role: Role::Grant(what), path, .. }) => {
                MountChange::Grant(what, path.clone())
            }
            Some(SnapshotEntry { role: Role::Source(what), path, .. }) => {
                MountChange::Source(what, path.clone())
            }
            Some(_) => MountChange::Some,
        }
    }

    /// What the profile shows and is another file by now.
    pub(crate) fn outdated_offer(&self) -> Option<&Path> {
        let mut offers = self.seen.iter().filter(|seen| matches!(seen.role, Role::Offer));
        offers.find(|seen| seen.has_changed()).map(|seen| &*seen.path)
    }

    /// Records the mount points anew.
    pub(crate) fn record_mount_points(&mut self) {
        let is_mount = |role| matches!(role, Role::Mount | Role::Wall | Role::Merged);
        for seen in self.seen.iter_mut().filter(|seen| is_mount(seen.role)) {
            seen.state = read_state(&seen.path, seen.role);
        }
    }
}

impl SnapshotEntry {
    fn has_changed(&self) -> bool {
        read_state(&self.path, self.role) != self.state
    }
}

/// The error for a path that was replaced or removed.
pub(crate) fn replaced(what: &'static str, path: PathBuf, remedy: impl Into<Remedy>) -> Error {
    let (source, remedy) = match fs::symlink_metadata(&path) {
        Ok(now) => {
            let another = if now.is_dir() { "directory" } else { "file" };
            let remedy = remedy![format!("another {another} is in its place: "), remedy];
            (io::Error::from_raw_os_error(libc::ESTALE), remedy)
        }
        Err(error) => {
            (error, remedy!["it was there when this was prepared: have it there again, and ", remedy])
        }
    };
    Error::Grant { what, path, source, remedy: Some(remedy) }
}

/// The path behind a bind or link of the view, if its mount is made once. Devices are the host's own. Each
/// worker repeats `mounts` that show their own mount point.
fn source_role(
    view: &View,
    target: &Path,
    place: &ViewEntry,
    mounts: &[MountOnHost],
) -> Option<(PathBuf, Role)> {
    match &place.node {
        _ if place.origin == Origin::Wall => None,
        Node::Bind { access: Access::Device, .. } => None,
        // A system that is upgraded keeps its directories.
        Node::Bind { source, .. } if place.what == PlaceKind::System && source.is_dir() => None,
        // Whatever happens to the host's cache, commands can go on with theirs.
        Node::Layered { .. } if place.what == PlaceKind::Cache => None,
        Node::Bind { source, .. } if place.what == PlaceKind::Workspace => {
            Some((source.path.clone(), Role::Grant(place.what.as_str())))
        }
        Node::Bind { source, .. } | Node::Layered { source, .. } => {
            let is_repeated = |mount: &MountOnHost| mount.target == target && mount.path == source.path;
            if mounts.iter().any(is_repeated) {
                return None;
            }
            // The path as it is named may lead through links, which can change too.
            let is_named =
                target != source.path && Identity::at(target).is_ok_and(|found| found == source.identity);
            let path = if is_named { target } else { &source.path };
            let role = match place.origin {
                Origin::Policy => Role::Source(place.what.as_str()),
                _ => Role::Offer,
            };
            Some((path.to_owned(), role))
        }
        Node::Merged { source } => Some((source.path.clone(), Role::Merged)),
        // A link on the way to a grant, as the grant is named.
        Node::Symlink { points_to } => {
            let followed = view.follow(target);
            let leads_to = if followed == target { points_to } else { &*followed };
            let granted = view
                .within(leads_to)
                .find(|(_, place)| place.origin == Origin::Policy && place.node.source().is_some());
            let (_, ViewEntry { what, .. }) = granted.filter(|_| Identity::at(target).is_ok())?;
            Some((target.to_owned(), Role::Source(what.as_str())))
        }
        _ => None,
    }
}

/// What is at a path; `None` if nothing is. Before Linux 6.13, the clock of change times ticks every 1 to 10
/// ms: a change in the same tick as the recorded one goes unnoticed.
fn read_state(path: &Path, role: Role) -> Option<FileState> {
    let metadata = match role {
        Role::Source(_) | Role::Offer => fs::metadata(path),
        _ => fs::symlink_metadata(path),
    };
    metadata.ok().map(|metadata| file_state(&metadata, role))
}

fn file_state(metadata: &fs::Metadata, role: Role) -> FileState {
    let is_recorded = match role {
        Role::Wall => !metadata.is_dir(),
        Role::Listed | Role::Merged => metadata.is_dir(),
        Role::Grant(_) | Role::Source(_) | Role::Offer | Role::Mount | Role::Watch => false,
    };
    // The mount of a session keeps the inode, and so its number. A one-shot looks the path up again.
    let is_kept = matches!(role, Role::Source(_) | Role::Offer);
    let born = if is_kept { None } else { metadata.created().ok() };
    let changed = is_recorded.then(|| (metadata.ctime(), metadata.ctime_nsec()));
    FileState { identity: Identity::of_metadata(metadata), born, changed }
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
