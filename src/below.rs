//! What lies below a directory that is held. Others may exchange any part of the way to it meanwhile, so everything is
//! done by descriptors, and no path of the host is looked up twice. What is to be opened, changed or removed, and how far
//! a way may lead, is for the rooms that use this: `files`, `overlay`, `watch` and others.
//!
//! Ways are gone elsewhere too, each in its own world: `compile::walk` tells what it comes by on the host,
//! `compile::explain::links` goes through the view of a sandbox, `confine` keeps the end of a path that is not there yet,
//! and `files::walk` leaves it to the kernel, in the view of a session.

mod identity;
mod kind;
mod mode;
pub(crate) mod names;
pub(crate) mod rights;
mod temporary;

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::{FileStat, fstatat},
};

pub use self::kind::FileKind;
pub(crate) use self::{
    identity::Identity,
    kind::{is_regular, kind, regular, stores},
    mode::{change_mode, mode_of, open_up},
    names::names,
    temporary::{rename_without_replacing, temporary_name, under_temporary_name},
};

/// As many links as path_resolution(7) follows.
pub(crate) const MOST_LINKS: u32 = 40;

/// How often a walk is begun again that met a rename or mount elsewhere on a step up.
const MOST_TRIES: u32 = 1000;

/// openat2(2), from a directory that is held. How far the way may lead is the caller's to say, by a `RESOLVE_…`. Linux 5.6.
pub(crate) fn open(directory: impl AsFd, path: &Path, how: OpenHow) -> nix::Result<OwnedFd> {
    for _ in 0..MOST_TRIES {
        match openat2(directory.as_fd(), path, how) {
            Err(Errno::EAGAIN) => std::thread::yield_now(),
            opened => return opened,
        }
    }
    Err(Errno::EAGAIN)
}

/// openat2(2), O_PATH, of a path that must have no link in it. Linux 5.6.
pub(crate) fn open_without_links(path: &Path, more: OFlag) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | more)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    Ok(open(AT_FDCWD, path, how)?)
}

/// What has `name` in a directory, itself and not what it links to; `None` where nothing has.
pub(crate) fn stat(directory: impl AsFd, name: &OsStr) -> nix::Result<Option<FileStat>> {
    match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => Ok(None),
        stat => stat.map(Some),
    }
}

/// A path to what is held, whatever name it has by now: in this process the link in /proc leads to the very thing.
pub(crate) fn own_path(held: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", held.as_fd().as_raw_fd()).into()
}
