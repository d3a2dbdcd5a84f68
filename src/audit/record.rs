//! What is written down, as data. The names of fields are the format: `docs/audit.md` describes them.

use std::net::IpAddr;
use std::time::SystemTime;

use serde::Serialize;

use crate::audit::chain;
use crate::policy::network::NetworkMode;
use crate::policy::profile::Profile;
use crate::report::enforcement::{Level, Protection};
use crate::report::failure::Class;
use crate::report::limit::Limit;
use crate::report::outcome::{Ended, Usage};

/// One event.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Record<'r> {
    /// A session is ready.
    Session { profile: Profile, workspace: String, network: NetworkMode, enforcement: Level },
    /// A session has ended.
    SessionEnd {},
    /// A command is about to be handed over.
    Exec {
        program: String,
        /// How many, without the program.
        arguments: usize,
        /// Themselves, where the policy says so.
        #[serde(skip_serializing_if = "Option::is_none")]
        argv: Option<Vec<String>>,
        directory: String,
    },
    /// A command has ended, or could not be started.
    Exit {
        ended: End,
        exit_code: Option<u8>,
        signal: Option<i32>,
        limit: Option<Limit>,
        duration_ms: u64,
        usage: Option<Usage>,
        /// Why, where it did not end by itself.
        class: Option<Class>,
    },
    /// Something was refused to a command, by a wall other than the proxy.
    Denial { protection: Protection, subject: &'r str, reason: &'r str },
    /// A limit ended a command.
    Limit {
        limit: Limit,
        configured: Option<&'r str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        used: Option<&'r str>,
    },
    /// A decision of the proxy.
    Egress(Egress),
    /// A decision of the spawn broker.
    Spawn(Spawn<'r>),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum End {
    /// In the words of the report.
    Ended(Ended),
    /// Without an outcome: `failed` where it was not started, `dropped` where nobody waited for its end.
    Without(&'static str),
}

/// A spawn that was asked for: names and lengths.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Spawn<'r> {
    /// `allowed`, `denied`; `failed` where it was allowed and did not come to be.
    pub(crate) decision: &'static str,
    /// As it was asked for.
    pub(crate) program: &'r str,
    /// Of the manifest, where the arguments are one.
    pub(crate) operation: Option<&'r str>,
    pub(crate) shape: ArgumentsShape,
    /// Names of variables that were asked to be set.
    pub(crate) variables: Vec<&'r str>,
    pub(crate) credentials: Vec<&'r str>,
    pub(crate) directory: Option<&'r str>,
    /// What it is for machines, and in words, where it was not allowed or failed.
    pub(crate) class: Option<Class>,
    pub(crate) reason: Option<String>,
}

/// What an argument list is like.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ArgumentsShape {
    /// The pattern of its operation.
    Pattern(String),
    /// How many bytes each argument has.
    Lengths(Vec<usize>),
}

/// A connection, or an attempt at one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Egress {
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    /// Where it went.
    pub(crate) address: Option<IpAddr>,
    /// `allowed`, `denied`, `failed`; `begun` in a log that fails closed, before what is allowed is dialled.
    pub(crate) decision: &'static str,
    pub(crate) reason: &'static str,
    /// What it is for machines, where it did not pass.
    pub(crate) class: Option<Class>,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) duration_ms: u64,
}

/// What is left of texts and lists of a record that is too long: characters and entries.
const TEXT: usize = 1000;
const ENTRIES: usize = 40;

fn text(text: &str) -> &str {
    text.char_indices().nth(TEXT).map_or(text, |(end, _)| &text[..end])
}

impl Record<'_> {
    /// Cuts what commands, and those who ask for them, can make as long as they like.
    pub(crate) fn cut(&mut self) {
        let short = |long: &mut String| *long = text(long).to_owned();
        let few = |many: &mut Vec<&str>| {
            many.truncate(ENTRIES);
            many.iter_mut().for_each(|long| *long = text(long));
        };
        match self {
            Self::Exec { program, argv, directory, .. } => {
                short(program);
                short(directory);
                if let Some(argv) = argv {
                    argv.truncate(ENTRIES);
                    argv.iter_mut().for_each(short);
                }
            }
            Self::Spawn(Spawn { program, shape, variables, credentials, directory, reason, .. }) => {
                *program = text(program);
                *directory = directory.map(text);
                few(variables);
                few(credentials);
                reason.iter_mut().for_each(short);
                match shape {
                    ArgumentsShape::Pattern(pattern) => short(pattern),
                    ArgumentsShape::Lengths(lengths) => lengths.truncate(ENTRIES),
                }
            }
            Self::Denial { subject, reason, .. } => {
                *subject = text(subject);
                *reason = text(reason);
            }
            Self::Egress(Egress { host, .. }) => short(host),
            Self::Session { workspace, .. } => short(workspace),
            Self::SessionEnd {} | Self::Exit { .. } | Self::Limit { .. } => {}
        }
    }
}

