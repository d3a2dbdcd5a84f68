//! The directories below which a walk tells of what it comes by.

use std::{
    collections::HashSet,
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::lexical;

/// Directories of the host, without links: walks tell of what lies below one.
#[derive(Debug)]
pub(in crate::compile) struct Bases {
    paths: HashSet<OsString>,
    /// How long they are: of a long path few beginnings are compared.
    lengths: HashSet<usize>,
}

impl Bases {
    pub(in crate::compile) fn new(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths: HashSet<OsString> = directories.into_iter().map(PathBuf::into_os_string).collect();
        let lengths = paths.iter().map(|path| path.len()).collect();
        Self { paths, lengths }
    }

    /// The nearest one around the host's `path`, which is absolute, and not that one itself.
    pub(in crate::compile) fn around<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        lexical::ancestors(path).skip(1).find(|above| self.has(above))
    }

    /// Whether `path` is one, or lies below one or above.
    pub(in crate::compile) fn touch(&self, path: &Path) -> bool {
        self.hold(path) || self.paths.iter().any(|base| lexical::is_within(Path::new(base), path))
    }

    /// Whether `path` is one, or lies below one.
    pub(in crate::compile) fn hold(&self, path: &Path) -> bool {
        self.has(path) || self.around(path).is_some()
    }

    fn has(&self, path: &Path) -> bool {
        self.lengths.contains(&path.as_os_str().len()) && self.paths.contains(path.as_os_str())
    }
}
