//! What is at a path of the workspace, or in the changes of it, for people who look at the difference.
//!
//! Commands are hostile: a file can be of any size, a link can lead anywhere, and a FIFO would block who
//! opens it.

use std::fs::File;
use std::io;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::fcntl::readlinkat;
use nix::sys::stat::fstat;

use crate::overlay::tree::ReadableTree;
use crate::report::failure;
use crate::sys;
use crate::sys::inode::{FileKind, kind};
use crate::sys::mode::Mode;

/// One side of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Side {
    /// The permission bits, with set-user-ID, set-group-ID and sticky. 0 if nothing is there.
    pub mode: Mode,
    /// What is there.
    pub contents: Contents,
}

/// What is at a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contents {
    /// Nothing.
    #[default]
    Nothing,
    /// A file with these bytes.
    File(Vec<u8>),
    /// A file of that many bytes, more than were asked for.
    Large(u64),
    /// A symbolic link that leads there. It was not followed.
    Link(PathBuf),
    /// A directory.
    Directory,
    /// A FIFO, socket or device. It was not opened.
    Other,
    /// It cannot be read, and why.
    Unreadable(String),
}

impl Side {
    /// What cannot be read, and why.
    pub(crate) fn unreadable(error: &io::Error) -> Self {
        Self { contents: Contents::Unreadable(failure::words(error)), ..Self::default() }
    }

    /// Reads what is at `path`, at most `most` bytes.
    pub(crate) fn read(tree: &ReadableTree<'_>, path: &Path, most: u64) -> io::Result<Self> {
        tree.open_above(path)?;
        let Some(stat) = tree.tree.stat(path)?.filter(|stat| !sys::is_whiteout(stat)) else {
            return Ok(Self::default());
        };
        let contents = match kind(&stat) {
            FileKind::File if stat.st_size.unsigned_abs() > most => {
                Contents::Large(stat.st_size.unsigned_abs())
            }
            FileKind::File => bytes(tree.read(path)?, most)?,
            FileKind::Link => Contents::Link(
                readlinkat(tree.tree.parent(path)?, path.file_name().unwrap_or_default())?.into(),
            ),
            FileKind::Directory => Contents::Directory,
            FileKind::Other => Contents::Other,
        };
        Ok(Self { mode: Mode::new(stat.st_mode), contents })
    }
}

/// Reads a regular file, which may grow meanwhile.
fn bytes(file: OwnedFd, most: u64) -> io::Result<Contents> {
    let size = fstat(&file)?.st_size.unsigned_abs();
    let mut bytes = Vec::new();
    File::from(file).take(most + 1).read_to_end(&mut bytes)?;
    let is_large = bytes.len() as u64 > most;
    Ok(if is_large { Contents::Large(size.max(most + 1)) } else { Contents::File(bytes) })
}
