//! Places of secrets. If a grant includes one, it stays covered, unless the policy names exactly that path.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::caller::{Caller, runtime_directory};
use crate::image::Store;
use crate::policy::secrets::{HOME_SECRETS, SYSTEM_SECRETS, is_secret_of};
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::place_kind::PlaceKind;
use crate::report::shortage::{EXCHANGED, is_shortage, of_call};
use crate::sys::lexical::is_within;
use crate::view::inputs::Inputs;
use crate::view::paths::source::{BindSource, SourceKind, exists};
use crate::view::paths::walk as path_walk;
use crate::view::paths::walk::UnresolvedPath;
use crate::view::{Node, View, cache_store, pin};

/// Covers every secret that the view would show, at every path that shows it.
///
/// Returns the paths of secrets that are reached through links. The caller protects these links: if a command
/// removed one, the next sandbox could not find the secret behind it.
///
/// # Errors
/// Another process replaces directories on the way to a secret.
pub(crate) fn mask(view: &mut View, inputs: &Inputs<'_>) -> Result<Vec<UnresolvedPath>, Error> {
    let (secrets, ways) = existing(view, inputs)?;
    let shown = view.shown();
    for secret in secrets {
        for target in shown.at(&secret.path) {
            // It may be inside another secret, which has a cover by now.
            if view.host_path(&target).is_none_or(|seen| seen != secret.path) {
                continue;
            }
            pin::parents_of(view, &target)?;
            cover(view, PlaceKind::Secret, &target, secret.kind);
        }
    }
    Ok(ways)
}

/// Paths where the view would show a secret of the caller, if one were created there.
pub(crate) fn absent(view: &View, inputs: &Inputs<'_>) -> Vec<PathBuf> {
    let shown = view.shown();
    let is_absent = |path: &PathBuf| !inputs.names.may_exist(path) || !exists(path);
    home_secrets(inputs.caller).filter(is_absent).filter(|path| shown.has(path)).collect()
}

fn home_secrets(caller: &Caller) -> impl Iterator<Item = PathBuf> {
    caller.homes.iter().flat_map(|home| HOME_SECRETS.iter().map(move |name| home.join(name)))
}

/// Secrets of the system, and what Kennel itself keeps for the caller.
fn system_secrets(caller: &Caller) -> impl Iterator<Item = PathBuf> {
    let own = [cache_store::own_directory(caller), Store::path_of(caller)];
    SYSTEM_SECRETS.iter().map(PathBuf::from).chain(session_directories(caller)).chain(own)
}

/// The existing secrets by canonical path, and the unresolved paths of those behind links. A secret of the
/// system is looked at only if the view shows its path.
///
/// # Errors
/// A secret cannot be looked at, and a command could still see it.
fn existing(view: &View, inputs: &Inputs<'_>) -> Result<(Vec<BindSource>, Vec<UnresolvedPath>), Error> {
    let home_secrets = home_secrets(inputs.caller).filter(|path| inputs.names.may_exist(path));
    let shown = view.shown();
    let system_secrets = system_secrets(inputs.caller).filter(|path| shown.has(path));
    let (mut secrets, mut ways) = (Vec::new(), Vec::new());
    for path in home_secrets.chain(system_secrets) {
        let Some(secret) = find(view, inputs, PlaceKind::Secret.as_str(), &path)? else { continue };
        if secret.path != path {
            ways.push(UnresolvedPath::new(Path::new("/"), path));
        }
        secrets.push(secret);
    }
    secrets.sort_by(|one, other| one.path.cmp(&other.path));
    secrets.dedup();
    Ok((secrets, ways))
}

