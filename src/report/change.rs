//! Changes of a workspace: what changed, what was committed, what was not and why. Plain data.

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use nix::errno::Errno;
use serde::{Deserialize, Serialize, Serializer};

use crate::report::denial::Denial;
use crate::report::escape::harmless;
use crate::report::failure;
use crate::sys::inode::FileKind;

/// How a path of the workspace changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// Its contents, modification time, mode, user attributes, access list, link target or kind changed.
    Modified,
    /// It was removed; a directory with everything in it.
    Deleted,
}

/// One path that commands changed in an overlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// The path, relative to the workspace.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// How it changed.
    pub kind: ChangeKind,
    /// Its kind now; for a deletion, its kind before.
    pub file: FileKind,
}

/// A letter and the path, on one line. A control character is written as `\u{1b}`, a byte that is not UTF-8
/// as `\xff`, and a backslash twice, so no two paths look alike.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.kind {
            ChangeKind::Added => 'A',
            ChangeKind::Modified => 'M',
            ChangeKind::Deleted => 'D',
        };
        write!(f, "{letter} ")?;
        for chunk in self.path.as_os_str().as_bytes().utf8_chunks() {
            f.write_str(&harmless(&chunk.valid().replace('\\', r"\\")))?;
            for byte in chunk.invalid() {
                write!(f, r"\x{byte:02x}")?;
            }
        }
        if self.file == FileKind::Directory { f.write_str("/") } else { Ok(()) }
    }
}

impl Change {
    /// This change as one that was not committed.
    #[must_use]
    pub fn refused(self, refusal: Refusal) -> Refused {
        Refused { change: self, refusal }
    }
}

/// Why a change was not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Somebody outside changed the workspace there since the session began.
    Conflict,
    /// The policy protects the path.
    Protected,
    /// It is a FIFO, socket or device.
    Unsupported,
    /// This is a deletion, and an addition or modification was not committed. The deleted file may have been
    /// moved there.
    Withheld,
    /// The command failed.
    Unsuccessful,
    /// A system call failed with this errno. The workspace is unchanged there, but a directory that was being
    /// deleted may have lost a part.
    Failed(i32),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict => f.write_str("the workspace changed there meanwhile"),
            Self::Protected => f.write_str("it is protected"),
            Self::Unsupported => f.write_str("only files, directories and links are committed"),
            Self::Withheld => f.write_str("it is not deleted because something else was not committed"),
            Self::Unsuccessful => f.write_str("the command failed"),
            Self::Failed(errno) => f.write_str(&failure::words(&std::io::Error::from_raw_os_error(*errno))),
        }
    }
}

impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno as i32)
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// A change that was not committed. The overlay keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Refused {
    /// The change.
    #[serde(flatten)]
    pub change: Change,
    /// Why it was not committed.
    #[serde(rename = "reason")]
    pub refusal: Refusal,
}

/// What a commit does where others have changed the workspace since the commands began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conflicts {
    /// Refuses the change.
    #[default]
    Refuse,
    /// Replaces what others wrote.
    Overwrite,
}

/// The result of [`Session::commit`](crate::session::Session::commit).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Committed {
    /// Changes that the workspace has now.
    pub applied: Vec<Change>,
    /// Changes that it does not have.
    pub refused: Vec<Refused>,
    /// Changes that were not asked for.
    pub left: Vec<Change>,
    /// Applied files that programs outside obey: the configuration of a new repository. Check them before you
    /// trust them.
    pub denials: Vec<Denial>,
}

/// The result of [`KeptChanges::discard`](crate::overlay::kept_changes::KeptChanges::discard).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Discarded {
    /// Changes that are gone.
    pub dropped: Vec<Change>,
    /// Changes that were not asked for.
    pub left: Vec<Change>,
}

pub(crate) fn lossy<S: Serializer>(path: &std::path::Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}
