//! Putting something in its place in the workspace, or taking it away, at one stroke: whatever was there is looked at
//! once more when nobody finds it by its name any longer, and put back where it is not what it should be.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, RenameFlags, openat, renameat, renameat2},
    sys::stat::{FileStat, Mode, mkdirat},
    unistd::symlinkat,
};

use super::{
    Refusal,
    ledger::{State, modified},
    tree,
};
use crate::{
    files::{FileKind, kind, temporary_name},
    watch,
};

/// How many names are tried.
const MOST_NAMES: u32 = 64;

/// Deeper trees are not removed.
const DEEPEST: u32 = 200;

/// Something under a name of ours, removed when it is dropped.
pub(super) struct Temporary {
    parent: OwnedFd,
    name: OsString,
    is_there: bool,
}

impl Temporary {
    /// An empty file that only its owner can read.
    pub(super) fn file(parent: OwnedFd) -> io::Result<(Self, File)> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let (temporary, file) = Self::make(parent, |parent, name| openat(parent, name, flags, mode))?;
        Ok((temporary, File::from(file)))
    }

    pub(super) fn link(parent: OwnedFd, to: &OsStr) -> io::Result<Self> {
        Ok(Self::make(parent, |parent, name| symlinkat(to, parent, name))?.0)
    }

    pub(super) fn directory(parent: OwnedFd) -> io::Result<Self> {
        Ok(Self::make(parent, |parent, name| mkdirat(parent, name, Mode::S_IRWXU))?.0)
    }

    /// What has `name` in `parent`, moved out of the way.
    fn of(parent: OwnedFd, name: &OsStr) -> io::Result<Self> {
        Ok(Self::make(parent, |parent, own| without_replacing(parent, name, own))?.0)
    }

    fn make<T>(parent: OwnedFd, make: impl Fn(&OwnedFd, &OsStr) -> nix::Result<T>) -> io::Result<(Self, T)> {
        for _ in 0..MOST_NAMES {
            let name = temporary_name();
            match make(&parent, &name) {
                Err(Errno::EEXIST) => {}
                made => {
                    let made = made?;
                    return Ok((Self { parent, name, is_there: true }, made));
                }
            }
        }
        Err(Errno::EEXIST.into())
    }

    /// Puts it at `name`, where `lower` is, or nothing.
    pub(super) fn put(
        mut self,
        name: &OsStr,
        path: &Path,
        lower: Option<&FileStat>,
        state: &State,
    ) -> Result<(), Refusal> {
        let Some(lower) = lower else {
            without_replacing(&self.parent, &self.name, name).map_err(conflict_if(Errno::EEXIST))?;
            self.is_there = false;
            return Ok(());
        };
        match self.exchange(name) {
            Err(Errno::EINVAL) if kind(lower) != FileKind::Directory => {
                // A file system that exchanges nothing. It was looked at right before.
                renameat(&self.parent, self.name.as_os_str(), &self.parent, name)?;
                self.is_there = false;
                return Ok(());
            }
            exchanged => exchanged.map_err(conflict_if(Errno::ENOENT))?,
        }
        if let Err(refusal) = self.judge(path, lower, state) {
            self.exchange(name)?;
            return Err(refusal);
        }
        Ok(())
    }

    /// Where it lies, and its name there.
    pub(super) fn place(&self) -> (&OwnedFd, &OsStr) {
        (&self.parent, &self.name)
    }

    fn exchange(&self, name: &OsStr) -> nix::Result<()> {
        let (parent, own) = (&self.parent, self.name.as_os_str());
        renameat2(parent, own, parent, name, RenameFlags::RENAME_EXCHANGE)
    }

    /// Whether what lies here is what lay at `path` when it was looked at.
    fn judge(&self, path: &Path, lower: &FileStat, state: &State) -> Result<(), Refusal> {
        let now = tree::stat(self.parent.as_fd(), &self.name)?.ok_or(Refusal::Conflict)?;
        // Its change time is that of the rename.
        let same = (now.st_dev, now.st_ino, now.st_mode) == (lower.st_dev, lower.st_ino, lower.st_mode);
        if kind(lower) == FileKind::Directory {
            return match same {
                true => judge_tree(&self.parent, &self.name, path, state, 0),
                false => Err(Refusal::Conflict),
            };
        }
        let same = same && now.st_size == lower.st_size && modified(&now) == modified(lower);
        if same { Ok(()) } else { Err(Refusal::Conflict) }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.is_there
            && let Err(error) = watch::remove_tree(self.parent.as_fd(), &self.name)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, name = %self.name.display(), "a temporary file could not be removed");
        }
    }
}

/// Removes what lies at `path`, `name` in `parent`, if it is `lower` still and nothing in it was changed.
pub(super) fn remove(
    parent: OwnedFd,
    name: &OsStr,
    path: &Path,
    lower: &FileStat,
    state: &State,
) -> Result<(), Refusal> {
    let mut away = Temporary::of(parent, name).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => Refusal::Conflict,
        _ => error.into(),
    })?;
    if let Err(refusal) = away.judge(path, lower, state) {
        without_replacing(&away.parent, &away.name, name)?;
        away.is_there = false;
        return Err(refusal);
    }
    Ok(())
}

/// Whether nothing below a directory was changed.
fn judge_tree(parent: &OwnedFd, name: &OsStr, path: &Path, state: &State, depth: u32) -> Result<(), Refusal> {
    if depth == DEEPEST {
        return Err(Errno::ENAMETOOLONG.into());
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = openat(parent, name, flags, Mode::empty())?;
    for name in tree::names(&directory)? {
        let Some(stat) = tree::stat(directory.as_fd(), &name)? else { continue };
        let path = path.join(&name);
        if kind(&stat) != FileKind::Directory {
            if state.is_newer(&path, &stat) {
                return Err(Refusal::Conflict);
            }
        } else if state.was_moved(&path, &stat) {
            return Err(Refusal::Conflict);
        } else {
            judge_tree(&directory, &name, &path, state, depth + 1)?;
        }
    }
    Ok(())
}

/// renameat2(2), RENAME_NOREPLACE; where the file system has no such thing, after a look.
fn without_replacing(parent: &OwnedFd, from: &OsStr, to: &OsStr) -> nix::Result<()> {
    match renameat2(parent, from, parent, to, RenameFlags::RENAME_NOREPLACE) {
        Err(Errno::EINVAL) => match tree::stat(parent.as_fd(), to) {
            Ok(None) => renameat(parent, from, parent, to),
            _ => Err(Errno::EEXIST),
        },
        renamed => renamed,
    }
}

fn conflict_if(which: Errno) -> impl Fn(Errno) -> Refusal {
    move |errno| if errno == which { Refusal::Conflict } else { errno.into() }
}
