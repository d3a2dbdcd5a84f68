//! What is said to people and machines about a run: one place for every message.

use std::{fs::File, io::Write, os::unix::process::ExitStatusExt};

use kennel::{Enforcement, Error, Failure, Outcome, State};
use serde::Serialize;

use crate::FAILED;

/// The exit status for an error: 127 not found, 126 not executable, 125 everything else.
pub(crate) fn exit_code(error: &Error) -> u8 {
    match error {
        Error::NotFound { .. } => 127,
        Error::NotExecutable { .. } => 126,
        _ => FAILED,
    }
}

/// One line with the chain of causes, one with the remedy.
pub(crate) fn error(error: &Error) {
    eprintln!("kennel: {}", error.chain());
    if let Some(remedy) = error.remedy() {
        eprintln!("kennel: to mend it: {remedy}");
    }
}

/// What was not enforced as asked, and what was refused.
pub(crate) fn remarks(outcome: &Outcome) {
    let weak = outcome
        .enforcement
        .protections()
        .iter()
        .filter(|entry| entry.asked && entry.state != State::Enforced);
    for entry in weak {
        eprintln!("kennel: {} {}: {}", entry.name, state(entry.state), entry.detail);
    }
    for denial in &outcome.denials {
        eprintln!("kennel: denied by {}: {}: {}", denial.protection, denial.subject, denial.reason);
    }
    if let Some(failure) = outcome.failure() {
        eprintln!("kennel: {}", failure.message);
    }
}

fn state(state: State) -> &'static str {
    match state {
        State::Enforced => "enforced",
        State::Degraded => "degraded",
        State::Off => "off",
    }
}

/// One line a protection.
pub(crate) fn enforcement_table(enforcement: &Enforcement) {
    for entry in enforcement.protections() {
        println!("{:<20} {:<9} {}", entry.name.as_str(), state(entry.state), entry.detail);
    }
}

/// Pretty JSON of plain data.
pub(crate) fn json(value: &impl Serialize) -> String {
    // Only a path that is not UTF-8 cannot be written as JSON.
    serde_json::to_string_pretty(value).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"))
}

/// The object of `--json`.
#[derive(Serialize)]
struct Report<'r> {
    ended: String,
    exit_code: u8,
    signal: Option<i32>,
    limit: Option<kennel::Limit>,
    duration_ms: u128,
    usage: Option<kennel::Usage>,
    stdout_bytes: Option<u64>,
    stderr_bytes: Option<u64>,
    truncated: bool,
    enforcement: Option<&'r Enforcement>,
    denials: &'r [kennel::Denial],
    failure: Option<Failure>,
}

/// Writes the report of a run, however it went.
pub(crate) fn write(file: &mut File, result: &Result<Outcome, Error>) -> std::io::Result<()> {
    let report = match result {
        Ok(outcome) => Report {
            ended: serde_json::to_value(outcome.ended)?.as_str().unwrap_or_default().to_owned(),
            exit_code: outcome.exit_code(),
            signal: outcome.status.signal(),
            limit: outcome.limit,
            duration_ms: outcome.duration.as_millis(),
            usage: Some(outcome.usage),
            stdout_bytes: outcome.stdout_bytes,
            stderr_bytes: outcome.stderr_bytes,
            truncated: outcome.truncated,
            enforcement: Some(&outcome.enforcement),
            denials: &outcome.denials,
            failure: outcome.failure(),
        },
        Err(error) => Report {
            ended: "failed".to_owned(),
            exit_code: exit_code(error),
            signal: None,
            limit: None,
            duration_ms: 0,
            usage: None,
            stdout_bytes: None,
            stderr_bytes: None,
            truncated: false,
            enforcement: None,
            denials: &[],
            failure: Some(error.failure()),
        },
    };
    serde_json::to_writer(&mut *file, &report)?;
    file.write_all(b"\n")
}
