//! One place of the view after the other, as steps.

use std::{
    collections::BTreeSet,
    ffi::{CStr, CString},
    io,
    path::Path,
};

use kennel_helper::plan::{Step, Within};

use super::{
    super::{
        lexical, overlay,
        rooms::Room,
        section::Section,
        source::Source,
        view::{Node, Origin, Place, View},
    },
    COVER_SIZE, DEVPTS_FLAGS, NULL, OnHost, PROC_FLAGS, TMPFS_FLAGS, absolute, attributes, is_filled,
    relative,
};
use crate::{Error, below::Identity, failure, host::remedy::of_path, policy::Protection};

/// The steps so far.
pub(super) struct Emitter<'e> {
    pub(super) view: &'e View,
    pub(super) setup: &'e mut Section,
    pub(super) made: BTreeSet<CString>,
    pub(super) empty: &'e Path,
    pub(super) by_worker: &'e dyn Fn(&Path, &Node) -> bool,
    pub(super) on_host: Vec<OnHost>,
}

impl Emitter<'_> {
    /// Puts up what belongs at `target`, below all that is there already.
    ///
    /// # Errors
    /// It cannot lie there.
    pub(super) fn place(&mut self, target: &Path, place: &Place) -> Result<(), Error> {
        match self.view.mount_above(target) {
            Some((_, Place { node: Node::Bind { .. }, .. })) => self.in_host_directory(target, place),
            Some((_, Place { node: Node::Proc | Node::DevPts, .. })) if place.origin != Origin::Wall => {
                Err(refuse(target, place, "lies in a file system of the kernel's", "choose another target"))
            }
            Some((_, Place { node: Node::Proc | Node::DevPts, .. })) => {
                self.mount(target, place, Within::Root);
                Ok(())
            }
            _ => {
                self.parents(target, place)?;
                self.mount_point(target, place);
                self.mount(target, place, Within::Root);
                Ok(())
            }
        }
    }

    /// The target lies in something of the host's: the mount point must be there already.
    fn in_host_directory(&mut self, target: &Path, place: &Place) -> Result<(), Error> {
        let mounts = place.node.is_mount() && !matches!(place.node, Node::Private { .. });
        let there = self.view.host_path_of_mount_point(target).map(|path| (Source::resolve(&path), path));
        let dir = place.node.is_dir();
        match there {
            Some((Ok(source), path)) if mounts && source.path == path && source.is_dir() == dir => {
                self.mount(target, place, Within::Granted);
                // What each worker mounts by itself is there anyway.
                // What lies in an overlay nobody outside can replace.
                if !matches!(place.node, Node::Proc | Node::DevPts) && !self.view.lies_in_overlay(target) {
                    self.on_host.push(OnHost { target: target.to_owned(), path });
                }
                Ok(())
            }
            // What the profile would put there gives way to what the policy shows.
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

    /// Directories between the mount that the target lies in and the target itself.
    fn parents(&mut self, target: &Path, place: &Place) -> Result<(), Error> {
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

    pub(super) fn make_dir(&mut self, path: &Path, mode: u32) {
        let path = relative(path);
        if !self.made.contains(&path) {
            self.setup.push(Protection::Root, &Step::MakeDir { path: &path, mode });
            self.made.insert(path);
        }
    }

    fn mount_point(&mut self, target: &Path, place: &Place) {
        match &place.node {
            Node::File { .. } | Node::Symlink { .. } => {}
            Node::Private { mode } => self.make_dir(target, *mode),
            node if node.is_dir() => self.make_dir(target, 0o755),
            _ => self.setup.push(place.protection, &Step::MakeMountPoint { path: &relative(target) }),
        }
    }

    pub(super) fn mount(&mut self, target: &Path, place: &Place, within: Within) {
        if (self.by_worker)(target, &place.node) {
            return;
        }
        let path = relative(target);
        let mut push = |step: &Step<'_>| self.setup.push(place.protection, step);
        let mut mount = |kind: &CStr, flags: u64, options: &CStr| {
            push(&Step::Mount { kind, target: &path, within, flags, options });
        };
        match &place.node {
            Node::Dir => {}
            Node::Proc => mount(c"proc", PROC_FLAGS, c""),
            Node::DevPts => mount(c"devpts", DEVPTS_FLAGS, c"newinstance,ptmxmode=0666,mode=0620"),
            Node::Tmpfs { mode, room } => {
                mount(c"tmpfs", TMPFS_FLAGS, &room.with_own(self.view, target).options(*mode));
            }
            // Something is granted in what is covered: its mount point has to be made there first.
            Node::Cover if is_filled(self.view, target, place) => {
                mount(c"tmpfs", TMPFS_FLAGS, &Room::of_size(COVER_SIZE).options(0o755));
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
            Node::Bind { source, .. } if self.view.overlay.as_ref().is_some_and(|it| it.target == target) => {
                if let Some(overlaid) = &self.view.overlay {
                    overlay::mount(overlaid, source, (self.empty, within), self.setup);
                }
            }
            // From the merged tree: the host's own would be written past the overlay.
            Node::Bind { source, access }
                if source.path.as_os_str() == target && self.view.lies_in_overlay(target) =>
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

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn refuse(target: &Path, place: &Place, reason: &str, remedy: &str) -> Error {
    Error::View {
        what: place.what,
        path: target.to_owned(),
        reason: reason.to_owned(),
        remedy: Some(remedy.to_owned()),
    }
}
