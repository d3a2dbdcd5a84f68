//! The masks of the policy: what the view would show at a path, or at every path that a pattern matches, is
//! hidden.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::policy::glob;
use crate::policy::glob::Pattern;
use crate::policy::mount::Mount;
use crate::report::error::Error;
use crate::report::error::policy::PolicyError;
use crate::report::failure::shown;
use crate::report::place_kind::PlaceKind;
use crate::sys::dirfd;
use crate::sys::lexical;
use crate::sys::lexical::clean;
use crate::view::inputs::Inputs;
use crate::view::paths::search::{SearchBudget, StartedPattern, search};
use crate::view::paths::source::{BindSource, SourceKind, exists};
use crate::view::{Node, View, pin, secrets};

/// The name of masks in messages.
const MASK: &str = "mask";

/// Why a mask over a link is refused.
const LINKED: Unmaskable =
    Unmaskable { reason: "the way to it passes a symbolic link", remedy: "name the place it leads to" };

/// Why a mask over nothing but other grants is refused.
const GRANTED: Unmaskable = Unmaskable {
    reason: "all that is visible there is what the policy shows below it",
    remedy: "keep one of the two",
};

/// Why a mask is refused, and what to do.
struct Unmaskable {
    reason: &'static str,
    remedy: &'static str,
}

/// Adds the masks of the policy.
///
/// # Errors
/// The way to one passes a link; the policy shows something else there; a pattern cannot be searched for.
pub(crate) fn show(
    view: &mut View,
    inputs: &Inputs<'_>,
    workspace: Option<&BindSource>,
) -> Result<(), Error> {
    let masks = inputs.policy.mounts.iter().filter_map(|mount| match mount {
        Mount::Mask { path } => Some(&**path),
        _ => None,
    });
    let (patterns, plain): (Vec<&Path>, Vec<&Path>) = masks.partition(|path| glob::is_pattern(path));
    let plain = plain.into_iter().map(|path| view.follow(&clean(path)).into_owned()).collect();
    let mut all = Masks { plain, ..Masks::default() };
    if !patterns.is_empty() {
        all.find(view, &patterns, workspace)?;
    }
    all.cover(view)
}

/// Places in the sandbox to cover.
#[derive(Default)]
struct Masks {
    /// Those that the policy names.
    plain: BTreeSet<PathBuf>,
    /// Those that patterns match.
    matched: BTreeSet<PathBuf>,
    /// Matching links that lead out of the searched directory, and what they lead to.
    links: Vec<(PathBuf, PathBuf)>,
}

/// Patterns that are searched for from one place in the sandbox.
#[derive(Default)]
struct Group<'p> {
    given: Vec<&'p Path>,
    patterns: Vec<Pattern>,
}

impl Masks {
    /// Searches what the view shows for the patterns.
    fn find(
        &mut self,
        view: &mut View,
        patterns: &[&Path],
        workspace: Option<&BindSource>,
    ) -> Result<(), Error> {
        let mut groups: BTreeMap<PathBuf, Group<'_>> = BTreeMap::new();
        for given in patterns {
            let refused = |reason| Error::from(PolicyError::path(MASK, given, reason));
            let (base, pattern) = match (glob::is_name(given), workspace) {
                (true, None) => continue,
                (true, Some(workspace)) => (workspace.path.clone(), Pattern::read(given).map_err(refused)?),
                (false, _) => Pattern::read_absolute(given).map_err(refused)?,
            };
            let base = view.follow(&base).into_owned();
            let group = groups.entry(base).or_default();
            group.given.push(given);
            group.patterns.push(pattern);
        }
        let mut budget = SearchBudget::default();
        // With the rights of a command, as the mounts are made.
        groups.iter().try_for_each(|(base, group)| {
            let found = dirfd::without_capabilities(|| Ok(self.find_below(view, base, group, &mut budget)));
            found.unwrap_or_else(|error| Err(Error::io("give up capabilities for a search")(error)))
        })
    }

    fn find_below(
        &mut self,
        view: &mut View,
        base: &Path,
        group: &Group<'_>,
        budget: &mut SearchBudget,
    ) -> Result<(), Error> {
        if passes_link(view, base) {
            return Err(refused(base, LINKED));
        }
        let mut is_matched = vec![false; group.patterns.len()];
        self.match_view(view, base, group, &mut is_matched);
        for (target, root) in roots(view, base) {
            let below = lexical::below(&target, base).unwrap_or(Path::new(""));
            let started = group
                .patterns
                .iter()
                .map(|pattern| Some(StartedPattern { pattern, progress: pattern.after_all(below)? }));
            let (indices, patterns): (Vec<usize>, Vec<_>) =
                started.enumerate().filter_map(|(index, pattern)| Some((index, pattern?))).unzip();
            let found = search(&root, &patterns, budget).map_err(|error| {
                let given = indices.get(error.pattern).and_then(|index| group.given.get(*index));
                let given = given.copied().unwrap_or(base);
                error.about(MASK, given)
            })?;
            for index in indices.iter().zip(&found.is_matched).filter_map(|(at, is)| is.then_some(*at)) {
                if let Some(is_matched) = is_matched.get_mut(index) {
                    *is_matched = true;
                }
            }
            for path in &found.matches {
                self.take(view, &root, target.join(path), &root.join(path));
            }
            found.note_closed(view, &target, " for a mask", "hidden");
            view.awaited.listed.extend(found.listed);
        }
        for (given, _) in group.given.iter().zip(&is_matched).filter(|(_, is_matched)| !**is_matched) {
            let text = "nothing that is visible matches this mask, so it hides nothing yet";
            view.note(&shown(given), text, None);
        }
        Ok(())
    }

