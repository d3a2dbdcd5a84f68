//! Toolchains outside the system directories, and the caches of package managers and compilers.
//! `caller/toolchains.rs` has the table.

pub(crate) mod search_path;
pub(crate) mod variables;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use Kind::{Cache, Toolchain};

use crate::caller::Caller;
use crate::caller::toolchains::{CACHE_BASE, Kind, TABLE, home_of, is_named, parts};
use crate::policy::profile::{Caches, Toolchains};
use crate::report::place_kind::PlaceKind;
use crate::view::inputs::{Inputs, may_have_layers};
use crate::view::paths::source::exists;
use crate::view::toolchains::variables as tool_variables;
use crate::view::{Access, Node, Origin, Unlayered, View, layers};

/// Adds the caller's toolchains and caches to the view.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) {
    if !is_wanted(inputs) {
        return;
    }
    if let Some(base) = inputs.caller.variable(CACHE_BASE) {
        make_room(view, inputs, Path::new(base));
    }
    for row in TABLE.iter().filter(|row| row.kind == Toolchain || inputs.policy.caches != Caches::None) {
        // Most tools are not there.
        let may_be_there =
            is_named(row, inputs.caller) || inputs.names.may_have(&inputs.caller.home, row.home);
        if !may_be_there && inputs.policy.caches != Caches::Keep {
            continue;
        }
        let home = home_of(row, inputs.caller);
        if row.kind == Cache {
            make_room(view, inputs, &home);
        }
        for path in parts(row, &home) {
            offer(view, inputs, row.kind, &path);
        }
    }
    if !inputs.policy.profile.meaning().shows_host {
        tool_variables::show(view, inputs);
        search_path::show(view, inputs);
    }
}

/// The caches of the table, whether they exist or not.
pub(crate) fn caches(caller: &Caller) -> impl Iterator<Item = PathBuf> {
    let caches = TABLE.iter().filter(|row| row.kind == Cache);
    caches.flat_map(|row| parts(row, &home_of(row, caller)).collect::<Vec<_>>())
}

/// The variables of the caller that name toolchains and caches, if what they name is visible, or can be made.
pub(crate) fn variables(inputs: &Inputs<'_>, view: &View) -> Vec<(OsString, OsString)> {
    if !is_wanted(inputs) {
        return Vec::new();
    }
    let set: BTreeSet<&str> = names().filter(|name| inputs.caller.variable(name).is_some()).collect();
    let mut found = tool_variables::visible(inputs, view, set.iter().copied());
    for name in set.into_iter().filter(|name| is_of_cache(name)) {
        if let Some(value) = inputs.caller.variable(name).filter(|value| is_room(view, Path::new(value)))
            && !found.iter().any(|(known, _)| known == name)
        {
            found.push((name.into(), value.to_owned()));
        }
    }
    found
}

/// Variables of the caller that decide which toolchains and caches are visible, and where.
pub(crate) fn deciding_variables() -> impl Iterator<Item = &'static str> {
    ["HOME", "PATH"].into_iter().chain(names()).chain(tool_variables::names())
}

/// The variables of the table. Some rows share one.
fn names() -> impl Iterator<Item = &'static str> {
    let of_rows = TABLE.iter().map(|row| row.variable).filter(|name| !name.is_empty());
    of_rows.chain([CACHE_BASE])
}

fn is_of_cache(name: &str) -> bool {
    name == CACHE_BASE || TABLE.iter().any(|row| row.variable == name && row.kind == Cache)
}

/// Whether commands can make a directory at `path`.
fn is_room(view: &View, path: &Path) -> bool {
    let place = path.ancestors().find_map(|above| view.get(above));
    path.is_absolute()
        && place.is_some_and(|place| matches!(place.node, Node::Private { .. } | Node::Layered { .. }))
}

fn is_wanted(inputs: &Inputs<'_>) -> bool {
    inputs.policy.profile.meaning().knows_caller && inputs.policy.toolchains == Toolchains::Auto
}

/// Outside of HOME, which is private, tools need a directory to make their caches in.
fn make_room(view: &mut View, inputs: &Inputs<'_>, at: &Path) {
    let is_outside = at.is_absolute() && !inputs.caller.homes.iter().any(|home| at.starts_with(home));
    if is_outside && view.is_free(at) && search_path::is_fit(at, inputs) {
        view.offer(PlaceKind::PrivateDirectory, at, Node::Private { mode: 0o755 });
    }
}

/// Shows a part of a row, at the path that it leads to.
fn offer(view: &mut View, inputs: &Inputs<'_>, kind: Kind, path: &Path) {
    let Some(found) = search_path::fit(inputs, path) else {
        if kind == Cache
            && inputs.policy.caches == Caches::Keep
            && !(inputs.names.may_exist(path) && exists(path))
        {
            layers::show_absent(view, inputs, Cache.place(), path);
        }
        return;
    };
    let (source, links) = (&found.source, &found.links);
    let is_open = view.is_free(&source.path) || is_shown_read_only(view, inputs, &source.path);
    if is_open && search_path::is_trusted(view, inputs, path, &found) {
        let otherwise = match kind {
            Toolchain => Unlayered::ReadOnly,
            Cache => Unlayered::Empty,
        };
        let node = layers::node(view, inputs, source.clone(), otherwise);
        view.offer(kind.place(), &source.path, node);
    }
    view.offer_links(links, path, &source.path);
}

/// Whether the profile shows `path` read-only, where the caller could write outside. Then commands may write
/// to a layer there.
fn is_shown_read_only(view: &View, inputs: &Inputs<'_>, path: &Path) -> bool {
    let above = path.ancestors().find_map(|above| view.get(above));
    let of_profile = above.is_some_and(|place| {
        place.origin == Origin::Profile && matches!(place.node, Node::Bind { access: Access::Read, .. })
    });
    of_profile
        && may_have_layers(inputs.policy)
        && layers::are_possible(inputs)
        && layers::is_writable_outside(path)
}
