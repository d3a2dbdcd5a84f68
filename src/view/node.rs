//! What can be at a place of a view, as plain data.

use std::ffi::CString;
use std::path::PathBuf;

use crate::report::enforcement::Protection;
use crate::report::place_kind::PlaceKind;
use crate::view::paths::source::BindSource;

/// Default of inodes: one for each 4 KiB, so that bytes and inodes run out at about the same time. An empty
/// file takes about 1 KiB of kernel memory, which tmpfs does not count as its own.
pub(crate) const PAGE: u64 = 4096;

/// The smallest useful number.
pub(crate) const FEWEST_INODES: u64 = 64;

/// The overlay over the workspace, as far as the view needs it.
#[derive(Clone, Debug)]
pub(crate) struct Overlaid {
    /// The workspace. Its path in the sandbox and on the host is the same.
    pub(crate) target: PathBuf,
    /// The directory for changes; `None` for a tmpfs of `size`.
    pub(crate) upper: Option<BindSource>,
    pub(crate) size: TmpfsSize,
    /// Mode of the workspace: the merged tree takes its mode from the directory for changes.
    pub(crate) mode: u32,
    /// Whether the changes outlive the sandbox.
    pub(crate) keeps: bool,
    pub(crate) hands_out: bool,
}

/// What is at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// An empty directory of the root.
    Dir,
    /// A file, directory or device of the host.
    Bind { source: BindSource, access: Access },
    /// A directory of the host that commands can change without changing the host: a part of one of
    /// `View::layers`. If the host cannot mount the layer, it is `otherwise`.
    Layered { source: BindSource, layer: usize, otherwise: Unlayered },
    /// A directory of the host, read-only, with the places of the view below it among the host's files: an
    /// overlay.
    Merged { source: BindSource },
    /// The root, if that is not the host's: an overlay of the layers of [`View::root`](crate::view::View).
    /// If it is writable, changes are in memory.
    Root { is_writable: bool },
    /// A tmpfs that hides a directory of the root. It has the places of the view below it, and is read-only
    /// once they are made.
    OwnTmpfs { size: TmpfsSize },
    /// Nothing, in a merged directory whose host may have something there.
    Absent,
    /// A writable directory of the root. All private directories share the root's tmpfs and its size.
    Private { mode: u32 },
    /// A writable tmpfs, mounted for this place alone.
    Tmpfs { mode: u32, size: TmpfsSize },
    /// An empty read-only directory that hides another one.
    Cover,
    /// A file that Kennel makes in the sandbox.
    File { contents: Vec<u8>, mode: u32 },
    /// A symbolic link in the root.
    Symlink { points_to: PathBuf },
    /// `/dev/null`, bound over a file to hide it.
    CoverFile,
    /// A file that Kennel makes in the sandbox at `source`, bound over a file of the host.
    OwnFile { source: PathBuf },
    /// A new procfs.
    Proc {
        /// Whether a command may write to what belongs to its processes. Root owns also the settings of the
        /// kernel there.
        is_writable: bool,
    },
    /// A new devpts.
    DevPts,
}

impl Node {
    /// A small text file that Kennel makes in the sandbox.
    pub(crate) fn file(contents: impl Into<Vec<u8>>) -> Self {
        Self::File { contents: contents.into(), mode: 0o644 }
    }

    /// Whether it is a mount, so that places below it are in that mount.
    pub(crate) fn is_mount(&self) -> bool {
        !matches!(self, Self::Dir | Self::File { .. } | Self::Symlink { .. } | Self::Absent)
    }

    /// The file or directory of the host that it shows.
    pub(crate) fn source(&self) -> Option<&BindSource> {
        match self {
            Self::Bind { source, .. } | Self::Merged { source } | Self::Layered { source, .. } => {
                Some(source)
            }
            _ => None,
        }
    }

    /// Whether it hides what is under it.
    pub(crate) fn covers(&self) -> bool {
        matches!(self, Self::Cover | Self::CoverFile | Self::Absent)
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        match self {
            Self::Bind { source, .. } => source.is_dir(),
            Self::File { .. }
            | Self::Symlink { .. }
            | Self::CoverFile
            | Self::OwnFile { .. }
            | Self::Absent => false,
            Self::Dir
            | Self::Layered { .. }
            | Self::Merged { .. }
            | Self::Root { .. }
            | Self::OwnTmpfs { .. }
            | Self::Private { .. }
            | Self::Tmpfs { .. }
            | Self::Cover
            | Self::Proc { .. }
            | Self::DevPts => true,
        }
    }
}

/// What commands may do at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// A device node. The host's permissions decide who may use it.
    Device,
}

/// What is at a place whose copy-on-write layer cannot be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlayered {
    /// An empty private directory.
    Empty,
    /// The host's directory, read-only.
    ReadOnly,
}

/// What asked for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// The profile: everything else replaces it.
    Profile,
    /// A mount of the policy: two of them must not contradict each other.
    Policy,
    /// A cover, a protected path or a pin: it never replaces what the policy names.
    Wall,
}

/// A node, its origin, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ViewEntry {
    pub(crate) node: Node,
    pub(crate) origin: Origin,
    pub(crate) what: PlaceKind,
    pub(crate) protection: Protection,
}

/// A mount whose mount point is in a directory of the host.
#[derive(Clone, Debug)]
pub(crate) struct MountOnHost {
    /// Its place in the sandbox.
    pub(crate) target: PathBuf,
    /// Its mount point on the host.
    pub(crate) path: PathBuf,
}

/// The size of a tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TmpfsSize {
    /// Bytes.
    pub(crate) bytes: u64,
    /// Files, directories and links of commands.
    pub(crate) inodes: u64,
    /// What Kennel itself puts there, in addition.
    pub(crate) own: Own,
}

/// An upper bound of what Kennel itself puts into a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl TmpfsSize {
    pub(crate) fn from_bytes(bytes: u64) -> Self {
        Self { bytes, inodes: (bytes / PAGE).max(FEWEST_INODES), own: Own::default() }
    }

    /// Mount options, tmpfs(5).
    pub(crate) fn options(self, mode: u32) -> CString {
        let Self { bytes, inodes, own } = self;
        let (bytes, inodes) = (bytes.saturating_add(own.bytes), inodes.saturating_add(own.inodes));
        CString::new(format!("mode={mode:o},size={bytes},nr_inodes={inodes}")).unwrap_or_default()
    }
}
