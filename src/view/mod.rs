//! What a sandbox shows of the host, and how paths of the host are resolved.
//!
//! [`View`] is pure data: a tree of places. `plan::emit` turns it into mounts.

pub(crate) mod cache_store;
pub(crate) mod certificates;
pub(crate) mod desktop;
pub(crate) mod etc;
pub(crate) mod grants;
pub(crate) mod inputs;
pub(crate) mod layers;
pub(crate) mod mask;
pub(crate) mod node;
pub(crate) mod paths;
pub(crate) mod pin;
pub(crate) mod root;
pub(crate) mod secrets;
pub(crate) mod shown;
pub(crate) mod system;
pub(crate) mod tmpfs_size;
pub(crate) mod toolchains;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::ops::Bound::{Excluded, Unbounded};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::report::enforcement::{Note, Protection};
use crate::report::error::Error;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{Remedy, SettingKey, remedy};
use crate::sys::lexical;
use crate::sys::lexical::clean;
use crate::view::layers::Layers;
pub(crate) use crate::view::node::{Access, MountOnHost, Node, Origin, Overlaid, Unlayered, ViewEntry};
use crate::view::paths::source::BindSource;
use crate::view::root::OtherRoot;

/// Everything that a sandbox shows, by absolute path in the sandbox. Parents come before their children.
///
/// Keys are compared as bytes, because all paths here are clean. A comparison by components takes ten times
/// as long.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    places: BTreeMap<OsString, ViewEntry>,
    /// The places that are links of the host, and their texts.
    links: BTreeMap<OsString, PathBuf>,
    /// The root, if that is not the host's.
    pub(crate) root: Option<Arc<OtherRoot>>,
    /// The directory that holds the changes of another root, if memory does not.
    pub(crate) root_upper: Option<BindSource>,
    /// The overlay over the workspace, if the policy asks for one.
    pub(crate) overlay: Option<Overlaid>,
    /// The copy-on-write layers whose parts [`Node::Layered`] shows.
    pub(crate) layers: Layers,
    /// Variables of the caller that name certificates, with where each of their paths leads.
    pub(crate) certificates: Vec<(&'static str, PathBuf)>,
    /// What the report says about what is visible.
    pub(crate) notes: Vec<Note>,
    /// A repository of git that is shown read-only, but for some directories, in which git makes a few files
    /// too.
    pub(crate) common_repository: Option<BindSource>,
    pub(crate) awaited: Awaited,
}

/// Paths of the host that a later view may have to treat otherwise. They are compared before each command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Awaited {
    /// Nothing is there.
    pub(crate) absent: Vec<PathBuf>,
    /// Directories whose new entries count.
    pub(crate) listed: Vec<PathBuf>,
}

impl View {
    /// Adds a line to the report: nothing is refused, but a person should know.
    pub(crate) fn note(&mut self, subject: &str, text: &str, remedy: Option<Remedy>) {
        self.notes.push(Note::new(subject, text, remedy));
    }

    /// Adds a node of the profile at `target`, unless there is one already.
    pub(crate) fn offer(&mut self, what: PlaceKind, target: impl AsRef<OsStr>, node: Node) {
        let place = ViewEntry { node, origin: Origin::Profile, what, protection: Protection::Root };
        let target = self.follow(Path::new(&target)).into_owned();
        self.places.entry(target.into()).or_insert(place);
    }

    /// Adds a node that the policy names, and replaces one of the profile.
    ///
    /// # Errors
    /// The policy names two different nodes for one place.
    pub(crate) fn grant(&mut self, what: PlaceKind, target: PathBuf, node: Node) -> Result<(), Error> {
        let target = self.follow(&target).into_owned();
        if let Some(old) = self.get(&target)
            && old.origin >= Origin::Policy
            && old.node != node
        {
            let remedy = match old.what {
                // Every policy has a workspace, and the profile sets its access.
                PlaceKind::Workspace => remedy![
                    "leave the other out: the profile says whether the workspace is writable (",
                    SettingKey::Profile,
                    ")",
                ],
                _ => "keep one of the two".into(),
            };
            return Err(Error::View {
                what: what.as_str(),
                path: target,
                reason: format!("the policy puts a {} there as well", old.what),
                remedy: Some(remedy),
            });
        }
        let place = ViewEntry { node, origin: Origin::Policy, what, protection: Protection::Root };
        self.places.insert(target.into(), place);
        Ok(())
    }

