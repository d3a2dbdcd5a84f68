//! A name in a directory that is held open, and how Kennel takes away what is there.
//!
//! It removes what holds no data, and renames the rest. If a directory cannot be renamed, Kennel clears it
//! and takes all access rights from it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::readlinkat;
use nix::sys::stat::FileStat;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::protect::watch::{Expected, HeldDirectory, Watch};
use crate::report::denial::Basis;
use crate::report::escape::harmless;
use crate::sys;
use crate::sys::dirfd;
use crate::sys::dirfd::rename_without_replacing;
use crate::sys::inode::{FileKind, kind};
use crate::sys::remove;

/// How many new names are tried, of each form. All but the first are random.
const MOST_NAMES: u32 = 16;

/// Entries of a directory that are looked at.
const MOST_ENTRIES: usize = 1024;

/// Bytes of names in a directory that cannot be renamed: about 8000 entries are taken away one by one.
const ROOM: usize = 256 << 10;

const REMOVED: &str = "it was removed";
const GONE: &str = "it is gone";

/// A name in a directory that is held open.
pub(crate) struct ProtectedPlace {
    parent: Arc<OwnedFd>,
    name: OsString,
}

impl ProtectedPlace {
    /// The last part of `path`, in its directory. Kennel gets there from `held` without following a link.
    /// `None` if the directory does not exist.
    ///
    /// # Errors
    /// A file system was mounted on the way meanwhile. No command can have done that, so it is left alone.
    pub(crate) fn open(held: &HeldDirectory, path: &Path) -> io::Result<Option<Self>> {
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
        Ok(Some(Self { parent, name: name.to_owned() }))
    }

    /// What is there; `None` if nothing is.
    pub(crate) fn stat(&self) -> io::Result<Option<FileStat>> {
        Ok(self.stat_of(&self.name)?)
    }

    fn stat_of(&self, name: &OsStr) -> nix::Result<Option<FileStat>> {
        self.with_rights(|| dirfd::stat(&self.parent, name))
    }

    /// Tries `action`. If a command took away the user's access rights to the directory, restores them and
    /// tries again.
    fn with_rights<T>(&self, action: impl Fn() -> nix::Result<T>) -> nix::Result<T> {
        remove::with_rights(self.parent.as_fd(), action)
    }

    /// Takes away what must not be there. Returns what was done, or `None` if it may stay.
    pub(crate) fn check(&self, watch: &Watch, kind: FileKind) -> io::Result<Option<Done>> {
        let is_directory = kind == FileKind::Directory;
        let may_stay = match (&watch.expected, watch.path.file_name().and_then(OsStr::to_str)) {
            // The samples that `git init` puts there do nothing.
            (Expected::NoRepository, Some("hooks")) if is_directory => {
                self.contains_only(|name| name.as_encoded_bytes().ends_with(b".sample"))
            }
            // Older versions of git create these directories and leave them empty.
            (Expected::NoRepository, Some("branches" | "remotes")) | (Expected::NoEntry, _)
                if is_directory =>
            {
                self.contains_only(|_| false)
            }
            (Expected::NoFile, _) if is_directory => true,
            // A repository made inside needs its config. Git outside reads it, so it is kept and reported.
            (Expected::NoRepository, Some("config" | "config.worktree")) if kind == FileKind::File => {
                return Ok(Some(Done::Kept));
            }
            _ => false,
        };
        if may_stay { Ok(None) } else { self.clear().map(|what| Some(Done::Told(what))) }
    }

    /// Whether all entries of a directory are `allowed`. False if it cannot be listed or has too many.
    fn contains_only(&self, allowed: impl Fn(&OsStr) -> bool) -> bool {
        let directory = remove::open_directory(self.parent.as_fd(), &self.name);
        let Ok(mut listing) = directory.and_then(|directory| dirfd::listing(&directory)) else {
            return false;
        };
        listing.iter().enumerate().all(|(count, found)| {
            count < MOST_ENTRIES
                && found.is_ok_and(|found| dirfd::name(&found).is_none_or(|name| allowed(&name)))
        })
    }

    pub(crate) fn leads_to(&self, to: &Path) -> bool {
        let now = self.with_rights(|| readlinkat(&self.parent, self.name.as_os_str()));
        now.is_ok_and(|now| now == to.as_os_str())
    }

    /// Takes away what replaced a link, and says so.
    ///
    /// Kennel does not make the link again. A command of another sandbox may have made it, and that sandbox
    /// may have taken it away when the command ended.
    pub(crate) fn clear_replaced_link(&self, link: &Path) -> io::Result<String> {
        let what = match self.stat()? {
            Some(_) => self.clear()?,
            None => GONE.to_owned(),
        };
        Ok(format!("{what}; the link that was there led to {}", harmless(&link.to_string_lossy())))
    }

    /// Takes away what is there, whoever made it, and says how: what holds no data is removed, all else gets
    /// a name that nothing obeys.
    pub(crate) fn clear(&self) -> io::Result<String> {
        match self.take_away() {
            // Another sandbox that ends may take away the same.
            Err(_) if matches!(self.stat_of(&self.name), Ok(None)) => Ok(GONE.to_owned()),
            done => done,
        }
    }

