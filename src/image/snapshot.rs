//! What commands of a session changed in their image, as one more layer of a new image.

#[cfg(feature = "image")]
mod writing;

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::image::digest::Digest;

/// What the commands of a session changed in its image so far. While it lives, no command of the session
/// starts.
pub struct Snapshot {
    image: Digest,
    upper: OwnedFd,
    /// Keeps commands from starting.
    _hold: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("image", &self.image).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// `upper` is the upper directory of an overlay over that image.
    pub(crate) fn new(image: Digest, upper: OwnedFd, hold: impl Any + Send + Sync) -> Self {
        Self { image, upper, _hold: Box::new(hold) }
    }

    /// The image that the session began with.
    #[must_use]
    pub fn image(&self) -> Digest {
        self.image
    }

    /// The directory with the changes, in the form of overlayfs with `userxattr`. What commands wrote there
    /// is not to be trusted: it has links and names of any kind.
    #[must_use]
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.upper.as_fd()
    }
}