    /// Adds a wall at `target`, unless the policy names exactly that place.
    pub(crate) fn wall(&mut self, what: PlaceKind, target: &Path, node: Node, protection: Protection) {
        if self.get(target).is_none_or(|old| old.origin != Origin::Policy) {
            let place = ViewEntry { node, origin: Origin::Wall, what, protection };
            self.places.insert(target.into(), place);
        }
    }

    /// Removes what the profile shows below `target`, except devices. Returns whether there was anything.
    pub(crate) fn remove_below(&mut self, target: &Path) -> bool {
        let before = self.places.len();
        self.places.retain(|at, place| {
            let below = lexical::below(Path::new(at), target);
            let is_below = below.is_some_and(|rest| !rest.as_os_str().is_empty());
            let is_shown = match place.node {
                Node::Bind { access, .. } => access != Access::Device,
                Node::File { .. } | Node::Symlink { .. } | Node::Absent | Node::Layered { .. } => true,
                _ => false,
            };
            !(is_below && is_shown && place.origin == Origin::Profile)
        });
        self.forget_lost_links();
        self.places.len() < before
    }

    pub(crate) fn get(&self, target: &Path) -> Option<&ViewEntry> {
        self.places.get(target.as_os_str())
    }

    /// All places in order, parents first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Path, &ViewEntry)> {
        self.places.iter().map(|(target, place)| (Path::new(target), place))
    }

    /// Writable directories of the host: place in the sandbox, and source.
    pub(crate) fn writable_directories(&self) -> impl Iterator<Item = (&Path, &BindSource)> {
        self.writable().filter(|(_, source)| source.is_dir())
    }

    /// Writable grants: place in the sandbox, and source. Walls are no grants.
    pub(crate) fn writable(&self) -> impl Iterator<Item = (&Path, &BindSource)> {
        self.iter().filter_map(|(target, place)| match &place.node {
            Node::Bind { source, access: Access::Write } => {
                (place.origin != Origin::Wall).then_some((target, source))
            }
            _ => None,
        })
    }

    /// Whether no bind, link or procfs is at `target` or above it.
    pub(crate) fn is_free(&self, target: &Path) -> bool {
        let shows = |place: &ViewEntry| {
            place.node.source().is_some() || matches!(place.node, Node::Proc { .. } | Node::Symlink { .. })
        };
        !lexical::ancestors(&self.follow(target)).any(|above| self.get(above).is_some_and(shows))
    }

    /// Whether a directory may be at `target`. False only if there is certainly none. What a directory of the
    /// host or a private one contains is not looked up.
    pub(crate) fn may_be_entered(&self, target: &Path) -> bool {
        let nearest = target.ancestors().find_map(|path| Some((path, &self.get(path)?.node)));
        match nearest {
            Some((
                _,
                Node::Symlink { .. } | Node::Private { .. } | Node::Tmpfs { .. } | Node::Proc { .. },
            )) => true,
            Some((_, Node::DevPts | Node::Layered { .. } | Node::Root { .. })) => true,
            Some((_, Node::Bind { source, .. } | Node::Merged { source })) => source.is_dir(),
            Some((_, Node::File { .. } | Node::CoverFile | Node::OwnFile { .. } | Node::Absent)) => false,
            Some((at, Node::Dir | Node::Cover | Node::OwnTmpfs { .. })) => {
                at == target || self.has_children(target)
            }
            None => target.parent().is_none() || self.has_children(target),
        }
    }

    /// Whether the view has places below `target`.
    pub(crate) fn has_children(&self, target: &Path) -> bool {
        self.below(target).next().is_some()
    }

    /// Places below `target` in order, parents first.
    fn below(&self, target: &Path) -> impl Iterator<Item = (&Path, &ViewEntry)> {
        let first = target.join("").into_os_string();
        let from = self.places.range::<OsStr, _>((Excluded(first.as_os_str()), Unbounded));
        from.map(|(at, place)| (Path::new(at), place)).take_while(move |(at, _)| {
            at.as_os_str().as_encoded_bytes().starts_with(first.as_encoded_bytes())
        })
    }

    /// The place at `target` and all below it, parents first.
    pub(crate) fn within(&self, target: &Path) -> impl Iterator<Item = (&Path, &ViewEntry)> {
        let at = self.places.get_key_value(target.as_os_str());
        at.into_iter().map(|(at, place)| (Path::new(at), place)).chain(self.below(target))
    }

    /// The nearest mount above `target`: a new node at `target` gets its mount point there.
    pub(crate) fn mount_above(&self, target: &Path) -> Option<(&Path, &ViewEntry)> {
        lexical::ancestors(target).skip(1).find_map(|path| self.mount_at(path))
    }

    /// Whether the mount point of `target` is in the overlay: in the workspace itself, or in a path of the
    /// workspace that is bound over itself.
    pub(crate) fn is_in_overlay(&self, target: &Path) -> bool {
        let Some(overlay) = &self.overlay else { return false };
        let mut target = target;
        while let Some((above, place)) = self.mount_above(target) {
            match &place.node {
                _ if above == overlay.target => return true,
                Node::Bind { source, .. } if source.path == above => target = above,
                _ => return false,
            }
        }
        false
    }

    /// Whether the mount point of `target` is in a copy-on-write layer.
    pub(crate) fn is_in_layer(&self, target: &Path) -> bool {
        self.mount_above(target).is_some_and(|(_, above)| matches!(above.node, Node::Layered { .. }))
    }

    fn mount_at(&self, path: &Path) -> Option<(&Path, &ViewEntry)> {
        let (path, place) = self.places.get_key_value(path.as_os_str())?;
        place.node.is_mount().then_some((Path::new(path), place))
    }

    /// The mount that has what is at `target`: one at that place, or the nearest above it.
    pub(crate) fn mount_of(&self, target: &Path) -> Option<(&Path, &ViewEntry)> {
        self.mount_at(target).or_else(|| self.mount_above(target))
    }

    /// The host path that is visible at `target`.
    pub(crate) fn host_path(&self, target: &Path) -> Option<PathBuf> {
        let target = &*self.follow(target);
        let (at, place) = self.mount_of(target)?;
        shown_by(at, place, target)
    }

    /// Whether the sandbox's own files are among those of the host around `target`. Then anything can be made
    /// there.
    pub(crate) fn is_merged(&self, target: &Path) -> bool {
        matches!(self.mount_above(target), Some((_, ViewEntry { node: Node::Merged { .. }, .. })))
    }

    /// Whether a cover hides `target`.
    pub(crate) fn is_covered(&self, target: &Path) -> bool {
        lexical::ancestors(target).any(|above| self.get(above).is_some_and(|place| place.node.covers()))
    }

    /// Whether commands can change what is at the host's `path`, by any of its names in the sandbox.
    pub(crate) fn is_writable(&self, path: &Path) -> bool {
        let path = clean(path);
        self.writable_directories().any(|(target, source)| {
            let Some(below) = lexical::below(&path, &source.path) else { return false };
            let target = target.join(below);
            let mount = lexical::ancestors(&target).find_map(|at| self.mount_at(at));
            let writes = |place: &ViewEntry| matches!(place.node, Node::Bind { access: Access::Write, .. });
            mount.is_some_and(|(_, place)| writes(place)) && !self.is_covered(&target)
        })
    }

    /// The host path under a mount at `target`: what the mount above it shows there.
    pub(crate) fn host_path_of_mount_point(&self, target: &Path) -> Option<PathBuf> {
        self.mount_above(target).and_then(|(at, place)| shown_by(at, place, target))
    }
}

