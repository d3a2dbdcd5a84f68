//! Keeps paths below a directory of the host: a check of a path, which holds only for the moment, and an
//! open, which holds against races. It needs no policy and no sandbox.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag, open};
use nix::sys::stat::{self, fstat};

use crate::policy::path::without_dots;
use crate::report::failure;
use crate::report::failure::{Boundary, Class, Details, Failure, failure_of, shown};
use crate::sys::dirfd;
use crate::sys::dirfd::MOST_LINKS;
use crate::sys::inode::{FileKind, kind};
use crate::sys::mode::Mode;

/// Why a path is refused. If the system refused it, the cause is in `source()`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathEscape {
    /// The path leads out of the root, by itself or through a link.
    #[error("path {} escapes workspace root {}", shown(path), shown(root))]
    Escapes {
        /// The path as the caller wrote it.
        path: PathBuf,
        /// The root as the caller wrote it.
        root: PathBuf,
    },
    /// The root does not exist, is not a directory, or cannot be read.
    #[error("reach workspace root {}", shown(root))]
    Root {
        /// The root as the caller wrote it.
        root: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The path cannot be looked up or opened.
    #[error("reach path {}", shown(path))]
    Path {
        /// The path as the caller wrote it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

failure_of!(PathEscape);

impl PathEscape {
    /// The failure class that machines read.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let (class, boundary, details) = match self {
            Self::Escapes { path, root } => {
                let requested = path.display().to_string();
                let granted = vec![root.display().to_string()];
                (Class::CapabilityDenied, Boundary::Action, Details::Granted { requested, granted })
            }
            Self::Root { .. } | Self::Path { .. } => (Class::RuntimeError, Boundary::Runtime, Details::None),
        };
        Failure::new(class, boundary, failure::chain(self), details)
    }
}

/// Resolves `candidate` below `root` to an absolute path without links, `.` and `..`.
///
/// A relative candidate starts at the root. `..` removes the name before it, as text, before any link is
/// followed. Then the function follows the links of every name that exists. Names that do not exist yet stay
/// as they are, also behind a dangling link.
///
/// The answer holds only for this moment. If others can replace files with links, use [`open_beneath`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let root = dir.path().canonicalize()?;
/// let path = kennel::files::confine_path(&root, "src/../new/file.rs")?;
/// assert_eq!(path, root.join("new/file.rs"));
/// let error = kennel::files::confine_path(&root, "../etc/passwd").unwrap_err();
/// assert!(error.to_string().starts_with("path ../etc/passwd escapes workspace root /"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`PathEscape`]: the path leads out of the root; the root is missing; a directory on the way cannot be
/// read; links form a loop.
pub fn confine_path(root: impl AsRef<Path>, candidate: impl AsRef<Path>) -> Result<PathBuf, PathEscape> {
    let (root, candidate) = (root.as_ref(), candidate.as_ref());
    let base = existing_root(root)?;
    let escapes = || PathEscape::Escapes { path: candidate.to_owned(), root: root.to_owned() };
    let wanted = without_dots(&base.join(candidate));
    // An absolute path may reach the root through a link. Only the lookup can tell.
    if candidate.is_relative() && !wanted.starts_with(&base) {
        return Err(escapes());
    }
    let path = resolved(&wanted).map_err(|source| PathEscape::Path { path: candidate.to_owned(), source })?;
    if path.starts_with(&base) { Ok(path) } else { Err(escapes()) }
}

fn existing_root(root: &Path) -> Result<PathBuf, PathEscape> {
    let base = fs::canonicalize(root).and_then(|base| match fs::metadata(&base)?.is_dir() {
        true => Ok(base),
        false => Err(Errno::ENOTDIR.into()),
    });
    base.map_err(|source| PathEscape::Root { root: root.to_owned(), source })
}

/// Resolves an absolute path link by link. It stops the lookup at the first missing name.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    let mut at = PathBuf::from("/");
    let mut ahead: VecDeque<PathBuf> = parts(path);
    let mut links = 0;
    while let Some(part) = ahead.pop_front() {
        if part == Path::new("..") {
            at.pop();
            continue;
        }
        at.push(&part);
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_symlink() => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::ELOOP.into());
                }
                let to = fs::read_link(&at)?;
                at.pop();
                if to.is_absolute() {
                    at = PathBuf::from("/");
                }
                for part in parts(&to).into_iter().rev() {
                    ahead.push_front(part);
                }
            }
            Ok(_) => {}
            Err(error) if is_missing(&error) => return missing(at, ahead, error),
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}

