//! Removing a tree that its writer does not want removed, by descriptors only: no link in it, and no exchange of one
//! part for another meanwhile, leads out of it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, openat, renameat2};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::sys::entries::{names, temporary_name};
use crate::sys::{dirfd, entries};

/// Deeper trees are not taken apart: each level keeps a descriptor and a frame.
const DEEPEST: u32 = 200;

/// Bytes of names of one directory that are kept at a time. Whoever writes names decides how much memory that takes at
/// each level, and the program around us may not have much.
const BATCH: usize = 8 << 10;

/// So often is a directory listed while others put more into it: some four million short names.
const MOST_BATCHES: u32 = 1 << 14;

const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Asked of each entry right before it is removed: the directory it lies in, its name, and its way from where the removing
/// began. An error ends the removing.
pub(crate) type Check<'c> = &'c dyn Fn(BorrowedFd<'_>, &OsStr, &Path) -> io::Result<()>;

/// Removes `name` in `base`, however deep it is: what lies too deep is moved up first, beside it.
pub(crate) fn tree(base: BorrowedFd<'_>, name: &OsStr, check: Check<'_>) -> io::Result<()> {
    let mut left = vec![name.to_owned()];
    while let Some(name) = left.pop() {
        let too_deep = &mut |parent: BorrowedFd<'_>, name: &OsStr| {
            let up = temporary_name()?;
            // To move a directory elsewhere takes the right to write in it.
            take_rights(step(parent, name, OFlag::O_PATH)?.as_fd())?;
            renameat2(parent, name, base, up.as_os_str(), RenameFlags::RENAME_NOREPLACE)?;
            left.push(up);
            Ok(())
        };
        Removing { check, too_deep }.entry(base, &name, &mut PathBuf::new(), 0)?;
    }
    Ok(())
}

/// Removes all that is in a directory, whatever name it has by now. What lies too deep is moved up into it.
pub(crate) fn contents(directory: &OwnedFd, check: Check<'_>) -> io::Result<()> {
    names(directory)?.iter().try_for_each(|name| tree(directory.as_fd(), name, check))
}

/// A tree that is being removed.
struct Removing<'r> {
    check: Check<'r>,
    /// What becomes of a directory that lies too deep.
    too_deep: &'r mut dyn FnMut(BorrowedFd<'_>, &OsStr) -> io::Result<()>,
}

impl Removing<'_> {
    /// Removes `name` in `parent`, which the tree has as `way`.
    fn entry(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        way: &mut PathBuf,
        depth: u32,
    ) -> io::Result<()> {
        way.push(name);
        (self.check)(parent, name, way)?;
        match with_rights(parent, || unlinkat(parent, name, UnlinkatFlags::NoRemoveDir)) {
            Err(errno @ (Errno::EISDIR | Errno::EPERM)) => {
                let done = match depth < DEEPEST {
                    true => self.directory(parent, name, way, depth),
                    false => (self.too_deep)(parent, name),
                };
                done.map_err(|error| unless_no_directory(error, errno))?;
            }
            done => done?,
        }
        way.pop();
        Ok(())
    }

    fn directory(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        way: &mut PathBuf,
        depth: u32,
    ) -> io::Result<()> {
        let directory = open_directory(parent, name)?;
        for _ in 0..MOST_BATCHES {
            let batch = entries::some(&directory, BATCH)?;
            let is_last = batch.is_empty();
            for name in batch {
                self.entry(directory.as_fd(), &name, way, depth + 1)?;
            }
            match with_rights(parent, || unlinkat(parent, name, UnlinkatFlags::RemoveDir)) {
                Err(Errno::ENOTEMPTY | Errno::EEXIST) if !is_last => {}
                done => return Ok(done?),
            }
        }
        Err(Errno::ENOTEMPTY.into())
    }
}

/// A file that may not be removed, such as one with the immutable flag, answers unlink(2) as a directory does: what it answered
/// then says more than that it is none.
fn unless_no_directory(error: io::Error, unlinking: Errno) -> io::Error {
    if error.raw_os_error() == Some(Errno::ENOTDIR as i32) { unlinking.into() } else { error }
}

/// Opens a directory for listing, also one whose owner took the right to do so from himself. None that something is
/// mounted on (`EXDEV`): what others mounted in a tree is not to be removed with it, nor when a command is undone.
pub(crate) fn open_directory(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    match step(parent, name, OFlag::O_RDONLY) {
        Err(Errno::EACCES) => {}
        opened => return Ok(opened?),
    }
    take_rights(parent)?;
    let directory = step(parent, name, OFlag::O_PATH)?;
    take_rights(directory.as_fd())?;
    Ok(openat(&directory, ".", OFlag::O_RDONLY | DIRECTORY, Mode::empty())?)
}

/// openat2(2), `RESOLVE_NO_XDEV`: the directory itself, or `EXDEV`. That a bind mount is one shows in nothing that
/// stat(2) tells. Linux 5.6.
pub(crate) fn step(parent: BorrowedFd<'_>, name: &OsStr, access: OFlag) -> nix::Result<OwnedFd> {
    let resolve =
        ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH;
    dirfd::open(parent, Path::new(name), OpenHow::new().flags(access | DIRECTORY).resolve(resolve))
}

/// What is mounted on it instead.
pub(crate) fn step_over(parent: BorrowedFd<'_>, name: &OsStr) -> nix::Result<OwnedFd> {
    openat(parent, name, OFlag::O_PATH | DIRECTORY, Mode::empty())
}

/// Opens a directory in another, to go on from there.
pub(crate) fn step_into(parent: BorrowedFd<'_>, name: &OsStr) -> nix::Result<OwnedFd> {
    with_rights(parent, || step(parent, name, OFlag::O_PATH))
}

/// Tries `action`; where rights on `directory` are lacking, takes them and tries again.
pub(crate) fn with_rights<T>(
    directory: BorrowedFd<'_>,
    action: impl Fn() -> nix::Result<T>,
) -> nix::Result<T> {
    match action() {
        Err(Errno::EACCES) => {
            take_rights(directory)?;
            action()
        }
        done => done,
    }
}

/// Makes a directory accessible to its owner, who the command ran as.
fn take_rights(directory: BorrowedFd<'_>) -> nix::Result<()> {
    as_a_command(|| dirfd::open_up(directory).map(drop))
}

/// Makes a directory accessible to nobody.
pub(crate) fn shut(directory: BorrowedFd<'_>) -> nix::Result<()> {
    as_a_command(|| dirfd::change_mode(directory, Mode::empty()))
}

/// Others' directories stay as they are, also for root.
fn as_a_command(change: impl FnOnce() -> nix::Result<()>) -> nix::Result<()> {
    let changed = dirfd::of_a_command(|| Ok(change()?));
    changed.map_err(|error| error.raw_os_error().map_or(Errno::EPERM, Errno::from_raw))
}
