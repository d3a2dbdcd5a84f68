//! Symbolic links in a repository. Git outside opens much of what it writes or deletes there by name (`logs/HEAD`,
//! `COMMIT_EDITMSG`, `objects/info/commit-graph`, `worktrees/NAME`), and so goes where a link leads, with its user's rights: a
//! command that lays one decides which file outside of its grants is written.
//!
//! Under whatever name a link stays, git may come by it. So none is renamed: it is removed, and told with where it led, which is
//! all there is to a link.

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
    fcntl::{OFlag, readlinkat},
    sys::stat::{FileStat, Mode},
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{Allowance, Held, remove};
use crate::{
    below::{self, FileKind, Identity, change_mode, kind, mode_of, names, open_up, rights},
    failure::{self, shown},
    harmless::harmless,
};

/// How long one repository is looked through: some ten thousand directories take a tenth of it.
const MOST_TIME: Duration = Duration::from_secs(1);

/// Bytes of names that are kept meanwhile.
const ROOM: usize = 1 << 24;

/// Closed directories that are opened up for a look. Nobody has so many.
const MOST_OPENED: usize = 64;

/// A repository as it was when a sandbox was prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    /// The links in it, which are the user's.
    links: BTreeMap<PathBuf, Seen>,
    is_there: bool,
    /// Names in it that are protected, and looked after as such.
    passes: &'static [&'static str],
}

/// What tells a link from another with its name: nothing changes one that nobody touches.
type Seen = (Identity, (i64, i64));

fn seen(stat: &FileStat) -> Seen {
    (Identity::of(stat), (stat.st_ctime, stat.st_ctime_nsec))
}

impl Known {
    /// The links in the repository at `path` now. What in it is closed, or too much, is not known; nothing is changed.
    pub(crate) fn of(path: &Path, passes: &'static [&'static str]) -> nix::Result<Self> {
        let how = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let top = match nix::fcntl::open(path, how, Mode::empty()) {
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES) => {
                return Ok(Self { passes, ..Self::default() });
            }
            top => top?,
        };
        let mut links = BTreeMap::new();
        let look = Look::at(top, passes, false);
        // Whatever ends it early: what is not known here is judged by its times.
        let _ = look.through(&mut |link| {
            links.insert(link.way(), seen(&link.stat));
            Ok(())
        });
        Ok(Self { links, is_there: true, passes })
    }
}

/// Removes the links in the repository at `path` that a command laid, or moved, there: all but those that are `known`. Says
/// which was the first, and what became of them.
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
    let name = if below.as_os_str().is_empty() { OsStr::new(".") } else { below.as_os_str() };
    let top = match remove::step(held.directory().as_fd(), name, OFlag::O_PATH) {
        Err(errno) if is_elsewhere(errno) => return Ok(None),
        top => top?,
    };
    let (mut first, mut others, mut failed) = (None, 0_u32, None);
    let look = Look::at(top, known.passes, true);
    let looked = look.through(&mut |link| {
        match link.judge(known, allowance) {
            Ok(None) => {}
            Ok(Some(to)) if first.is_none() => first = Some((path.join(link.way()), to)),
            Ok(Some(_)) => others += 1,
            Err(error) => failed = failed.take().or(Some(error)),
        }
        Ok(())
    });
    let removed = first.map(|(path, to)| {
        let rest = if others > 0 { format!("; so were {others} others") } else { String::new() };
        (path, format!("it was removed{rest}; it led to {to}"))
    });
    match (looked.err().or(failed), removed) {
        (None, removed) => Ok(removed),
        (Some(error), None) => Err(error),
        (Some(error), Some((path, what))) => {
            Err(io::Error::other(format!("{}; of {} {what}", failure::words(&error), shown(&path))))
        }
    }
}

/// A look through a repository.
struct Look {
    top: OwnedFd,
    passes: &'static [&'static str],
    /// Whether closed directories are opened up meanwhile.
    opens: bool,
    opened: RefCell<Vec<(OwnedFd, Mode)>>,
    room: Cell<usize>,
    until: Option<Instant>,
}

/// A directory that is to be looked at.
struct Next {
    way: PathBuf,
    /// When one on the way was changed last, its own top aside: it may have been moved there.
    changed: (i64, i64),
}

/// A link that was come by.
struct Link<'l> {
    directory: &'l OwnedFd,
    around: &'l Next,
    name: &'l OsStr,
    stat: FileStat,
}