/// The names and `..` of a path, in order.
fn parts(path: &Path) -> VecDeque<PathBuf> {
    let is_step = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_step).map(|part| PathBuf::from(part.as_os_str())).collect()
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// Appends the rest of a path to a missing name. `..` behind a missing name is an error: nobody knows where
/// it leads.
fn missing(mut at: PathBuf, ahead: VecDeque<PathBuf>, error: io::Error) -> io::Result<PathBuf> {
    if ahead.iter().any(|part| part == Path::new("..")) {
        return Err(error);
    }
    at.extend(ahead);
    Ok(at)
}

/// How [`open_beneath`] opens, in the style of [`std::fs::OpenOptions`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let root = tempfile::tempdir()?;
/// use std::io::Write;
///
/// use kennel::files::{OpenHow, open_beneath};
///
/// let how = OpenHow::new().write(true).create(true);
/// open_beneath(root.path(), "notes.txt", &how)?.write_all(b"remember the milk\n")?;
/// assert!(open_beneath(root.path(), "/etc/passwd", &OpenHow::new().read(true)).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHow {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    directory: bool,
    mode: Mode,
}

impl Default for OpenHow {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenHow {
    /// No option. An open needs at least one of read, write, append and directory.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            directory: false,
            mode: Mode::new(0o666),
        }
    }

    /// Opens for reading.
    #[must_use]
    pub const fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// Opens for writing.
    #[must_use]
    pub const fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Opens for writing; each write goes to the end of the file.
    #[must_use]
    pub const fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Empties the file.
    #[must_use]
    pub const fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Creates the file if it does not exist.
    #[must_use]
    pub const fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Creates the file. It is an error if anything has the name, even a link.
    #[must_use]
    pub const fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Opens a directory only.
    #[must_use]
    pub const fn directory(mut self, directory: bool) -> Self {
        self.directory = directory;
        self
    }

    /// Permission bits of a new file; the umask of this program applies. Default: 0666.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    fn flags(self) -> io::Result<OFlag> {
        let writes = self.write || self.append;
        let access = match (self.read || self.directory, writes) {
            (false, false) => return Err(Errno::EINVAL.into()),
            (true, false) => OFlag::O_RDONLY,
            (false, true) => OFlag::O_WRONLY,
            (true, true) => OFlag::O_RDWR,
        };
        if (self.truncate || self.create || self.create_new) && (!writes || self.directory) {
            return Err(Errno::EINVAL.into());
        }
        // A FIFO must not block the caller, and a terminal must not become its controlling terminal.
        let mut flags = access | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        flags.set(OFlag::O_APPEND, self.append);
        flags.set(OFlag::O_TRUNC, self.truncate);
        flags.set(OFlag::O_CREAT, self.create || self.create_new);
        flags.set(OFlag::O_EXCL, self.create_new);
        flags.set(OFlag::O_DIRECTORY, self.directory);
        Ok(flags)
    }
}

/// Opens `path` below `root`. Even if others replace files meanwhile, it never opens a file outside of the
/// root: openat2(2) with `RESOLVE_BENEATH`, Linux 5.6.
///
/// `path` may begin with `root` as you pass it here. Links are followed as long as they stay below the root;
/// an absolute link never does. It opens only regular files, and directories if asked for.
///
/// # Errors
/// [`PathEscape`]: the path leads out of the root; the root is missing; the file cannot be opened, such as
/// `ENOENT`, `EINVAL` for options that contradict each other, and `EOPNOTSUPP` for a FIFO, socket or device.
pub fn open_beneath(
    root: impl AsRef<Path>,
    path: impl AsRef<Path>,
    how: &OpenHow,
) -> Result<File, PathEscape> {
    let (root, path) = (root.as_ref(), path.as_ref());
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let base = open(root, flags, stat::Mode::empty())
        .map_err(|errno| PathEscape::Root { root: root.to_owned(), source: errno.into() })?;
    let below = path.strip_prefix(root).unwrap_or(path);
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    open_resolved(&base, below, *how).map_err(|source| match source.raw_os_error() {
        Some(libc::EXDEV) => PathEscape::Escapes { path: path.to_owned(), root: root.to_owned() },
        _ => PathEscape::Path { path: path.to_owned(), source },
    })
}

fn open_resolved(base: &OwnedFd, path: &Path, how: OpenHow) -> io::Result<File> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let flags = how.flags()?;
    let mut open = nix::fcntl::OpenHow::new().flags(flags).resolve(resolve);
    if flags.contains(OFlag::O_CREAT) {
        open = open.mode(stat::Mode::from_bits_truncate(how.mode.bits() & 0o777));
    }
    check_kind(dirfd::open(base, path, open)?, how)
}

/// Refuses everything but a regular file or, if asked for, a directory.
fn check_kind(file: OwnedFd, how: OpenHow) -> io::Result<File> {
    match kind(&fstat(&file)?) {
        FileKind::File => Ok(file.into()),
        FileKind::Directory if how.directory => Ok(file.into()),
        FileKind::Directory => Err(Errno::EISDIR.into()),
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}
