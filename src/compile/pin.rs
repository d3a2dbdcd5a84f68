//! Keeping what lies in a writable grant in its place: who can rename a directory on the way to a mount can put
//! another one there, without the mount.

use std::path::{Path, PathBuf};

use super::{
    source::Source,
    view::{Access, Node, View},
};
use crate::{Error, policy::Protection};

/// Binds every directory between a writable grant and `target` over itself, so that none can be renamed away.
///
/// # Errors
/// Where the way leads through a link: it did not when `target` was found, so somebody is exchanging it.
pub(super) fn way_to(view: &mut View, target: &Path) -> Result<(), Error> {
    let Some((grant, base)) = writable_around(view, target) else { return Ok(()) };
    let Ok(below) = target.strip_prefix(&grant) else { return Ok(()) };
    let parents: Vec<&Path> = below.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
    for parent in parents.into_iter().rev() {
        let place = grant.join(parent);
        if view.get(&place).is_none() {
            let source = exact(&base.join(parent))?;
            let node = Node::Bind { source, access: Access::Write };
            view.wall("directory on the way to a protected path", &place, node, Protection::ProtectedPaths);
        }
    }
    Ok(())
}

/// The source at a path that has no link in it.
///
/// # Errors
/// As [`way_to`].
pub(super) fn exact(path: &Path) -> Result<Source, Error> {
    Source::exact(path).map_err(|source| Error::Grant {
        what: "protected path",
        path: path.to_owned(),
        source,
        remedy: Some("run again: it was being exchanged while the sandbox was prepared".to_owned()),
    })
}

/// The writable directory of the host that `target` lies in, if it does: where it is in the sandbox, and there.
fn writable_around(view: &View, target: &Path) -> Option<(PathBuf, PathBuf)> {
    let (at, place) = view.mount_above(target)?;
    let Node::Bind { source, access: Access::Write } = &place.node else { return None };
    Some((at.to_owned(), source.path.clone()))
}