impl Look {
    fn at(top: OwnedFd, passes: &'static [&'static str], opens: bool) -> Self {
        let until = Instant::now().checked_add(MOST_TIME);
        Self { top, passes, opens, opened: RefCell::default(), room: Cell::new(ROOM), until }
    }

    /// Comes by every link, those nearest to the top first.
    fn through(&self, visit: &mut dyn FnMut(&Link<'_>) -> io::Result<()>) -> io::Result<()> {
        let mut level = vec![Next { way: PathBuf::new(), changed: (i64::MIN, 0) }];
        while !level.is_empty() {
            let mut below = Vec::new();
            for mut next in level {
                let Some((directory, stat)) = self.open(&next.way)? else { continue };
                if !next.way.as_os_str().is_empty() {
                    next.changed = next.changed.max((stat.st_ctime, stat.st_ctime_nsec));
                }
                self.entries(&directory, &next, &mut below, visit)?;
            }
            level = below;
        }
        Ok(())
    }

    fn entries(
        &self,
        directory: &OwnedFd,
        around: &Next,
        below: &mut Vec<Next>,
        visit: &mut dyn FnMut(&Link<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let is_top = around.way.as_os_str().is_empty();
        for found in names::listing(directory)?.iter() {
            let found = found?;
            let Some(name) = names::name(&found) else { continue };
            if is_top && self.passes.iter().any(|pass| *pass == name) {
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
                    let stat = below::stat(directory, &name)?.filter(|stat| kind(stat) == FileKind::Link);
                    if let Some(stat) = stat {
                        visit(&Link { directory, around, name: &name, stat })?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A directory, and what it was before it was opened. `None` where there is none, or nobody but its owner gets there.
    fn open(&self, way: &Path) -> io::Result<Option<(OwnedFd, FileStat)>> {
        let name = if way.as_os_str().is_empty() { OsStr::new(".") } else { way.as_os_str() };
        let step = |access| match remove::step(self.top.as_fd(), name, access) {
            Err(errno) if errno == Errno::EACCES || is_elsewhere(errno) => Ok(None),
            opened => opened.map(Some),
        };
        if let Some(opened) = step(OFlag::O_RDONLY)?
            // Not everybody who may read the names gets to what has them.
            && let Ok(Some(stat)) = below::stat(&opened, OsStr::new("."))
        {
            return Ok(Some((opened, stat)));
        }
        let Some(closed) = step(OFlag::O_PATH)?.filter(|_| self.opens) else { return Ok(None) };
        let Ok(before) = rights::of_a_command(|| Ok(open_up(&closed)?)) else { return Ok(None) };
        let mut opened = self.opened.borrow_mut();
        opened.push((closed, mode_of(&before)));
        if opened.len() > MOST_OPENED {
            return Err(too_much());
        }
        Ok(step(OFlag::O_RDONLY)?.map(|opened| (opened, before)))
    }

    fn take_room(&self, name: &Path) -> io::Result<()> {
        let left = self.room.get().checked_sub(names::bytes(name.as_os_str())).ok_or_else(too_much)?;
        self.room.set(left);
        if self.until.is_some_and(|until| Instant::now() >= until) { Err(too_much()) } else { Ok(()) }
    }
}

/// Closes again what was opened up.
impl Drop for Look {
    fn drop(&mut self) {
        for (directory, mode) in self.opened.borrow_mut().drain(..).rev() {
            let _ = rights::of_a_command(|| Ok(change_mode(&directory, mode)?));
        }
    }
}

impl Link<'_> {
    fn way(&self) -> PathBuf {
        self.around.way.join(self.name)
    }

    /// Removes it where a command laid or moved it there, and says where it led.
    fn judge(&self, known: &Known, allowance: &Allowance) -> io::Result<Option<String>> {
        let way = self.way();
        let seen = seen(&self.stat);
        let is_older = !allowance.is_reached_by(seen.1) && !allowance.is_reached_by(self.around.changed);
        if known.links.get(&way) == Some(&seen) || known.is_there && is_older {
            return Ok(None);
        }
        let to = match readlinkat(self.directory, self.name) {
            Err(Errno::ENOENT | Errno::EINVAL) => return Ok(None),
            to => to?,
        };
        if is_head(&way) && is_branch(&to) {
            return Ok(None);
        }
        let unlink = || unlinkat(self.directory, self.name, UnlinkatFlags::NoRemoveDir);
        match rights::of_a_command(|| Ok(remove::with_rights(self.directory.as_fd(), unlink)?)) {
            // Another sandbox that ends undoes the same.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            removed => removed.map(|()| Some(harmless(&to.to_string_lossy()).to_string())),
        }
    }
}

/// Whether an answer of openat2(2) says that there is no such directory, or git cannot name it either, or something is
/// mounted there.
fn is_elsewhere(errno: Errno) -> bool {
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

/// Whether it is the HEAD of a repository or a worktree, and not a log.
fn is_head(way: &Path) -> bool {
    way.ends_with("HEAD") && !way.iter().any(|part| part == "logs" || part == "refs")
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
