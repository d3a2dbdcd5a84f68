//! The changes of a session's overlay and of its image, for its clients.

use std::path::{Path, PathBuf};

use crate::image::Snapshot;
use crate::overlay::kept_changes::KeptChanges;
use crate::report::change::{Change, Committed, Conflicts};
use crate::report::error::Error;
use crate::serve::client::Client;
use crate::serve::question::{CommitOrder, Question, SentChange, SentCommit, SentSnapshot};
use crate::sys::path_text::PathText;

impl Client {
    /// The changes that were not committed: see [`Session::changes`](crate::session::Session::changes).
    ///
    /// # Errors
    /// The session has no overlay, ends, or does not answer.
    pub fn changes(self) -> Result<Vec<Change>, Error> {
        let changes: Vec<SentChange> = self.question(&Question::Changes)?;
        Ok(changes.into_iter().map(Change::from).collect())
    }

    /// Commits changes at `paths` and below them, or all changes: see
    /// [`Session::commit_part`](crate::session::Session::commit_part). Waits as long as that takes.
    ///
    /// # Errors
    /// A command runs; the session has no overlay, ends, or does not answer.
    pub fn commit(self, paths: &[PathBuf], conflicts: Conflicts) -> Result<Committed, Error> {
        let committed: SentCommit = self.question(&order(None, paths, conflicts))?;
        Ok(committed.into())
    }

    /// Commits changes that the session keeps, as [`KeptChanges::commit`] does once it has ended. Waits as
    /// long as that takes. `None` if the session keeps its changes elsewhere, or none.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit), and those of [`KeptChanges::commit`].
    pub fn commit_kept(
        self,
        kept: &KeptChanges,
        paths: &[PathBuf],
        conflicts: Conflicts,
    ) -> Result<Option<Committed>, Error> {
        let committed: Option<SentCommit> = self.question(&order(Some(&kept.directory), paths, conflicts))?;
        Ok(committed.map(Into::into))
    }

    /// Discards the changes and ends the session: see [`Session::discard`](crate::session::Session::discard).
    ///
    /// # Errors
    /// The session has no overlay, ends, or does not answer.
    pub fn discard(self) -> Result<(), Error> {
        self.question(&Question::Discard)
    }

    /// What commands changed in the session's image: see
    /// [`Session::snapshot`](crate::session::Session::snapshot).
    ///
    /// # Errors
    /// A command runs; the session has no image, ends, or does not answer.
    pub fn snapshot(self) -> Result<Snapshot, Error> {
        let (SentSnapshot { image }, upper) = self.reply_to(&Question::Snapshot)?.map_err(Error::from)?;
        let upper = upper.ok_or_else(|| self.gone())?;
        Ok(Snapshot::new(image, upper, self))
    }
}

fn order(directory: Option<&Path>, paths: &[PathBuf], conflicts: Conflicts) -> Question {
    Question::Commit(CommitOrder {
        directory: directory.map(|path| PathText(path.to_owned())),
        paths: paths.iter().cloned().map(PathText).collect(),
        overwrite: conflicts == Conflicts::Overwrite,
    })
}
