//! Where a path leads inside, through the links that the sandbox shows. Follows no link on the host by itself: each is
//! read by a descriptor that no link led to, so that nobody learns where a hidden one points.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    path::{Component, Path, PathBuf},
};

use nix::fcntl::{OFlag, readlinkat};

use crate::{
    below::{MOST_LINKS, open_without_links},
    compile::view::{Node, View},
};

/// More parts than that no path of the kernel's has.
const MOST_PARTS: usize = 4096;

/// What to do with a link at the very end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Followed,
    Kept,
}

/// The absolute path without links, `.` and `..`; `None` where it is relative or leads in circles. What lies in private
/// places is gone, links too: there it is taken as it is written.
pub(super) fn resolve(view: &View, path: &Path, last: Last) -> Option<PathBuf> {
    let mut todo: VecDeque<OsString> = VecDeque::new();
    prepend(&mut todo, path);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    if !path.is_absolute() || todo.len() > MOST_PARTS {
        return None;
    }
    while let Some(part) = todo.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let ends = todo.is_empty() && last == Last::Kept;
        match link(view, &next).filter(|_| !ends) {
            Some(to) => {
                links += 1;
                if links > MOST_LINKS || todo.len() > MOST_PARTS {
                    return None;
                }
                if to.is_absolute() {
                    at = PathBuf::from("/");
                }
                prepend(&mut todo, &to);
            }
            None => at = next,
        }
    }
    Some(at)
}

/// The parts of `path`, in front of those that are left.
fn prepend(todo: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => todo.push_front(name.to_owned()),
            Component::ParentDir => todo.push_front("..".into()),
            _ => {}
        }
    }
}

/// Where the link at a place leads, if there is one.
fn link(view: &View, place: &Path) -> Option<PathBuf> {
    match view.get(place).map(|place| &place.node) {
        Some(Node::Symlink { points_to }) => Some(points_to.clone()),
        Some(_) => None,
        None => {
            let host = view.host_path(place)?;
            let fd = open_without_links(&host, OFlag::O_NOFOLLOW).ok()?;
            readlinkat(&fd, OsStr::new("")).ok().filter(|to| !to.is_empty()).map(PathBuf::from)
        }
    }
}
