//! Symbolic links in a repository. Git outside opens much of what it writes there by name (`logs/HEAD`, `COMMIT_EDITMSG`,
//! `FETCH_HEAD`), and so writes where a link leads, with its user's rights: a command that lays one decides which file
//! outside of its grants gets a line of its choice.
//!
//! Nothing is opened up to be looked at: what is closed to whoever looks is closed to git too.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    dir::{Entry, Type},
    errno::Errno,
    fcntl::{OFlag, readlinkat},
};

use super::{Allowance, Held, place::Place, remove};
use crate::below::{self, FileKind, kind, names, rights};

/// Directories of one repository that are looked at: some 200 ms. Most have a few dozen, and as many for each submodule.
const MOST_DIRECTORIES: usize = 1 << 16;

/// Bytes of their names that are kept meanwhile.
const ROOM: usize = 1 << 23;

/// Links that lie directly in a repository, by their names, and where they lead.
pub(crate) type Known = Vec<(PathBuf, PathBuf)>;

/// The links that lie directly in `repository`: those are the user's. Who lays others out in a repository, as
/// git-new-workdir does, lays them there.
///
/// # Errors
/// It cannot be listed.
pub(crate) fn known(repository: &OwnedFd) -> io::Result<Known> {
    let mut known = Known::new();
    for found in names::listing(repository)?.iter() {
        let found = found?;
        let Some(name) = names::name(&found).filter(|_| found.file_type() == Some(Type::Symlink)) else {
            continue;
        };
        let to = readlinkat(repository, name.as_os_str())?;
        known.push((name.into(), to.into()));
    }
    known.sort();
    Ok(known)
}

/// Takes away the links in the repository at `path` that a command laid, or moved, there: all but those that are `known`.
/// Says which was the first, and what became of them.
///
/// # Errors
/// One cannot be taken away; there is too much to look at.
pub(super) fn take_away(
    held: &Held,
    path: &Path,
    known: &Known,
    allowance: &Allowance,
) -> io::Result<Option<(PathBuf, String)>> {
    let repository = Repository { held, path, known, allowance };
    let (mut first, mut others) = (None, 0_u32);
    for way in repository.links()? {
        let Some(how) = repository.judge(&way)? else { continue };
        match first {
            None => first = Some((path.join(way), how)),
            Some(_) => others += 1,
        }
    }
    Ok(first.map(|(path, how)| match others {
        0 => (path, how),
        others => (path, format!("{how}; so were {others} others")),
    }))
}

struct Repository<'r> {
    held: &'r Held,
    path: &'r Path,
    known: &'r Known,
    allowance: &'r Allowance,
}