    fn take_away(&self) -> io::Result<String> {
        let Some(stat) = self.stat()? else { return Ok(GONE.to_owned()) };
        let kind = kind(&stat);
        if let Some(how) = self.remove_without_data(&stat) {
            return Ok(how);
        }
        match self.move_aside() {
            Ok(how) => Ok(how),
            Err(error) if kind == FileKind::Directory => self.clear_and_close(error),
            Err(error) if is_no_room(error) && self.unlink(UnlinkatFlags::NoRemoveDir).is_ok() => {
                Ok("it was removed, because there was no room for another name".to_owned())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes what holds no data: an empty file or directory, a link, a node.
    fn remove_without_data(&self, stat: &FileStat) -> Option<String> {
        let (flag, how) = match kind(stat) {
            FileKind::Directory => (UnlinkatFlags::RemoveDir, REMOVED.to_owned()),
            FileKind::File if stat.st_size > 0 => return None,
            FileKind::Link => {
                (UnlinkatFlags::NoRemoveDir, format!("{REMOVED}, a link to {}", self.target()?))
            }
            FileKind::File | FileKind::Other => (UnlinkatFlags::NoRemoveDir, REMOVED.to_owned()),
        };
        self.unlink(flag).is_ok().then_some(how)
    }

    /// The text of the link.
    fn target(&self) -> Option<String> {
        let to = self.with_rights(|| readlinkat(&self.parent, self.name.as_os_str())).ok()?;
        Some(harmless(&to.to_string_lossy()).to_string())
    }

    fn unlink(&self, flag: UnlinkatFlags) -> nix::Result<()> {
        self.with_rights(|| unlinkat(&self.parent, self.name.as_os_str(), flag))
    }

    /// Gives it a name that nothing obeys, and says which.
    fn move_aside(&self) -> nix::Result<String> {
        match self.move_to(|number| self.long_name(number)) {
            Err(error) if is_no_room(error) => self.move_to(|_| short_name()),
            moved => moved,
        }
    }

    fn long_name(&self, number: u32) -> nix::Result<OsString> {
        let mut name = self.name.clone();
        name.push(".refused-by-kennel.");
        match number {
            0 => name.push("0"),
            // A command that took the first name could foresee the second. Random names it cannot foresee.
            _ => name.push(format!("{:016x}", sys::random()?)),
        }
        Ok(name)
    }

    fn move_to(&self, name: impl Fn(u32) -> nix::Result<OsString>) -> nix::Result<String> {
        for number in 0..MOST_NAMES {
            let aside = name(number)?;
            match self.with_rights(|| rename_without_replacing(&self.parent, &self.name, &aside)) {
                Err(Errno::EEXIST) => {}
                moved => {
                    let how = format!("it was renamed to {}", harmless(&aside.to_string_lossy()));
                    return moved.map(|()| how);
                }
            }
        }
        Err(Errno::EEXIST)
    }

    /// Clears a directory that cannot be renamed because of `error`, and takes all access rights from it.
    fn clear_and_close(&self, error: Errno) -> io::Result<String> {
        let directory = remove::open_directory(self.parent.as_fd(), &self.name).map_err(|_| error)?;
        let directory = Arc::new(directory);
        for name in dirfd::first_names(&directory, ROOM)? {
            let entry = Self { parent: Arc::clone(&directory), name };
            let Ok(Some(stat)) = entry.stat() else { continue };
            if entry.remove_without_data(&stat).is_none() && entry.move_aside().is_err() {
                // If there is no room for another name, it is removed even if it holds data.
                let _ = entry.unlink(UnlinkatFlags::NoRemoveDir);
            }
        }
        // Clearing it may have made room.
        self.move_aside().or_else(|error| {
            remove::close_access(directory.as_fd())?;
            Err(io::Error::other(format!("{}; its mode is 0 now", io::Error::from(error))))
        })
    }
}

/// Whether there is no room for a longer name, in any directory or in this one.
fn is_no_room(error: Errno) -> bool {
    matches!(error, Errno::ENAMETOOLONG | Errno::ENOSPC | Errno::EDQUOT)
}

/// A random name that most file systems store in the space of a name of five bytes.
fn short_name() -> nix::Result<OsString> {
    Ok(format!(".k{:06x}", sys::random()? & 0xff_ffff).into())
}

/// What was done about a change.
#[derive(Debug)]
pub(crate) enum Done {
    /// It was undone, or could not be. The text ends a sentence.
    Told(String),
    /// The configuration of a new repository was kept.
    Kept,
}

impl Done {
    pub(crate) fn words(&self) -> &str {
        match self {
            Self::Told(what) => what,
            Self::Kept => "it was kept, because its directory is new: look at it before you trust it",
        }
    }

    pub(crate) fn basis(&self) -> Basis {
        match self {
            Self::Told(_) => Basis::Observed,
            Self::Kept => Basis::Kept,
        }
    }
}
