//! Applying changes to the workspace, one after the other, parents first, deletions last. What is refused keeps no other
//! from being applied, but what lies in it; what fails, a full disk, keeps anything from being deleted.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, readlinkat},
    sys::{
        stat::{FchmodatFlags, FileStat, Mode, UtimensatFlags, fchmod, fchmodat, fstat, futimens, utimensat},
        time::TimeSpec,
    },
    unistd::{AccessFlags, faccessat},
};
use xattr::FileExt;

use super::{
    Committed, Refusal, Refused,
    compare::{self, ORDINARY},
    ledger::{Ledger, State, changed, modified},
    never::Becomes,
    place::{self, Temporary},
    scan::{Found, OPAQUE},
    tree::{self, Changed, Tree},
};
use crate::files::{FileKind, kind};

/// The access list of a file, as the kernel keeps it.
const ACCESS_LIST: &str = "system.posix_acl_access";

struct Commit<'c> {
    ledger: &'c Ledger,
    changed: &'c Changed<'c>,
    workspace: Tree<'c>,
    /// Whether `.git` was not there.
    is_new: bool,
    /// Modes that directories get once everything in them is done.
    modes: Vec<Opened>,
    /// Directories that this commit made, by what they are.
    made: HashMap<PathBuf, (u64, u64)>,
}

/// Applies what was found, in the order of its paths.
pub(super) fn commit(
    ledger: &Ledger,
    state: &mut State,
    changed: &Changed<'_>,
    found: Vec<Found>,
) -> Committed {
    let workspace = ledger.workspace();
    let is_new = matches!(workspace.stat(Path::new(".git")), Ok(None));
    let mut commit = Commit { ledger, changed, workspace, is_new, modes: Vec::new(), made: HashMap::new() };
    // What a command moved is a deletion and an addition: nothing goes before all that can come has come.
    let (puts, deletions): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|found| found.upper.is_some() || found.unreadable.is_some());
    let mut done = Committed::default();
    let failed = commit.puts(puts, state, &mut done);
    for found in deletions {
        let applied = commit.deletion(&found, failed, state);
        done.add(&found, applied);
    }
    commit.finish(state);
    done.applied.sort_by(|one, other| one.path.cmp(&other.path));
    done.refused.sort_by(|one, other| one.change.path.cmp(&other.change.path));
    done
}

impl Committed {
    fn add(&mut self, found: &Found, applied: Result<(), Refusal>) {
        let change = found.change();
        match applied {
            Ok(()) => self.applied.push(change),
            Err(refusal) => self.refused.push(Refused { change, refusal }),
        }
    }
}

