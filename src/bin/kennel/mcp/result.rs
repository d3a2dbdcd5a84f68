//! What the model learns about a command that ran, or that could not.

use kennel::{Basis, Denial, Error, Outcome, Report};
use rmcp::{
    model::CallToolResult,
    schemars::{self, JsonSchema},
};
use serde::Serialize;

use super::{answer::answer, kept::Kept};

/// The result of `run` and `shell`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CommandResult {
    /// What ended it: exited, signaled, timed_out, killed; or failed, if it could not run.
    ended: String,
    /// The exit status as a shell reports it: 128 + N after signal N, 124 after a timeout, 125 to 127 if it could not run.
    exit_code: u8,
    /// The signal that ended it.
    signal: Option<i32>,
    /// The limit of the policy that ended it.
    limit: Option<String>,
    /// Milliseconds from the start to the end.
    duration_ms: u64,
    /// What it wrote to stdout. The middle of a long output is left out.
    stdout: String,
    /// What it wrote to stderr, likewise.
    stderr: String,
    /// Bytes of stdout and stderr that are left out.
    left_out_bytes: u64,
    /// What the sandbox refused.
    denials: Vec<Refusal>,
    /// Lines for people: denials, the limit that ended it, hints.
    remarks: Vec<String>,
    /// The shell that ran a snippet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shell: Option<ShellState>,
}

/// Something that the sandbox refused.
#[derive(Debug, Serialize, JsonSchema)]
struct Refusal {
    /// The protection that refused it.
    protection: String,
    /// A path, a destination, a system call.
    subject: String,
    /// Why.
    reason: String,
    /// Whether it is certain that the sandbox refused it.
    is_certain: bool,
    /// The flag of `kennel mcp` with which a person could allow it.
    flag: Option<String>,
}

/// The shell after a snippet.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ShellState {
    /// The directory of the shell now.
    pub(super) directory: Option<String>,
    /// Whether this snippet ran in a new shell, without the state of an earlier one.
    pub(super) is_new: bool,
    /// Whether the shell has ended. The next snippet starts a new one.
    pub(super) has_ended: bool,
}

impl From<&Denial> for Refusal {
    fn from(denial: &Denial) -> Self {
        Self {
            protection: denial.protection.to_string(),
            subject: denial.subject.clone(),
            reason: denial.reason.clone(),
            is_certain: denial.basis.is_certain(),
            flag: denial.remedy.clone(),
        }
    }
}

impl CommandResult {
    /// The result of a command that ran.
    pub(super) fn of(outcome: &Outcome, [stdout, stderr]: [Kept; 2]) -> Self {
        let report = Report::of_outcome(outcome);
        let ((stdout, out_cut), (stderr, err_cut)) = (stdout.text(), stderr.text());
        let is_refusal = |denial: &&Denial| denial.basis != Basis::Kept;
        Self {
            ended: word(outcome.ended),
            exit_code: report.exit_code,
            signal: report.signal,
            limit: report.limit.map(word),
            duration_ms: u64::try_from(report.duration_ms).unwrap_or(u64::MAX),
            stdout,
            stderr,
            left_out_bytes: out_cut + err_cut,
            denials: outcome.denials.iter().filter(is_refusal).map(Refusal::from).collect(),
            remarks: outcome.remarks(),
            shell: None,
        }
    }

    /// The result of a command that could not run.
    pub(super) fn failed(error: &Error) -> CallToolResult {
        let result = Self {
            ended: "failed".to_owned(),
            exit_code: error.exit_code(),
            signal: None,
            limit: None,
            duration_ms: 0,
            stdout: String::new(),
            stderr: String::new(),
            left_out_bytes: 0,
            denials: Vec::new(),
            remarks: error.lines(),
            shell: None,
        };
        let mut answer = answer(result.remarks.join("\n"), &result);
        answer.is_error = Some(true);
        answer
    }

    /// The answer, as text and as data.
    pub(super) fn answer(&self) -> CallToolResult {
        answer(self.text(), self)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        put(&mut text, &self.stdout);
        if !self.stderr.is_empty() {
            put(&mut text, "[stderr]");
            put(&mut text, &self.stderr);
        }
        let is_silent = self.stdout.is_empty() && self.stderr.is_empty();
        let silence = if is_silent { ", no output" } else { "" };
        let end = match (&*self.ended, self.signal) {
            ("timed_out", _) => format!("timed out after {} ms", self.duration_ms),
            (_, Some(signal)) => format!("ended by signal {signal}"),
            _ => format!("exit status {}", self.exit_code),
        };
        put(&mut text, &format!("[{end}{silence}]"));
        if let Some(shell) = &self.shell {
            let new = if shell.is_new { ", a new shell" } else { "" };
            let ended = if shell.has_ended { ", the shell has ended" } else { "" };
            let directory =
                shell.directory.iter().map(|directory| format!("in {directory}")).collect::<String>();
            let state = format!("{directory}{new}{ended}");
            put(&mut text, &format!("[{}]", state.trim_start_matches(", ")));
        }
        self.remarks.iter().for_each(|line| put(&mut text, line));
        let certain = self.denials.iter().filter(|denial| denial.is_certain);
        let mut flags: Vec<&str> = certain.filter_map(|denial| denial.flag.as_deref()).collect();
        flags.sort_unstable();
        flags.dedup();
        if !flags.is_empty() {
            let flags = flags.join(" ");
            put(&mut text, &format!("[a person can allow it: start `kennel mcp` with {flags}; you cannot]"));
        }
        text
    }
}

/// Adds a text that begins on a line of its own.
fn put(text: &mut String, more: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(more);
}

/// The word that reports have for it.
fn word(of: impl Serialize) -> String {
    serde_json::to_value(of).ok().and_then(|word| Some(word.as_str()?.to_owned())).unwrap_or_default()
}