impl Repository<'_> {
    /// The ways to all links in it, in the order in which they were found.
    fn links(&self) -> io::Result<Vec<PathBuf>> {
        let (mut links, mut directories, mut room) = (Vec::new(), vec![PathBuf::new()], ROOM);
        for _ in 0..MOST_DIRECTORIES {
            let Some(way) = directories.pop() else { return Ok(links) };
            let Some(directory) = self.open(&way)? else { continue };
            let (inside, here) = match entries(&directory, &way) {
                // Its names can be had, and nothing that has one.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
                found => found?,
            };
            for way in inside.iter().chain(&here) {
                room = room.checked_sub(names::bytes(way.as_os_str())).ok_or_else(too_much)?;
            }
            directories.extend(inside);
            links.extend(here);
        }
        Err(too_much())
    }

    /// `None` where there is no such directory, or git gets there no more than we do.
    fn open(&self, way: &Path) -> io::Result<Option<OwnedFd>> {
        let below = self.held.below(self.path)?.join(way);
        let name = if below.as_os_str().is_empty() { OsStr::new(".") } else { below.as_os_str() };
        match remove::step(self.held.directory().as_fd(), name, OFlag::O_RDONLY) {
            Err(
                Errno::ENOENT
                | Errno::ENOTDIR
                | Errno::ELOOP
                | Errno::ENAMETOOLONG
                | Errno::EACCES
                | Errno::EXDEV,
            ) => Ok(None),
            opened => Ok(Some(opened?)),
        }
    }

    /// Takes a link away that a command laid there, and says how.
    fn judge(&self, way: &Path) -> io::Result<Option<String>> {
        let path = self.path.join(way);
        let Some(place) = Place::of(self.held, &path, self.allowance)? else { return Ok(None) };
        if !place.stat()?.is_some_and(|stat| kind(&stat) == FileKind::Link) || self.is_known(way, &place) {
            return Ok(None);
        }
        // What was there before was given such a name, in a directory that has changed since. A branch can have one of them.
        let is_aside = place.is_aside() && (!has_names_of_branches(way) || is_hidden(way));
        if place.is_new()? || self.was_moved(&path)? && !is_aside {
            return rights::of_a_command(|| place.remove()).map(Some);
        }
        Ok(None)
    }

    fn is_known(&self, way: &Path, place: &Place<'_>) -> bool {
        let was_there = self.known.iter().any(|(name, to)| name == way && place.leads_to(to));
        was_there || way.ends_with("HEAD") && !has_names_of_branches(way) && place.leads(is_branch)
    }

    /// Whether a directory around it was changed since, the repository's own included: what lies there may have been moved
    /// there, with a link in it that is older than the command.
    fn was_moved(&self, path: &Path) -> io::Result<bool> {
        for around in path.ancestors().skip(1).take_while(|around| around.starts_with(self.path)) {
            let held = self.held.below(around)?;
            let name = if held.as_os_str().is_empty() { OsStr::new(".") } else { held.as_os_str() };
            let times = match remove::times(self.held.directory().as_fd(), name) {
                Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
                times => times?,
            };
            if self.allowance.is_changed(&times) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The directories and links in a directory of a repository, by their ways from that.
///
/// Those that objects are in are passed over, by the thousand and with contents that say their names; unless it is the
/// repository of a submodule that is called so.
fn entries(directory: &OwnedFd, way: &Path) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let (mut directories, mut links, mut is_repository) = (Vec::new(), Vec::new(), false);
    for found in names::listing(directory)?.iter() {
        let found = found?;
        let Some(name) = names::name(&found) else { continue };
        is_repository |= name == "HEAD";
        match kind_of(directory, &found)? {
            FileKind::Directory => directories.push(way.join(name)),
            FileKind::Link => links.push(way.join(name)),
            FileKind::File | FileKind::Other => {}
        }
    }
    if is_of_objects(way) && !is_repository {
        directories.clear();
    }
    Ok((directories, links))
}

fn is_of_objects(way: &Path) -> bool {
    way.ends_with("objects") && !has_names_of_branches(way)
}

/// Whether it lies where names are those of branches, which are anybody's choice.
fn has_names_of_branches(way: &Path) -> bool {
    way.iter().any(|part| part == "refs")
}

/// Whether its name begins with a dot, as that of no branch does: git-check-ref-format(1).
fn is_hidden(way: &Path) -> bool {
    way.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."))
}

/// What an entry is. Not every file system tells it with the name.
fn kind_of(directory: &OwnedFd, found: &Entry) -> nix::Result<FileKind> {
    Ok(match found.file_type() {
        Some(Type::Directory) => FileKind::Directory,
        Some(Type::Symlink) => FileKind::Link,
        Some(Type::File) => FileKind::File,
        Some(_) => FileKind::Other,
        None => {
            let name = OsStr::from_bytes(found.file_name().to_bytes());
            below::stat(directory, name)?.map_or(FileKind::Other, |stat| kind(&stat))
        }
    })
}

/// Whether git takes a link at `HEAD` for the name of a branch, and does not follow it.
fn is_branch(to: &OsStr) -> bool {
    let to = to.as_bytes();
    let has_dots = to.split(|byte| *byte == b'/').any(|part| part.starts_with(b".") || part.is_empty());
    to.starts_with(b"refs/") && !has_dots
}

fn too_much() -> io::Error {
    io::Error::other("there is too much in it to look for links: `find` with `-type l` lists them")
}
