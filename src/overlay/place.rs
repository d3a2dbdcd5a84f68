//! Puts an entry into the workspace, or removes one, with one rename.
//!
//! The rename moves the old entry to a temporary name. There it is checked once more, and moved back if it is
//! not the expected one.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, openat, renameat, renameat2};
use nix::sys::stat::{FileStat, Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use crate::overlay::clock::modified;
use crate::overlay::ledger_state::LedgerState;
use crate::overlay::tree;
use crate::overlay::tree::OverlayTree;
use crate::protect::recheck;
use crate::report::change::Refusal;
use crate::sys::dirfd;
use crate::sys::dirfd::{DIRECTORY, names, rename_without_replacing, under_temporary_name};
use crate::sys::inode::{FileKind, Identity, kind};
use crate::sys::remove;

/// The deepest tree that is removed.
const MAX_DEPTH: u32 = 200;

/// An entry under a temporary name; dropping this removes it. Anybody who may write in the directory can see
/// the name and put another entry there.
pub(crate) struct TemporaryEntry {
    parent: OwnedFd,
    name: OsString,
    /// What to remove on drop; `None` for nothing.
    own: Option<Removable>,
}

impl TemporaryEntry {
    /// Makes an empty file with mode 0600.
    pub(crate) fn file(parent: OwnedFd) -> io::Result<(Self, File)> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let (mut temporary, file) = Self::make(parent, |parent, name| openat(parent, name, flags, mode))?;
        temporary.own = Some(Removable::new(&fstat(&file)?, Removal::Entry));
        Ok((temporary, File::from(file)))
    }

    pub(crate) fn link(parent: OwnedFd, to: &OsStr) -> io::Result<Self> {
        let (mut temporary, ()) = Self::make(parent, |parent, name| symlinkat(to, parent, name))?;
        let made = dirfd::stat(&temporary.parent, &temporary.name)?.ok_or(Errno::ESTALE)?;
        if kind(&made) != FileKind::Link {
            return Err(Errno::ESTALE.into());
        }
        temporary.own = Some(Removable::new(&made, Removal::Entry));
        Ok(temporary)
    }

    /// Makes an empty directory and opens it for listing.
    pub(crate) fn directory(parent: OwnedFd) -> io::Result<(Self, OwnedFd)> {
        let (mut temporary, ()) = Self::make(parent, |parent, name| mkdirat(parent, name, Mode::S_IRWXU))?;
        let held = openat(&temporary.parent, temporary.name.as_os_str(), DIRECTORY, Mode::empty())?;
        // A directory with contents is not the one made here: somebody replaced it.
        if !names(&held)?.is_empty() {
            return Err(Errno::ESTALE.into());
        }
        temporary.own = Some(Removable::new(&fstat(&held)?, Removal::Empty));
        Ok((temporary, held))
    }

    /// Moves `name` in `parent` out of the way. Dropping this does not remove it: [`Self::judge`] decides
    /// that first.
    fn move_away(parent: OwnedFd, name: &OsStr) -> io::Result<Self> {
        Ok(Self::make(parent, |parent, own| rename_without_replacing(parent, name, own))?.0)
    }

    fn make<T>(parent: OwnedFd, make: impl Fn(&OwnedFd, &OsStr) -> nix::Result<T>) -> io::Result<(Self, T)> {
        let (name, made) = under_temporary_name(|name| make(&parent, name))?;
        Ok((Self { parent, name, own: None }, made))
    }

    /// Moves the entry to `name`, which holds `lower` or does not exist.
    pub(crate) fn put(
        mut self,
        name: &OsStr,
        path: &Path,
        lower: Option<&FileStat>,
        state: &mut LedgerState,
    ) -> Result<(), Refusal> {
        let Some(lower) = lower else {
            rename_without_replacing(&self.parent, &self.name, name).map_err(conflict_if(Errno::EEXIST))?;
            if !self.is_own(name)? {
                rename_without_replacing(&self.parent, name, &self.name)?;
                return Err(Refusal::Conflict);
            }
            self.own = None;
            return Ok(());
        };
        match self.exchange(name) {
            Err(Errno::EINVAL) if kind(lower) != FileKind::Directory => {
                // This file system has no `RENAME_EXCHANGE`. Both entries were checked just before.
                if !self.is_own(&self.name)? {
                    return Err(Refusal::Conflict);
                }
                renameat(&self.parent, self.name.as_os_str(), &self.parent, name)?;
                self.own = None;
                return Ok(());
            }
            exchanged => exchanged.map_err(conflict_if(Errno::ENOENT))?,
        }
        let judged = match self.is_own(name) {
            Ok(true) => self.judge(path, lower, state),
            Ok(false) => Err(Refusal::Conflict),
            Err(error) => Err(error.into()),
        };
        let removed = judged.and_then(|out| self.remove(&out, path, state));
        if let Err(refusal) = removed {
            self.exchange(name)?;
            return Err(refusal);
        }
        self.own = None;
        Ok(())
    }

    /// The parent directory and the temporary name.
    pub(crate) fn place(&self) -> (&OwnedFd, &OsStr) {
        (&self.parent, &self.name)
    }

    /// Whether `name` is the entry made here.
    fn is_own(&self, name: &OsStr) -> io::Result<bool> {
        let stat = dirfd::stat(&self.parent, name)?;
        Ok(stat.is_some_and(|stat| self.own.as_ref().is_some_and(|own| own.is(&stat))))
    }

    fn exchange(&self, name: &OsStr) -> nix::Result<()> {
        let (parent, own) = (&self.parent, self.name.as_os_str());
        renameat2(parent, own, parent, name, RenameFlags::RENAME_EXCHANGE)
    }

    /// Checks that the entry moved here is the one that the scan saw at `path`, and returns what to remove.
    fn judge(&self, path: &Path, lower: &FileStat, state: &LedgerState) -> Result<Removable, Refusal> {
        let now = dirfd::stat(&self.parent, &self.name)?.ok_or(Refusal::Conflict)?;
        // The rename has set the change time, so compare the modification time.
        let is_it = |now: &FileStat| {
            (Identity::of(now), now.st_mode) == (Identity::of(lower), lower.st_mode)
                && modified(now) == modified(lower)
        };
        if !is_it(&now) {
            return Err(Refusal::Conflict);
        }
        if kind(lower) != FileKind::Directory {
            let same = now.st_size == lower.st_size;
            return if same { Ok(Removable::new(&now, Removal::Entry)) } else { Err(Refusal::Conflict) };
        }
        let directory = openat(&self.parent, self.name.as_os_str(), DIRECTORY, Mode::empty())?;
        // Somebody may have replaced it.
        if !is_it(&fstat(&directory)?) {
            return Err(Refusal::Conflict);
        }
        judge_tree(&directory, path, state, 0)?;
        Ok(Removable::new(lower, Removal::Tree(directory)))
    }

    /// Removes the checked entry. Another program may add to a directory meanwhile, so every name in it is
    /// checked again.
    fn remove(&self, judged: &Removable, path: &Path, state: &mut LedgerState) -> Result<(), Refusal> {
        let unlinking = RefCell::new(Unlinking::new(state));
        let check = |parent: BorrowedFd<'_>, name: &OsStr, relative: &Path| {
            unlinking.borrow_mut().before_unlink(parent, name, &path.join(relative))
        };
        let removed = judged.remove(&self.parent, &self.name, &check);
        unlinking.into_inner().record_last();
        removed.map_err(|error| match error.raw_os_error() {
            Some(libc::ESTALE) => Refusal::Conflict,
            _ => error.into(),
        })
    }
}

