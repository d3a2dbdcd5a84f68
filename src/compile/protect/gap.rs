//! What is not protected in full, and why.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::super::{
    git,
    walk::{Met, Walk},
};
use crate::Error;

/// Links that are followed of those that lie in one directory: each is a mount of every command.
pub(super) const MOST_FOLLOWED: usize = 256;

/// Of those that lie in all protected directories.
pub(super) const MOST_FOLLOWED_IN_ALL: usize = 2048;

/// Entries of protected directories that are looked at.
const MOST_ENTRIES: u32 = 50_000;

/// Steps behind links, in all.
const MOST_STEPS: u32 = 1 << 14;

/// How much of what links lead to may be looked at yet: commands lay as many as they like, and each start has to look.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) links: usize,
    entries: u32,
    steps: u32,
}

impl Default for Left {
    fn default() -> Self {
        Self { links: MOST_FOLLOWED_IN_ALL, entries: MOST_ENTRIES, steps: MOST_STEPS }
    }
}

impl Left {
    /// Counts one of the entries.
    ///
    /// # Errors
    /// There were too many.
    pub(super) fn entry(&mut self) -> io::Result<()> {
        self.entries = self.entries.checked_sub(1).ok_or_else(|| io::Error::other("too many entries"))?;
        Ok(())
    }

    /// [`Walk::go_on`], counted. What there is no link on the way to is always gone to.
    pub(super) fn go_on(
        &mut self,
        walk: &mut Walk<'_>,
        is_covered: impl Fn(&Path) -> bool,
    ) -> Result<Option<Met>, Error> {
        let before = walk.steps();
        let met = walk.go_on(is_covered)?;
        if walk.links() > 0 {
            self.steps = self.steps.saturating_sub(walk.steps() - before);
        }
        Ok(met)
    }

    /// Whether no more links are followed.
    pub(super) fn is_over(&self) -> bool {
        self.steps == 0
    }
}

/// Something that commands can write all the same, or that leads to it.
#[derive(Debug)]
pub(super) struct Gap {
    pub(super) path: PathBuf,
    pub(super) why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A file has other names, by which it can be written.
    Linked,
    /// There are more links in a directory than are followed.
    TooMany,
    /// Not all that is in a protected directory was looked at: what it was that was in the way.
    Unseen(String),
    /// A repository has more submodules and linked worktrees than are looked at.
    Beyond,
    /// A way that leads on from there is too long.
    Far,
}

impl Why {
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Linked => "has other hard links, by which it can be written".to_owned(),
            Self::TooMany => format!(
                "has more than {MOST_FOLLOWED} symbolic links in it, or there are more than {MOST_FOLLOWED_IN_ALL} in all, or they lead \
                 over too many others: what the rest leads to is not protected"
            ),
            Self::Unseen(cause) => format!(
                "is read-only, but could not be read completely ({cause}): targets of links in it are not protected"
            ),
            Self::Beyond => format!(
                "has more submodules and linked worktrees than are looked at ({} in {} entries of all repositories, {} directories \
                 or {} bytes deep): its modules and worktrees are read-only as a whole, and targets of links in them are not protected",
                git::MOST,
                git::MOST_ENTRIES,
                git::DEEPEST,
                git::LONGEST
            ),
            Self::Far => {
                "is where a way gets too long to be followed: what it leads to is not protected".to_owned()
            }
        }
    }

    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Linked => "remove the other links",
            Self::TooMany => "have fewer links there, and protect what they lead to by its name",
            Self::Beyond => {
                "remove submodules and worktrees that are not needed (`git worktree prune`), or grant fewer repositories"
            }
            Self::Far => "remove the links, or the directories, that make the way so long",
            Self::Unseen(_) => {
                "give yourself access to all that is in it, and remove what does not belong to git"
            }
        }
    }
}
