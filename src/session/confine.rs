//! Paths that a program wants to keep below a directory of the host's: as a check of a path, which is about now, and as
//! an open, which holds whatever others do meanwhile. Knows no policy and no sandbox.

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
use nix::sys::stat::{Mode, fstat};

use crate::policy::path::without_dots;
use crate::report::failure;
use crate::report::failure::{Boundary, Class, Details, Failure, failure_of, shown};
use crate::sys::dirfd;
use crate::sys::dirfd::MOST_LINKS;
use crate::sys::inode::{FileKind, kind};

/// Why a path is refused. Where the system did it, why is in `source()`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathEscape {
    /// It leads out of the root, by itself or through a link.
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
    /// Nothing is known about the path, or it cannot be opened.
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

/// The place that `candidate` means below `root`: absolute, without links, `.` and `..`.
///
/// A relative candidate starts at the root. Steps up are taken by the text, before the disk is asked. What exists is
/// followed through its links; what does not exist yet is kept as it is, also behind a link that leads nowhere.
///
/// The answer holds only for now: if others can replace files by links meanwhile, use [`open_beneath`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let root = dir.path().canonicalize()?;
/// let path = kennel::confine_path(&root, "src/../new/file.rs")?;
/// assert_eq!(path, root.join("new/file.rs"));
/// let error = kennel::confine_path(&root, "../etc/passwd").unwrap_err();
/// assert!(error.to_string().starts_with("path ../etc/passwd escapes workspace root /"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`PathEscape`]: the path leads out of the root; the root is missing; a directory on the way cannot be looked at, or
/// links go in a circle.
pub fn confine_path(root: impl AsRef<Path>, candidate: impl AsRef<Path>) -> Result<PathBuf, PathEscape> {
    let (root, candidate) = (root.as_ref(), candidate.as_ref());
    let base = existing_root(root)?;
    let escapes = || PathEscape::Escapes { path: candidate.to_owned(), root: root.to_owned() };
    let wanted = without_dots(&base.join(candidate));
    // An absolute one may name the root in other words, which only the disk knows.
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

/// Where an absolute path leads, link by link. From the first part that is missing on, nothing is looked at.
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

/// Names and steps up, in order.
fn parts(path: &Path) -> VecDeque<PathBuf> {
    let is_step = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_step).map(|part| PathBuf::from(part.as_os_str())).collect()
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// What is ahead of something that is missing. Up from there leads nowhere that anybody could know.
fn missing(mut at: PathBuf, ahead: VecDeque<PathBuf>, error: io::Error) -> io::Result<PathBuf> {
    if ahead.iter().any(|part| part == Path::new("..")) {
        return Err(error);
    }
    at.extend(ahead);
    Ok(at)
}

// Opening below a directory, whatever others exchange meanwhile.

/// How [`open_beneath`] opens, as [`std::fs::OpenOptions`] has it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let root = tempfile::tempdir()?;
/// use std::io::Write;
///
/// use kennel::{OpenHow, open_beneath};
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
    mode: u32,
}

impl Default for OpenHow {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenHow {
    /// Nothing yet: at least one of reading, writing, appending and a directory has to be asked for.
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
            mode: 0o666,
        }
    }

    /// To read.
    #[must_use]
    pub const fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// To write.
    #[must_use]
    pub const fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// To write at the end, wherever that is by then.
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

    /// Makes the file where there is none.
    #[must_use]
    pub const fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Makes the file; it is an error that something is there, a link among others.
    #[must_use]
    pub const fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Opens a directory, and nothing else.
    #[must_use]
    pub const fn directory(mut self, directory: bool) -> Self {
        self.directory = directory;
        self
    }

    /// Permission bits of a new file, less the file mask of this program. Default: 0666.
    #[must_use]
    pub const fn mode(mut self, mode: u32) -> Self {
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
        // No FIFO and no terminal keeps whoever opens it.
        let mut flags = access | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        flags.set(OFlag::O_APPEND, self.append);
        flags.set(OFlag::O_TRUNC, self.truncate);
        flags.set(OFlag::O_CREAT, self.create || self.create_new);
        flags.set(OFlag::O_EXCL, self.create_new);
        flags.set(OFlag::O_DIRECTORY, self.directory);
        Ok(flags)
    }
}

/// Opens `path` below `root`. Whatever others exchange meanwhile, it does not lead out of the root: openat2(2),
/// `RESOLVE_BENEATH`, Linux 5.6.
///
/// A path that begins with the root as it is written here means the same as without. Links are followed as long as they
/// stay below; one that begins with a slash never does. Only regular files are opened, and directories where asked for.
///
/// # Errors
/// [`PathEscape`]: the path leads out of the root; the root is missing; whatever keeps the file from being opened, such
/// as `ENOENT`, `EINVAL` for options that contradict each other, and `EOPNOTSUPP` for a FIFO, socket or device.
pub fn open_beneath(
    root: impl AsRef<Path>,
    path: impl AsRef<Path>,
    how: &OpenHow,
) -> Result<File, PathEscape> {
    let (root, path) = (root.as_ref(), path.as_ref());
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let base = open(root, flags, Mode::empty())
        .map_err(|errno| PathEscape::Root { root: root.to_owned(), source: errno.into() })?;
    let below = path.strip_prefix(root).unwrap_or(path);
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    opened(&base, below, *how).map_err(|source| match source.raw_os_error() {
        Some(libc::EXDEV) => PathEscape::Escapes { path: path.to_owned(), root: root.to_owned() },
        _ => PathEscape::Path { path: path.to_owned(), source },
    })
}

fn opened(base: &OwnedFd, path: &Path, how: OpenHow) -> io::Result<File> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let flags = how.flags()?;
    let mut open = nix::fcntl::OpenHow::new().flags(flags).resolve(resolve);
    if flags.contains(OFlag::O_CREAT) {
        open = open.mode(Mode::from_bits_truncate(how.mode & 0o777));
    }
    ordinary(dirfd::open(base, path, open)?, how)
}

fn ordinary(file: OwnedFd, how: OpenHow) -> io::Result<File> {
    match kind(&fstat(&file)?) {
        FileKind::File => Ok(file.into()),
        FileKind::Directory if how.directory => Ok(file.into()),
        FileKind::Directory => Err(Errno::EISDIR.into()),
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}
