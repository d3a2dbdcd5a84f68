//! Symbolic links of the host that the view shows too, so that a path leads inside where it leads outside.
//!
//! Everything of the host is shown at its canonical path. If people name it through links, as on machines
//! where `/home` leads to `var/home`, the view has the same links. Paths that are added to the view follow
//! them.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::report::place_kind::PlaceKind;
use crate::sys::dirfd::MOST_LINKS;
use crate::sys::lexical;
use crate::view::inputs::Inputs;
use crate::view::paths::resolved::ResolvedPath;
use crate::view::paths::walk::{HostLink, reversed};
use crate::view::{Node, View};

impl View {
    /// Shows a link of the host at its own place. Returns whether the link is there now.
    pub(crate) fn offer_link(&mut self, link: &HostLink) -> bool {
        let HostLink { at, to } = link;
        let is_there = self.links.get(at.as_os_str()) == Some(to)
            || self.host_path(at).is_some_and(|shown| shown == *at);
        if is_there {
            return true;
        }
        if self.get(at).is_some() || self.has_children(at) || !self.is_free(at) {
            return false;
        }
        self.offer(PlaceKind::Link, at, Node::Symlink { points_to: to.clone() });
        self.links.insert(at.into(), to.clone());
        true
    }

    /// Shows the links on the way from `given` to `canonical`. Where one of them has no place, `given` itself
    /// becomes a link.
    pub(crate) fn offer_links(&mut self, links: &[HostLink], given: &Path, canonical: &Path) {
        let all_are_there = links.iter().all(|link| self.offer_link(link));
        if !all_are_there && self.get(given).is_none() && !self.has_children(given) && self.is_free(given) {
            self.offer(PlaceKind::Link, given, Node::Symlink { points_to: canonical.to_owned() });
        }
    }

    /// Where `path` leads in the sandbox, over the links of another root or of the host.
    pub(crate) fn follow<'p>(&self, path: &'p Path) -> Cow<'p, Path> {
        match &self.root {
            Some(root) => Cow::Owned(root.tree.follow(path, |at| self.is_of_root(at))),
            None => self.follow_host_links(path),
        }
    }

    /// Whether another root has what is at `path`, and not a mount over it.
    pub(crate) fn is_of_root(&self, path: &Path) -> bool {
        self.mount_of(path).is_some_and(|(_, place)| matches!(place.node, Node::Root { .. }))
    }

    /// Where `path` leads over the links of [`offer_link`](Self::offer_link).
    fn follow_host_links<'p>(&self, path: &'p Path) -> Cow<'p, Path> {
        let is_on_the_way = |at: &OsString| lexical::is_within(path, Path::new(at));
        if self.links.is_empty() || lexical::is_plain(path) && !self.links.keys().any(is_on_the_way) {
            return Cow::Borrowed(path);
        }
        let (mut here, mut rest, mut followed) = (PathBuf::from("/"), reversed(path), 0);
        while let Some(part) = rest.pop() {
            if part == ".." {
                here.pop();
                continue;
            }
            here.push(part);
            if let Some(to) = self.links.get(here.as_os_str()).filter(|_| followed < MOST_LINKS) {
                followed += 1;
                here.pop();
                rest.extend(reversed(to));
            }
        }
        Cow::Owned(here)
    }

    /// Forgets the links that the view does not show any more.
    pub(crate) fn forget_lost_links(&mut self) {
        let places = &self.places;
        let is_shown =
            |at: &OsString| matches!(places.get(at), Some(it) if matches!(it.node, Node::Symlink { .. }));
        self.links.retain(|at, _| is_shown(at));
    }
}

/// Shows the links on the way to HOME. Call it before anything is shown below HOME.
pub(crate) fn show_links_of_home(view: &mut View, inputs: &Inputs<'_>) {
    // With a single name, the home has no link on the way.
    let may_be_linked = inputs.policy.profile.meaning().knows_caller && inputs.caller.homes.len() > 1;
    let home = inputs.home();
    if may_be_linked && let Ok(resolved) = ResolvedPath::resolve(&home) {
        view.offer_links(&resolved.links, &home, &resolved.source.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(links: &[(&str, &str)]) -> View {
        let mut view = View::default();
        for (at, to) in links {
            assert!(view.offer_link(&HostLink { at: at.into(), to: to.into() }), "{at}");
        }
        view
    }

    #[test]
    fn paths_lead_where_they_lead_on_a_host_with_these_links() {
        let view =
            view(&[("/home", "var/home"), ("/var/home/me", "/data/people/me"), ("/data", "mnt/../srv")]);
        for (path, end) in [
            ("/home/you/x", "/var/home/you/x"),
            ("/home/me/x", "/srv/people/me/x"),
            ("/home", "/var/home"),
            ("/homes/me", "/homes/me"),
            ("/", "/"),
        ] {
            assert_eq!(view.follow(Path::new(path)), Path::new(end), "{path}");
        }
    }

    #[test]
    fn a_loop_of_links_has_an_end() {
        let view = view(&[("/a", "b/c"), ("/b", "a")]);
        view.follow(Path::new("/a/x"));
    }

    #[test]
    fn what_is_shown_through_a_link_is_at_its_end() {
        let mut view = view(&[("/home", "var/home")]);
        view.offer(PlaceKind::Directory, "/home/me", Node::Private { mode: 0o700 });
        assert!(view.get(Path::new("/var/home/me")).is_some() && view.get(Path::new("/home/me")).is_none());
        assert!(!view.offer_link(&HostLink { at: "/var".into(), to: "x".into() }), "something is below");
        assert!(
            !view.offer_link(&HostLink { at: "/var/home/me".into(), to: "x".into() }),
            "something is there"
        );
    }
}
