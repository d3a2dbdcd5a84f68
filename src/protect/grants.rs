//! The writable grants: in these, paths are protected.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::policy::profile::Git;
use crate::protect::git::obeyed;
use crate::protect::watch::{Watch, hold};
use crate::report::error::Error;
use crate::report::shortage::{EXCHANGED, of_call};
use crate::sys::inode::Identity;
use crate::sys::{dirfd, lexical};
use crate::view::View;
use crate::view::paths::source::BindSource;
use crate::view::paths::walk::Bases;
use crate::view::shown::Shown;

/// A writable grant: its path in the sandbox, and the directory of the host.
struct Grant {
    target: PathBuf,
    base: PathBuf,
    /// Of the directory.
    identity: Identity,
}

/// All writable grants. One directory may be granted at several paths.
pub(crate) struct WritableGrants {
    grants: Vec<Grant>,
    pub(crate) bases: Bases,
    /// Covered paths in the sandbox.
    covers: Bases,
    /// What the view shows, without walls that come later.
    shown: Shown,
    /// Whether a command can reach all of them. Real root without a user namespace can grant directories
    /// inside closed homes of other users.
    are_reached: bool,
}

impl WritableGrants {
    pub(crate) fn of(view: &View) -> Self {
        let grant = |(target, source): (&Path, &BindSource)| Grant {
            target: target.to_owned(),
            base: source.path.clone(),
            identity: source.identity,
        };
        let grants: Vec<Grant> = view.writable_directories().map(grant).collect();
        let bases = Bases::new(grants.iter().map(|grant| grant.base.clone()));
        let covers =
            view.iter().filter(|(_, place)| place.node.covers()).map(|(target, _)| target.to_owned());
        let reach = |Grant { base, .. }: &Grant| fs::symlink_metadata(base.join(".")).map(drop);
        let are_reached = dirfd::without_capabilities(|| grants.iter().try_for_each(reach)).is_ok();
        Self { bases, covers: Bases::new(covers), shown: view.shown(), are_reached, grants }
    }

    /// The nearest grant above the host's `path`, and the rest of the path below it.
    pub(crate) fn split<'p>(&self, path: &'p Path) -> Option<(&'p Path, &'p Path)> {
        let base = self.bases.base_above(path)?;
        Some((base, lexical::below(path, base)?))
    }

    /// Whether the host's `path` is covered wherever the sandbox would show it.
    pub(crate) fn is_covered(&self, view: &View, path: &Path) -> bool {
        let Some((base, below)) = self.split(path) else { return false };
        let mut targets = self.grants.iter().filter(|grant| grant.base == base).map(|grant| &grant.target);
        // Most paths are shown in one place. `shown_at` finds the others, but takes longer.
        targets.all(|target| self.covers.contains(&target.join(below)))
            && self.shown_at(view, path).is_empty()
    }

    /// Every place where the sandbox really shows the host's `path`, so that no other mount hides it there.
    pub(crate) fn shown_at(&self, view: &View, path: &Path) -> Vec<PathBuf> {
        let mut places = self.shown.at(path);
        places.retain(|place| view.host_path(place).is_some_and(|seen| seen == path));
        places
    }

    /// Opens and keeps the directories where looking at the watches starts.
    pub(crate) fn hold(&self, watches: &mut [Watch]) -> Result<(), Error> {
        for Grant { base, identity, .. } in &self.grants {
            let of_grant = watches.iter_mut().filter(|watch| watch.is_in_grant(base));
            hold(of_grant, base, *identity).map_err(|error| cannot_hold(base, error))?;
        }
        Ok(())
    }

    /// Runs `look` without root's right to read closed directories, as a command would. The process that sets
    /// up the mounts lacks that right too. And a command that owns a closed directory could open it later.
    pub(crate) fn as_a_command<T>(&self, look: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        match self.grants.first() {
            Some(Grant { base, .. }) if self.are_reached => dirfd::without_capabilities(|| Ok(look()))
                .unwrap_or_else(|error| Err(cannot_hold(base, error))),
            _ => look(),
        }
    }

    /// What commands must not change in all of them, because git obeys it.
    ///
    /// # Errors
    /// A shortage of descriptors or memory: the answer is unknown.
    pub(crate) fn obeyed(&self, git: Git) -> Result<obeyed::Obeyed, Error> {
        let mut obeyed = obeyed::Obeyed::new(git == Git::ReadOnly);
        if git == Git::Trust {
            return Ok(obeyed);
        }
        for Grant { base, .. } in &self.grants {
            obeyed.add(base, &self.bases).map_err(|error| cannot_hold(base, error))?;
        }
        Ok(obeyed)
    }
}

fn cannot_hold(base: &Path, source: io::Error) -> Error {
    let remedy = match source.raw_os_error() {
        Some(libc::ESTALE) => Some(EXCHANGED),
        _ => of_call(&source),
    };
    let (path, remedy) = (base.to_owned(), remedy.map(Into::into));
    Error::Grant { what: "writable grant", path, source, remedy }
}
