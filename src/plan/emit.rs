//! The view → mount steps, in the order that the kernel needs.
//!
//! It reads the host only to see whether a mount point exists. It never creates one on the host.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::path::Path;

use kennel_helper::plan::{Inode, NEW_ROOT, Step, Within};

use crate::plan::{
    NULL, Section, TMPFS_FLAGS, absolute, attributes, empty_directory, layers, overlay, read_only, relative,
    within,
};
use crate::policy::profile::TmpLife;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::failure;
use crate::report::remedy::Remedy;
use crate::report::shortage::of_path;
use crate::sys::birth::READER_CAPABILITIES;
use crate::sys::inode::Identity;
use crate::sys::lexical;
use crate::view::cache_store::{UPPER, WORK};
use crate::view::inputs::{Inputs, spawn_options};
use crate::view::node::TmpfsSize;
use crate::view::paths::source::BindSource;
use crate::view::root::{OtherRoot, over};
use crate::view::{Access, MountOnHost, Node, Origin, View, ViewEntry, tmpfs_size};

const PROC_FLAGS: u64 = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
const DEVPTS_FLAGS: u64 = libc::MS_NOSUID | libc::MS_NOEXEC;
/// Size of a cover that holds mount points of grants, in bytes.
const COVER_SIZE: u64 = 64 << 10;

/// Appends the steps that make the view, pivot into it and make it read-only. A mount that each worker makes
/// (`by_worker`) gets only a mount point. Returns the mounts in directories of the host.
pub(crate) fn emit(
    inputs: &Inputs<'_>,
    view: &View,
    by_worker: &dyn Fn(&Path, &Node) -> bool,
    setup: &mut Section,
) -> Result<Vec<MountOnHost>, Error> {
    let options = &tmpfs_size::for_root(inputs, view).options(0o755);
    setup.push(Protection::Root, &Step::NewRoot { options });
    let empty = empty_directory(view);
    let (made, on_host) = (BTreeSet::new(), Vec::new());
    let mut emitter = Emitter {
        view,
        setup,
        made,
        pinned: BTreeSet::new(),
        empty,
        by_worker,
        on_host,
        reader: inputs.reader(),
        keeps_overrides: inputs.fakes_root(),
        hands_out: inputs.kind.is_session(),
    };
    // What covers are made of comes first, because a cover can lie anywhere.
    match &view.root {
        Some(root) => emitter.root(root),
        None => emitter.make_dirs_to(empty, Path::new("/")),
    }
    layers::mount(view, emitter.setup);
    if gives_up_overrides(inputs) {
        emitter.setup.push(Protection::Root, &overlay::without_overrides(inputs.fakes_root()));
    }
    // These are binds of the sandbox's own files, so the files come first.
    let is_late = |place: &ViewEntry| matches!(place.node, Node::CoverFile | Node::OwnFile { .. });
    // Another root has them in the sandbox's own /dev.
    let is_first = |target: &Path| view.root.is_some() && lexical::is_within(target, Path::new("/dev"));
    let mut places: Vec<_> = view.iter().filter(|(target, _)| *target != Path::new("/")).collect();
    places.sort_by_key(|(target, place)| (is_late(place), !is_first(target)));
    for (target, place) in places {
        emitter.place(target, place)?;
    }
    emitter.make_start_directory();
    let on_host = emitter.on_host;
    layers::detach(view, setup);
    setup.push(Protection::Root, &Step::PivotRoot {});
    layers::close(view, setup);
    for (target, _) in view.iter().filter(|(target, place)| is_filled(view, target, place)) {
        setup.push(Protection::Root, &read_only(&relative(target), false));
    }
    if !matches!(view.get(Path::new("/")), Some(ViewEntry { node: Node::Root { is_writable: true }, .. })) {
        setup.push(Protection::Root, &read_only(c".", false));
    }
    Ok(on_host)
}

/// Whether PID 1 has the capability that overlays need, and no workspace overlay gives it up.
fn gives_up_overrides(inputs: &Inputs<'_>) -> bool {
    inputs.policy.overlay.is_none() && spawn_options(inputs.policy, inputs.host, inputs.caller).overlays
}

