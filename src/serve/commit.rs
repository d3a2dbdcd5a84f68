//! A commit that a client orders, and its result: JSON in a memfd, because there may be any number of paths.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::report::change::{Change, ChangeKind, Committed, Conflicts, Refusal, Refused};
use crate::report::denial::Denial;
use crate::report::error::Error;
use crate::report::overlay_error::OverlayError;
use crate::session::Session;
use crate::sys::inode::FileKind;
use crate::sys::path_text::PathText;

/// What to commit.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CommitOrder {
    /// The directory of the changes, as the client knows it.
    directory: PathText,
    paths: Vec<PathText>,
    overwrites: bool,
}

/// What became of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum CommitResult {
    Done(SentCommit),
    /// A command runs.
    Running,
    /// The session keeps no changes in that directory.
    Elsewhere,
}

/// A [`Committed`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SentCommit {
    applied: Vec<SentChange>,
    refused: Vec<(SentChange, SentRefusal)>,
    left: Vec<SentChange>,
    denials: Vec<Denial>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SentChange(PathText, ChangeKind, FileKind);

#[derive(Debug, Serialize, Deserialize)]
struct SentRefusal(#[serde(with = "RefusalDef")] Refusal);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Refusal")]
enum RefusalDef {
    Conflict,
    Protected,
    Unsupported,
    Withheld,
    Unsuccessful,
    Failed(i32),
}

impl CommitOrder {
    pub(crate) fn new(directory: &Path, paths: &[PathBuf], conflicts: Conflicts) -> Self {
        Self {
            directory: PathText(directory.to_owned()),
            paths: paths.iter().cloned().map(PathText).collect(),
            overwrites: conflicts == Conflicts::Overwrite,
        }
    }

    /// Commits in the session.
    ///
    /// # Errors
    /// As [`Session::commit`], except that a running command is a result.
    pub(crate) async fn carry_out(self, session: &Session) -> Result<CommitResult, Error> {
        if !session.keeps_changes_in(&self.directory.0) {
            return Ok(CommitResult::Elsewhere);
        }
        let paths: Vec<PathBuf> = self.paths.into_iter().map(|PathText(path)| path).collect();
        let conflicts = if self.overwrites { Conflicts::Overwrite } else { Conflicts::Refuse };
        match session.commit_part(&paths, conflicts).await {
            Err(Error::Overlay(OverlayError::Running)) => Ok(CommitResult::Running),
            committed => Ok(CommitResult::Done(committed?.into())),
        }
    }
}

impl From<Change> for SentChange {
    fn from(Change { path, kind, file }: Change) -> Self {
        Self(PathText(path), kind, file)
    }
}

impl From<SentChange> for Change {
    fn from(SentChange(PathText(path), kind, file): SentChange) -> Self {
        Self { path, kind, file }
    }
}

impl From<Committed> for SentCommit {
    fn from(Committed { applied, refused, left, denials }: Committed) -> Self {
        let refused = refused.into_iter().map(|it| (it.change.into(), SentRefusal(it.refusal)));
        Self {
            applied: applied.into_iter().map(Into::into).collect(),
            refused: refused.collect(),
            left: left.into_iter().map(Into::into).collect(),
            denials,
        }
    }
}

impl From<SentCommit> for Committed {
    fn from(SentCommit { applied, refused, left, denials }: SentCommit) -> Self {
        let refused = refused
            .into_iter()
            .map(|(change, SentRefusal(refusal))| Refused { change: change.into(), refusal })
            .collect();
        Self {
            applied: applied.into_iter().map(Into::into).collect(),
            refused,
            left: left.into_iter().map(Into::into).collect(),
            denials,
        }
    }
}
