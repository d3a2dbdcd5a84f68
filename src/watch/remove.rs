//! Removing a tree that its writer does not want removed, by descriptors only: no link in it, and no exchange of one
//! part for another meanwhile, leads out of it.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    NixPath,
    errno::Errno,
    fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, openat, openat2, renameat2},
    sys::stat::{FchmodatFlags, Mode, fchmodat, fstat},
    unistd::{UnlinkatFlags, unlinkat},
};

use super::Moment;
use crate::{
    files::{names, rights, temporary_name},
    sys::{self, Times},
};

/// Deeper trees are not taken apart: each level keeps a descriptor and a frame.
const DEEPEST: u32 = 200;

const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Removes `name` in `parent`, whatever it is, where nothing in it was there before that moment.
pub(super) fn entry(parent: BorrowedFd<'_>, name: &OsStr, since: Moment) -> io::Result<()> {
    check(parent, name, since, 0)?;
    // Somebody may put into it what is old meanwhile: so every name is looked at again.
    entry_or(parent, name, 0, Some(since), &mut |_, _| Err(Errno::EISDIR.into()))
}

/// # Errors
/// Something in it was there before, or it is too deep.
fn check(parent: BorrowedFd<'_>, name: &OsStr, since: Moment, depth: u32) -> io::Result<()> {
    if !since.check(&times(parent, name)?)?.is_directory {
        return Ok(());
    }
    if depth >= DEEPEST {
        return Err(Errno::EISDIR.into());
    }
    let directory = open_directory(parent, name)?;
    names(&directory)?.iter().try_for_each(|name| check(directory.as_fd(), name, since, depth + 1))
}

/// Removes `name` in `base`, however deep it is: what lies too deep is moved up first, beside it.
pub(super) fn tree(base: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let mut left = vec![name.to_owned()];
    while let Some(name) = left.pop() {
        entry_or(base, &name, 0, None, &mut |parent, name| {
            let up = temporary_name();
            // To move a directory elsewhere takes the right to write in it.
            take_rights(step(parent, name, OFlag::O_PATH)?.as_fd())?;
            renameat2(parent, name, base, up.as_os_str(), RenameFlags::RENAME_NOREPLACE)?;
            left.push(up);
            Ok(())
        })?;
    }
    Ok(())
}

/// Removes all that is in a directory, whatever name it has by now. What lies too deep is moved up into it.
pub(super) fn contents(directory: &OwnedFd) -> io::Result<()> {
    names(directory)?.iter().try_for_each(|name| tree(directory.as_fd(), name))
}

fn entry_or(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    depth: u32,
    since: Option<Moment>,
    too_deep: &mut dyn FnMut(BorrowedFd<'_>, &OsStr) -> io::Result<()>,
) -> io::Result<()> {
    if let Some(since) = since {
        since.check(&times(parent, name)?)?;
    }
    match with_rights(parent, || unlinkat(parent, name, UnlinkatFlags::NoRemoveDir)) {
        Err(Errno::EISDIR | Errno::EPERM) if depth < DEEPEST => {}
        Err(Errno::EISDIR | Errno::EPERM) => return too_deep(parent, name),
        done => return Ok(done?),
    }
    let directory = open_directory(parent, name)?;
    for name in names(&directory)? {
        entry_or(directory.as_fd(), &name, depth + 1, since, too_deep)?;
    }
    Ok(with_rights(parent, || unlinkat(parent, name, UnlinkatFlags::RemoveDir))?)
}

fn times(parent: BorrowedFd<'_>, name: &OsStr) -> nix::Result<Times> {
    with_rights(parent, || name.with_nix_path(|name| sys::times(parent, name))?)
}

/// Opens a directory for listing, also one whose owner took the right to do so from himself. None that something is
/// mounted on (`EXDEV`): what others mounted in a tree is not to be removed with it, nor when a command is undone.
pub(super) fn open_directory(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
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
fn step(parent: BorrowedFd<'_>, name: &OsStr, access: OFlag) -> nix::Result<OwnedFd> {
    let resolve =
        ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH;
    openat2(parent, name, OpenHow::new().flags(access | DIRECTORY).resolve(resolve))
}

/// Opens a directory in another, to go on from there.
pub(super) fn step_into(parent: BorrowedFd<'_>, name: &OsStr) -> nix::Result<OwnedFd> {
    with_rights(parent, || openat(parent, name, OFlag::O_PATH | DIRECTORY, Mode::empty()))
}

/// Tries `action`; where rights on `directory` are lacking, takes them and tries again.
pub(super) fn with_rights<T>(
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

/// Makes a directory accessible to its owner, who the command ran as. The link in /proc leads to the very inode.
/// Others' directories stay as they are, also for root.
fn take_rights(directory: BorrowedFd<'_>) -> nix::Result<()> {
    let mode = Mode::from_bits_truncate(fstat(directory)?.st_mode) | Mode::S_IRWXU;
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let take = || Ok(fchmodat(nix::fcntl::AT_FDCWD, path.as_str(), mode, FchmodatFlags::FollowSymlink)?);
    rights::of_a_command(take).map_err(|error| error.raw_os_error().map_or(Errno::EPERM, Errno::from_raw))
}
