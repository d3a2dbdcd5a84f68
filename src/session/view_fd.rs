//! The view of a session for file calls: the root and the mount namespace of a worker that ran its steps,
//! sent both descriptors and ended. The first call makes it. A call makes it again after somebody outside
//! replaced a mounted file.
//!
//! It is not the view of the zygote, which may lack mounts that were removed outside. Each worker mounts
//! those again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::command::source::Ticket;
use crate::launch::inside::CommandHold;
use crate::protect::watch::Watch;
use crate::report::error::Error;
use crate::session::live::Live;
use crate::session::zygote::worker::{MOST_TRIES, is_replaced};

/// A view without any process.
#[derive(Debug)]
pub(crate) struct ViewFd {
    root: OwnedFd,
    /// Keeps the mount namespace alive. Without this descriptor, the kernel would dissolve the mounts with
    /// the last process.
    mounts: OwnedFd,
    generation: u64,
}

impl ViewFd {
    pub(crate) fn new(root: OwnedFd, mounts: OwnedFd, generation: u64) -> Self {
        Self { root, mounts, generation }
    }

    /// Its mount namespace.
    pub(crate) fn mounts(&self) -> BorrowedFd<'_> {
        self.mounts.as_fd()
    }
}

/// One file call. While it lives, Kennel does not take a file that appears at a protected path for the user's
/// own.
#[derive(Debug)]
pub(crate) struct FileCall {
    view: Arc<ViewFd>,
    watches: Arc<[Watch]>,
    directory: PathBuf,
    _hold: CommandHold,
}

impl FileCall {
    /// The root of the view.
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.view.root.as_fd()
    }

    /// Paths where no call may create anything.
    pub(crate) fn watches(&self) -> &[Watch] {
        &self.watches
    }

    /// Makes a path of the sandbox absolute, relative to the working directory of the session.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }
}

impl Live {
    /// A view for a file call, which has this ticket.
    pub(crate) async fn file_call(&self, ticket: Ticket) -> Result<FileCall, Error> {
        if self.is_gone() {
            return Err(Error::SessionEnded);
        }
        let (mut tries, mut ticket) = (0, ticket);
        loop {
            match self.view_for(&ticket).await {
                // Somebody outside is replacing a file right now.
                Err(Error::Step { source, .. }) if tries < MOST_TRIES && is_replaced(&source) => {
                    tries += 1;
                    drop(ticket);
                    ticket = self.enter().await?;
                }
                Err(Error::Lost) => return Err(self.lost()),
                view => {
                    return Ok(FileCall {
                        view: view?,
                        watches: self.mounts().watches(),
                        directory: self.prepared().compiled.commands.directory.clone(),
                        _hold: ticket.hold,
                    });
                }
            }
        }
    }

    async fn view_for(&self, ticket: &Ticket) -> Result<Arc<ViewFd>, Error> {
        if let Some(shared) = &self.shared {
            return Ok(Arc::clone(&shared.view));
        }
        if let Some(view) = self.view().as_ref().filter(|view| view.generation >= ticket.generation) {
            return Ok(Arc::clone(view));
        }
        let mut worker = self.order(Some(&self.prepared().compiled.steps.files)).await?;
        let (root, mounts) = self.unless_gone(worker.wait_for_view(self.prepared(), self.counts())).await?;
        let view = Arc::new(ViewFd::new(root, mounts, worker.generation()));
        *self.view() = Some(Arc::clone(&view));
        // The session may have ended meanwhile. Then nothing may keep the view.
        if self.has_ended() {
            self.view().take();
            return Err(Error::SessionEnded);
        }
        Ok(view)
    }
}