fn shown_by(at: &Path, place: &ViewEntry, target: &Path) -> Option<PathBuf> {
    let source = place.node.source()?;
    let below = target.strip_prefix(at).ok()?;
    Some(if below.as_os_str().is_empty() { source.path.clone() } else { source.path.join(below) })
}

/// The most bytes of a configuration file that Kennel copies. A larger file is none, and is left out.
pub(crate) const LARGEST_COPY: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_can_be_only_where_something_is_shown() {
        let mut view = View::default();
        view.offer(PlaceKind::Directory, "/tmp", Node::Private { mode: 0o1777 });
        view.offer(PlaceKind::Directory, "/bin", Node::Symlink { points_to: "usr/bin".into() });
        view.offer(PlaceKind::Directory, "/etc", Node::Dir);
        view.offer(PlaceKind::Directory, "/etc/passwd", Node::File { contents: Vec::new(), mode: 0o644 });
        view.offer(PlaceKind::Directory, "/home/me/.ssh", Node::Cover);
        for path in ["/", "/tmp", "/tmp/a/b", "/bin", "/bin/a", "/etc", "/home", "/home/me", "/home/me/.ssh"]
        {
            assert!(view.may_be_entered(Path::new(path)), "{path}");
        }
        let closed = [
            "/srv",
            "/tm",
            "/tmpx",
            "/etc/passwd",
            "/etc/passwd/x",
            "/etc/ssl",
            "/home/you",
            "/home/me/.ssh/x",
        ];
        for path in closed {
            assert!(!view.may_be_entered(Path::new(path)), "{path}");
        }
    }
}
