//! What becomes of the changes of `kennel run --overlay`, and how it is told.

use std::path::PathBuf;

use kennel::{Change, Committed, Error, Outcome, Policy, PolicyError, Refusal, Report, Session};

use crate::{FAILED, args::Run, report};

/// What the command line asks for.
#[derive(Clone, Copy)]
pub(crate) enum Choice {
    Diff,
    Commit,
    Discard {
        /// Whether a report lists them.
        is_told: bool,
    },
}

impl Choice {
    /// `None` where there is no overlay.
    pub(crate) fn of(run: &Run, policy: &Policy) -> Result<Option<Self>, Error> {
        let choice = match (run.commit, run.discard) {
            (true, _) => Self::Commit,
            (_, true) => Self::Discard { is_told: run.json.is_some() },
            _ => Self::Diff,
        };
        match (&policy.overlay, run.diff || run.commit || run.discard) {
            (Some(_), _) => Ok(Some(choice)),
            (None, false) => Ok(None),
            (None, true) => Err(PolicyError::Value {
                key: "overlay".to_owned(),
                value: String::new(),
                reason: "--diff, --commit and --discard need --overlay".to_owned(),
            }
            .into()),
        }
    }

    /// Does it, once the command has ended. What is to be looked at is told with the outcome.
    pub(crate) async fn settle(self, session: &Session, outcome: &mut Outcome) -> Result<Settled, Error> {
        let mut settled = Settled::default();
        match self {
            Self::Commit if has_succeeded(outcome) => match session.commit().await {
                Ok(mut committed) => {
                    outcome.denials.append(&mut committed.denials);
                    settled.committed = Some(committed);
                }
                Err(error) => {
                    // They are all there are.
                    if let Some(left) = session.leave_changes()? {
                        report::say(format_args!(
                            "kennel: what the command wrote is left in {}",
                            left.display()
                        ));
                    }
                    return Err(error);
                }
            },
            Self::Discard { is_told: false } => {}
            _ => {
                settled.changes = Some(session.changes().await?);
                settled.were_to_be_committed = matches!(self, Self::Commit);
            }
        }
        if settled.has_refused() {
            settled.left = session.leave_changes()?;
        }
        session.discard().await?;
        Ok(settled)
    }
}

/// Whether the command did, whatever became of its output.
fn has_succeeded(outcome: &Outcome) -> bool {
    outcome.status.success() && !outcome.is_left
}

/// What became of them.
#[derive(Default)]
pub(crate) struct Settled {
    /// What is dropped.
    changes: Option<Vec<Change>>,
    /// Whether that was not the aim, had the command succeeded.
    were_to_be_committed: bool,
    committed: Option<Committed>,
    /// Where those are that could not be committed.
    left: Option<PathBuf>,
}

impl Settled {
    fn has_refused(&self) -> bool {
        self.committed.as_ref().is_some_and(|committed| !committed.refused.is_empty())
    }

    /// The report with the changes in it, and our own status.
    pub(crate) fn told(&self, mut report: Report) -> Report {
        report.exit_code = self.exit_code().unwrap_or(report.exit_code);
        report.changes = self.changes.clone();
        if self.were_to_be_committed {
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

    /// What people are told.
    pub(crate) fn say(&self, run: &Run) {
        let changes = self.changes.iter().flatten();
        if !run.discard {
            changes.for_each(report::say);
        }
        if self.were_to_be_committed {
            report::say(format_args!("kennel: nothing was committed, because the command failed"));
        }
        let refused = self.committed.iter().flat_map(|committed| &committed.refused);
        refused.for_each(|refused| {
            report::say(format_args!("kennel: not committed: {}: {}", refused.change, refused.refusal));
        });
        if let Some(left) = &self.left {
            report::say(format_args!("kennel: what the command wrote is left in {}", left.display()));
        }
    }

    /// The status where not everything could be committed.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        self.has_refused().then_some(FAILED)
    }
}
