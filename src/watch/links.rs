//! Symbolic links in a repository. Git outside opens much of what it writes or deletes there by name (`logs/HEAD`,
//! `COMMIT_EDITMSG`, `objects/info/commit-graph`, `worktrees/NAME`), and so goes where a link leads, with its user's rights: a
//! command that lays one decides which file outside of its grants is written.
//!
//! Under whatever name a link stays, git may come by it. So none is renamed: it is removed, and told with where it led, which is
//! all there is to a link.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, readlinkat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{
    Allowance, Held, Moment, contents,
    look::{Directories, Found, Look, Names, Seen, is_elsewhere, named},
    remove,
};
use crate::{
    below::rights,
    failure::{self, shown},
    harmless::harmless,
};

/// So long must a directory not have changed to be known by when it was: clocks of file systems have ticks, and are not ours.
const SETTLED: Duration = Duration::from_secs(2);

/// A repository as it was when a sandbox was prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    /// The links in it, which are the user's.
    links: BTreeMap<PathBuf, Seen>,
    /// Directories that had not changed for a while, and those in each: while they are what they were, nothing new is in them.
    directories: Directories,
    is_there: bool,
    /// Names in it that are protected, and looked after as such.
    passes: Names,
}

impl Known {
    /// The links in the repository at `path` now. What in it is closed, or too much, is not known; nothing is changed.
    ///
    /// # Errors
    /// A shortage, by which it cannot be known.
    pub(crate) fn of(path: &Path, passes: Names) -> nix::Result<Self> {
        let how = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let top = match nix::fcntl::open(path, how, Mode::empty()) {
            // Whether it is there is not known where the way to it is closed.
            Err(errno @ (Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES)) => {
                return Ok(Self { passes, is_there: errno == Errno::EACCES, ..Self::default() });
            }
            top => top?,
        };
        let mut links = BTreeMap::new();
        let nothing = Self { passes, is_there: true, ..Self::default() };
        let look = Look::at(top, (&nothing.directories, passes), Some(Moment::before(SETTLED)));
        // Whatever ends it early: what is not known here is judged by its times.
        let _ = look.through(&mut |link| {
            links.insert(link.way(), link.seen);
        });
        let directories = look.settled.take();
        Ok(Self { links, directories, ..nothing })
    }
}

/// Removes the links in the repository at `path` that a command laid, or moved, there, all but those that are `known`, and the
/// files that it wrote by which git goes elsewhere. Says which was the first, and what became of them.
///
/// # Errors
/// One cannot be removed; there is too much to look at.
pub(super) fn take_away(
    held: &Held,
    path: &Path,
    known: &Known,
    allowance: &Allowance,
) -> io::Result<Option<(PathBuf, String)>> {
    let below = held.below(path)?;
    let top = match remove::step(held.directory().as_fd(), named(below), OFlag::O_PATH) {
        Err(errno) if is_elsewhere(errno) => return Ok(None),
        top => top?,
    };
    let (mut first, mut others, mut failed) = (None, 0_u32, None);
    let look = Look::at(top, (&known.directories, known.passes), None);
    let looked = look.through(&mut |link| match link.judge(known, allowance) {
        Ok(None) => {}
        Ok(Some(to)) if first.is_none() => first = Some((path.join(link.way()), to)),
        Ok(Some(_)) => others += 1,
        Err(error) => failed = failed.take().or(Some(error)),
    });
    let removed = first.map(|(path, to)| {
        let rest = if others > 0 { format!("; so were {others} others") } else { String::new() };
        (path, format!("it was removed{rest}; {to}"))
    });
    match (looked.err().or(failed), removed) {
        (None, removed) => Ok(removed),
        (Some(error), None) => Err(error),
        (Some(error), Some((path, what))) => {
            Err(io::Error::other(format!("{}; of {} {what}", failure::words(&error), shown(&path))))
        }
    }
}

impl Found<'_> {
    /// Removes it where a command laid, moved or wrote it there and it leads somewhere, and says where.
    fn judge(&self, known: &Known, allowance: &Allowance) -> io::Result<Option<String>> {
        let way = self.way();
        let seen = self.seen;
        let is_older = !allowance.is_reached_by(seen.1) && !allowance.is_reached_by(self.changed());
        if known.links.get(&way) == Some(&seen) || known.is_there && is_older {
            return Ok(None);
        }
        let lead = match self.is_link {
            true => self.link()?,
            false => contents::of_found(self)?,
        };
        let Some(lead) = lead else { return Ok(None) };
        let unlink = || unlinkat(self.directory, self.name, UnlinkatFlags::NoRemoveDir);
        match rights::of_a_command(|| Ok(remove::with_rights(self.directory.as_fd(), unlink)?)) {
            // Another sandbox that ends undoes the same.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            removed => removed.map(|()| Some(lead)),
        }
    }

    /// Where it leads, unless git does not follow it.
    fn link(&self) -> io::Result<Option<String>> {
        let to = match readlinkat(self.directory, self.name) {
            Err(Errno::ENOENT | Errno::EINVAL) => return Ok(None),
            to => to?,
        };
        let is_followed = !(is_head(&self.way()) && is_branch(&to));
        Ok(is_followed.then(|| format!("it led to {}", harmless(&to.to_string_lossy()))))
    }
}

/// Whether it is the HEAD of a repository or a worktree, and not a log.
fn is_head(way: &Path) -> bool {
    way.ends_with("HEAD") && !way.iter().any(|part| part == "logs" || part == "refs")
}

/// Whether git takes it for the name of a ref. A link at `HEAD` that leads there is not followed.
pub(super) fn is_branch(to: &OsStr) -> bool {
    let to = to.as_bytes();
    let has_dots = to.split(|byte| *byte == b'/').any(|part| part.starts_with(b".") || part.is_empty());
    to.starts_with(b"refs/") && !has_dots
}
