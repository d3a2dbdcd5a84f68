//! The writable grants, in which paths are protected.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::protect::git::obeyed;
use crate::protect::place;
use crate::protect::recheck::Watch;
use crate::report::error::Error;
use crate::report::shortage::{EXCHANGED, of_call};
use crate::sys::inode::Identity;
use crate::sys::{dirfd, lexical};
use crate::view::View;
use crate::view::path_walk::Bases;
use crate::view::source::BindSource;

/// A writable grant: its place in the sandbox, and the directory of the host.
struct Grant {
    target: PathBuf,
    base: PathBuf,
    /// Device and inode.
    identity: Identity,
}

/// The writable grants. One directory may have several places.
pub(crate) struct WritableGrants {
    grants: Vec<Grant>,
    pub(crate) bases: Bases,
    /// What is covered in the sandbox.
    covers: Bases,
    /// What shows something of the host, without the walls that are yet to be put up.
    binds: View,
    /// Whether a command reaches all of them. Real root without a user namespace mounts what lies in others' closed homes.
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
        let are_reached = dirfd::of_a_command(|| grants.iter().try_for_each(reach)).is_ok();
        Self { bases, covers: Bases::new(covers), binds: view.binds(), are_reached, grants }
    }

    /// The nearest grant around the host's `path`, and the part of the path that lies below it.
    pub(crate) fn split<'p>(&self, path: &'p Path) -> Option<(&'p Path, &'p Path)> {
        let base = self.bases.around(path)?;
        Some((base, lexical::below(path, base)?))
    }

    /// Whether there is a cover wherever the sandbox would see the host's `path`.
    pub(crate) fn cover(&self, view: &View, path: &Path) -> bool {
        let Some((base, below)) = self.split(path) else { return false };
        let mut targets = self.grants.iter().filter(|grant| grant.base == base).map(|grant| &grant.target);
        // Most are seen there; elsewhere takes longer to find out.
        targets.all(|target| self.covers.hold(&target.join(below))) && self.seen_at(view, path).is_empty()
    }

    /// Every place where the sandbox sees the host's `path`, and nothing that lies nearer instead.
    pub(crate) fn seen_at(&self, view: &View, path: &Path) -> Vec<PathBuf> {
        let mut places = self.binds.shown_at(path);
        places.retain(|place| view.host_path(place).is_some_and(|seen| seen == path));
        places
    }

    /// Holds what the watches begin at.
    pub(crate) fn hold(&self, watches: &mut [Watch]) -> Result<(), Error> {
        for Grant { base, identity, .. } in &self.grants {
            let of_grant = watches.iter_mut().filter(|watch| watch.is_in(base));
            place::hold(of_grant, base, *identity).map_err(|error| not_held(base, error))?;
        }
        Ok(())
    }

    /// Does `look` without the rights that root has over what is closed: what sets up the mounts has none of these, and what
    /// only root can look at may be opened by who closed it.
    pub(crate) fn as_a_command<T>(&self, look: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        match self.grants.first() {
            Some(Grant { base, .. }) if self.are_reached => {
                dirfd::of_a_command(|| Ok(look())).unwrap_or_else(|error| Err(not_held(base, error)))
            }
            _ => look(),
        }
    }

    /// What git obeys in all of them.
    ///
    /// # Errors
    /// A shortage, by which it cannot be known.
    pub(crate) fn obeyed(&self) -> Result<obeyed::Obeyed, Error> {
        let mut obeyed = obeyed::Obeyed::default();
        for Grant { base, .. } in &self.grants {
            obeyed.take(base, &self.bases).map_err(|error| not_held(base, error))?;
        }
        Ok(obeyed)
    }
}

fn not_held(base: &Path, source: io::Error) -> Error {
    let remedy = match source.raw_os_error() {
        Some(libc::ESTALE) => Some(EXCHANGED),
        _ => of_call(&source),
    };
    let (path, remedy) = (base.to_owned(), remedy.map(str::to_owned));
    Error::Grant { what: "writable grant", path, source, remedy }
}