// A record with what every line has.

#[derive(Serialize)]
pub(crate) struct Line<'l> {
    /// RFC 3339, UTC, milliseconds.
    time: String,
    /// Of no other record of the host, as long as its process lives.
    id: &'l str,
    session: &'l str,
    /// The command, where only one can have been it; counted from 1 in its session.
    exec: Option<u64>,
    #[serde(flatten)]
    record: Record<'l>,
    /// How many records before this one could not be written.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) lost: u64,
    /// Whether parts of the record are left out, because it would be no line of a log otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    /// The hash of the line before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prev: Option<String>,
}

impl<'l> Line<'l> {
    pub(crate) fn new(id: &'l str, session: &'l str, exec: Option<u64>, record: Record<'l>) -> Self {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        Self { time, id, session, exec, record, lost: 0, cut: false, prev: None }
    }

    /// As JSON, short enough for whoever reads the log.
    pub(crate) fn into_bytes(mut self) -> serde_json::Result<Vec<u8>> {
        let bytes = serde_json::to_vec(&self)?;
        // With its newline, and one before it.
        if (bytes.len() as u64) < chain::LONGEST - 2 {
            return Ok(bytes);
        }
        self.record.cut();
        self.cut = true;
        serde_json::to_vec(&self)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// A record of each kind, with everything that it can have.
    fn all() -> Vec<Record<'static>> {
        let usage = Some(Usage::default());
        vec![
            Record::Session {
                profile: Profile::RepoWrite,
                workspace: "/w".to_owned(),
                network: NetworkMode::None,
                enforcement: Level::Full,
            },
            Record::SessionEnd {},
            Record::Exec {
                program: "p".to_owned(),
                arguments: 1,
                argv: Some(vec!["a".to_owned()]),
                directory: "/w".to_owned(),
            },
            Record::Exit {
                ended: End::Ended(Ended::Exited),
                exit_code: Some(0),
                signal: None,
                limit: None,
                duration_ms: 1,
                usage,
                class: None,
            },
            Record::Denial { protection: Protection::Root, subject: "s", reason: "r" },
            Record::Limit { limit: Limit::Memory, configured: Some("1M"), used: Some("2M") },
            Record::Egress(Egress {
                host: "h".to_owned(),
                port: None,
                address: None,
                decision: "allowed",
                reason: "allowed",
                class: None,
                bytes_up: 0,
                bytes_down: 0,
                duration_ms: 0,
            }),
            Record::Spawn(Spawn {
                decision: "allowed",
                program: "p",
                operation: None,
                shape: ArgumentsShape::Lengths(Vec::new()),
                variables: Vec::new(),
                credentials: Vec::new(),
                directory: None,
                class: None,
                reason: None,
            }),
        ]
    }

    /// The words in backticks.
    fn words(text: &str) -> BTreeSet<&str> {
        text.split('`').skip(1).step_by(2).collect()
    }

    #[test]
    fn the_document_names_every_key_and_no_other() {
        let document = include_str!("../../docs/audit.md");
        let (_, table) = document.split_once("| event | when | further fields |\n").expect("the table");
        let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).skip(1).collect();
        assert_eq!(rows.len(), all().len(), "one row for each event");
        for record in all() {
            let Ok(Value::Object(mut fields)) = serde_json::to_value(&record) else { panic!("no record") };
            let event = fields.remove("event").expect("an event");
            let event = event.as_str().expect("a word");
            let row = rows.iter().find(|row| row.starts_with(&format!("| `{event}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/audit.md has no `{event}`"));
            let named = words(row.split('|').nth(3).unwrap_or_default());
            for key in fields.keys() {
                assert!(named.contains(&**key), "{event}: docs/audit.md lacks `{key}`");
            }
            // The other words in backticks are values or flags.
            let values =
                ["full", "partial", "none", "failed", "dropped", "pattern", "lengths", "--audit-arguments"];
            for word in named {
                assert!(
                    fields.contains_key(word) || values.contains(&word),
                    "{event}: no `{word}` is written"
                );
            }
        }
        let (_, section) = document.split_once("## What a line has\n").expect("the section");
        let section = words(section.split("\n## ").next().unwrap_or_default());
        for key in ["time", "event", "id", "session", "exec", "lost", "cut", "prev"] {
            assert!(section.contains(key), "docs/audit.md lacks `{key}`");
        }
    }
}
