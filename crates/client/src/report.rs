//! What Kennel's own routes tell about a session: reports of commands, and changes of its files.

use std::path::PathBuf;
use std::time::Duration;

use hyper::Method;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::error::Error;
use crate::files::text;
use crate::outcome::Ended;
use crate::session::Session;

/// # What Kennel tells about commands and files
///
/// ```no_run
/// # async fn example(session: kennel_client::Session) -> Result<(), kennel_client::Error> {
/// let mut child = session.command("make").spawn().await?;
/// child.wait().await?;
/// for denial in session.report(child.id()).await?.denials {
///     eprintln!("{}: {}", denial.subject, denial.reason);
/// }
/// for change in session.changes().await? {
///     println!("{:?} {}", change.kind, change.path.display());
/// }
/// # Ok(())
/// # }
/// ```
impl Session {
    /// The report of a command that has ended, by its [number](crate::Child::id). The server keeps the last
    /// 16.
    ///
    /// # Errors
    /// [`Error::Refused`]: 409 while it runs, 404 if it is unknown or forgotten.
    pub async fn report(&self, command: u32) -> Result<Report, Error> {
        self.access().own(Method::GET, &format!("/commands/{command}/report"), &Value::Null).await
    }

    /// What commands changed in the files of the template, sorted by path.
    ///
    /// # Errors
    /// [`Error::Refused`]: 409 if the template has no files.
    pub async fn changes(&self) -> Result<Vec<Change>, Error> {
        #[derive(Deserialize)]
        struct Changes {
            changes: Vec<Change>,
        }
        let found: Changes = self.access().own(Method::GET, "/changes", &Value::Null).await?;
        Ok(found.changes)
    }

    /// Applies all changes to the files of the template, with which its sandboxes begin.
    ///
    /// # Errors
    /// [`Error::Refused`]: 403 unless the template allows it, 409 while a command runs or without files.
    pub async fn commit(&self) -> Result<Committed, Error> {
        self.commit_part(&[], Conflicts::Refuse).await
    }

    /// Like [`commit`](Self::commit), for the changes at `paths` and below them, or all if there are no
    /// paths.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    pub async fn commit_part(&self, paths: &[PathBuf], conflicts: Conflicts) -> Result<Committed, Error> {
        let paths: Result<Vec<_>, _> = paths.iter().map(|path| text(path)).collect();
        let mut body = json!({ "overwrite": conflicts == Conflicts::Overwrite });
        if let Some(paths) = Some(paths?).filter(|paths| !paths.is_empty()) {
            body["paths"] = json!(paths);
        }
        self.access().own(Method::POST, "/commit", &body).await
    }
}

/// What `kennel run --json` tells about a command. The words of limits, protections and classes are those of
/// its documentation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// What ended the command.
    pub ended: Ended,
    /// The exit status that a shell would report.
    pub exit_code: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The limit that ended it.
    pub limit: Option<String>,
    /// From the start to the end of the command.
    #[serde(rename = "duration_ms", deserialize_with = "milliseconds")]
    pub duration: Duration,
    /// What it used; `None` if it did not start.
    pub usage: Option<Usage>,
    /// Whether output beyond a limit was discarded.
    #[serde(default)]
    pub truncated: bool,
    /// How its program was started: `exec`, or `warm` if an interpreter that had started before became the
    /// command. `None` if it did not start, and from servers of an older version.
    #[serde(default)]
    pub started: Option<String>,
    /// Why a program whose interpreter was to be warm was executed.
    #[serde(default)]
    pub executed_because: Option<String>,
    /// What was enforced; `None` if it did not start.
    pub enforcement: Option<Enforcement>,
    /// What was refused.
    #[serde(default)]
    pub denials: Vec<Denial>,
    /// What is allowed and could not be reached.
    #[serde(default)]
    pub network_failures: Vec<NetworkFailure>,
    /// Why Kennel failed.
    pub failure: Option<Failure>,
}

/// The resources that a command and all its descendants used together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// Processor time in user mode, in microseconds.
    pub user_us: u64,
    /// Processor time in the kernel, in microseconds.
    pub system_us: u64,
    /// Largest resident set of any one process, in bytes.
    pub max_rss_bytes: u64,
    /// Largest memory of all processes together, in bytes, where a cgroup counts it.
    pub peak_memory_bytes: Option<u64>,
}

/// What was enforced.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Enforcement {
    /// `full`, `partial` or `none`.
    pub level: String,
}

/// Something that the sandbox refused.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Denial {
    /// The protection that refused it.
    pub protection: String,
    /// What was refused: a path, a destination, a system call.
    pub subject: String,
    /// Why.
    pub reason: String,
    /// How Kennel knows: `observed`, `derived`, `possible` or `kept`.
    pub basis: String,
}

/// A connection that the policy allows and that failed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct NetworkFailure {
    /// The host and port.
    pub destination: String,
    /// What failed, in words.
    pub reason: String,
}

/// Why Kennel failed, or did not start the command.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// The kind of failure.
    pub class: String,
    /// What failed, in words.
    pub message: String,
}

/// One path that commands changed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Change {
    /// The path, relative to the directory of the sandbox.
    pub path: PathBuf,
    /// How it changed.
    pub kind: ChangeKind,
}

/// How a path changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// Its contents or what stat(2) tells about it changed.
    Modified,
    /// It was removed; a directory with everything in it.
    Deleted,
}

/// What a commit does where others have changed the files meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conflicts {
    /// Refuses the change.
    #[default]
    Refuse,
    /// Replaces what others wrote.
    Overwrite,
}

/// The result of [`Session::commit`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Committed {
    /// How many changes the template has now.
    #[serde(deserialize_with = "count")]
    pub applied: u64,
    /// Changes that it does not have.
    #[serde(default)]
    pub refused: Vec<Refused>,
    /// How many were not asked for.
    #[serde(deserialize_with = "count")]
    pub left: u64,
    /// Applied files that programs outside obey.
    #[serde(default)]
    pub denials: Vec<Denial>,
}

/// A change that was not committed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Refused {
    /// The change.
    #[serde(flatten)]
    pub change: Change,
    /// Why it was not committed.
    pub reason: String,
}

fn milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}

/// A number, or a list of so many.
fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Array(list) => Ok(list.len() as u64),
        number => number.as_u64().ok_or_else(|| serde::de::Error::custom("no number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_a_command_that_did_not_start_is_one() {
        let text = r#"{"ended":"failed","exit_code":127,"signal":null,"limit":null,"duration_ms":0,"usage":null,
            "stdout_bytes":null,"truncated":false,"enforcement":null,"denials":[],"network_failures":[],
            "failure":{"class":"load_failed","message":"nosuch: not found in the sandbox","details":null}}"#;
        let report: Report = serde_json::from_str(text).expect("a report");
        assert_eq!((report.ended, report.exit_code), (Ended::Failed, 127));
        assert_eq!(report.failure.map(|failure| failure.class), Some("load_failed".to_owned()));
    }

    #[test]
    fn a_commit_tells_what_was_refused() {
        let text = r#"{"applied":[{"path":"a","kind":"added","file":"file"}],"left":2,
            "refused":[{"path":"b","kind":"deleted","file":"file","reason":"it is protected"}]}"#;
        let committed: Committed = serde_json::from_str(text).expect("a commit");
        assert_eq!((committed.applied, committed.left), (1, 2));
        assert_eq!(committed.refused[0].change.kind, ChangeKind::Deleted);
    }
}
