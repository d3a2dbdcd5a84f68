//! Records the side effects of a commit (times, modes, link counts), so that the next commit does not take them for
//! changes by another program.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, fstat};

use crate::overlay::ledger::LedgerState;
use crate::overlay::scan::ChangedEntry;
use crate::overlay::tree::OverlayTree;
use crate::report::change::Refusal;
use crate::sys::dirfd::{change_mode, mode_of};
use crate::sys::inode::{FileKind, Identity, kind};

/// A directory that was opened up, and the mode it gets when everything in it is done.
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    held: OwnedFd,
    last: Mode,
    /// Its mode while it is open.
    open: Mode,
}

impl Opened {
    /// `held` is open already.
    pub(crate) fn new(path: &Path, held: OwnedFd, last: Mode) -> nix::Result<Self> {
        let open = mode_of(&fstat(&held)?);
        Ok(Self { path: path.to_owned(), held, last, open })
    }

    /// Sets the final mode, unless another program has changed the mode meanwhile.
    pub(crate) fn close(self, state: &mut LedgerState) {
        if fstat(&self.held).is_ok_and(|stat| mode_of(&stat) != self.open) {
            return;
        }
        let _ = change_mode(&self.held, self.last);
        if let Ok(stat) = fstat(&self.held) {
            state.record(&self.path, Some(stat), (None, false));
        }
    }
}

/// A directory that gets its mode at the very end. It holds no descriptor, as there may be any number of these.
pub(crate) struct FinalMode {
    path: PathBuf,
    identity: Identity,
    last: Mode,
    open: Mode,
}

impl FinalMode {
    pub(crate) fn from_opened(opened: &Opened) -> nix::Result<Self> {
        let identity = Identity::of_held(&opened.held)?;
        Ok(Self { path: opened.path.clone(), identity, last: opened.last, open: opened.open })
    }

    /// Whether the final mode denies search to the owner.
    pub(crate) fn closes(&self) -> bool {
        !self.last.contains(Mode::S_IXUSR)
    }

    /// Sets the final mode, unless another directory has taken its place.
    pub(crate) fn close(self, workspace: OverlayTree<'_>, state: &mut LedgerState) {
        let Self { path, identity, last, open } = self;
        if let Some(held) = workspace.open_if_same(&path, identity) {
            Opened { path, held, last, open }.close(state);
        }
    }
}

/// A directory whose times change because the commit adds or removes an entry.
pub(crate) struct ParentDirectory {
    path: PathBuf,
    pub(crate) held: OwnedFd,
    /// Whether no other program has changed it since the session began.
    is_known: bool,
}

impl ParentDirectory {
    pub(crate) fn new(path: &Path, parent: &OwnedFd, state: &LedgerState) -> Result<Self, Refusal> {
        let path = path.parent().unwrap_or(Path::new("")).to_owned();
        let is_known = !state.is_newer(&path, &fstat(parent)?);
        Ok(Self { path, held: parent.try_clone()?, is_known })
    }

    pub(crate) fn record(self, state: &mut LedgerState) -> Result<(), Refusal> {
        if self.is_known {
            state.record(&self.path, Some(fstat(&self.held)?), (None, false));
        }
        Ok(())
    }
}

/// A file that may have other hard links in the workspace, and its state before the commit.
pub(crate) struct OtherNames(Option<(OwnedFd, FileStat)>);

impl OtherNames {
    pub(crate) fn open(found: &ChangedEntry, parent: &OwnedFd, name: &OsStr) -> Result<Self, Refusal> {
        let has = |lower: &&FileStat| kind(lower) != FileKind::Directory && lower.st_nlink > 1;
        let lower = found.lower.as_ref().filter(has);
        let parent = OverlayTree { root: parent.as_fd() };
        let hold = |lower: &FileStat| Ok::<_, Errno>((parent.open(Path::new(name), OFlag::O_PATH)?, *lower));
        Ok(Self(lower.map(hold).transpose()?))
    }

    pub(crate) fn record(self, state: &mut LedgerState) -> Result<(), Refusal> {
        if let Some((held, before)) = self.0 {
            state.unlinked(&before, &fstat(&held)?);
        }
        Ok(())
    }
}
