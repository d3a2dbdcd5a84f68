//! Files below an open directory. Another process may replace any part of a path at any time, so these calls
//! work on descriptors and look up no path of the host twice. The caller decides what to open and how far a
//! path may lead.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use caps::{CapSet, Capability, CapsHashSet};
use nix::dir::{Dir, Entry};
use nix::errno::Errno;
use nix::fcntl::{
    AT_FDCWD, AtFlags, OFlag, OpenHow, RenameFlags, ResolveFlag, openat, openat2, renameat, renameat2,
};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, fchmodat, fstat, fstatat};
use nix::unistd::{Uid, geteuid};

use crate::sys;
use crate::sys::inode::{FileKind, kind};

/// How many symbolic links one path may have: the limit of path_resolution(7).
pub(crate) const MOST_LINKS: u32 = 40;

/// Flags of openat(2) for a directory to list or to work in. A link is refused.
pub(crate) const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// How often an openat2(2) is repeated after `EAGAIN`: a rename or mount elsewhere raced with a `..` of its
/// path.
const MOST_TRIES: u32 = 1000;

/// openat2(2) below an open directory. The caller limits how far the path may lead with a `RESOLVE_…` flag.
/// Linux 5.6.
pub(crate) fn open(directory: impl AsFd, path: &Path, how: OpenHow) -> nix::Result<OwnedFd> {
    for _ in 0..MOST_TRIES {
        match openat2(directory.as_fd(), path, how) {
            Err(Errno::EAGAIN) => std::thread::yield_now(),
            opened => return opened,
        }
    }
    Err(Errno::EAGAIN)
}

/// openat2(2) with O_PATH of a path that must have no symbolic link in it. Without that call, as in many
/// containers, it opens one component after the other.
pub(crate) fn open_without_links(path: &Path, more: OFlag) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | more)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    match open(AT_FDCWD, path, how) {
        Err(Errno::ENOSYS | Errno::EPERM) => Ok(open_by_components(path, more)?),
        opened => Ok(opened?),
    }
}

fn open_by_components(path: &Path, more: OFlag) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let mut held: Option<OwnedFd> = None;
    for part in path.components() {
        let directory = held.as_ref().map_or(AT_FDCWD, OwnedFd::as_fd);
        let next = openat(directory, part.as_os_str(), flags, Mode::empty())?;
        // With these flags, openat(2) opens a link itself.
        if kind(&fstat(&next)?) == FileKind::Link {
            return Err(Errno::ELOOP);
        }
        held = Some(next);
    }
    let held = held.ok_or(Errno::ENOENT)?;
    if more.contains(OFlag::O_DIRECTORY) && kind(&fstat(&held)?) != FileKind::Directory {
        Err(Errno::ENOTDIR)
    } else {
        Ok(held)
    }
}

/// fstatat(2) of `name` in a directory. Does not follow a link. `None` if there is no such entry.
pub(crate) fn stat(directory: impl AsFd, name: &OsStr) -> nix::Result<Option<FileStat>> {
    match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => Ok(None),
        stat => stat.map(Some),
    }
}

// Modes of open files.

/// The permission bits, with set-user-ID, set-group-ID and sticky.
pub(crate) fn mode_of(stat: &FileStat) -> Mode {
    Mode::from_bits_truncate(stat.st_mode & 0o7777)
}

/// chmod(2) of an open file. It also works for an `O_PATH` descriptor, which fchmod(2) refuses.
pub(crate) fn change_mode(held: impl AsFd, mode: Mode) -> nix::Result<()> {
    fchmodat(AT_FDCWD, &sys::own_path(held), mode, FchmodatFlags::FollowSymlink)
}

/// Gives the owner all permissions on an open file. Returns its state before that.
pub(crate) fn open_up(held: impl AsFd) -> nix::Result<FileStat> {
    let before = fstat(&held)?;
    change_mode(held, mode_of(&before) | Mode::S_IRWXU)?;
    Ok(before)
}

// The rights of file calls. They are those of a command, without root's power over the files of others.

/// Capabilities that the thread keeps. Neither gives a right over a file. If another thread changes the user
/// IDs of the program, glibc makes every thread do so, and ends the program if only some of them may.
const KEPT: [Capability; 2] = [Capability::CAP_SETUID, Capability::CAP_SETGID];

/// Calls `act` on this thread without capabilities over files, and restores them afterwards.
///
/// Without them the kernel also clears the set-user-ID bits of a written file, and root cannot access the
/// files of others.
pub(crate) fn without_capabilities<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let held = caps::read(None, CapSet::Effective).map_err(io::Error::other)?;
    let kept: CapsHashSet = held.iter().copied().filter(|capability| KEPT.contains(capability)).collect();
    if held.len() == kept.len() {
        return act();
    }
    let _back = Back { held, user: geteuid() };
    caps::set(None, CapSet::Effective, &kept).map_err(io::Error::other)?;
    act()
}

/// Restores the capabilities of the thread when dropped.
struct Back {
    held: CapsHashSet,
    user: Uid,
}

impl Drop for Back {
    fn drop(&mut self) {
        // The program has changed its user meanwhile. It has the capabilities that the kernel left to it.
        if geteuid() != self.user {
            return;
        }
        // A permitted capability can always be made effective again.
        if let Err(error) = caps::set(None, CapSet::Effective, &self.held) {
            tracing::error!(%error, "a thread of the runtime has lost its capabilities");
        }
    }
}

