//! Names that are taken from files one after the other, as a tree is removed. To take one is a change of the file, which
//! its other names show too: it must not be taken for somebody else's.

use std::{
    ffi::OsStr,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::stat::{FileStat, fstat},
};

use super::{ledger::State, tree::Tree};
use crate::below::{self, FileKind, kind};

pub(super) struct Taking<'s> {
    state: &'s mut State,
    /// What loses its name now, if it has others. One at a time: a tree may have more of them than we may hold.
    last: Option<(OwnedFd, FileStat)>,
}

impl<'s> Taking<'s> {
    pub(super) fn new(state: &'s mut State) -> Self {
        Self { state, last: None }
    }

    /// Looks at what loses its name next, right before it does; it was at `path`.
    ///
    /// # Errors
    /// `ESTALE` where somebody else has changed it, or put it there.
    pub(super) fn next(&mut self, (parent, name): (BorrowedFd<'_>, &OsStr), path: &Path) -> io::Result<()> {
        self.took();
        let Some(stat) = below::stat(parent, name)? else { return Ok(()) };
        if self.state.is_newer(path, &stat) {
            return Err(Errno::ESTALE.into());
        }
        if stat.st_nlink > 1 && kind(&stat) != FileKind::Directory {
            let held = Tree { root: parent }.open(Path::new(name), OFlag::O_PATH)?;
            self.last = Some((held, stat));
        }
        Ok(())
    }

    /// Takes down that the last one has lost its name.
    pub(super) fn took(&mut self) {
        if let Some((held, before)) = self.last.take()
            && let Ok(now) = fstat(&held)
        {
            self.state.unlinked(&before, &now);
        }
    }
}