/// Whether this place is a tmpfs that holds mount points. It stays writable until they are made.
fn is_filled(view: &View, target: &Path, place: &ViewEntry) -> bool {
    match place.node {
        Node::OwnTmpfs { .. } => true,
        Node::Cover => view.has_children(target),
        _ => false,
    }
}

// The steps of one view entry after the other.

/// The steps so far, and what they depend on.
pub(crate) struct Emitter<'e> {
    pub(crate) view: &'e View,
    pub(crate) setup: &'e mut Section,
    pub(crate) made: BTreeSet<CString>,
    /// The directories of another root that are mounts of their own.
    pinned: BTreeSet<CString>,
    pub(crate) empty: &'e Path,
    pub(crate) by_worker: &'e dyn Fn(&Path, &Node) -> bool,
    pub(crate) on_host: Vec<MountOnHost>,
    /// As which user files of merged directories are opened.
    pub(crate) reader: Option<u32>,
    /// Whether commands override modes of files.
    keeps_overrides: bool,
    /// Whether the outside gets the changes of another root.
    hands_out: bool,
}

impl Emitter<'_> {
    /// Appends the steps that put `place` at `target`. The entries above it are in place already.
    ///
    /// # Errors
    /// The entry cannot be placed there.
    pub(crate) fn place(&mut self, target: &Path, place: &ViewEntry) -> Result<(), Error> {
        match self.view.mount_above(target) {
            Some((_, ViewEntry { node: Node::Bind { .. } | Node::Layered { .. }, .. })) => {
                self.in_host_directory(target, place)
            }
            Some((_, ViewEntry { node: Node::Root { .. }, .. })) => self.in_root(target, place),
            Some((_, ViewEntry { node: Node::Proc { .. } | Node::DevPts, .. }))
                if place.origin != Origin::Wall =>
            {
                Err(refuse(target, place, "lies in a file system of the kernel's", "choose another target"))
            }
            Some((_, ViewEntry { node: Node::Proc { .. } | Node::DevPts, .. })) => {
                self.mount(target, place, Within::Root);
                Ok(())
            }
            // The layer has what it takes, and is read-only.
            Some((_, ViewEntry { node: Node::Merged { .. }, .. })) => {
                if place.node.is_mount() {
                    self.mount(target, place, Within::Granted);
                }
                Ok(())
            }
            _ => {
                self.parents(target, place)?;
                self.mount_point(target, place);
                if let Node::Merged { .. } = &place.node {
                    self.layer(target)?;
                }
                self.mount(target, place, Within::Root);
                Ok(())
            }
        }
    }

    /// Mounts another root over the new one, which holds its changes.
    fn root(&mut self, root: &OtherRoot) {
        let own: &[_] = match &self.view.root_upper {
            None => &[("root", 0o700), (UPPER, 0o755), (WORK, 0o700)],
            Some(_) => &[("root", 0o700), ("kept", 0o700)],
        };
        for (name, mode) in own {
            self.make_dir(Path::new(name), *mode);
        }
        self.made.clear();
        if self.hands_out && self.view.root_upper.is_none() {
            let path = &relative(Path::new(UPPER));
            self.setup.push(Protection::Root, &Step::HandOutUpper { path, is_root: 1 });
        }
        let inode = |path, source: &BindSource| {
            let Identity { device, inode } = source.identity;
            Inode { path, identity: (device, inode) }
        };
        let (changes, more) = match &self.view.root_upper {
            None => ("", ""),
            // Nobody needs the changes after a crash of the host.
            Some(_) => ("/kept", ",volatile"),
        };
        let changes = format!("{}{changes}", NEW_ROOT.to_string_lossy());
        let options = format!(
            "lowerdir={},upperdir={changes}/upper,workdir={changes}/work,index=off,userxattr{more}",
            root.names
        );
        let options = &CString::new(options).unwrap_or_default();
        let (layers, kept) = (absolute(&root.layers.path), self.view.root_upper.as_ref());
        let layers = inode(&layers, &root.layers);
        let path = kept.map(|kept| absolute(&kept.path)).unwrap_or_default();
        let kept = kept.map_or(Inode::NONE, |kept| inode(&path, kept));
        self.setup.push(Protection::Root, &Step::Root { layers, options, kept });
    }

    /// Makes the directory in which commands of an image start, if it is missing, as docker does.
    fn make_start_directory(&mut self) {
        let Some(directory) = self.view.root.as_ref().and_then(|root| root.directory()) else { return };
        let directory = self.view.follow(&directory).into_owned();
        if self.view.is_of_root(&directory) {
            let mut above: Vec<&Path> = lexical::ancestors(&directory).collect();
            above.pop();
            above.into_iter().rev().for_each(|path| self.make_missing(path, 0o755));
        }
    }

    /// The target is in another root: what is missing on the way to it, and the mount point, are made there.
    fn in_root(&mut self, target: &Path, place: &ViewEntry) -> Result<(), Error> {
        if let Node::Symlink { .. } = &place.node {
            return Err(refuse(target, place, "cannot be put into another root", "make it there"));
        }
        let mut above: Vec<&Path> = lexical::ancestors(target).skip(1).collect();
        above.pop();
        for path in above.into_iter().rev() {
            self.make_missing(path, 0o755);
            // Else a command could move a grant with the walls in it, and put something else in its place.
            if place.origin == Origin::Policy && place.node.is_mount() && self.pinned.insert(relative(path)) {
                let attributes = attributes(Access::Write);
                self.setup.push(Protection::Root, &Step::Pin { target: &relative(path), attributes });
            }
        }
        self.make_missing(target, if place.node.is_dir() { 0o755 } else { 0 });
        let Node::File { contents, mode } = &place.node else {
            self.mount(target, place, Within::Granted);
            return Ok(());
        };
        let own = &relative(&over::own_file(self.made.len()));
        self.setup.push(Protection::Root, &Step::MakeFile { path: own, mode: *mode, bytes: contents });
        self.setup.push(
            place.protection,
            &Step::Cover { empty: own, target: &relative(target), within: Within::Granted },
        );
        Ok(())
    }

    /// Makes a directory of another root, or with mode 0 a file, unless something is there.
    fn make_missing(&mut self, path: &Path, mode: u32) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
        if self.made.insert(relative(path)) {
            let (parent, name) = (&relative(parent), &absolute(Path::new(name)));
            self.setup.push(Protection::Root, &Step::MakeMissing { parent, name, mode });
        }
    }

    /// Makes the sandbox's own layer of a merged directory, before the overlay is mounted over it: files,
    /// links, whiteouts, and mount points.
    fn layer(&mut self, merged: &Path) -> Result<(), Error> {
        let is_in = |(above, _): (&Path, &ViewEntry)| above == merged;
        let view = self.view;
        for (target, place) in view.within(merged).skip(1) {
            if view.mount_above(target).is_some_and(is_in) {
                self.parents(target, place)?;
                self.mount_point(target, place);
                if !place.node.is_mount() {
                    self.mount(target, place, Within::Root);
                }
            }
        }
        Ok(())
    }

    /// The target is in a directory of the host: the mount point must exist.
    fn in_host_directory(&mut self, target: &Path, place: &ViewEntry) -> Result<(), Error> {
        let mounts = place.node.is_mount() && !matches!(place.node, Node::Private { .. });
        let there = self.view.host_path_of_mount_point(target).map(|path| (BindSource::resolve(&path), path));
        let dir = place.node.is_dir();
        match there {
            Some((Ok(source), path)) if mounts && source.path == path && source.is_dir() == dir => {
                self.mount(target, place, Within::Granted);
                // Not these: each worker mounts its own /proc and /dev/pts anyway, and nobody outside can
                // replace a mount point in an overlay or a layer.
                let is_safe = self.view.is_in_overlay(target) || self.view.is_in_layer(target);
                if !matches!(place.node, Node::Proc { .. } | Node::DevPts) && !is_safe {
                    self.on_host.push(MountOnHost { target: target.to_owned(), path });
                }
                Ok(())
            }
            // An offer of the profile gives way to a grant of the policy.
            _ if place.origin == Origin::Profile => Ok(()),
            _ if !mounts => Err(refuse(
                target,
                place,
                "cannot lie in a directory of the host, where it would have to be created",
                "choose a target outside of what is granted",
            )),
            Some((Ok(source), path)) if source.path != path => Err(refuse(
                target,
                place,
                "the way to it passes a symbolic link",
                "name the place it leads to",
            )),
            Some((Ok(_), _)) if dir => {
                Err(refuse(target, place, "a file is in its place on the host", "choose another target"))
            }
            Some((Ok(_), _)) => {
                Err(refuse(target, place, "a directory is in its place on the host", "choose another target"))
            }
            Some((Err(error), _)) if !is_missing(&error) => {
                const OTHER: &str = "choose another target";
                let words = failure::words(&error);
                let reason = format!("its place in the granted directory cannot be looked at: {words}");
                let remedy =
                    of_path(&error, "run as a user who may reach it, or choose another target", OTHER);
                Err(refuse(target, place, &reason, remedy))
            }
            _ => Err(refuse(
                target,
                place,
                "there is no such path in the granted directory, and none is made on the host",
                "create it first, or choose another target",
            )),
        }
    }

    /// Creates the directories between the enclosing mount and the target.
    fn parents(&mut self, target: &Path, place: &ViewEntry) -> Result<(), Error> {
        let mount = self.view.mount_above(target).map_or(Path::new("/"), |(path, _)| path);
        let between: Vec<&Path> =
            lexical::ancestors(target).skip(1).take_while(|path| *path != mount).collect();
        for path in between.into_iter().rev() {
            match self.view.get(path).map(|place| &place.node) {
                Some(Node::Symlink { .. } | Node::File { .. }) => {
                    let reason = format!("{} is not a directory in the sandbox", path.display());
                    return Err(refuse(target, place, &reason, "choose another target"));
                }
                Some(_) => {}
                None => self.make_dir(path, 0o755),
            }
        }
        Ok(())
    }

    /// Makes a directory, and those between it and `base`.
    fn make_dirs_to(&mut self, path: &Path, base: &Path) {
        let above: Vec<&Path> = path.ancestors().take_while(|above| *above != base).collect();
        for path in above.into_iter().rev() {
            self.make_dir(path, 0o755);
        }
    }

    pub(crate) fn make_dir(&mut self, path: &Path, mode: u32) {
        let path = relative(path);
        if !self.made.contains(&path) {
            self.setup.push(Protection::Root, &Step::MakeDir { path: &path, mode });
            self.made.insert(path);
        }
    }

    fn mount_point(&mut self, target: &Path, place: &ViewEntry) {
        match &place.node {
            Node::File { .. } | Node::Symlink { .. } | Node::Absent => {}
            Node::Private { mode } => self.make_dir(target, *mode),
            node if node.is_dir() => self.make_dir(target, 0o755),
            _ => self.setup.push(place.protection, &Step::MakeMountPoint { path: &relative(target) }),
        }
    }

    pub(crate) fn mount(&mut self, target: &Path, place: &ViewEntry, within: Within) {
        if (self.by_worker)(target, &place.node) {
            return;
        }
        let path = relative(target);
        let mut push = |step: &Step<'_>| self.setup.push(place.protection, step);
        let mut mount = |kind: &CStr, flags: u64, options: &CStr| {
            push(&Step::Mount { kind, target: &path, within, flags, options });
        };
        match &place.node {
            // The steps begin with the root.
            Node::Dir | Node::Root { .. } => {}
            Node::OwnTmpfs { size } => {
                mount(c"tmpfs", TMPFS_FLAGS, &size.with_own(self.view, Path::new("/")).options(0o755));
            }
            Node::Absent => push(&Step::Whiteout { path: &path }),
            Node::Merged { source } => {
                let options = &merge_options(target, &source.path);
                push(&Step::Merge { target: &path, options, reader: self.reader.unwrap_or(0) });
                if self.reader.is_some() {
                    for capability in READER_CAPABILITIES {
                        push(&Step::DropCapability { capability });
                    }
                }
            }
            Node::Proc { is_writable: false } => mount(c"proc", PROC_FLAGS | libc::MS_RDONLY, c""),
            Node::Proc { is_writable: true } => mount(c"proc", PROC_FLAGS, c""),
            Node::DevPts => mount(c"devpts", DEVPTS_FLAGS, c"newinstance,ptmxmode=0666,mode=0620,max=256"),
            Node::Tmpfs { mode, size } => {
                mount(c"tmpfs", TMPFS_FLAGS, &size.with_own(self.view, target).options(*mode));
            }
            // The cover holds a grant, whose mount point has to be created in it first.
            Node::Cover if is_filled(self.view, target, place) => {
                mount(c"tmpfs", TMPFS_FLAGS, &TmpfsSize::from_bytes(COVER_SIZE).options(0o755));
            }
            Node::Cover => {
                let empty = &relative(self.empty);
                push(&Step::Cover { empty, target: &path, within });
            }
            Node::Private { .. } => push(&Step::BindOwn { source: &path, target: &path }),
            Node::CoverFile if within == Within::Root => {
                push(&Step::BindOwn { source: NULL, target: &path });
            }
            Node::CoverFile => push(&Step::Cover { empty: NULL, target: &path, within }),
            Node::OwnFile { source } => {
                push(&Step::Cover { empty: &relative(source), target: &path, within })
            }
            Node::File { contents, mode } => {
                push(&Step::MakeFile { path: &path, mode: *mode, bytes: contents });
            }
            Node::Symlink { points_to } => {
                push(&Step::Symlink { path: &path, points_to: &absolute(points_to) });
            }
            Node::Layered { .. } => layers::show(self.view, target, within, &place.node, self.setup),
            Node::Bind { source, .. } if self.view.overlay.as_ref().is_some_and(|it| it.target == target) => {
                if let Some(overlaid) = &self.view.overlay {
                    overlay::mount(overlaid, source, self.empty, within, self.keeps_overrides, self.setup);
                }
            }
            // A bind of the merged tree. A bind of the host's directory would let writes bypass the overlay.
            Node::Bind { source, access }
                if source.path.as_os_str() == target && self.view.is_in_overlay(target) =>
            {
                push(&Step::Pin { target: &path, attributes: attributes(*access) });
            }
            Node::Bind { source, access } => {
                let Identity { device, inode } = source.identity;
                let attributes = attributes(*access);
                let source = &absolute(&source.path);
                push(&Step::Bind { source, device, inode, target: &path, within, attributes });
            }
        }
    }
}

