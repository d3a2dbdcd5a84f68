//! The tools `changes` and `commit`, for a sandbox that keeps the changes of the workspace apart
//! (`--overlay`).

use std::path::PathBuf;

use kennel::{
    Error, Session,
    overlay::{Change, ChangeKind, Conflicts, OverlayError},
};
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use super::answer::{Answer, answer, failed, own, refused};
use crate::{escape::harmless, remedy::FLAGS};

/// The most changes of a result.
const MOST: usize = 1000;

/// The arguments of `changes`: none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Changes {}

/// The arguments of `commit`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Commit {
    /// Paths in the workspace, relative to it: the changes there and below are applied. Default: all changes.
    #[serde(default)]
    paths: Vec<PathBuf>,
}

/// One path that commands changed.
#[derive(Debug, Serialize, JsonSchema)]
struct ChangedPath {
    /// The path, relative to the workspace.
    path: String,
    /// added, modified or deleted.
    kind: String,
    /// Why it was not applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The result of `changes`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ChangesResult {
    /// The first 1000, sorted by path.
    changes: Vec<ChangedPath>,
    /// How many there are.
    total: u64,
}

/// The result of `commit`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CommitResult {
    /// Changes that the workspace has now; the first 1000.
    applied: Vec<ChangedPath>,
    /// Changes that it does not have, and why; the first 1000. They are kept apart as before.
    refused: Vec<ChangedPath>,
    /// How many changes were not asked for.
    left: u64,
}

impl ChangedPath {
    fn of(change: &Change) -> Self {
        let kind = match change.kind {
            ChangeKind::Added => "added",
            ChangeKind::Deleted => "deleted",
            _ => "modified",
        };
        Self { path: change.path.to_string_lossy().into_owned(), kind: kind.to_owned(), reason: None }
    }
}

/// The lines for at most [`MOST`] of them.
fn lines<T: ToString>(of: &[T]) -> String {
    let mut lines: Vec<String> = of.iter().take(MOST).map(ToString::to_string).collect();
    if let Some(more) = of.len().checked_sub(MOST).filter(|more| *more > 0) {
        lines.push(own(&format!("and {more} more")));
    }
    lines.join("\n")
}

impl Changes {
    pub(super) async fn call(self, session: &Session) -> Answer {
        let changes = session.changes().await.map_err(|error| failed(&error))?;
        let text = if changes.is_empty() { "[no changes]".to_owned() } else { lines(&changes) };
        let total = changes.len() as u64;
        let changes = changes.iter().take(MOST).map(ChangedPath::of).collect();
        Ok(answer(text, &ChangesResult { changes, total }))
    }
}

impl Commit {
    pub(super) async fn call(self, session: &Session) -> Answer {
        let committed = match session.commit_part(&self.paths, Conflicts::Refuse).await {
            Ok(committed) => committed,
            Err(error @ Error::Overlay(OverlayError::Running)) => {
                let first = error.lines(FLAGS).join("\n");
                return Err(refused(format!(
                    "{first}\nA shell is a command, too, and so is what runs in the background: end them first, a shell by \
                     the snippet `exit`."
                )));
            }
            Err(error) => return Err(failed(&error)),
        };
        let refused: Vec<String> = committed
            .refused
            .iter()
            .map(|refused| harmless(&format!("{}: {}", refused.change, refused.refusal)))
            .collect();
        let mut text = format!("applied {} changes", committed.applied.len());
        if !committed.applied.is_empty() {
            text += &format!(":\n{}", lines(&committed.applied));
        }
        if !refused.is_empty() {
            text += &format!("\nnot applied:\n{}", lines(&refused));
        }
        if !committed.left.is_empty() {
            text += &format!("\n{} other changes were not asked for", committed.left.len());
        }
        for denial in &committed.denials {
            text.push('\n');
            text += &harmless(&format!("note: {}: {}", denial.subject, denial.reason));
        }
        let reasons = committed.refused.iter().take(MOST).map(|refused| ChangedPath {
            reason: Some(refused.refusal.to_string()),
            ..ChangedPath::of(&refused.change)
        });
        let result = CommitResult {
            applied: committed.applied.iter().take(MOST).map(ChangedPath::of).collect(),
            refused: reasons.collect(),
            left: committed.left.len() as u64,
        };
        let mut answer = answer(text, &result);
        // The caller asked for something, and none of it is done.
        answer.is_error = Some(result.applied.is_empty() && !result.refused.is_empty());
        Ok(answer)
    }
}
