//! Checks calls that Kennel makes outside for a session (`files`): they must not create or change anything at
//! a watched path.
//!
//! What commands put at a watched path is undone after they end. What Kennel itself put there could come
//! later and stay, and look like the user's own.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::protect::watch::{Expected, Watch, parts_from};
use crate::sys::dirfd;
use crate::sys::dirfd::open_without_links;
use crate::sys::inode::Identity;

/// What the caller is about to do at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Creation {
    /// Create something that is no directory.
    File,
    /// Create a directory, or remove what is there. On the way to a watched path that is allowed.
    DirectoryOrNothing,
}

/// From deeper directories the walk up to the root is not made; they count as forbidden.
const DEEPEST: usize = 4096;

/// Whether `name` in `parent` is a watched path, is inside one, or would lead the way to one elsewhere.
///
/// Directories and files are compared by identity, not by path, so other names of the same file count too. If
/// a file system ignores case and nothing exists yet, a watched path can be created under another spelling;
/// the look after the command finds it. If another process moves directories meanwhile, the answer is about
/// the present.
pub(crate) fn forbids(
    watches: &[Watch],
    parent: BorrowedFd<'_>,
    name: &OsStr,
    making: Creation,
) -> io::Result<bool> {
    let place = Name { parent, here: Identity::of_held(parent)?, name, there: there(parent, name) };
    if watches.iter().any(|watch| watch.matches(&place, making)) {
        return Ok(true);
    }
    let inside: Vec<Identity> = watches.iter().filter_map(Watch::directory_there).collect();
    lies_in(parent, &inside)
}

/// A name in a directory.
struct Name<'n> {
    parent: BorrowedFd<'n>,
    /// Identity of `parent`.
    here: Identity,
    name: &'n OsStr,
    /// Identity of what has the name, if anything.
    there: Option<Identity>,
}

impl Name<'_> {
    /// Whether it is `watched`, or another name of the same file. Some file systems compute inode numbers
    /// from names: if both names exist there, equal letters are enough.
    fn is(&self, watched: &OsStr) -> bool {
        let leads_there = || {
            let found = there(self.parent, watched);
            found.is_some() && (found == self.there || self.name.eq_ignore_ascii_case(watched))
        };
        self.name == watched || self.there.is_some() && leads_there()
    }
}

/// Identity of what has a name in a directory.
fn there(parent: BorrowedFd<'_>, name: &OsStr) -> Option<Identity> {
    Some(Identity::of(&dirfd::stat(parent, name).ok()??))
}

impl Watch {
    fn matches(&self, place: &Name<'_>, making: Creation) -> bool {
        let is_here = |part: &&Path| {
            let above = self.base.join(part.parent().unwrap_or(Path::new("")));
            let is_it = part.file_name().is_some_and(|name| place.is(name));
            is_it && directory(&above).is_some_and(|found| found == place.here)
        };
        let parts = match self.expected {
            Expected::Link(_) => vec![&*self.path],
            _ => parts_from(&self.first, &self.path),
        };
        let may_be_directory = matches!(self.expected, Expected::NoFile | Expected::NoEntry);
        let mut met = parts.into_iter().filter(is_here);
        met.any(|part| part == self.path && !may_be_directory || making == Creation::File)
    }

    /// The directory that exists at a path where nothing should be.
    fn directory_there(&self) -> Option<Identity> {
        match self.expected {
            Expected::Link(_) | Expected::NoFile => None,
            Expected::Absent | Expected::NoRepository | Expected::NoEntry => directory(&self.on_host()),
        }
    }
}

/// The directory at a path of the host without links.
fn directory(path: &Path) -> Option<Identity> {
    open_without_links(path, OFlag::O_DIRECTORY).ok().and_then(|held| Identity::of_held(held).ok())
}

/// Whether `directory` is one of `others`, or inside one.
fn lies_in(directory: BorrowedFd<'_>, others: &[Identity]) -> io::Result<bool> {
    if others.is_empty() {
        return Ok(false);
    }
    let mut at = up(directory, ".")?;
    for _ in 0..DEEPEST {
        let here = Identity::of_held(&at)?;
        if others.contains(&here) {
            return Ok(true);
        }
        let above = match up(at.as_fd(), "..") {
            // A directory above cannot be entered, so the answer is unknown.
            Err(Errno::EACCES) => return Ok(true),
            above => above?,
        };
        if Identity::of_held(&above)? == here {
            return Ok(false);
        }
        at = above;
    }
    Ok(true)
}

fn up(from: BorrowedFd<'_>, name: &str) -> nix::Result<OwnedFd> {
    openat(from, name, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Stands for a file system that has more names for a file than it lists: a hard link gives a file a
    /// second name.
    #[test]
    fn another_name_of_what_lies_at_a_watched_path_is_met() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(".git").join(name);
        fs::create_dir(at("")).expect("a directory");
        let path = Path::new(".git/commondir");
        let watches = [Watch::new(dir.path(), path, path, Expected::Absent)];
        let parent = fs::File::open(at("")).expect("open");
        let forbidden = |name: &str| {
            forbids(&watches, parent.as_fd(), OsStr::new(name), Creation::DirectoryOrNothing).expect("known")
        };
        assert!(forbidden("commondir"));
        for name in ["COMMON~1", "COMMONDIR", "other"] {
            fs::write(at(name), "").expect("a file");
            assert!(!forbidden(name), "{name} is a name like any other");
        }
        fs::remove_file(at("COMMON~1")).expect("removed");
        fs::write(at("commondir"), "").expect("a file");
        assert!(!forbidden("COMMON~1"), "nothing is there");
        fs::hard_link(at("commondir"), at("COMMON~1")).expect("a link");
        assert!(forbidden("COMMON~1") && forbidden("COMMONDIR") && !forbidden("other"));
    }
}