// The entries of a directory: lists of their names, temporary names, and renames that replace nothing.

/// Most memory that a list of names may take, in bytes.
const MOST_BYTES: usize = 128 << 20;

/// The names in a directory that is open for reading, sorted.
///
/// # Errors
/// `E2BIG` if they take more than 128 MiB.
pub(crate) fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let (mut names, mut room) = (Vec::new(), MOST_BYTES);
    for found in listing(directory)?.iter() {
        if let Some(name) = name(&found?) {
            room = room.checked_sub(bytes(&name)).ok_or(Errno::E2BIG)?;
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The first names of a directory, as many as fit into `room` bytes, but at least one.
pub(crate) fn first_names(directory: &OwnedFd, mut room: usize) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for found in listing(directory)?.iter() {
        let Some(name) = name(&found?) else { continue };
        let needed = bytes(&name);
        names.push(name);
        match room.checked_sub(needed) {
            Some(left) => room = left,
            None => break,
        }
    }
    Ok(names)
}

/// Opens a directory again, so that the listing has its own position.
pub(crate) fn listing(directory: &OwnedFd) -> io::Result<Dir> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(Dir::openat(directory.as_fd(), ".", flags, Mode::empty())?)
}

/// The name of an entry; `None` for `.` and `..`.
pub(crate) fn name(found: &Entry) -> Option<OsString> {
    let name = found.file_name().to_bytes();
    (name != b"." && name != b"..").then(|| OsString::from_vec(name.to_vec()))
}

/// The memory that a name takes in a list, in bytes.
pub(crate) fn bytes(name: &OsStr) -> usize {
    size_of::<OsString>() + name.len()
}

// Temporary names, and renames that replace nothing.

/// How many temporary names are tried.
const MOST_NAMES: u32 = 64;

/// A random name of a temporary file.
///
/// # Errors
/// Those of getrandom(2).
pub(crate) fn temporary_name() -> nix::Result<OsString> {
    Ok(format!(".kennel-{:016x}.tmp", sys::random()?).into())
}

/// Whether `name` has the form of a [`temporary_name`].
pub(crate) fn is_temporary_name(name: &OsStr) -> bool {
    let middle =
        name.as_encoded_bytes().strip_prefix(b".kennel-").and_then(|rest| rest.strip_suffix(b".tmp"));
    middle.is_some_and(|middle| middle.len() == 16 && middle.iter().all(u8::is_ascii_hexdigit))
}

/// Calls `make` with temporary names until one is free, and returns that name too. `make` fails with `EEXIST`
/// if the name is taken.
pub(crate) fn under_temporary_name<T>(make: impl Fn(&OsStr) -> nix::Result<T>) -> io::Result<(OsString, T)> {
    for _ in 0..MOST_NAMES {
        let name = temporary_name()?;
        match make(&name) {
            Err(Errno::EEXIST) => {}
            made => return Ok((name, made?)),
        }
    }
    Err(Errno::EEXIST.into())
}

/// renameat2(RENAME_NOREPLACE) in one directory. File systems without that flag (NFS, 9P) answer `EINVAL`;
/// there it checks that the name is free and then renames.
///
/// # Errors
/// `EEXIST` if `to` exists.
pub(crate) fn rename_without_replacing(directory: impl AsFd, from: &OsStr, to: &OsStr) -> nix::Result<()> {
    let directory = directory.as_fd();
    match renameat2(directory, from, directory, to, RenameFlags::RENAME_NOREPLACE) {
        Err(Errno::EINVAL) => match stat(directory, to)? {
            Some(_) => Err(Errno::EEXIST),
            None => renameat(directory, from, directory, to),
        },
        renamed => renamed,
    }
}

#[cfg(test)]
mod rights_tests {
    use super::*;

    #[test]
    fn a_thread_has_its_rights_back_also_after_a_panic() {
        let before = caps::read(None, CapSet::Effective).expect("readable");
        let within = without_capabilities(|| caps::read(None, CapSet::Effective).map_err(io::Error::other));
        assert!(within.expect("readable").is_subset(&KEPT.into()));
        let panics =
            std::panic::catch_unwind(|| without_capabilities(|| -> io::Result<()> { panic!("meant") }));
        assert!(panics.is_err());
        assert_eq!(caps::read(None, CapSet::Effective).expect("readable"), before);
    }
}

#[cfg(test)]
mod tests {
    use crate::sys::inode::Identity;
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_way_that_is_gone_part_by_part_is_the_one_that_openat2_goes() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = fs::canonicalize(dir.path()).expect("its name");
        fs::create_dir_all(base.join("a/b")).expect("directories");
        fs::write(base.join("a/f"), "").expect("a file");
        symlink("a", base.join("link")).expect("a link");
        for (path, more) in [
            ("a/b", OFlag::O_DIRECTORY),
            ("a/f", OFlag::empty()),
            ("a/f", OFlag::O_DIRECTORY),
            ("a/b/..", OFlag::empty()),
            ("link", OFlag::empty()),
            ("link/b", OFlag::empty()),
            ("a/f/x", OFlag::empty()),
            ("none", OFlag::empty()),
        ] {
            let identity = |held: OwnedFd| Identity::of_held(held).expect("its inode");
            let by_parts = open_by_components(&base.join(path), more).map(identity);
            let at_once = open_without_links(&base.join(path), more).map(identity);
            let at_once = at_once.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()));
            assert_eq!(by_parts, at_once, "{path}");
        }
    }
}
