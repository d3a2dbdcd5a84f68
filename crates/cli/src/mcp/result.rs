//! What the model learns about a command that ran, or that could not.

use std::collections::BTreeSet;

use kennel::{
    Error, Outcome,
    report::{Basis, Denial, NetworkFailure, Protection, Report},
};
use rmcp::{
    model::{CallToolResult, ContentBlock},
    schemars::{self, JsonSchema},
};
use serde::Serialize;

use super::{
    answer::{answer, answer_of, own},
    kept::Text,
    rest::{Stream, Whereabouts},
};
use crate::{
    remedy::{FLAGS, flags},
    report,
};

/// The result of `run` and `shell`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CommandResult {
    /// What ended it: exited, signaled, timed_out, killed; or failed, if it could not run.
    ended: String,
    /// The exit status as a shell reports it: 128 + N after signal N, 124 after a timeout, 125 to 127 if it
    /// could not run.
    exit_code: u8,
    /// The signal that ended it.
    signal: Option<i32>,
    /// The limit of the policy that ended it.
    limit: Option<String>,
    /// Milliseconds from the start to the end.
    duration_ms: u64,
    /// What it wrote to stdout; of a long output, the beginning.
    stdout: String,
    /// The end of a long stdout. What is between is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_end: Option<String>,
    /// The file in the sandbox that has the whole of a long stdout, or its first 4 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_file: Option<String>,
    /// What it wrote to stderr, likewise.
    stderr: String,
    /// The end of a long stderr, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_end: Option<String>,
    /// The file of a long stderr, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_file: Option<String>,
    /// Bytes of stdout and stderr that are left out.
    left_out_bytes: u64,
    /// Bytes beyond the limit of the policy, which no file has.
    dropped_bytes: u64,
    /// What the sandbox refused.
    denials: Vec<Refusal>,
    /// What is allowed and could not be reached over the network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    network_failures: Vec<Unreached>,
    /// Lines for people: denials, the limit that ended it, hints.
    remarks: Vec<String>,
    /// The flags with which a person could allow what was refused.
    #[serde(skip)]
    advised_flags: BTreeSet<String>,
    /// The shell that ran a snippet.
    #[serde(skip_serializing_if = "Option::is_none")]
    shell: Option<ShellState>,
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

/// A destination that is allowed and could not be reached.
#[derive(Debug, Serialize, JsonSchema)]
struct Unreached {
    /// The host and port.
    destination: String,
    /// name, refused, timeout, unreachable, upstream or broken.
    cause: String,
    /// Why, in words.
    reason: String,
}

impl From<&NetworkFailure> for Unreached {
    fn from(NetworkFailure { destination, cause, reason, .. }: &NetworkFailure) -> Self {
        Self { destination: destination.clone(), cause: cause.to_string(), reason: reason.clone() }
    }
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
        let Denial { protection, subject, reason, basis, remedy, .. } = denial.clone().worded(FLAGS);
        let (protection, flag) = (protection.to_string(), remedy.map(|flag| flag.to_string()));
        Self { protection, subject, reason, is_certain: basis.is_certain(), flag }
    }
}

/// One stream of a command that has ended.
#[derive(Debug)]
pub(super) struct Written {
    text: Text,
    rest: Whereabouts,
    /// Bytes beyond the limit of the policy.
    dropped: u64,
}

impl Written {
    pub(super) async fn of(stream: Stream<'_>, dropped: u64) -> Self {
        let (kept, rest) = stream.end().await;
        Self { text: kept.text(), rest, dropped }
    }

    fn items(&self) -> Vec<ContentBlock> {
        let mut items = self.text.items(&self.rest.words());
        if self.dropped > 0 {
            let line =
                format!("{} bytes more were dropped: the policy keeps no more of an output", self.dropped);
            items.push(ContentBlock::text(own(&line)));
        }
        items
    }
}

/// What a result shows of a command.
pub(super) struct Ending<'o> {
    pub(super) outcome: &'o Outcome,
    pub(super) stdout: Written,
    pub(super) stderr: Written,
    /// What the model can do, besides what the outcome says.
    pub(super) advice: Option<&'static str>,
    pub(super) shell: Option<ShellState>,
}

