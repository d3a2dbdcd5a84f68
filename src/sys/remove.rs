//! Removes a tree that another process may be changing, by descriptors only: no link in it, and no directory
//! that is replaced meanwhile, leads out of it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, RenameFlags, ResolveFlag, openat, renameat2};
use nix::sys::stat::Mode;
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, unlinkat};

use crate::sys::dirfd;
use crate::sys::dirfd::{DIRECTORY, names, temporary_name};

/// Deeper directories are moved up first, because each level keeps a descriptor and a stack frame.
const DEEPEST: u32 = 200;

/// Bytes of names of one directory that are kept at a time. Commands decide how many names there are at each
/// level, and the embedding program may have little memory.
const BATCH: usize = 8 << 10;

/// How often a directory is listed again while another process adds entries: about four million short names.
const MOST_BATCHES: u32 = 1 << 14;

/// Called for each entry right before it is removed, with its directory, its name, and its path from where
/// the removal started. An error ends the removal.
pub(crate) type Check<'c> = &'c dyn Fn(BorrowedFd<'_>, &OsStr, &Path) -> io::Result<()>;

/// Removes `name` in `base`, however deep it is. What is too deep is moved up into `base` first.
pub(crate) fn tree(base: BorrowedFd<'_>, name: &OsStr, check: Check<'_>) -> io::Result<()> {
    let mut left = vec![name.to_owned()];
    while let Some(name) = left.pop() {
        let too_deep = &mut |parent: BorrowedFd<'_>, name: &OsStr| {
            let up = temporary_name()?;
            // To move a directory to another parent takes the right to write in it.
            take_rights(step(parent, name, OFlag::O_PATH)?.as_fd())?;
            renameat2(parent, name, base, up.as_os_str(), RenameFlags::RENAME_NOREPLACE)?;
            left.push(up);
            Ok(())
        };
        Removal { check, too_deep }.entry(base, &name, &mut PathBuf::new(), 0)?;
    }
    Ok(())
}

/// Removes everything in a directory, whatever its name is now. What is too deep is moved up into it.
pub(crate) fn contents(directory: &OwnedFd, check: Check<'_>) -> io::Result<()> {
    names(directory)?.iter().try_for_each(|name| tree(directory.as_fd(), name, check))
}

/// A removal in progress.
struct Removal<'r> {
    check: Check<'r>,
    /// Called for a directory that is too deep.
    too_deep: &'r mut dyn FnMut(BorrowedFd<'_>, &OsStr) -> io::Result<()>,
}

impl Removal<'_> {
    /// Removes `name` in `parent`. `way` is the path of `parent` below the start.
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
                let done = if depth < DEEPEST {
                    self.directory(parent, name, way, depth)
                } else {
                    (self.too_deep)(parent, name)
                };
                done.map_err(|error| prefer_unlink_error(error, errno))?;
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
            let batch = dirfd::first_names(&directory, BATCH)?;
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

/// For a file that cannot be removed, such as an immutable one, unlink(2) gives the same error as for a
/// directory. Then that error says more than `ENOTDIR`.
fn prefer_unlink_error(error: io::Error, unlinking: Errno) -> io::Error {
    if error.raw_os_error() == Some(Errno::ENOTDIR as i32) { unlinking.into() } else { error }
}

/// Opens a directory for listing, also if its owner gave up the right to do so. `EXDEV` if something is
/// mounted on it: what others mounted in a tree must not be removed with it.
pub(crate) fn open_directory(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    match step(parent, name, OFlag::O_RDONLY) {
        Err(Errno::EACCES) => {}
        opened => {
            let directory = opened?;
            // One that its owner may list and not enter.
            with_rights(directory.as_fd(), || {
                faccessat(&directory, ".", AccessFlags::F_OK, AtFlags::AT_EACCESS)
            })?;
            return Ok(directory);
        }
    }
    take_rights(parent)?;
    let directory = step(parent, name, OFlag::O_PATH)?;
    take_rights(directory.as_fd())?;
    Ok(openat(&directory, ".", OFlag::O_RDONLY | DIRECTORY, Mode::empty())?)
}

/// openat2(2) with `RESOLVE_NO_XDEV`: the directory itself, or `EXDEV` for a mount point. stat(2) does not
/// show bind mounts. Linux 5.6.
pub(crate) fn step(parent: BorrowedFd<'_>, name: &OsStr, access: OFlag) -> nix::Result<OwnedFd> {
    let resolve =
        ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH;
    dirfd::open(parent, Path::new(name), OpenHow::new().flags(access | DIRECTORY).resolve(resolve))
}

/// Opens what is mounted on a directory.
pub(crate) fn step_over(parent: BorrowedFd<'_>, name: &OsStr) -> nix::Result<OwnedFd> {
    openat(parent, name, OFlag::O_PATH | DIRECTORY, Mode::empty())
}

/// Opens a directory in another one, to go on from there.
pub(crate) fn step_into(parent: BorrowedFd<'_>, name: &OsStr) -> nix::Result<OwnedFd> {
    with_rights(parent, || step(parent, name, OFlag::O_PATH))
}

/// Tries `action`. On `EACCES`, takes rights on `directory` and tries again.
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

/// Makes a directory accessible to its owner, the user that the command ran as.
fn take_rights(directory: BorrowedFd<'_>) -> nix::Result<()> {
    as_a_command(|| dirfd::open_up(directory).map(drop))
}

/// Takes all access rights from a directory.
pub(crate) fn close_access(directory: BorrowedFd<'_>) -> nix::Result<()> {
    as_a_command(|| dirfd::change_mode(directory, Mode::empty()))
}

/// Runs `change` with the rights of a command: directories of other users stay as they are, even if the
/// caller is root.
fn as_a_command(change: impl FnOnce() -> nix::Result<()>) -> nix::Result<()> {
    let changed = dirfd::without_capabilities(|| Ok(change()?));
    changed.map_err(|error| error.raw_os_error().map_or(Errno::EPERM, Errno::from_raw))
}
