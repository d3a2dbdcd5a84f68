//! Protected paths that could not be bound read-only because they were not there, or are links: what a command put in their
//! place is taken away again after it ended, and reported.

use std::{
    fs, io,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use crate::outcome::Denial;

/// A path to look at after the command, in a granted directory of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    pub(crate) base: PathBuf,
    pub(crate) path: PathBuf,
    pub(crate) expected: Expected,
}

/// What was there when the sandbox started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Nothing.
    Absent,
    /// Nothing, and no repository that it would lie in: one may be made.
    NoRepository,
    /// A symbolic link, leading there.
    Link(PathBuf),
}

/// Looks at every watched path, undoes what was done to it, and says so.
pub(crate) fn undo(watches: &[Watch]) -> Vec<Denial> {
    watches.iter().filter_map(check).collect()
}

fn check(watch: &Watch) -> Option<Denial> {
    if watch.expected == Expected::NoRepository
        && let Some(pointer) = misplaced(watch)
    {
        // Not a new repository but a pointer to one that somebody prepared.
        return check(&Watch { expected: Expected::Absent, ..pointer });
    }
    let host = watch.base.join(&watch.path);
    let undone = match &watch.expected {
        Expected::Link(to) if fs::read_link(&host).is_ok_and(|now| now == *to) => return None,
        Expected::Link(to) => put_back_link(watch, to).map(|()| "the link was put back"),
        _ if fs::symlink_metadata(&host).is_err() => return None,
        Expected::NoRepository if watch.path.ends_with("hooks") => match remove_hooks(watch) {
            Ok(0) => return None,
            removed => removed.map(|_| "its hooks were removed"),
        },
        // A repository made inside needs its config; git outside reads it, so its making is told.
        Expected::NoRepository if watch.path.ends_with("config") => {
            Ok("it was kept, because its directory is new: look at it before you trust it")
        }
        Expected::Absent | Expected::NoRepository => remove(watch).map(|()| "it was removed"),
    };
    Some(match undone {
        Ok(what) => denial(&host, what),
        Err(error) => denial(&host, &format!("it could not be undone: {error}")),
    })
}

/// The first part of a watched path, where it came into being as something else than a directory.
fn misplaced(watch: &Watch) -> Option<Watch> {
    let first = PathBuf::from(watch.path.components().next()?.as_os_str());
    let metadata = fs::symlink_metadata(watch.base.join(&first)).ok()?;
    (!metadata.is_dir()).then(|| Watch { path: first, ..watch.clone() })
}

fn denial(path: &Path, what: &str) -> Denial {
    Denial {
        protection: crate::policy::Protection::ProtectedPaths,
        subject: path.display().to_string(),
        reason: format!("a protected path was changed; {what}"),
    }
}

/// A way to `path` that cannot be led astray: its directory is opened without following any link, and named
/// through the descriptor.
fn anchored(watch: &Watch) -> io::Result<(std::os::fd::OwnedFd, PathBuf)> {
    let host = watch.base.join(&watch.path);
    let (Some(parent), Some(name)) = (host.parent(), host.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let parent = openat2(nix::fcntl::AT_FDCWD, parent, how)?;
    let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name);
    Ok((parent, path))
}

fn remove(watch: &Watch) -> io::Result<()> {
    let (_parent, path) = anchored(watch)?;
    remove_entry(&path)
}

/// Removes a file or a whole directory, also one whose owner took the right to do so from himself.
fn remove_entry(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return retry_as_owner(path, |path| fs::remove_file(path));
    }
    retry_as_owner(path, |path| fs::remove_dir_all(path))
}

/// Tries `action`; where rights are lacking, takes them for the directory, its parent and what is below, and tries
/// again. Only the directories' owner can, which is who the command ran as.
fn retry_as_owner(path: &Path, action: fn(&Path) -> io::Result<()>) -> io::Result<()> {
    match action(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            if let Some(parent) = path.parent() {
                take_rights(parent)?;
            }
            open_up(path)?;
            action(path)
        }
        done => done,
    }
}

/// Makes every directory from `path` down accessible to its owner, following no link.
fn open_up(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return Ok(());
    }
    take_rights(path)?;
    for entry in fs::read_dir(path)? {
        open_up(&entry?.path())?;
    }
    Ok(())
}

fn take_rights(directory: &Path) -> io::Result<()> {
    let mode = fs::metadata(directory)?.mode();
    fs::set_permissions(directory, fs::Permissions::from_mode(mode | 0o700))
}

fn put_back_link(watch: &Watch, to: &Path) -> io::Result<()> {
    match remove(watch) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let (_parent, path) = anchored(watch)?;
    symlink(to, path)
}

/// Removes the hooks of a repository that was made inside; the samples that `git init` puts there do nothing.
/// Answers how many there were.
fn remove_hooks(watch: &Watch) -> io::Result<usize> {
    let (_parent, path) = anchored(watch)?;
    if !fs::symlink_metadata(&path)?.is_dir() {
        return remove_entry(&path).map(|()| 1);
    }
    open_up(&path)?;
    let mut removed = 0;
    for entry in fs::read_dir(&path)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().ends_with(b".sample") {
            remove_entry(&entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}