impl Commit<'_> {
    /// Applies all but deletions; answers why the first that failed did.
    fn puts(&mut self, puts: Vec<Found>, state: &mut State, done: &mut Committed) -> Option<Refusal> {
        let mut failed = None;
        // The last directory that was not made, and why.
        let mut without: Option<(PathBuf, Refusal)> = None;
        for found in puts {
            let above = without.as_ref().filter(|(above, _)| found.path.starts_with(above));
            let (is_above, applied) = match above {
                Some((_, refusal)) => (true, Err(*refusal)),
                None => (false, self.one(&found, state)),
            };
            if let Err(refusal) = applied {
                if matches!(refusal, Refusal::Failed(_)) {
                    failed = failed.or(Some(refusal));
                }
                let is_there = found.lower.as_ref().is_some_and(|lower| kind(lower) == FileKind::Directory);
                if !is_above && !is_there && found.file == FileKind::Directory && found.upper.is_some() {
                    without = Some((found.path.clone(), refusal));
                }
            }
            done.add(&found, applied);
        }
        failed
    }

    /// What would be refused anyway says why; what would not, that something else has failed.
    fn deletion(&mut self, found: &Found, failed: Option<Refusal>, state: &mut State) -> Result<(), Refusal> {
        match failed {
            Some(refusal) => self.check(found, state).and(Err(refusal)),
            None => self.one(found, state),
        }
    }

    /// Whether it may be applied.
    fn check(&self, found: &Found, state: &State) -> Result<(), Refusal> {
        let path = &*found.path;
        if let Some(errno) = found.unreadable {
            return Err(errno.into());
        }
        if self.ledger.never().iter().any(|never| never.forbids(path, becomes(found), self.is_new)) {
            return Err(Refusal::Protected);
        }
        if found.conflict || !self.is_as_it_was(found, state)? {
            return Err(Refusal::Conflict);
        }
        Ok(())
    }

    fn one(&mut self, found: &Found, state: &mut State) -> Result<(), Refusal> {
        self.check(found, state)?;
        let path = &*found.path;
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        self.leave(path, state);
        let parent = self.parent(found)?;
        let above = Above::of(path, &parent, state)?;
        let lower = found.lower.as_ref();
        let others = Others::of(found, &parent, name)?;
        let Some(upper) = &found.upper else {
            if let Some(lower) = lower {
                place::remove(parent, name, path, lower, state)?;
            }
            state.record(path, None, (None, false));
            above.record(state)?;
            return others.record(state);
        };
        let mut made = false;
        let held = above.held.as_fd();
        match found.file {
            FileKind::File => self.file(path, upper, lower, parent)?.put(name, path, lower, state)?,
            FileKind::Link => self.link(path, upper, parent)?.put(name, path, lower, state)?,
            FileKind::Directory => {
                made = !lower.is_some_and(|lower| kind(lower) == FileKind::Directory);
                match lower.filter(|_| !made) {
                    Some(lower) => self.directory(path, (upper, lower), &parent)?,
                    None => self.new_directory(found, upper, parent, state)?,
                }
            }
            FileKind::Other => return Err(Refusal::Unsupported),
        }
        state.record(path, tree::stat(held, name)?, (Some(upper), made));
        above.record(state)?;
        others.record(state)
    }

    /// The directory that `path` lies in. A command that wrote in one whose owner may not has opened it up meanwhile; so
    /// is it here. It is the one that was looked at, or that we made: another one may be anybody's.
    fn parent(&mut self, found: &Found) -> Result<OwnedFd, Refusal> {
        let parent = self.workspace.parent(&found.path)?;
        let path = found.path.parent().unwrap_or(Path::new(""));
        let stat = fstat(&parent)?;
        if self.made.get(path).copied().or(found.above) != Some((stat.st_dev, stat.st_ino)) {
            return Err(Refusal::Conflict);
        }
        let closed = Err(Errno::EACCES);
        if faccessat(&parent, ".", AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS) == closed {
            let last = Mode::from_bits_truncate(stat.st_mode & 0o7777);
            change_mode(&parent, last | Mode::S_IRWXU)?;
            self.modes.push(Opened { path: path.to_owned(), held: parent.try_clone()?, last });
        }
        Ok(parent)
    }

    /// Whether nobody has changed the workspace there since it was looked at.
    fn is_as_it_was(&self, found: &Found, state: &State) -> io::Result<bool> {
        let now = self.workspace.stat(&found.path)?;
        Ok(match (&now, &found.lower) {
            (None, None) => true,
            (Some(now), Some(lower)) => {
                let is_directory = kind(now) == FileKind::Directory;
                (now.st_dev, now.st_ino, now.st_mode) == (lower.st_dev, lower.st_ino, lower.st_mode)
                    && (is_directory || changed(now) == changed(lower) || state.is_unlinked(now))
            }
            _ => false,
        })
    }

    /// A copy of what a command wrote, under a name of ours.
    fn file(
        &self,
        path: &Path,
        upper: &FileStat,
        lower: Option<&FileStat>,
        parent: OwnedFd,
    ) -> Result<Temporary, Refusal> {
        let ours = File::from(self.changed.read(path)?);
        let (temporary, file) = Temporary::file(parent)?;
        copy(&ours, &file)?;
        for (name, value) in compare::attributes(&ours.into())? {
            file.set_xattr(name, &value)?;
        }
        if lower.is_some_and(|lower| kind(lower) == FileKind::File) {
            match self.access_list(path)? {
                Some(list) => file.set_xattr(ACCESS_LIST, &list)?,
                // That of its directory, which the one that is there has not got.
                None => drop(without_attribute(file.remove_xattr(ACCESS_LIST))?),
            }
        }
        fchmod(&file, mode(upper))?;
        let [accessed, modified] = times(upper);
        futimens(&file, &accessed, &modified)?;
        Ok(temporary)
    }

    /// The access list of a file of the workspace, which it keeps.
    fn access_list(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let held = self.workspace.open(path, OFlag::O_PATH)?;
        let list = xattr::get_deref(format!("/proc/self/fd/{}", held.as_raw_fd()), ACCESS_LIST);
        Ok(without_attribute(list)?.flatten())
    }

    fn link(&self, path: &Path, upper: &FileStat, parent: OwnedFd) -> Result<Temporary, Refusal> {
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        let to = readlinkat(self.changed.tree.parent(path)?, name)?;
        let temporary = Temporary::link(parent, &to)?;
        let [accessed, modified] = times(upper);
        temporary.set_times(&accessed, &modified)?;
        Ok(temporary)
    }

    /// Makes a directory. It stays open to us until all that lies in it is done.
    fn new_directory(
        &mut self,
        found: &Found,
        upper: &FileStat,
        parent: OwnedFd,
        state: &State,
    ) -> Result<(), Refusal> {
        let path = &*found.path;
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        let temporary = Temporary::directory(parent)?;
        let (root, own) = temporary.place();
        let held = Tree { root: root.as_fd() }.open(Path::new(own), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let ours = self.changed.list(path)?;
        set_attributes(&compare::attributes(&ours)?, &held)?;
        temporary.put(name, path, found.lower.as_ref(), state)?;
        // What is taken out of it from now on must not shine through from the workspace. Without the mark, it would
        // until it is looked up again.
        let _ = File::from(ours).set_xattr(OPAQUE, b"y");
        let stat = fstat(&held)?;
        self.made.insert(path.to_owned(), (stat.st_dev, stat.st_ino));
        self.modes.push(Opened { path: path.to_owned(), held, last: mode(upper) });
        Ok(())
    }

    /// Attributes and mode of a directory that is there.
    fn directory(
        &mut self,
        path: &Path,
        (upper, lower): (&FileStat, &FileStat),
        parent: &OwnedFd,
    ) -> Result<(), Refusal> {
        let name = Path::new(path.file_name().ok_or(Errno::EINVAL)?);
        let held = Tree { root: parent.as_fd() }.open(name, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        let stat = fstat(&held)?;
        if (stat.st_dev, stat.st_ino, stat.st_mode) != (lower.st_dev, lower.st_ino, lower.st_mode) {
            return Err(Refusal::Conflict);
        }
        let kept = lower.st_mode & 0o7777;
        let last = Mode::from_bits_truncate(kept & !ORDINARY) | mode(upper);
        let kept = Mode::from_bits_truncate(kept);
        change_mode(&held, kept | Mode::S_IRWXU)?;
        if let Err(refusal) = self.attributes(path, &held) {
            change_mode(&held, kept)?;
            return Err(refusal);
        }
        // Not yet: what lies in it comes first.
        self.modes.push(Opened { path: path.to_owned(), held, last });
        Ok(())
    }

    /// All of them, or none.
    fn attributes(&self, path: &Path, held: &OwnedFd) -> Result<(), Refusal> {
        let theirs = tree::open_for_listing(held)?;
        let wanted = compare::attributes(&self.changed.list(path)?)?;
        let before = compare::attributes(&theirs)?;
        if let Err(error) = set_attributes(&wanted, &theirs) {
            let _ = set_attributes(&before, &theirs);
            return Err(error.into());
        }
        Ok(())
    }

    /// Gives the directories their modes that are done with before `next`. One that was there and is closed by that waits for the
    /// end: something may be deleted in it.
    fn leave(&mut self, next: &Path, state: &mut State) {
        while let Some(opened) = self.modes.pop_if(|opened| {
            let may_be = opened.last.contains(Mode::S_IRWXU) || self.made.contains_key(&opened.path);
            may_be && !next.starts_with(&opened.path)
        }) {
            opened.close(state);
        }
    }

    fn finish(&mut self, state: &mut State) {
        while let Some(opened) = self.modes.pop() {
            opened.close(state);
        }
    }
}

/// A directory that is open to us, and the mode it gets when everything in it is done.
struct Opened {
    path: PathBuf,
    held: OwnedFd,
    last: Mode,
}

impl Opened {
    fn close(self, state: &mut State) {
        let _ = change_mode(&self.held, self.last);
        if let Ok(stat) = fstat(&self.held) {
            state.record(&self.path, Some(stat), (None, false));
        }
    }
}

/// Gives a directory those user attributes and no others.
fn set_attributes(wanted: &[(OsString, Vec<u8>)], of: &OwnedFd) -> io::Result<()> {
    let file = File::from(of.try_clone()?);
    for (name, _) in compare::attributes(of)? {
        if !wanted.iter().any(|(other, _)| *other == name) {
            file.remove_xattr(name)?;
        }
    }
    wanted.iter().try_for_each(|(name, value)| file.set_xattr(name, value))
}

/// `None` where there is no such attribute, or where there are none at all.
fn without_attribute<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(None),
        result => result.map(Some),
    }
}

