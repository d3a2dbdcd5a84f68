//! The names in the caller's homes, read once: most of what could lie there does not, and asking the kernel for
//! each would cost more than everything else in a compilation.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// What lies directly in each home; `None` for one that cannot be listed.
#[derive(Debug, Default)]
pub(super) struct Names {
    homes: Vec<(PathBuf, Option<HashSet<OsString>>)>,
}

impl Names {
    /// Lists each home.
    pub(super) fn read(homes: &[PathBuf]) -> Self {
        let names = |home: &PathBuf| {
            let entries = fs::read_dir(home).ok()?;
            // A name that could not be read is not one that is missing.
            entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>().ok()
        };
        Self { homes: homes.iter().map(|home| (home.clone(), names(home))).collect() }
    }

    /// Whether `path` can exist, as far as the listings tell.
    pub(super) fn may_exist(&self, path: &Path) -> bool {
        let missing = |(home, names): &(PathBuf, Option<HashSet<OsString>>)| {
            let first = path.strip_prefix(home).ok().and_then(|below| below.iter().next());
            first.zip(names.as_ref()).is_some_and(|(first, names)| !names.contains(first))
        };
        !self.homes.iter().any(missing)
    }
}
