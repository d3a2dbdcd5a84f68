//! What becomes of the changes of `kennel run --overlay`: kept and listed, committed, or dropped.

use std::path::PathBuf;

use kennel::{
    Error, Outcome, Overlay, Policy, Session,
    overlay::{Change, ChangeKind, Committed, Conflicts, KeptChanges, OverlayError, Refusal},
    report::{PolicyError, Report},
};

use crate::{
    args::run::Run,
    changes::{lines, review},
    process::exit_status::FAILED,
    report,
    terminal::{progress, style::Paint},
};

/// What the caller wants done with the changes.
pub(crate) struct Choice {
    diff: bool,
    commit: bool,
    discard: bool,
    /// Whether the JSON report lists the changes.
    is_reported: bool,
    /// The directory that keeps the changes; `None` if they end with the session.
    kept: Option<PathBuf>,
    /// Whether Kennel chose that directory.
    is_own: bool,
}

impl Choice {
    /// Returns `None` if there is no overlay. Lets the policy keep the changes if they are to be kept.
    pub(crate) fn of(run: &Run, policy: &mut Policy) -> Result<Option<Self>, Error> {
        let Some(overlay) = &mut policy.overlay else {
            if !(run.diff || run.commit || run.discard) {
                return Ok(None);
            }
            return Err(PolicyError::Value {
                key: "overlay".to_owned(),
                value: String::new(),
                reason: "--diff, --commit and --discard need --overlay".to_owned(),
            }
            .into());
        };
        let mut choice = Self {
            diff: run.diff,
            commit: run.commit,
            discard: run.discard,
            is_reported: run.json.is_some(),
            kept: None,
            is_own: overlay.upper.is_none(),
        };
        // A size is one of memory.
        if !run.discard && overlay.size.is_none() {
            let directory = match &overlay.upper {
                Some(directory) => Ok(directory.clone()),
                None => KeptChanges::directory(&policy.workspace, None),
            };
            match directory {
                Ok(directory) => {
                    *overlay = Overlay { upper: Some(directory.clone()), keeps: true, ..Overlay::default() };
                    choice.kept = Some(directory);
                }
                // The commit needs no directory.
                Err(_) if run.commit => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(choice))
    }

    /// Prepares a session. Where changes cannot be kept, those that are committed anyway are in memory.
    pub(crate) async fn prepare(
        &mut self,
        policy: &Policy,
        session: impl AsyncFn(&Policy) -> Result<Session, Error>,
    ) -> Result<Session, Error> {
        let prepared = session(policy).await;
        // It is empty: nothing has run.
        if let (Err(_), Some(unused)) = (&prepared, &self.kept) {
            KeptChanges::drop_unused(unused);
        }
        match prepared {
            Err(error) if self.commit && self.is_own && self.cannot_keep(&error) => {
                self.kept = None;
                let in_memory = Policy { overlay: Some(Overlay::default()), ..policy.clone() };
                session(&in_memory).await
            }
            prepared => prepared,
        }
    }

    /// Commits, lists or drops changes that end with the session. `None` if they are kept.
    pub(crate) async fn settle(
        &self,
        session: &Session,
        outcome: &mut Outcome,
    ) -> Option<Result<Settled, Error>> {
        if self.kept.is_some() {
            return None;
        }
        Some(self.settle_now(session, outcome).await)
    }

    /// Whether the directory cannot keep changes.
    fn cannot_keep(&self, error: &Error) -> bool {
        match error {
            Error::Grant { path, .. } => self.kept.as_ref() == Some(path),
            Error::Overlay(error) => {
                self.kept.is_some()
                    && matches!(error, OverlayError::Attributes { .. } | OverlayError::Io { .. })
            }
            _ => false,
        }
    }

    async fn settle_now(&self, session: &Session, outcome: &mut Outcome) -> Result<Settled, Error> {
        let mut settled = Settled::default();
        if self.commit && has_succeeded(outcome) {
            let mut committed = session.commit().await?;
            outcome.denials.append(&mut committed.denials);
            settled.committed = Some(committed);
        } else if !self.discard || self.is_reported {
            settled.changes = Some(session.changes().await?);
            settled.commit_was_skipped = self.commit;
        }
        session.discard().await?;
        Ok(settled)
    }

    /// Shows, commits and lists kept changes, after the session has ended.
    pub(crate) fn settle_kept(&self, outcome: Option<&mut Outcome>) -> Result<Settled, Error> {
        let mut settled = Settled { kept: self.kept.clone().filter(|_| !self.is_own), ..Settled::default() };
        let Some(directory) = &self.kept else { return Ok(settled) };
        let kept = KeptChanges::at(directory)?;
        let (Some(kept), Some(outcome)) = (&kept, outcome) else {
            // The command did not run: only look whether something is left.
            kept.map(|kept| kept.settle()).transpose()?;
            KeptChanges::drop_unused(directory);
            return Ok(settled);
        };
        settled.is_kept = true;
        if self.diff {
            settled.diff = review::whole(kept, Paint::stderr())?;
        }
        if self.commit && has_succeeded(outcome) {
            let mut committed =
                progress::during("committing changes", || kept.commit(&[], Conflicts::Refuse)).inspect_err(
                    |_| {
                        report::say(format_args!("kennel: the changes are kept: kennel diff"));
                    },
                )?;
            outcome.denials.append(&mut committed.denials);
            settled.committed = Some(committed);
        } else {
            settled.changes = Some(progress::during("looking at the changes", || kept.settle())?);
            settled.commit_was_skipped = self.commit;
        }
        KeptChanges::drop_unused(directory);
        Ok(settled)
    }
}

/// How many changes are listed. More are counted.
const MOST_LISTED: usize = 20;

/// Lists the first changes, and counts the others.
fn list(changes: &[Change]) {
    let (listed, rest) = changes.split_at(changes.len().min(MOST_LISTED));
    listed.iter().for_each(lines::change);
    if !rest.is_empty() {
        report::say(format_args!("kennel: and {} more changes: {}", rest.len(), counted(rest)));
    }
}

/// How many changes there are of each kind.
fn counted(changes: &[Change]) -> String {
    let kinds =
        [(ChangeKind::Added, "added"), (ChangeKind::Modified, "modified"), (ChangeKind::Deleted, "deleted")];
    let count = |kind| changes.iter().filter(|change| change.kind == kind).count();
    let counts = kinds.map(|(kind, word)| (count(kind), word)).into_iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// Whether the command succeeded. Lost output does not matter here.
fn has_succeeded(outcome: &Outcome) -> bool {
    outcome.status.success() && !outcome.is_left
}

/// What became of the changes.
#[derive(Default)]
pub(crate) struct Settled {
    /// Changes that were not committed.
    changes: Option<Vec<Change>>,
    /// Whether they would have been committed if the command had succeeded.
    commit_was_skipped: bool,
    committed: Option<Committed>,
    /// The diff, one text for each change.
    diff: Vec<String>,
    /// Whether changes that were not committed are kept.
    is_kept: bool,
    /// The directory that keeps them, if the user named it.
    kept: Option<PathBuf>,
}

impl Settled {
    fn has_refused(&self) -> bool {
        self.committed.as_ref().is_some_and(|committed| !committed.refused.is_empty())
    }

    /// Adds the changes and this program's exit status to the report.
    pub(crate) fn add_to(&self, mut report: Report) -> Report {
        report.exit_code = self.exit_code().unwrap_or(report.exit_code);
        report.changes = self.changes.clone();
        if self.commit_was_skipped {
            let dropped = report.changes.replace(Vec::new()).unwrap_or_default();
            let refused = dropped.into_iter().map(|change| change.refused(Refusal::Unsuccessful));
            report.refused_changes = Some(refused.collect());
        }
        if let Some(Committed { applied, refused, .. }) = &self.committed {
            report.changes = Some(applied.clone());
            report.refused_changes = Some(refused.clone());
        }
        report
    }

    /// Prints what became of the changes.
    pub(crate) fn print(&self, run: &Run) {
        if !run.discard {
            self.changes.iter().for_each(|changes| list(changes));
        }
        self.diff.iter().for_each(|text| report::show(text));
        if self.commit_was_skipped {
            report::say(format_args!("kennel: nothing was committed, because the command failed"));
        }
        if let Some(committed) = &self.committed {
            review::report_refused(&committed.refused);
            if self.is_kept && !run.quiet {
                review::report_choice(&committed.refused, None);
            }
        }
        let is_any = self.changes.as_ref().is_some_and(|changes| !changes.is_empty()) || self.has_refused();
        if self.is_kept && is_any && !run.quiet {
            self.print_what_next();
        }
    }

    fn print_what_next(&self) {
        let place = self.kept.as_ref().map(|kept| format!(", each with --overlay-upper {}", kept.display()));
        report::say(format_args!(
            "kennel: the changes are kept: kennel diff shows them, kennel commit applies them, kennel discard drops \
             them{}",
            place.unwrap_or_default()
        ));
    }

    /// The exit status if some changes could not be committed.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        self.has_refused().then_some(FAILED)
    }
}
