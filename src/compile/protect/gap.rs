//! What is not protected in full, and why.

use std::path::PathBuf;

/// Links that are followed of those that lie in one directory: each is a mount of every command.
pub(super) const MOST_FOLLOWED: usize = 256;

/// Of those that lie in all protected directories.
pub(super) const MOST_FOLLOWED_IN_ALL: usize = 2048;

/// Something that commands can write all the same, or that leads to it.
#[derive(Debug)]
pub(super) struct Gap {
    pub(super) path: PathBuf,
    pub(super) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A file has other names, by which it can be written.
    Linked,
    /// There are more links in a directory than are followed.
    TooMany,
    /// Not all that is in a directory of git's was looked at.
    Unseen,
}

impl Why {
    pub(super) fn reason(self) -> String {
        match self {
            Self::Linked => "has other hard links, by which it can be written".to_owned(),
            Self::TooMany => format!(
                "has more than {MOST_FOLLOWED} symbolic links in it, or there are more than {MOST_FOLLOWED_IN_ALL} in all: what the \
                 others lead to is not protected"
            ),
            Self::Unseen => "is read-only, but could not be read completely (no access, or too many entries): targets of links \
                             in it are not protected"
                .to_owned(),
        }
    }

    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::Linked => "remove the other links",
            Self::TooMany => "have fewer links there, and protect what they lead to by its name",
            Self::Unseen => {
                "give yourself access to all that is in it, and remove what does not belong to git"
            }
        }
    }
}