impl Ending<'_> {
    /// The answer, as text and as data.
    pub(super) fn answer(self) -> CallToolResult {
        let Self { outcome, stdout, stderr, advice, shell } = self;
        let mut items = stdout.items();
        let of_stderr = stderr.items();
        let is_silent = items.is_empty() && of_stderr.is_empty();
        if !of_stderr.is_empty() {
            items.push(ContentBlock::text(own("stderr")));
            items.extend(of_stderr);
        }
        let report = Report::of_outcome(outcome);
        let is_refusal = |denial: &&Denial| denial.basis != Basis::Kept;
        // The person who runs git outside has to know, and an agent may not tell.
        let is_for_person = |denial: &&Denial| {
            denial.protection == Protection::ProtectedPaths
                && matches!(denial.basis, Basis::Kept | Basis::Observed)
        };
        outcome.denials.iter().filter(is_for_person).for_each(|denial| report::say(denial.line(FLAGS)));
        let mut remarks = outcome.remarks(FLAGS);
        remarks.extend(advice.map(|advice| format!("kennel: hint: {advice}")));
        let result = CommandResult {
            ended: word(outcome.ended),
            exit_code: report.exit_code,
            signal: report.signal,
            limit: report.limit.map(word),
            duration_ms: u64::try_from(report.duration_ms).unwrap_or(u64::MAX),
            left_out_bytes: stdout.text.left_out + stderr.text.left_out,
            dropped_bytes: stdout.dropped + stderr.dropped,
            stdout: stdout.text.begin,
            stdout_end: stdout.text.end,
            stdout_file: stdout.rest.path,
            stderr: stderr.text.begin,
            stderr_end: stderr.text.end,
            stderr_file: stderr.rest.path,
            denials: outcome.denials.iter().filter(is_refusal).map(Refusal::from).collect(),
            network_failures: outcome.network_failures.iter().map(Unreached::from).collect(),
            advised_flags: outcome.advised().iter().map(|settings| flags(settings)).collect(),
            remarks,
            shell,
        };
        items.push(ContentBlock::text(result.lines(is_silent).join("\n")));
        answer_of(items, &result)
    }
}

impl CommandResult {
    /// The result of a command that could not run.
    pub(super) fn failed(error: &Error) -> CallToolResult {
        let result = Self {
            ended: "failed".to_owned(),
            exit_code: error.exit_code(),
            signal: None,
            limit: None,
            duration_ms: 0,
            stdout: String::new(),
            stdout_end: None,
            stdout_file: None,
            stderr: String::new(),
            stderr_end: None,
            stderr_file: None,
            left_out_bytes: 0,
            dropped_bytes: 0,
            denials: Vec::new(),
            network_failures: Vec::new(),
            remarks: error.lines(FLAGS),
            advised_flags: BTreeSet::new(),
            shell: None,
        };
        let mut answer = answer(result.remarks.join("\n"), &result);
        answer.is_error = Some(true);
        answer
    }

    /// What Kennel says about the command.
    fn lines(&self, is_silent: bool) -> Vec<String> {
        let silence = if is_silent { ", no output" } else { "" };
        let end = match (&*self.ended, self.signal) {
            ("timed_out", _) => format!("timed out after {} ms", self.duration_ms),
            (_, Some(signal)) => format!("ended by signal {signal}"),
            _ => format!("exit status {}", self.exit_code),
        };
        let mut lines = vec![own(&format!("{end}{silence}"))];
        if let Some(shell) = &self.shell {
            let new = if shell.is_new { ", a new shell" } else { "" };
            let ended = if shell.has_ended { ", the shell has ended" } else { "" };
            let directory =
                shell.directory.iter().map(|directory| format!("in {directory}")).collect::<String>();
            let state = format!("{directory}{new}{ended}");
            lines.push(own(state.trim_start_matches(", ")));
        }
        lines.extend(self.remarks.iter().map(|line| own(line)));
        if !self.advised_flags.is_empty() {
            let flags = self.advised_flags.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
            lines.push(own(&format!("a person can allow it: start `kennel mcp` with {flags}; you cannot")));
        }
        lines
    }
}

/// The word that reports have for it.
fn word(of: impl Serialize) -> String {
    serde_json::to_value(of).ok().and_then(|word| Some(word.as_str()?.to_owned())).unwrap_or_default()
}
