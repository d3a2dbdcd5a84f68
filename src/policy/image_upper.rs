//! Where the changes of another root are, if not in memory.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::policy::path::check_text;
use crate::report::error::policy::PolicyError;

/// The word for a directory of Kennel's own.
const DISK: &str = "disk";

/// The disk that holds what commands change in another root, until the session ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "PathBuf", into = "PathBuf")]
pub enum ImageUpper {
    /// A directory of Kennel's own in the store of images: `disk`.
    Disk,
    /// An empty directory of the caller that nobody else may enter, on ext4, XFS or btrfs. It is empty again
    /// after the session. A directory with the name `disk` is `./disk`.
    Directory(PathBuf),
}

impl From<PathBuf> for ImageUpper {
    fn from(text: PathBuf) -> Self {
        if text.as_os_str() == DISK { Self::Disk } else { Self::Directory(text) }
    }
}

impl From<ImageUpper> for PathBuf {
    fn from(upper: ImageUpper) -> Self {
        match upper {
            ImageUpper::Disk => DISK.into(),
            ImageUpper::Directory(path) => path,
        }
    }
}

impl ImageUpper {
    /// The directory that the caller named.
    pub(crate) fn directory_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Disk => None,
            Self::Directory(path) => Some(path),
        }
    }

    /// Checks it for a root that is another one, or not, and that commands may write to, or not.
    pub(crate) fn check(&self, has_other_root: bool, writes: bool) -> Result<(), PolicyError> {
        const KEY: &str = "image_upper";
        let path = PathBuf::from(self.clone());
        match (self, has_other_root, writes) {
            (_, false, _) => Err(PolicyError::path(
                KEY,
                &path,
                "the root is the host's: name another one, or leave it out",
            )),
            (_, _, false) => {
                Err(PolicyError::path(KEY, &path, "this profile lets commands change nothing of the root"))
            }
            (Self::Directory(path), _, _) => check_text(KEY, path),
            (Self::Disk, _, _) => Ok(()),
        }
    }
}