/// The directory that something is put into or taken out of, which changes its times.
struct Above {
    path: PathBuf,
    held: OwnedFd,
    /// Whether nobody else has changed it since the session began.
    is_known: bool,
}

impl Above {
    fn of(path: &Path, parent: &OwnedFd, state: &State) -> Result<Self, Refusal> {
        let path = path.parent().unwrap_or(Path::new("")).to_owned();
        let is_known = !state.is_newer(&path, &fstat(parent)?);
        Ok(Self { path, held: parent.try_clone()?, is_known })
    }

    fn record(self, state: &mut State) -> Result<(), Refusal> {
        if self.is_known {
            state.record(&self.path, Some(fstat(&self.held)?), (None, false));
        }
        Ok(())
    }
}

/// A file whose other names may be in the workspace, and what it was.
struct Others(Option<(OwnedFd, FileStat)>);

impl Others {
    fn of(found: &Found, parent: &OwnedFd, name: &OsStr) -> Result<Self, Refusal> {
        let has = |lower: &&FileStat| kind(lower) != FileKind::Directory && lower.st_nlink > 1;
        let lower = found.lower.as_ref().filter(has);
        let parent = Tree { root: parent.as_fd() };
        let hold = |lower: &FileStat| Ok::<_, Errno>((parent.open(Path::new(name), OFlag::O_PATH)?, *lower));
        Ok(Self(lower.map(hold).transpose()?))
    }