/// Mount options of a merged directory: the sandbox's layer over the host's directory. `userxattr`: without
/// privileges overlayfs reads no other attributes.
pub(crate) fn merge_options(target: &Path, source: &Path) -> CString {
    let layer = relative(target);
    let text = format!("lowerdir={}:{},userxattr", layer.to_string_lossy(), source.display());
    CString::new(text).unwrap_or_default()
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn refuse(target: &Path, place: &ViewEntry, reason: &str, remedy: impl Into<Remedy>) -> Error {
    Error::View {
        what: place.what.as_str(),
        path: target.to_owned(),
        reason: reason.to_owned(),
        remedy: Some(remedy.into()),
    }
}

/// Appends the steps that mount a fresh procfs and devpts over those that the worker inherited, and the walls
/// in them.
pub(crate) fn kernel_file_systems(view: &View, tmp: TmpLife, worker: &mut Section) {
    let empty = empty_directory(view);
    let mut emitter = Emitter {
        view,
        setup: worker,
        made: BTreeSet::new(),
        pinned: BTreeSet::new(),
        empty,
        by_worker: &|_, _| false,
        on_host: Vec::new(),
        reader: None,
        keeps_overrides: false,
        hands_out: false,
    };
    let is_own = |node: &Node| matches!(node, Node::Proc { .. } | Node::DevPts);
    for (target, place) in view.iter() {
        let above = view.mount_above(target).map(|(_, above)| &above.node);
        if is_own(&place.node) || above.is_some_and(is_own) {
            emitter.mount(target, place, within(view, target, tmp));
        }
    }
}
