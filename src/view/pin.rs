//! Pins: directories on the way to a mount in a writable grant are bound over themselves.
//!
//! Without a pin, a command could rename a directory on the way to the mount, and put another one there that
//! has no mount.

use std::fs;
use std::path::{Path, PathBuf};

use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::place_kind::PlaceKind;
use crate::report::shortage::EXCHANGED;
use crate::view::paths::source::BindSource;
use crate::view::{Access, Node, Origin, View, ViewEntry};

/// Binds every directory between a writable grant and `target` over itself, so that commands cannot rename
/// it. If that grant is inside another writable grant, does the same for the directories between the two, and
/// so on.
///
/// # Errors
/// There is a link on the way. There was none when `target` was found, so another process replaces
/// directories.
pub(crate) fn parents_of(view: &mut View, target: &Path) -> Result<(), Error> {
    let mut inner = target.to_owned();
    while let Some((grant, base)) = writable_around(view, &inner) {
        pin_between(view, (&grant, &base), &inner)?;
        // A wall at the grant means that everything above is pinned already.
        if view.get(&grant).is_some_and(|place| place.origin == Origin::Wall) {
            break;
        }
        inner = grant;
    }
    Ok(())
}

fn pin_between(view: &mut View, (grant, base): (&Path, &Path), target: &Path) -> Result<(), Error> {
    let Ok(below) = target.strip_prefix(grant) else { return Ok(()) };
    let parents: Vec<&Path> = below.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
    for parent in parents.into_iter().rev() {
        let place = grant.join(parent);
        if view.get(&place).is_none() {
            let source = exact_source(&base.join(parent))?;
            let node = Node::Bind { source, access: Access::Write };
            view.wall(PlaceKind::Pin, &place, node, Protection::ProtectedPaths);
        }
    }
    Ok(())
}

/// As [`parents_of`], for a mount of the view that need not be in a directory of the host.
///
/// # Errors
/// As [`parents_of`]. A mount point that is missing or behind a link is no error here: `plan::emit` reports
/// it.
pub(crate) fn parents_of_mount(view: &mut View, target: &Path) -> Result<(), Error> {
    match view.host_path_of_mount_point(target) {
        Some(on_host) if fs::canonicalize(&on_host).is_ok_and(|path| path == on_host) => {
            parents_of(view, target)
        }
        _ => Ok(()),
    }
}

/// Pins mounts in private places that the commands of a session share: every directory on the way to such a
/// mount becomes a mount too.
pub(crate) fn shared_places(view: &mut View) {
    let is_shared = |place: &ViewEntry| matches!(place.node, Node::Private { .. } | Node::Tmpfs { .. });
    let mut parents: Vec<PathBuf> = Vec::new();
    for (target, _) in view.iter().filter(|(_, place)| place.node.is_mount()) {
        if let Some((above, around)) = view.mount_above(target)
            && is_shared(around)
            && above != Path::new(SHARED_MEMORY)
        {
            let between = target.ancestors().skip(1).take_while(|path| *path != above);
            parents.extend(between.map(Path::to_owned));
        }
    }
    for parent in parents {
        let node = Node::Private { mode: 0o755 };
        view.wall(PlaceKind::Pin, &parent, node, Protection::Root);
    }
}

/// The source at a path that has no link in it.
///
/// # Errors
/// As [`parents_of`].
pub(crate) fn exact_source(path: &Path) -> Result<BindSource, Error> {
    BindSource::exact(path).map_err(|source| Error::Grant {
        what: "path",
        path: path.to_owned(),
        source,
        remedy: Some(EXCHANGED.into()),
    })
}

/// The writable directory of the host around `target`, if there is one: its place in the sandbox, and its
/// path on the host.
fn writable_around(view: &View, target: &Path) -> Option<(PathBuf, PathBuf)> {
    let (at, place) = view.mount_above(target)?;
    let Node::Bind { source, access: Access::Write } = &place.node else { return None };
    Some((at.to_owned(), source.path.clone()))
}

/// POSIX shared memory. It is IPC, so commands never share it.
pub(crate) const SHARED_MEMORY: &str = "/dev/shm";
