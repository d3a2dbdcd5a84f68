//! Something in the workspace that may be removed, known by what it is: its name may be another's by now.

use std::{ffi::OsStr, io, os::fd::OwnedFd};

use nix::{
    sys::stat::FileStat,
    unistd::{UnlinkatFlags, unlinkat},
};

use crate::{
    below::{self, Identity},
    watch,
};

/// What it is, and how it goes.
pub(super) struct Own {
    identity: Identity,
    how: Removal,
}

pub(super) enum Removal {
    Entry,
    /// A directory, if it is empty.
    Empty,
    /// A directory with all that is in it.
    Tree(OwnedFd),
}

impl Own {
    pub(super) fn of(stat: &FileStat, how: Removal) -> Self {
        Self { identity: Identity::of(stat), how }
    }

    pub(super) fn is(&self, stat: &FileStat) -> bool {
        self.identity == Identity::of(stat)
    }

    /// What is in a directory goes by the directory itself. By name goes nothing that has anything in it. What another
    /// gave the name to stays.
    ///
    /// # Errors
    /// It is there still, under that name, or what is left of it is.
    pub(super) fn remove(&self, parent: &OwnedFd, name: &OsStr, check: watch::Check<'_>) -> io::Result<()> {
        if let Removal::Tree(directory) = &self.how {
            watch::empty(directory, check)?;
        }
        match below::stat(parent, name)? {
            Some(stat) if self.is(&stat) => {}
            Some(_) => {
                tracing::warn!(name = %name.display(), "another has got the name of a temporary file");
                return Ok(());
            }
            None => return Ok(()),
        }
        let flag = match self.how {
            Removal::Entry => UnlinkatFlags::NoRemoveDir,
            Removal::Empty | Removal::Tree(_) => UnlinkatFlags::RemoveDir,
        };
        Ok(unlinkat(parent, name, flag)?)
    }
}