impl Drop for TemporaryEntry {
    fn drop(&mut self) {
        if let Some(own) = self.own.take()
            && let Err(error) = own.remove(&self.parent, &self.name, &|_, _, _| Ok(()))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, name = %self.name.display(), "could not remove a temporary file");
        }
    }
}

/// Removes `path` (`name` in `parent`) if it is still `lower` and nothing in it has changed.
pub(crate) fn remove(
    parent: OwnedFd,
    name: &OsStr,
    path: &Path,
    lower: &FileStat,
    state: &mut LedgerState,
) -> Result<(), Refusal> {
    let away = TemporaryEntry::move_away(parent, name).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => Refusal::Conflict,
        _ => error.into(),
    })?;
    let removed = away.judge(path, lower, state).and_then(|own| away.remove(&own, path, state));
    if removed.is_err() {
        rename_without_replacing(&away.parent, &away.name, name)?;
    }
    removed
}

/// Checks that nothing below a directory was changed and nothing is mounted there.
fn judge_tree(directory: &OwnedFd, path: &Path, state: &LedgerState, depth: u32) -> Result<(), Refusal> {
    if depth == MAX_DEPTH {
        return Err(Errno::ENAMETOOLONG.into());
    }
    for name in names(directory)? {
        let held = match (OverlayTree { root: directory.as_fd() }).open(Path::new(&name), OFlag::O_PATH) {
            Err(Errno::ENOENT) => continue,
            // `EXDEV`: a mount. Its times say nothing.
            held => held.map_err(conflict_if(Errno::EXDEV))?,
        };
        let (stat, path) = (fstat(&held)?, path.join(&name));
        // Directories count too: an entry moved in from elsewhere can have an old time.
        if state.is_newer(&path, &stat) {
            return Err(Refusal::Conflict);
        }
        if kind(&stat) == FileKind::Directory {
            let below = tree::open_for_listing(&held)?;
            drop(held);
            judge_tree(&below, &path, state, depth + 1)?;
        }
    }
    Ok(())
}

