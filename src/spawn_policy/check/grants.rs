//! The paths that a manifest shows.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use super::{Manifest, ManifestBoundary, NOTHING, Resolved, SpawnError};

/// What the manifest shows, without links.
pub(super) struct Grants {
    pub(super) reads: Vec<PathBuf>,
    pub(super) writes: Vec<PathBuf>,
}

impl Grants {
    pub(super) fn of(manifest: &Manifest, home: &Path) -> Result<Self, SpawnError> {
        let resolve = |what: &'static str, path: &String| {
            let path_error = |source| SpawnError::Path { what, path: path.clone(), source };
            Resolved::of(path, home).map_err(path_error)
        };
        let all = |what: &'static str, paths: &[String]| {
            // Each is compared with all others.
            let mut seen = HashSet::new();
            let paths = paths.iter().filter(|path| seen.insert(*path));
            paths.map(|path| resolve(what, path)).collect::<Result<Vec<_>, _>>()
        };
        let reads = all("fs_read", &manifest.spawn.fs_read)?;
        let writes = all("fs_write", &manifest.spawn.fs_write)?;
        Ok(Self {
            reads: Self::kept("fs_read", &reads, &writes)?,
            writes: Self::kept("fs_write", &writes, &writes)?,
        })
    }

    /// Of `paths`, those that no other writable one has in it. One that commands could lead elsewhere, because it is reached
    /// through a writable one, must not lead out of it.
    fn kept(what: &'static str, paths: &[Resolved], writes: &[Resolved]) -> Result<Vec<PathBuf>, SpawnError> {
        let mut kept: Vec<PathBuf> = Vec::new();
        for path in paths {
            let roots = writes.iter().filter(|root| root.named != path.named).map(|root| root.path.as_path());
            let covered =
                writes.iter().any(|root| path.path != root.path && path.path.starts_with(&root.path));
            if !covered && path.is_led_by(roots) {
                let reason = "is reached through fs_write, where commands could lead it elsewhere";
                let requested = (what, path.named.display());
                return Err(SpawnError::denied(ManifestBoundary, requested, reason, NOTHING));
            }
            let is_written = what == "fs_read" && writes.iter().any(|root| root.path == path.path);
            if !covered && !is_written && !kept.contains(&path.path) {
                kept.push(path.path.clone());
            }
        }
        Ok(kept)
    }

    pub(super) fn has(&self, path: &Path) -> bool {
        self.reads.iter().chain(&self.writes).any(|root| path.starts_with(root))
    }
}