/// What must be covered at `path`, if something is there.
///
/// An earlier command may have closed a directory on the way (`EACCES`), and a later command could open it
/// again. So a path that Kennel may not look at is an error if commands could get to it.
///
/// # Errors
/// A secret may be there, and Kennel cannot find out.
pub(crate) fn find(
    view: &View,
    inputs: &Inputs<'_>,
    what: &'static str,
    path: &Path,
) -> Result<Option<BindSource>, Error> {
    // Most do not exist. Then this is one system call.
    let source = match BindSource::resolve(path) {
        Ok(source) => return Ok(Some(source)),
        Err(source) => source,
    };
    let may_be_seen = match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => false,
        Some(libc::EACCES) => match path_walk::deciding_places(what, path) {
            Err(Error::Grant { path: closed, .. }) if !can_be_opened(view, inputs.caller, &closed) => false,
            Err(error) => return Err(error),
            Ok(_) => true,
        },
        Some(libc::ESTALE) => true,
        errno => errno.is_some_and(is_shortage) || view.shown().has(path),
    };
    if !may_be_seen {
        return Ok(None);
    }
    let remedy = match source.raw_os_error() {
        Some(libc::ESTALE) => Some(EXCHANGED),
        _ => of_call(&source),
    };
    let remedy = remedy.map(Into::into);
    Err(Error::Grant { what, path: path.to_owned(), source, remedy })
}

/// Whether a command could give itself access to the directory of the host's `path`: the caller owns the
/// directory, and commands can write there.
fn can_be_opened(view: &View, caller: &Caller, path: &Path) -> bool {
    let owner = path.parent().and_then(|directory| fs::metadata(directory).ok()).map(|it| it.uid());
    view.is_writable(path) && owner.is_none_or(|owner| owner == caller.uid)
}

/// Directories of the sockets of sessions. A command that could write there could pretend to be a session.
fn session_directories(caller: &Caller) -> [PathBuf; 2] {
    let runtime = caller.environment.get(OsStr::new("XDG_RUNTIME_DIR"));
    [runtime.map(OsString::as_os_str), None].map(|runtime| runtime_directory(runtime, caller.uid))
}

/// Secrets of the caller that exist below one of the `granted` paths. Only these are looked at.
pub(crate) fn secrets_below<'p>(
    granted: impl Iterator<Item = &'p Path> + Clone,
    caller: &Caller,
) -> Vec<PathBuf> {
    let home_secrets =
        home_secrets(caller).filter(|path| granted.clone().any(|granted| path.starts_with(granted)));
    home_secrets.filter(|path| exists(path)).collect()
}

/// A place of secrets, of the caller or the system, that exists below `directory`.
pub(crate) fn secret_below(directory: &Path, caller: &Caller) -> Option<PathBuf> {
    let all = home_secrets(caller).chain(system_secrets(caller));
    all.filter(|path| is_within(path, directory)).find(|path| exists(path))
}

/// Whether `path` is a place of secrets or inside one.
pub(crate) fn is_secret(path: &Path, caller: &Caller) -> bool {
    is_secret_of(path, &caller.homes) || is_within(path, &cache_store::own_directory(caller))
}

/// Whether `source` is a secret of the caller's home, and `named`, which led there, is no place of secrets. A
/// command may have made a link on the way.
pub(crate) fn is_behind_link(named: &Path, source: &BindSource, caller: &Caller) -> bool {
    let is_of_home = caller.homes.iter().any(|home| is_within(&source.path, home));
    is_of_home && is_secret(&source.path, caller) && !is_secret(named, caller)
}

/// Whether a place of secrets of the caller is below `path`.
pub(crate) fn holds_secret(path: &Path, caller: &Caller) -> bool {
    home_secrets(caller).any(|secret| is_within(&secret, path))
}

/// Hides `path`: with an empty read-only directory, with `/dev/null`, or by leaving it out of a merged
/// directory.
pub(crate) fn cover(view: &mut View, what: PlaceKind, path: &Path, kind: SourceKind) {
    let node = if view.is_merged(path) { Node::Absent } else { cover_node(kind) };
    view.wall(what, path, node, Protection::Root);
}

/// The node that hides something of this kind.
pub(crate) fn cover_node(kind: SourceKind) -> Node {
    match kind {
        SourceKind::Directory => Node::Cover,
        SourceKind::File | SourceKind::Device => Node::CoverFile,
    }
}
