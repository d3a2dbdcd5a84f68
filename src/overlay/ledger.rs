//! What a session knows of its changes: where it keeps them, which workspace they belong to, and which ones
//! it committed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use nix::fcntl::OFlag;

use crate::overlay::claim::{Claim, check_attributes};
use crate::overlay::clock::{is_coarse, now_of_files};
use crate::overlay::ledger_state::LedgerState;
use crate::overlay::record::{CommitProtected, Heading, LedgerRecord};
use crate::overlay::tree::OverlayTree;
use crate::plan::overlay::Merged;
use crate::report::error::overlay::OverlayError;
use crate::sys::dirfd::open_without_links;
use crate::sys::inode::Identity;
use crate::sys::locked;

/// The upper directory and the workspace of a mounted overlay.
#[derive(Debug)]
pub(crate) struct Ledger {
    upper: OwnedFd,
    workspace: OwnedFd,
    /// The path of the workspace.
    path: PathBuf,
    /// What no command was allowed to change.
    protected: CommitProtected,
    state: Mutex<LedgerState>,
    /// The host directory that holds the changes; `None` if they are in memory.
    claim: Option<Claim>,
}

impl Ledger {
    /// Opens the ledger of a session. Its overlay is mounted and no command has run yet.
    ///
    /// # Errors
    /// The workspace was replaced meanwhile, or the upper directory does not support extended attributes.
    pub(crate) async fn open(
        merged: &Merged,
        upper: OwnedFd,
        claim: Option<Claim>,
    ) -> Result<Self, OverlayError> {
        let path = &merged.workspace.path;
        let failed = |source: io::Error| OverlayError::io("open the workspace", path, source);
        let workspace = open_without_links(path, OFlag::O_DIRECTORY).map_err(failed)?;
        let found = Identity::of_held(&workspace).map_err(|errno| failed(errno.into()))?;
        if found != merged.workspace.identity {
            return Err(failed(io::Error::from_raw_os_error(libc::ESTALE)));
        }
        let root =
            OverlayTree { root: upper.as_fd() }.open(Path::new(""), OFlag::O_RDONLY | OFlag::O_DIRECTORY);
        let directory = root.map_err(|errno| OverlayError::io("open the changes of", path, errno.into()))?;
        check_attributes(&directory).map_err(|source| OverlayError::Attributes { source })?;
        let record = claim.as_ref().and_then(Claim::record);
        // Earlier commands may have written what these ones must not.
        let protected = match record {
            Some(record) => record.heading.protected().map_err(failed)?,
            None => CommitProtected { never: merged.never.clone(), patterns: merged.patterns.clone() },
        };
        let mut state = record.map(|record| record.state.clone()).unwrap_or_default();
        state.since = now_of_files().await;
        state.is_coarse = is_coarse(&workspace).map_err(failed)?;
        state.is_settled = false;
        let state = Mutex::new(state);
        let ledger = Self { upper, workspace, path: path.clone(), protected, state, claim };
        ledger.save(&ledger.state())?;
        Ok(ledger)
    }

    /// The ledger of kept changes that no session uses, or, without a claim, of those that one uses.
    ///
    /// # Errors
    /// The workspace is not there any more, or cannot be read.
    pub(crate) fn of_kept(
        record: LedgerRecord,
        upper: OwnedFd,
        claim: Option<Claim>,
    ) -> Result<Self, OverlayError> {
        let LedgerRecord { heading, mut state } = record;
        let path = heading.workspace.0.clone();
        let failed = |source: io::Error| OverlayError::io("open the workspace", &path, source);
        let workspace = heading.open_workspace()?;
        state.is_coarse = is_coarse(&workspace).map_err(failed)?;
        let protected = heading.protected().map_err(failed)?;
        Ok(Self { upper, workspace, path, protected, state: Mutex::new(state), claim })
    }

    /// Writes down the state of kept changes, for the next session.
    ///
    /// # Errors
    /// A full disk.
    pub(crate) fn save(&self, state: &LedgerState) -> Result<(), OverlayError> {
        let Some(claim) = &self.claim else { return Ok(()) };
        let Some(LedgerRecord { heading, .. }) = claim.record() else { return Ok(()) };
        claim.save(&LedgerRecord { heading: Heading::clone(heading), state: state.clone() })
    }

    /// The directory with the changes; `None` if they are in memory, or a session uses it.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.claim.as_ref()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LedgerState> {
        locked(&self.state)
    }

    /// The upper directory: the changes that commands made.
    pub(crate) fn upper(&self) -> OverlayTree<'_> {
        OverlayTree { root: self.upper.as_fd() }
    }

    /// The workspace.
    pub(crate) fn workspace(&self) -> OverlayTree<'_> {
        OverlayTree { root: self.workspace.as_fd() }
    }

    /// Keeps the changes in their host directory, if there is one, and returns its path.
    pub(crate) fn keep(&self) -> Option<PathBuf> {
        self.claim.as_ref().map(Claim::keep)
    }

    /// The path that the workspace had when the session began.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn protected(&self) -> &CommitProtected {
        &self.protected
    }
}

/// The ledger of a session, also held by a running commit.
pub(crate) type SharedLedger = Arc<Ledger>;
