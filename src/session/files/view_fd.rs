//! The view of a session for file calls: the root and the mount namespace of a worker that ran its steps,
//! sent both descriptors and ended. The first call makes it. A call makes it again after somebody outside
//! replaced a mounted file.
//!
//! It is not the view of the zygote, which may lack mounts that were removed outside. Each worker mounts
//! those again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::launch::inside::CommandHold;
use crate::protect::watch::Watch;

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

    /// The generation of its mounts.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
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
    pub(crate) fn new(
        view: Arc<ViewFd>,
        watches: Arc<[Watch]>,
        directory: PathBuf,
        hold: CommandHold,
    ) -> Self {
        Self { view, watches, directory, _hold: hold }
    }

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
