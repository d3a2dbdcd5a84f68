//! What people and programs are told: errors, failure classes, outcomes, enforcement, and the report of
//! `--json`.

pub(crate) mod change;
pub(crate) mod denial;
pub(crate) mod enforcement;
pub(crate) mod error;
#[doc(hidden)]
pub mod escape;
pub(crate) mod failure;
pub(crate) mod finding;
pub(crate) mod in_force;
pub(crate) mod missing_program;
pub(crate) mod network_failure;
pub(crate) mod observed;
pub(crate) mod outcome;
pub(crate) mod place_kind;
pub(crate) mod published;
pub(crate) mod remedy;
pub(crate) mod shell;
pub(crate) mod shortage;
pub(crate) mod words;

pub use crate::report::denial::{Basis, Denial};
pub use crate::report::enforcement::{Enforcement, Entry, Level, Note, Protection, State};
pub use crate::report::error::listen::ListenError;
pub use crate::report::error::policy::PolicyError;
pub use crate::report::failure::{Boundary, Class, Details, Failure, Limit};
pub use crate::report::in_force::{InForce, Place, PlaceAccess, PlaceOrigin};
pub use crate::report::network_failure::{NetworkCause, NetworkFailure};
pub use crate::report::observed::{Observed, ObservedPath};
pub use crate::report::outcome::Usage;
pub use crate::report::place_kind::PlaceKind;
pub use crate::report::published::PublishedPort;
pub use crate::report::remedy::{Remedy, Setting, SettingKey, Wording};
pub use crate::report::shell::{ShellOrigin, ShellReport};

use std::os::unix::process::ExitStatusExt;

use serde::Serialize;

use crate::report::change::{Change, Refused};
use crate::report::error::Error;
use crate::report::outcome::{Ended, Outcome};

/// The object that `kennel run --json` and `kennel exec --json` write.
///
/// ```
/// use kennel::{Error, report::Report};
///
/// let report = Report::failed(&Error::NotFound { program: "make".to_owned() });
/// assert_eq!((report.ended, report.exit_code), (None, 127));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// What ended the command; serialised as `failed` if it could not start.
    #[serde(serialize_with = "ended")]
    pub ended: Option<Ended>,
    /// The exit status that a shell would report.
    pub exit_code: u8,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// The limit that ended the command.
    pub limit: Option<Limit>,
    /// Milliseconds from the start to the end.
    pub duration_ms: u128,
    /// The resources that the command used.
    pub usage: Option<Usage>,
    /// Bytes that the command wrote to stdout, if Kennel collected them.
    pub stdout_bytes: Option<u64>,
    /// Bytes that the command wrote to stderr, if Kennel collected them.
    pub stderr_bytes: Option<u64>,
    /// Whether output beyond the cap was discarded, or some output could not be written to its destination.
    pub truncated: bool,
    /// How the program was started: `exec`, or `warm` if an interpreter that had started before became the
    /// command. `None` if it did not start.
    pub started: Option<&'static str>,
    /// Why a program whose interpreter was to be warm was executed. Only present in that case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executed_because: Option<String>,
    /// What Kennel enforced.
    pub enforcement: Option<Enforcement>,
    /// What Kennel refused.
    pub denials: Vec<Denial>,
    /// Connections that the policy allows and that could not be made.
    pub network_failures: Vec<NetworkFailure>,
    /// The published ports of the command's sandbox or session. Only present if there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<PublishedPort>,
    /// The command's changes in an overlay, or with a commit, the committed ones. Only present with an
    /// overlay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<Change>>,
    /// Changes that could not be committed. Only present with a commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_changes: Option<Vec<Refused>>,
    /// The shell and its directory. Only present for a snippet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<ShellReport>,
    /// What could not be written to the audit log, and why. Only present in that case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unaudited: Option<String>,
    /// The failure, if Kennel or a limit ended the command, its output could not be written, or it could not
    /// start.
    pub failure: Option<Failure>,
}

impl Report {
    /// The report of a command, whether it ran or not.
    #[must_use]
    pub fn of(result: &Result<Outcome, Error>) -> Self {
        match result {
            Ok(outcome) => Self::of_outcome(outcome),
            Err(error) => Self::failed(error),
        }
    }

    /// The report of a command that ran.
    #[must_use]
    pub fn of_outcome(outcome: &Outcome) -> Self {
        Self {
            ended: Some(outcome.ended),
            exit_code: outcome.exit_code(),
            signal: outcome.status.signal(),
            limit: outcome.limit,
            duration_ms: outcome.duration.as_millis(),
            usage: Some(outcome.usage),
            stdout_bytes: outcome.stdout_bytes,
            stderr_bytes: outcome.stderr_bytes,
            truncated: outcome.truncated,
            started: Some(outcome.start.as_str()),
            executed_because: outcome.start.reason().map(str::to_owned),
            enforcement: Some(outcome.enforcement.clone()),
            denials: outcome.denials.clone(),
            network_failures: outcome.network_failures.clone(),
            published: outcome.published.clone(),
            changes: None,
            refused_changes: None,
            shell: None,
            unaudited: outcome.unaudited.clone(),
            failure: outcome.failure(),
        }
    }

    /// The same with only what is weaker than asked, for a reader that knows what Kennel enforces.
    pub(crate) fn with_weaker_enforcement(self) -> Self {
        Self { enforcement: self.enforcement.and_then(Enforcement::weaker), ..self }
    }

    /// The same for readers of JSON, in the words of a front end: each remedy is a text. See
    /// [`Denial::worded`].
    #[must_use]
    pub fn worded(self, wording: Wording) -> Self {
        Self {
            enforcement: self.enforcement.map(|enforcement| enforcement.worded(wording)),
            denials: self.denials.into_iter().map(|denial| denial.worded(wording)).collect(),
            failure: self.failure.map(|failure| failure.worded(wording)),
            ..self
        }
    }

    /// The report of a command that could not start.
    #[must_use]
    pub fn failed(error: &Error) -> Self {
        Self {
            ended: None,
            exit_code: error.exit_code(),
            signal: None,
            limit: None,
            duration_ms: 0,
            usage: None,
            stdout_bytes: None,
            stderr_bytes: None,
            truncated: false,
            started: None,
            executed_because: None,
            enforcement: None,
            denials: Vec::new(),
            network_failures: Vec::new(),
            published: Vec::new(),
            changes: None,
            refused_changes: None,
            shell: None,
            unaudited: None,
            failure: Some(error.failure()),
        }
    }
}

fn ended<S: serde::Serializer>(ended: &Option<Ended>, serializer: S) -> Result<S::Ok, S::Error> {
    match ended {
        Some(ended) => ended.serialize(serializer),
        None => serializer.serialize_str("failed"),
    }
}
