//! A place of the view: what lies there, how much it allows, and who wanted it.

use std::path::PathBuf;

use crate::report::enforcement::Protection;
use crate::view::source::Source;
use crate::view::tmpfs_size::Room;

/// What lies at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// An empty directory of the root.
    Dir,
    /// A thing of the host.
    Bind { source: Source, access: Access },
    /// A directory of the root that stays writable; all of them share the root's tmpfs and its size.
    Private { mode: u32 },
    /// A writable tmpfs of its own.
    Tmpfs { mode: u32, room: Room },
    /// An empty read-only directory over one that must not be seen.
    Cover,
    /// A file of the sandbox's own.
    File { contents: Vec<u8>, mode: u32 },
    /// A symbolic link of the root.
    Symlink { points_to: PathBuf },
    /// /dev/null over a file that must not be read.
    CoverFile,
    /// A file of the sandbox's own, which lies at `source`, over one of the host's.
    OwnFile { source: PathBuf },
    /// A fresh procfs.
    Proc,
    /// A fresh devpts.
    DevPts,
}

impl Node {
    /// Whether it is a mount, so that what lies below it lies in it.
    pub(crate) fn is_mount(&self) -> bool {
        !matches!(self, Self::Dir | Self::File { .. } | Self::Symlink { .. })
    }

    /// Whether it hides what is under it.
    pub(crate) fn covers(&self) -> bool {
        matches!(self, Self::Cover | Self::CoverFile)
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        match self {
            Self::Bind { source, .. } => source.is_dir(),
            Self::File { .. } | Self::Symlink { .. } | Self::CoverFile | Self::OwnFile { .. } => false,
            Self::Dir
            | Self::Private { .. }
            | Self::Tmpfs { .. }
            | Self::Cover
            | Self::Proc
            | Self::DevPts => true,
        }
    }
}

/// How much a place allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// A device node: usable as the host lets its user use it.
    Device,
}

/// Who wanted it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// The profile: gives way to everything else.
    Profile,
    /// The policy's own mounts: two of them must not contradict each other.
    Policy,
    /// Covers, protected paths and pins: never over what the policy names.
    Wall,
}

/// A node, where it comes from, and its name in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: Node,
    pub(crate) origin: Origin,
    pub(crate) what: &'static str,
    pub(crate) protection: Protection,
}

/// A mount that lies in a directory of the host's.
#[derive(Clone, Debug)]
pub(crate) struct OnHost {
    /// Its place in the sandbox.
    pub(crate) target: PathBuf,
    /// Its mount point on the host.
    pub(crate) path: PathBuf,
}