    fn record(self, state: &mut State) -> Result<(), Refusal> {
        if let Some((held, before)) = self.0 {
            state.unlinked(&before, &fstat(&held)?);
        }
        Ok(())
    }
}

fn becomes(found: &Found) -> Becomes {
    match (&found.upper, found.file) {
        (Some(_), FileKind::Directory) => Becomes::Directory,
        (Some(_), FileKind::File) => Becomes::File,
        _ => Becomes::Other,
    }
}

fn mode(of: &FileStat) -> Mode {
    Mode::from_bits_truncate(of.st_mode & ORDINARY)
}

fn times(of: &FileStat) -> [TimeSpec; 2] {
    let (seconds, nanos) = modified(of);
    [TimeSpec::new(of.st_atime, of.st_atime_nsec), TimeSpec::new(seconds, nanos)]
}

/// chmod(2) of what is held, which the link in /proc leads to.
fn change_mode(held: &OwnedFd, mode: Mode) -> nix::Result<()> {
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    fchmodat(AT_FDCWD, path.as_str(), mode, FchmodatFlags::FollowSymlink)
}

impl Temporary {
    /// The times of a link.
    fn set_times(&self, accessed: &TimeSpec, modified: &TimeSpec) -> nix::Result<()> {
        let (parent, name) = self.place();
        utimensat(parent, name, accessed, modified, UtimensatFlags::NoFollowSymlink)
    }
}

/// Copies what is data; holes stay holes.
fn copy(from: &File, to: &File) -> io::Result<()> {
    let size = from.metadata()?.len();
    let mut at = 0;
    while let Some(start) = compare::data(from, at)?.filter(|&start| start < size) {
        let end = compare::hole(from, start)?.unwrap_or(size).min(size);
        copy_range(from, to, start, end)?;
        at = end;
    }
    to.set_len(size)
}

/// Within the kernel, where it can.
fn copy_range(mut from: &File, mut to: &File, start: u64, end: u64) -> io::Result<()> {
    use io::{Read as _, Seek as _, SeekFrom::Start};
    from.seek(Start(start))?;
    to.seek(Start(start))?;
    io::copy(&mut from.take(end - start), &mut to).map(drop)
}