fn conflict_if(which: Errno) -> impl Fn(Errno) -> Refusal {
    move |errno| if errno == which { Refusal::Conflict } else { errno.into() }
}

// An entry in the workspace that may be removed, known by its identity: its name may belong to another entry
// by now.

/// The identity of an entry, and how to remove it.
pub(crate) struct Removable {
    identity: Identity,
    how: Removal,
}

pub(crate) enum Removal {
    Entry,
    /// An empty directory.
    Empty,
    /// A directory with everything in it.
    Tree(OwnedFd),
}

impl Removable {
    pub(crate) fn new(stat: &FileStat, how: Removal) -> Self {
        Self { identity: Identity::of(stat), how }
    }

    pub(crate) fn is(&self, stat: &FileStat) -> bool {
        self.identity == Identity::of(stat)
    }

    /// Empties a directory through its descriptor, and removes it by name only once it is empty. An entry
    /// that has taken the name stays.
    ///
    /// # Errors
    /// The entry, or part of it, is still there under that name.
    pub(crate) fn remove(&self, parent: &OwnedFd, name: &OsStr, check: remove::Check<'_>) -> io::Result<()> {
        if let Removal::Tree(directory) = &self.how {
            recheck::empty(directory, check)?;
        }
        match dirfd::stat(parent, name)? {
            Some(stat) if self.is(&stat) => {}
            Some(_) => {
                tracing::warn!(name = %name.display(), "another file has taken the name of a temporary file; it stays");
                return Ok(());
            }
            None => return Ok(()),
        }
        let flag = match self.how {
            Removal::Entry => UnlinkatFlags::NoRemoveDir,
            Removal::Empty | Removal::Tree(_) => UnlinkatFlags::RemoveDir,
        };
        Ok(unlinkat(parent, name, flag)?)
    }
}

// Removing a tree removes hard links one by one. That changes the file, which shows through its other links;
// it must not count as a change by another program.

pub(crate) struct Unlinking<'s> {
    state: &'s mut LedgerState,
    /// The file being unlinked, if it has other links. Only one is held: a tree may have more than the
    /// descriptor limit.
    last: Option<(OwnedFd, FileStat)>,
}

impl<'s> Unlinking<'s> {
    pub(crate) fn new(state: &'s mut LedgerState) -> Self {
        Self { state, last: None }
    }

    /// Checks the entry that is unlinked next, right before that. It was at `path`.
    ///
    /// # Errors
    /// `ESTALE` if another program has changed it or put it there.
    pub(crate) fn before_unlink(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
    ) -> io::Result<()> {
        self.record_last();
        let Some(stat) = dirfd::stat(parent, name)? else { return Ok(()) };
        if self.state.is_newer(path, &stat) {
            return Err(Errno::ESTALE.into());
        }
        if stat.st_nlink > 1 && kind(&stat) != FileKind::Directory {
            let held = OverlayTree { root: parent }.open(Path::new(name), OFlag::O_PATH)?;
            self.last = Some((held, stat));
        }
        Ok(())
    }

    /// Records that the last file was unlinked.
    pub(crate) fn record_last(&mut self) {
        if let Some((held, before)) = self.last.take()
            && let Ok(now) = fstat(&held)
        {
            self.state.unlinked(&before, &now);
        }
    }
}
