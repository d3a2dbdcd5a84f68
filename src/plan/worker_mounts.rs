//! The mounts that each worker of a session makes for itself: private directories, /dev/shm, /dev/pts, /proc.
//! View in, steps out.
//!
//! The worker's mount namespace is a copy, so it has the session's mounts already. A private directory is
//! built beside them, on a tmpfs of the worker. What is mounted in the old directory is moved into the new
//! one, which then goes on top.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kennel_helper::plan::{Step, Within};

use crate::plan::emit::{kernel_file_systems, merge_options};
use crate::plan::{NULL, RDONLY, Section, TMPFS_FLAGS, attributes, empty_directory, relative, within};
use crate::policy::profile::TmpLife;
use crate::report::enforcement::Protection;
use crate::sys::inode::Identity;
use crate::view::inputs::Inputs;
use crate::view::node::TmpfsSize;
use crate::view::pin::SHARED_MEMORY;
use crate::view::{MountOnHost, Node, View, ViewEntry, tmpfs_size};

/// Steps that give directories that commands share their first mode again. A command could take permissions
/// away and lock later commands out. They run in each worker, and before each command, because another
/// command may have run since.
pub(crate) fn shared_modes(inputs: &Inputs<'_>, view: &View) -> Section {
    let mut modes = Section::default();
    let is_shared = |(target, place): &(&Path, &ViewEntry)| {
        (inputs.are_shared() || !is_own_of_worker(inputs, target, &place.node)) && !view.is_covered(target)
    };
    for (target, place) in view.iter().filter(is_shared).filter(|_| inputs.kind.is_session()) {
        if let Node::Private { mode } | Node::Tmpfs { mode, .. } = place.node {
            // Another command may close one of them between two of these steps.
            modes.push_optional(
                Protection::Root,
                &Step::SetMode { path: &crate::plan::absolute(target), mode },
            );
        }
    }
    modes
}

/// Appends the steps of a worker that make directories of its own for its command.
pub(crate) fn own_directories(inputs: &Inputs<'_>, view: &View, worker: &mut Section) {
    let stage = empty_directory(view);
    let places: BTreeMap<&Path, PathBuf> = view
        .iter()
        .filter(|(target, place)| is_own_of_worker(inputs, target, &place.node))
        .enumerate()
        .map(|(number, (target, _))| (target, stage.join(number.to_string())))
        .collect();
    let tmp = inputs.policy.tmp;
    let mut own = OwnDirectories { view, tmp, places: &places, worker, made: BTreeSet::new() };
    if !places.is_empty() {
        own.mount_tmpfs(stage, 0o755, tmpfs_size::for_worker(inputs, view, places.keys().copied()));
        own.build();
        // Parents first, so that a private directory in another one goes into the new one.
        for (target, at) in &places {
            own.put_in_place(target, at);
        }
        own.push(&Step::Detach { target: &relative(stage) });
    }
    kernel_file_systems(view, inputs.policy.tmp, worker);
    look_again(view, worker);
}

/// Appends a remount of each merged directory: overlayfs then forgets the names that it knows, and finds what
/// somebody outside has made or replaced since.
pub(crate) fn look_again(view: &View, worker: &mut Section) {
    for (target, place) in view.iter() {
        if let Node::Merged { source } = &place.node {
            let (target, options) = (&relative(target), &merge_options(target, &source.path));
            let (within, flags) = (Within::Root, libc::MS_REMOUNT | libc::MS_RDONLY | TMPFS_FLAGS);
            worker.push(Protection::Root, &Step::Mount { kind: c"overlay", target, within, flags, options });
        }
    }
}

/// Appends the steps that make a worker's own directories read-only.
pub(crate) fn make_read_only(inputs: &Inputs<'_>, view: &View, files: &mut Section) {
    for (target, _) in view.iter().filter(|(target, place)| is_own_of_worker(inputs, target, &place.node)) {
        files.push(Protection::Root, &crate::plan::read_only(&relative(target), false));
    }
}

pub(crate) fn is_own_of_worker(inputs: &Inputs<'_>, target: &Path, node: &Node) -> bool {
    let private = matches!(node, Node::Private { .. } | Node::Tmpfs { .. });
    private && (inputs.policy.tmp == TmpLife::Exec || target == Path::new(SHARED_MEMORY))
}

/// Whether a session leaves this mount to its workers, so that the zygote does not make it and no worker
/// copies it: the directories of their own, and mounts in their /proc.
///
/// Two mounts are made all the same. The zygote has a procfs, because the kernel lets a process mount one
/// only if it sees one already. A tmpfs of the policy may be in a directory of the host.
pub(crate) fn is_mounted_by_worker(inputs: &Inputs<'_>, view: &View, target: &Path, node: &Node) -> bool {
    let in_proc = || matches!(view.mount_above(target), Some((_, ViewEntry { node: Node::Proc { .. }, .. })));
    inputs.kind.is_session()
        && match node {
            Node::DevPts => true,
            Node::Private { .. } => is_own_of_worker(inputs, target, node),
            _ => in_proc(),
        }
}

