//! Whether a call of the outside would make or change something at a watched path. What commands put there is undone
//! after them; what the outside itself made would be taken for the user's, so it must not be made.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, openat},
    sys::stat::{Mode, fstat},
};

use super::{Expected, Watch, parts_from};
use crate::host::open_without_links;

/// What is about to be done at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Making {
    /// Something that is no directory is put there.
    File,
    /// A directory is made there, or what is there is taken away. On the way to a watched path that is allowed.
    DirectoryOrNothing,
}

/// Deeper directories than that are not looked at from below.
const DEEPEST: usize = 4096;

/// Whether `name` in `parent` is a watched path, or lies in one, or would lead the way to one elsewhere.
///
/// What is compared are directories, not paths: under whatever name one is reached, it is the same. Where somebody
/// moves directories meanwhile, the answer is about now.
pub(crate) fn forbids(
    watches: &[Watch],
    parent: BorrowedFd<'_>,
    name: &OsStr,
    making: Making,
) -> io::Result<bool> {
    let here = identity(parent)?;
    if watches.iter().any(|watch| watch.is_met(here, name, making)) {
        return Ok(true);
    }
    let inside: Vec<Identity> = watches.iter().filter_map(Watch::directory_there).collect();
    lies_in(parent, &inside)
}

type Identity = (u64, u64);

fn identity(of: impl AsFd) -> io::Result<Identity> {
    let stat = fstat(of)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Watch {
    fn is_met(&self, parent: Identity, name: &OsStr, making: Making) -> bool {
        let is_here = |part: &&Path| {
            let above = self.base.join(part.parent().unwrap_or(Path::new("")));
            part.file_name() == Some(name) && directory(&above).is_some_and(|found| found == parent)
        };
        let parts = match self.expected {
            Expected::Link(_) => vec![&*self.path],
            Expected::Absent | Expected::NoRepository => parts_from(&self.first, &self.path),
        };
        let mut met = parts.into_iter().filter(is_here);
        met.any(|part| part == self.path || making == Making::File)
    }

    /// The directory that lies at a path where nothing should be.
    fn directory_there(&self) -> Option<Identity> {
        match self.expected {
            Expected::Link(_) => None,
            Expected::Absent | Expected::NoRepository => directory(&self.on_host()),
        }
    }
}

/// The directory at a path of the host without a link in it.
fn directory(path: &Path) -> Option<Identity> {
    open_without_links(path, OFlag::O_DIRECTORY).and_then(identity).ok()
}

/// Whether `directory` is one of `those`, or lies in one.
fn lies_in(directory: BorrowedFd<'_>, those: &[Identity]) -> io::Result<bool> {
    if those.is_empty() {
        return Ok(false);
    }
    let mut at = up(directory, ".")?;
    for _ in 0..DEEPEST {
        let here = identity(&at)?;
        if those.contains(&here) {
            return Ok(true);
        }
        let above = match up(at.as_fd(), "..") {
            // Nobody may go there, so nobody can say what it is.
            Err(Errno::EACCES) => return Ok(true),
            above => above?,
        };
        if identity(&above)? == here {
            return Ok(false);
        }
        at = above;
    }
    Ok(true)
}

fn up(from: BorrowedFd<'_>, name: &str) -> nix::Result<OwnedFd> {
    openat(from, name, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
}
