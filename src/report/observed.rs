//! What a command used of the host while Kennel learned. Plain data.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// The paths that a command used, as far as Kennel has seen them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observed {
    /// In the order of their names.
    pub paths: Vec<ObservedPath>,
    /// Whether there were more paths than Kennel records.
    pub is_cut: bool,
}

/// A path that a command used. Programs of the command chose it, so it may contain any byte but NUL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObservedPath {
    /// The path as the command named it, absolute, as commands see it.
    pub path: PathBuf,
    /// Where it leads on the host, without links. `None`: nothing is there.
    pub leads_to: Option<PathBuf>,
    /// Whether that is a directory.
    pub is_dir: bool,
    /// Whether it was opened for reading, or executed.
    pub was_read: bool,
    /// Whether it was opened for writing, or to be made.
    pub was_written: bool,
    /// How often.
    pub count: u64,
    /// The names of some of the programs. A program chooses its name.
    pub by: BTreeSet<String>,
}
