//! A name in a directory, and how what is there is taken away from it, whatever keeps it: removed, renamed, or at least
//! made harmless.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use nix::{errno::Errno, fcntl::readlinkat, sys::stat::FileStat};

use super::{Allowance, Done, Expected, Held, Watch, remove};
use crate::{
    below::{self, FileKind, rename_without_replacing},
    harmless::harmless,
    sys,
};

/// How many names are tried of each kind; all but the first are random.
const MOST_NAMES: u32 = 16;

const REMOVED: &str = "it was removed";

/// A name in a directory that is held open.
pub(super) struct Place<'a> {
    parent: Arc<OwnedFd>,
    name: OsString,
    allowance: &'a Allowance,
}

impl<'a> Place<'a> {
    /// The directory that `path` lies in, on the way to what is watched, reached from what is held without following
    /// any link; `None` where there is no such directory.
    ///
    /// # Errors
    /// Something was mounted on the way meanwhile: what is there is nobody's command's.
    pub(super) fn of(held: &Held, path: &Path, allowance: &'a Allowance) -> io::Result<Option<Self>> {
        let below = held.below(path)?;
        let (Some(way), Some(name)) = (below.parent(), below.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut parent = held.directory();
        for part in way {
            match remove::step_into(parent.as_fd(), part) {
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(None),
                Err(Errno::EXDEV) => return Err(io::Error::other("something was mounted on the way to it")),
                next => parent = Arc::new(next?),
            }
        }
        Ok(Some(Self { parent, name: name.to_owned(), allowance }))
    }

    /// What is there; `None` where nothing is.
    pub(super) fn stat(&self) -> io::Result<Option<FileStat>> {
        Ok(self.stat_of(&self.name)?)
    }

    fn stat_of(&self, name: &OsStr) -> nix::Result<Option<FileStat>> {
        self.with_rights(|| below::stat(&self.parent, name))
    }

    /// A command may have taken the right to change anything there from its user.
    fn with_rights<T>(&self, action: impl Fn() -> nix::Result<T>) -> nix::Result<T> {
        remove::with_rights(self.parent.as_fd(), action)
    }

    /// Undoes what must not be, and says what was done.
    pub(super) fn judge(&self, watch: &Watch, kind: FileKind) -> io::Result<Option<Done>> {
        let is_directory = kind == FileKind::Directory;
        let undone = match (&watch.expected, watch.path.file_name().and_then(OsStr::to_str)) {
            // The samples that `git init` puts there do nothing.
            (Expected::NoRepository, Some("hooks")) if is_directory => {
                self.remove_entries("hooks", |name| !name.as_encoded_bytes().ends_with(b".sample"))
            }
            // So it is with the empty directory of older versions.
            (Expected::NoRepository, Some("branches" | "remotes")) | (Expected::NoEntry, _)
                if is_directory =>
            {
                self.remove_entries("entries", |_| true)
            }
            (Expected::NoFile, _) if is_directory => Ok(None),
            // A repository made inside needs its config; git outside reads it, so its making is told.
            (Expected::NoRepository, Some("config" | "config.worktree")) if kind == FileKind::File => {
                return Ok(Some(Done::Kept));
            }
            _ => self.remove().map(Some),
        };
        Ok(undone?.map(Done::Told))
    }

    pub(super) fn leads_to(&self, to: &Path) -> bool {
        let now = self.with_rights(|| readlinkat(&self.parent, self.name.as_os_str()));
        now.is_ok_and(|now| now == to.as_os_str())
    }

    /// Takes away what is there in the place of a link, and says so.
    ///
    /// The link itself is not made anew. It may have been made by a command of another sandbox, which took it away again
    /// when that command ended.
    pub(super) fn clear_of(&self, link: &Path) -> io::Result<String> {
        let what = match self.stat()? {
            Some(_) => self.remove()?,
            None => "it is gone".to_owned(),
        };
        Ok(format!("{what}; the link that was there led to {}", harmless(&link.to_string_lossy())))
    }

    /// Takes away what is there, and says how: what the command made is removed; what was there before, or cannot be
    /// removed, gets a name that nothing obeys.
    pub(super) fn remove(&self) -> io::Result<String> {
        match self.take_away() {
            // Another sandbox that ends undoes the same.
            Err(_) if matches!(self.stat_of(&self.name), Ok(None)) => Ok(REMOVED.to_owned()),
            done => done,
        }
    }

    fn take_away(&self) -> io::Result<String> {
        // To be renamed is a change to most file systems: so its times are read before.
        let times = remove::times(self.parent.as_fd(), &self.name)?;
        let is_new = self.allowance.is_new(&times);
        if is_new && !times.is_directory && self.remove_entry(&self.name).is_ok() {
            return Ok(REMOVED.to_owned());
        }
        // One call disarms all of it; to remove it may be too much, or fail.
        match self.move_aside() {
            Ok(aside) if is_new && self.remove_entry(&aside.name).is_ok() => Ok(REMOVED.to_owned()),
            Ok(aside) => Ok(aside.how),
            Err(error) => self.disarm(is_new, error.into()),
        }
    }

    fn remove_entry(&self, name: &OsStr) -> io::Result<()> {
        remove::entry(self.parent.as_fd(), name, self.allowance)
    }

    /// Gives it a name that nothing obeys.
    fn move_aside(&self) -> nix::Result<Aside> {
        match self.move_to(|number| self.long_name(number)) {
            // There is no room for a longer name, in any directory or in this one.
            Err(Errno::ENAMETOOLONG | Errno::ENOSPC | Errno::EDQUOT) => self.move_to(|_| short_name()),
            moved => moved,
        }
    }

    fn long_name(&self, number: u32) -> nix::Result<Aside> {
        let mut name = self.name.clone();
        name.push(".refused-by-kennel.");
        match number {
            0 => name.push("0"),
            // Who took the first takes the second too.
            _ => name.push(format!("{:016x}", sys::random()?)),
        }
        let how = "it was renamed to end in .refused-by-kennel, because it could not be removed".to_owned();
        Ok(Aside { name, how })
    }

    fn move_to(&self, name: impl Fn(u32) -> nix::Result<Aside>) -> nix::Result<Aside> {
        for number in 0..MOST_NAMES {
            let aside = name(number)?;
            match self.with_rights(|| rename_without_replacing(&self.parent, &self.name, &aside.name)) {
                Err(Errno::EEXIST) => {}
                moved => return moved.map(|()| aside),
            }
        }
        Err(Errno::EEXIST)
    }

    /// Where it cannot be renamed, because of `error`: removes what can be removed, and shuts the rest.
    fn disarm(&self, is_new: bool, error: io::Error) -> io::Result<String> {
        if is_new && self.remove_entry(&self.name).is_ok() {
            return Ok(REMOVED.to_owned());
        }
        let directory = remove::open_directory(self.parent.as_fd(), &self.name).map_err(|_| error)?;
        remove::what_can_be(&directory, &self.allowance.again());
        // That may have made room.
        match self.move_aside() {
            Ok(aside) => Ok(aside.how),
            Err(error) => {
                remove::shut(directory.as_fd())?;
                Err(io::Error::other(format!("{}; its mode is 0 now", io::Error::from(error))))
            }
        }
    }

    /// Removes those in a directory whose names are `live`, or all of it where that fails; `what` they are.
    fn remove_entries(&self, what: &str, live: impl Fn(&OsStr) -> bool) -> io::Result<Option<String>> {
        let directory = remove::open_directory(self.parent.as_fd(), &self.name);
        match directory.and_then(|directory| remove::those(&directory, self.allowance, live)) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(format!("its {what} were removed"))),
            Err(_) => self.remove().map(Some),
        }
    }
}

/// Where something was moved to.
struct Aside {
    name: OsString,
    /// The end of the sentence that tells it.
    how: String,
}

/// As long as a name of five bytes is to most file systems, so that it fits where such a one was.
fn short_name() -> nix::Result<Aside> {
    let name = format!(".k{:06x}", sys::random()? & 0xff_ffff);
    Ok(Aside { how: format!("it was renamed to {name}, because it could not be removed"), name: name.into() })
}
