//! The view of a session as calls for files have it: the root and the mount namespace of a worker that ran its steps,
//! handed them out and was ended. Made by the first call, and again when something was replaced outside.
//!
//! Not the zygote's own: there mounts may be gone that somebody took away outside, which each worker puts up again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::launch::inside::CommandHold;
use crate::protect::watch::Watch;
use crate::report::error::Error;
use crate::session::live::Live;
use crate::session::mount_state::Entered;
use crate::session::worker::{MOST_TRIES, is_in_motion};

/// A view without a process in it.
#[derive(Debug)]
pub(crate) struct ViewFd {
    root: OwnedFd,
    /// Whoever holds it keeps the mounts where they are: without it, they would come apart as their last process ends.
    _mounts: OwnedFd,
    generation: u64,
}

/// One call for files. As long as it lives, what appears in the place of a protected path is not the user's.
#[derive(Debug)]
pub(crate) struct FileCall {
    tree: Arc<ViewFd>,
    watches: Arc<[Watch]>,
    directory: PathBuf,
    _hold: CommandHold,
}

impl FileCall {
    /// The root of the view.
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.tree.root.as_fd()
    }

    /// Paths that nothing may be made at.
    pub(crate) fn watches(&self) -> &[Watch] {
        &self.watches
    }

    /// A path of the sandbox, absolute: where a command that starts in the session's directory would find it.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }
}

impl Live {
    /// Looks at what walls stand on, as before a command, and answers the view that fits.
    pub(crate) async fn visit(&self) -> Result<FileCall, Error> {
        if self.is_gone() {
            return Err(Error::SessionEnded);
        }
        self.let_go_of_ended();
        let mut tries = 0;
        loop {
            let entered = self.ground().enter()?;
            match self.tree_for(&entered).await {
                // Something is being replaced outside at this very moment.
                Err(Error::Step { source, .. }) if tries < MOST_TRIES && is_in_motion(&source) => tries += 1,
                Err(Error::Lost) => return Err(self.lost()),
                tree => {
                    return Ok(FileCall {
                        tree: tree?,
                        watches: self.ground().watches(),
                        directory: self.prepared().compiled.directory.clone(),
                        _hold: entered.hold,
                    });
                }
            }
        }
    }

    async fn tree_for(&self, entered: &Entered) -> Result<Arc<ViewFd>, Error> {
        if let Some(tree) = self.tree().as_ref().filter(|tree| tree.generation >= entered.generation) {
            return Ok(Arc::clone(tree));
        }
        let mut worker = self.order(Some(&self.prepared().compiled.files)).await?;
        let (root, mounts) = self.ignore_epipe(worker.view(self.prepared(), self.counts())).await?;
        let tree = Arc::new(ViewFd { root, _mounts: mounts, generation: worker.generation() });
        *self.tree() = Some(Arc::clone(&tree));
        // The end may have come meanwhile, and must find nothing to keep.
        if self.has_ended() {
            self.tree().take();
            return Err(Error::SessionEnded);
        }
        Ok(tree)
    }
}