struct OwnDirectories<'r> {
    view: &'r View,
    tmp: TmpLife,
    /// The directories that are its own, and where the new ones are built.
    places: &'r BTreeMap<&'r Path, PathBuf>,
    worker: &'r mut Section,
    made: BTreeSet<PathBuf>,
}

impl OwnDirectories<'_> {
    fn push(&mut self, step: &Step<'_>) {
        self.worker.push(Protection::Root, step);
    }

    fn mount_tmpfs(&mut self, at: &Path, mode: u32, size: TmpfsSize) {
        let (target, options) = (&relative(at), &size.options(mode));
        let (within, flags) = (Within::Root, crate::plan::TMPFS_FLAGS);
        self.push(&Step::Mount { kind: c"tmpfs", target, within, flags, options });
    }

    /// Builds every such directory with what belongs in it, except the others.
    fn build(&mut self) {
        for (target, at) in self.places {
            match self.view.get(target).map(|place| &place.node) {
                Some(&Node::Tmpfs { mode, size }) => {
                    self.make_dir(at, mode);
                    self.mount_tmpfs(at, mode, size.with_own(self.view, target));
                }
                Some(&Node::Private { mode }) => {
                    self.make_dir(at, mode);
                    if self.is_moved(target) {
                        self.push(&Step::BindOwn { source: &relative(at), target: &relative(at) });
                    }
                }
                _ => {}
            }
        }
        // Deepest first, while the old path still leads there: it may lead through another one.
        let all: Vec<_> = self.view.iter().collect();
        for (target, place) in all.into_iter().rev() {
            let around =
                self.view.mount_above(target).and_then(|(above, _)| self.places.get_key_value(above));
            if let Some((above, at)) = around {
                self.fill(target, &place.node, &rebased(target, above, at), at);
            }
        }
    }

    /// Whether a new directory is moved as a mount, with the mounts in it. An empty one is bound to its place
    /// instead.
    fn is_moved(&self, target: &Path) -> bool {
        let is_tmpfs = matches!(self.view.get(target), Some(ViewEntry { node: Node::Tmpfs { .. }, .. }));
        is_tmpfs || self.view.has_children(target) || within(self.view, target, self.tmp) == Within::Granted
    }

    fn put_in_place(&mut self, target: &Path, at: &Path) {
        let (from, to) = (&*relative(at), &*relative(target));
        if self.is_moved(target) {
            let within = within(self.view, target, self.tmp);
            self.push(&Step::Move { from, to, within });
        } else {
            self.push(&Step::BindOwn { source: from, target: to });
        }
    }

    /// Puts the entry of `target` to `at`, in a directory that is being built at `base`.
    fn fill(&mut self, target: &Path, node: &Node, at: &Path, base: &Path) {
        let above: Vec<&Path> = at.ancestors().skip(1).take_while(|above| *above != base).collect();
        for path in above.into_iter().rev() {
            self.make_dir(path, 0o755);
        }
        let path = &relative(at);
        match node {
            Node::Symlink { points_to } => {
                self.push(&Step::Symlink { path, points_to: &crate::plan::absolute(points_to) });
            }
            Node::File { contents, mode } => {
                self.push(&Step::MakeFile { path, mode: *mode, bytes: contents });
            }
            node if node.is_dir() => self.make_dir(at, 0o755),
            _ => self.push(&Step::MakeMountPoint { path }),
        }
        if node.is_mount() && !self.places.contains_key(target) {
            let within = within(self.view, target, self.tmp);
            self.push(&Step::Move { from: &relative(target), to: path, within });
        }
    }

    fn make_dir(&mut self, path: &Path, mode: u32) {
        if self.made.insert(path.to_owned()) {
            self.push(&Step::MakeDir { path: &relative(path), mode });
        }
    }
}

/// The path of `target`, with `above` replaced by `at`.
fn rebased(target: &Path, above: &Path, at: &Path) -> PathBuf {
    at.join(target.strip_prefix(above).unwrap_or(target))
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
                (to, attributes(*access), Identity::NOTHING)
            }
            Node::Cover => (empty, RDONLY, Identity::NOTHING),
            Node::CoverFile => (NULL, RDONLY, Identity::NOTHING),
            Node::OwnFile { source } => {
                own = relative(source);
                (&*own, RDONLY, Identity::NOTHING)
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
