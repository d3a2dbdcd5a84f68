//! A look through a repository, for the links in it and for what git reads without a look of its own.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    dir::{Entry, Type},
    errno::Errno,
    fcntl::OFlag,
    sys::stat::{FileStat, Mode},
};

use super::{Moment, contents, remove};
use crate::below::{self, FileKind, Identity, change_mode, kind, mode_of, names, open_up, rights};

/// How long one repository is looked through: some ten thousand directories take a tenth of it.
const MOST_TIME: Duration = Duration::from_secs(1);

/// Bytes of names that are kept meanwhile.
const ROOM: usize = 1 << 24;

/// Directories that are known afterwards, each for some hundred bytes.
const MOST_KNOWN: usize = 1 << 12;

/// Closed directories that are opened up for a look. Nobody has so many.
const MOST_OPENED: usize = 64;

/// What tells a thing from another that has its name: device, inode, and when it was changed.
pub(super) type Seen = (Identity, (i64, i64));

/// Directories as they were, and those in each.
pub(super) type Directories = BTreeMap<PathBuf, (Seen, Vec<PathBuf>)>;

/// Lists of names.
pub(crate) type Names = &'static [&'static [&'static str]];

fn seen(stat: &FileStat) -> Seen {
    (Identity::of(stat), (stat.st_ctime, stat.st_ctime_nsec))
}

/// A look through a repository.
pub(super) struct Look<'k> {
    top: OwnedFd,
    known: &'k Directories,
    passes: Names,
    /// Of the first look: what has not changed since is known afterwards. Any later one opens up what is closed.
    first: Option<Moment>,
    pub(super) settled: RefCell<Directories>,
    opened: RefCell<Vec<(OwnedFd, Mode)>>,
    room: Cell<usize>,
    until: Option<Instant>,
}

/// A directory that is to be looked at.
pub(super) struct Next {
    way: PathBuf,
    /// When one on the way was changed last, its own top aside: it may have been moved there.
    changed: (i64, i64),
}

impl Next {
    fn is_top(&self) -> bool {
        self.way.as_os_str().is_empty()
    }
}

/// A way as system calls take it.
pub(super) fn named(way: &Path) -> &OsStr {
    if way.as_os_str().is_empty() { OsStr::new(".") } else { way.as_os_str() }
}

/// A link, or a file that may decide where git goes, that was come by.
pub(super) struct Found<'l> {
    pub(super) repository: &'l OwnedFd,
    pub(super) directory: &'l OwnedFd,
    around: &'l Next,
    pub(super) name: &'l OsStr,
    pub(super) is_link: bool,
    pub(super) seen: Seen,
}

