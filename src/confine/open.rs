//! Opening below a directory, whatever others exchange meanwhile.

use std::{fs::File, io, os::fd::OwnedFd, path::Path};

use nix::{
    errno::Errno,
    fcntl::{OFlag, ResolveFlag, open},
    sys::stat::{Mode, fstat},
};

use super::PathEscape;
use crate::below::{self, FileKind, kind};

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
    ordinary(below::open(base, path, open)?, how)
}

fn ordinary(file: OwnedFd, how: OpenHow) -> io::Result<File> {
    match kind(&fstat(&file)?) {
        FileKind::File => Ok(file.into()),
        FileKind::Directory if how.directory => Ok(file.into()),
        FileKind::Directory => Err(Errno::EISDIR.into()),
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}