    /// Takes the places of the view itself that match, which no directory of the host has, and what has a
    /// pattern as its name.
    fn match_view(&mut self, view: &View, base: &Path, group: &Group<'_>, is_matched: &mut [bool]) {
        let patterns = group.patterns.iter().zip(&group.given);
        for ((pattern, given), is_matched) in patterns.zip(is_matched) {
            let places = view.within(base).map(|(at, _)| at).filter(|at| *at != base);
            let matched =
                places.filter(|at| lexical::below(at, base).is_some_and(|below| pattern.covers(below)));
            let literal = clean(if given.is_absolute() { given.to_path_buf() } else { base.join(given) });
            let is_there = view.host_path(&literal).is_some_and(|path| exists(&path));
            let all: Vec<PathBuf> = matched.map(Path::to_owned).chain(is_there.then_some(literal)).collect();
            *is_matched = !all.is_empty();
            self.matched.extend(all);
        }
    }

    /// Takes what matches at `on_host`, which the sandbox shows at `at`. A search found it below `root`.
    fn take(&mut self, view: &View, root: &Path, at: PathBuf, on_host: &Path) {
        match fs::canonicalize(on_host) {
            Ok(to) if to == on_host => drop(self.matched.insert(at)),
            // A link leads there. Programs read through it.
            Ok(to) if lexical::is_within(&to, root) => self.matched.extend(view.shown().at(&to)),
            Ok(to) => self.links.push((at, to)),
            // A link that leads nowhere, or what cannot be looked at.
            Err(_) if fs::symlink_metadata(on_host).is_ok_and(|it| it.is_symlink()) => {}
            Err(_) => drop(self.matched.insert(at)),
        }
    }

    /// Covers all places, parents first. A place in a covered directory is hidden already.
    fn cover(self, view: &mut View) -> Result<(), Error> {
        let Self { plain, matched, links } = self;
        for path in
            plain.iter().chain(matched.iter().filter(|path| !plain.contains(*path))).collect::<BTreeSet<_>>()
        {
            if !view.is_covered(path) && !cover(view, path)? && plain.contains(path) {
                view.note(&shown(path), "nothing is visible there, so this mask hides nothing yet", None);
                let on_host = view.host_path(path);
                view.awaited.absent.extend(on_host);
            }
        }
        let shown = view.shown();
        let is_shown = |to: &Path| shown.at(to).iter().any(|place| !view.is_covered(place));
        match links.iter().find(|(_, to)| is_shown(to)) {
            Some((link, _)) => Err(refused(link, LINKED)),
            None => Ok(()),
        }
    }
}

/// The directories of the host to search below `base`, each with its place in the sandbox.
fn roots(view: &View, base: &Path) -> Vec<(PathBuf, PathBuf)> {
    let own = view.host_path(base).map(|root| (base.to_owned(), root));
    let others =
        view.within(base).filter(|(at, _)| *at != base).filter_map(|(at, place)| match place.node.source() {
            // A directory that is bound over itself is searched with the one around it.
            Some(source)
                if source.is_dir() && view.host_path_of_mount_point(at).as_deref() != Some(&*source.path) =>
            {
                Some((at.to_owned(), source.path.clone()))
            }
            _ => None,
        });
    own.into_iter().chain(others).collect()
}

/// Whether a link of the view is on the way to `path`.
fn passes_link(view: &View, path: &Path) -> bool {
    let of_view = lexical::ancestors(path).skip(1).filter_map(|above| view.get(above));
    of_view.map(|place| &place.node).any(|node| matches!(node, Node::Symlink { .. }))
}

fn refused(path: &Path, why: Unmaskable) -> Error {
    let (reason, remedy) = (why.reason.to_owned(), Some(why.remedy.into()));
    Error::View { what: MASK, path: path.to_owned(), reason, remedy }
}

/// Covers `path`, if the view shows it, or if the profile shows something below it. Returns whether there is
/// anything.
fn cover(view: &mut View, path: &Path) -> Result<bool, Error> {
    let on_host = view.host_path(path);
    let shown = on_host.as_deref().map(fs::symlink_metadata);
    let kind = match (shown, view.get(path).map(|place| &place.node)) {
        (Some(Ok(metadata)), _) => {
            Some(if metadata.is_dir() { SourceKind::Directory } else { SourceKind::File })
        }
        (_, Some(Node::File { .. })) => Some(SourceKind::File),
        (_, Some(_)) => Some(SourceKind::Directory),
        (None, None) => view.root.as_ref().and_then(|root| root.kind(path)),
        (Some(Err(_)), None) => None,
    };
    let has_shown = view.remove_below(path);
    let is_linked = passes_link(view, path)
        || on_host.as_ref().is_some_and(|it| fs::canonicalize(it).is_ok_and(|found| found != *it));
    if is_linked {
        return Err(refused(path, LINKED));
    }
    let Some(kind) = kind.or(has_shown.then_some(SourceKind::Directory)) else {
        return if view.has_children(path) { Err(refused(path, GRANTED)) } else { Ok(false) };
    };
    pin::parents_of(view, path)?;
    view.grant(PlaceKind::Mask, path.to_owned(), secrets::cover_node(kind))?;
    Ok(true)
}