impl<'k> Look<'k> {
    pub(super) fn at(top: OwnedFd, (known, passes): (&'k Directories, Names), first: Option<Moment>) -> Self {
        let until = Instant::now().checked_add(MOST_TIME);
        let (settled, opened) = (RefCell::default(), RefCell::default());
        Self { top, known, passes, first, settled, opened, room: Cell::new(ROOM), until }
    }

    /// Comes by every link and such file, those nearest to the top first.
    pub(super) fn through(&self, visit: &mut dyn FnMut(&Found<'_>)) -> io::Result<()> {
        let mut level = vec![Next { way: PathBuf::new(), changed: (i64::MIN, 0) }];
        while !level.is_empty() {
            let mut below = Vec::new();
            for next in level {
                if let Some(inside) = self.unchanged(&next.way) {
                    below.extend(inside.iter().map(|way| Next { way: way.clone(), changed: next.changed }));
                    continue;
                }
                let Some((directory, seen)) = self.open(&next.way)? else { continue };
                let begun = below.len();
                let changed = if next.is_top() { next.changed } else { next.changed.max(seen.1) };
                let next = Next { changed, ..next };
                match self.entries(&directory, &next, &mut below, visit) {
                    // Somebody removed the directory meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                    // A file changes, and the directory that it lies in does not.
                    Ok(true) => {}
                    Ok(false) => self.keep(next.way, seen, &below[begun..]),
                }
            }
            level = below;
        }
        Ok(())
    }

    /// What is in a directory that is as it was. One that was moved there has changed by that.
    fn unchanged(&self, way: &Path) -> Option<&[PathBuf]> {
        let (was, inside) = self.known.get(way)?;
        let now = below::stat(&self.top, named(way)).ok()??;
        (seen(&now) == *was).then_some(inside)
    }

    fn keep(&self, way: PathBuf, seen: Seen, inside: &[Next]) {
        let mut settled = self.settled.borrow_mut();
        // Times without a fraction may be those of a file system that keeps no more than seconds.
        let is_settled = self.first.is_some_and(|since| seen.1.1 != 0 && !since.is_reached_by(seen.1));
        if is_settled && settled.len() < MOST_KNOWN {
            settled.insert(way, (seen, inside.iter().map(|next| next.way.clone()).collect()));
        }
    }

    /// Says whether there may be files that decide.
    fn entries(
        &self,
        directory: &OwnedFd,
        around: &Next,
        below: &mut Vec<Next>,
        visit: &mut dyn FnMut(&Found<'_>),
    ) -> io::Result<bool> {
        let decides = contents::decide(directory, &around.way)?;
        for found in names::listing(directory)?.iter() {
            let found = found?;
            let Some(name) = names::name(&found) else { continue };
            if around.is_top() && self.passes.iter().copied().flatten().any(|pass| *pass == name) {
                continue;
            }
            match kind_of(directory, &found)? {
                FileKind::Directory if !is_of_objects(&around.way, &name) => {
                    let way = around.way.join(name);
                    self.take_room(&way)?;
                    below.push(Next { way, changed: around.changed });
                }
                FileKind::Link => {
                    self.take_room(Path::new(&name))?;
                    self.come_by((directory, around, &name), FileKind::Link, visit)?;
                }
                // What was there at first is the user's, whatever it says.
                FileKind::File if decides && self.first.is_none() => {
                    self.take_room(Path::new(&name))?;
                    self.come_by((directory, around, &name), FileKind::File, visit)?;
                }
                _ => {}
            }
        }
        Ok(decides)
    }

    /// Visits what has that name, while it is of that kind.
    fn come_by(
        &self,
        (directory, around, name): (&OwnedFd, &Next, &OsStr),
        wanted: FileKind,
        visit: &mut dyn FnMut(&Found<'_>),
    ) -> nix::Result<()> {
        if let Some(stat) = below::stat(directory, name)?.filter(|stat| kind(stat) == wanted) {
            let (repository, is_link) = (&self.top, wanted == FileKind::Link);
            visit(&Found { repository, directory, around, name, is_link, seen: seen(&stat) });
        }
        Ok(())
    }

    /// A directory, and what it was before it was opened. `None` where there is none, or nobody but its owner gets there.
    fn open(&self, way: &Path) -> io::Result<Option<(OwnedFd, Seen)>> {
        let step = |access| match remove::step(self.top.as_fd(), named(way), access) {
            Err(errno) if errno == Errno::EACCES || is_elsewhere(errno) => Ok(None),
            opened => opened.map(Some),
        };
        if let Some(opened) = step(OFlag::O_RDONLY)?
            // Not everybody who may read the names gets to what has them.
            && let Ok(Some(stat)) = below::stat(&opened, OsStr::new("."))
        {
            return Ok(Some((opened, seen(&stat))));
        }
        let Some(closed) = step(OFlag::O_PATH)?.filter(|_| self.first.is_none()) else { return Ok(None) };
        let Ok(before) = rights::of_a_command(|| Ok(open_up(&closed)?)) else { return Ok(None) };
        let mut opened = self.opened.borrow_mut();
        opened.push((closed, mode_of(&before)));
        if opened.len() > MOST_OPENED {
            return Err(too_much());
        }
        Ok(step(OFlag::O_RDONLY)?.map(|opened| (opened, seen(&before))))
    }

    fn take_room(&self, name: &Path) -> io::Result<()> {
        let left = self.room.get().checked_sub(names::bytes(name.as_os_str())).ok_or_else(too_much)?;
        self.room.set(left);
        if self.until.is_some_and(|until| Instant::now() >= until) { Err(too_much()) } else { Ok(()) }
    }
}

/// Closes again what was opened up.
impl Drop for Look<'_> {
    fn drop(&mut self) {
        for (directory, mode) in self.opened.borrow_mut().drain(..).rev() {
            let _ = rights::of_a_command(|| Ok(change_mode(&directory, mode)?));
        }
    }
}

impl Found<'_> {
    /// From the top.
    pub(super) fn way(&self) -> PathBuf {
        self.around.way.join(self.name)
    }

    /// When a directory around it was changed last.
    pub(super) fn changed(&self) -> (i64, i64) {
        self.around.changed
    }
}

/// Whether an answer of openat2(2) says that there is no such directory, or git cannot name it either, or something is
/// mounted there.
pub(super) fn is_elsewhere(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG | Errno::EXDEV)
}

/// Directories with objects are many, and what git puts there says its name by its contents.
fn is_of_objects(around: &Path, name: &OsStr) -> bool {
    let has_two_digits = name.len() == 2 && name.as_bytes().iter().all(u8::is_ascii_hexdigit);
    has_two_digits && around.ends_with("objects") && !around.iter().any(|part| part == "refs")
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

fn too_much() -> io::Error {
    io::Error::other("there is too much in it to look through: `find` with `-type l` lists links")
}
