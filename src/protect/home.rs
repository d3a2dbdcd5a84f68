//! What programs outside obey in a home directory without being asked: a command that could write there would
//! run its own code outside.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::policy::obeyed::OBEYED;
use crate::protect::grants::WritableGrants;
use crate::report::failure::shown;
use crate::report::remedy::{SettingKey, remedy};
use crate::view::inputs::{HomeNames, Inputs};
use crate::view::paths::walk::UnresolvedPath;
use crate::view::{Origin, View};

/// The variables that name the bases of configurations, of state and of caches, and where these are
/// otherwise. Kennel's own are below them: its configuration, the kept changes of overlays, and the compiled
/// code of connectors.
const BASES: [(&str, &str); 3] =
    [("XDG_CONFIG_HOME", ".config"), ("XDG_STATE_HOME", ".local/state"), ("XDG_CACHE_HOME", ".cache")];

/// Names in the note.
const MOST_NAMED: usize = 4;

/// The paths that programs outside obey in the caller's homes. A note names those in writable grants.
///
/// In a home outside all grants, Kennel looks at links only. They may lead into a grant, such as a repository
/// with the user's settings.
pub(crate) fn obeyed(view: &mut View, inputs: &Inputs<'_>, grants: &WritableGrants) -> Vec<UnresolvedPath> {
    let mut paths = Vec::new();
    let homes = inputs.caller.homes.iter().map(|home| (home, OBEYED));
    let elsewhere = BASES.map(|(variable, usual)| Some((inputs.caller.path_in(variable)?, usual)));
    let is_elsewhere = |(base, usual): &&(PathBuf, &str)| {
        !inputs.caller.homes.iter().any(|home| is_usual(base, home, usual))
    };
    let of_kennel = elsewhere.iter().flatten().filter(is_elsewhere).map(|(base, _)| base);
    for (home, names) in homes.chain(of_kennel.map(|base| (base, &["kennel"][..]))) {
        let (mut named, mut known) = (Vec::new(), HashMap::new());
        let is_in_grant = grants.bases.contains(home);
        for name in names {
            let first = name.split('/').next().unwrap_or(name);
            if !is_in_grant && !inputs.names.may_have(home, first) {
                continue;
            }
            let path = home.join(name);
            let is_granted = grants.bases.base_above(&path).is_some();
            if !is_granted && !has_link(inputs.names, home, &path, &mut known) {
                continue;
            }
            if let Ok(to) = fs::canonicalize(&path) {
                let is_writable = grants.bases.base_above(&to).is_some()
                    && view.get(&to).is_none_or(|place| place.origin != Origin::Policy);
                named.extend(is_writable.then_some(*name));
            }
            paths.push(UnresolvedPath::new(Path::new("/"), path));
        }
        note(view, home, &named);
    }
    paths
}

/// Whether a base is the usual one in `home`.
fn is_usual(base: &Path, home: &Path, usual: &str) -> bool {
    base.strip_prefix(home).is_ok_and(|below| below == Path::new(usual))
}

/// Whether a directory on the way from `home` to `path`, or `path` itself, is a link. The list of names in a
/// directory counts only if no link leads there: a command may be able to add names where a link leads.
fn has_link(names: &HomeNames, home: &Path, path: &Path, known: &mut HashMap<PathBuf, bool>) -> bool {
    let ways: Vec<&Path> = path.ancestors().take_while(|way| *way != home).collect();
    for way in ways.into_iter().rev() {
        let is_link = || fs::symlink_metadata(way).is_ok_and(|it| it.is_symlink());
        if !names.may_exist(way) {
            return false;
        }
        if *known.entry(way.to_owned()).or_insert_with(is_link) {
            return true;
        }
    }
    false
}

/// Says which of them exist in a grant.
fn note(view: &mut View, home: &Path, named: &[&str]) {
    if named.is_empty() {
        return;
    }
    let (first, rest) = named.split_at(named.len().min(MOST_NAMED));
    let others = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    let text =
        format!("shells and other programs outside obey {}{others}: they stay read-only", first.join(", "));
    let remedy = remedy!["grant a file by its own path (", SettingKey::Rw, ") if commands are to change it"];
    view.note(&shown(home), &text, Some(remedy));
}
