//! The records of the audit log. The names of variants and fields are the format that `docs/audit.md`
//! describes.

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use serde::Serialize;
use serde_json::ser::CompactFormatter;

use crate::audit::chain;
use crate::policy::network::NetworkMode;
use crate::policy::profile::Profile;
use crate::report::enforcement::{Level, Protection};
use crate::report::escape;
use crate::report::failure::{Class, Limit};
use crate::report::outcome::{Ended, Usage};

/// One event.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Record<'r> {
    /// A session is ready.
    Session {
        profile: Profile,
        workspace: String,
        network: NetworkMode,
        enforcement: Level,
        /// The root file system, if that is not the host's.
        #[serde(skip_serializing_if = "Option::is_none")]
        root: Option<&'r str>,
    },
    /// A session has ended.
    SessionEnd {},
    /// A command is about to start.
    Exec {
        program: String,
        /// The number of arguments, without the program.
        arguments: usize,
        /// The arguments, if the policy asks for them.
        #[serde(skip_serializing_if = "Option::is_none")]
        argv: Option<Vec<String>>,
        directory: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        root: Option<&'r str>,
    },
    /// A command has ended, or could not be started.
    Exit {
        ended: EndRecord,
        exit_code: Option<u8>,
        signal: Option<i32>,
        limit: Option<Limit>,
        duration_ms: u64,
        usage: Option<Usage>,
        /// Why the command failed, if it did not end by itself.
        class: Option<Class>,
    },
    /// A protection other than the proxy refused something to a command.
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
    /// A connection to a published port.
    Ingress(Ingress),
    /// A decision of the spawn broker.
    Spawn(SpawnRecord<'r>),
    /// A call of a connector has begun or ended.
    #[cfg_attr(not(any(feature = "wasm", test)), expect(dead_code, reason = "only connectors write it"))]
    Connector(ConnectorCall<'r>),
    /// A connector asked for a request with a credential.
    #[cfg_attr(not(any(feature = "wasm", test)), expect(dead_code, reason = "only connectors write it"))]
    Credential(CredentialUse<'r>),
}

/// A call of a connector.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ConnectorCall<'r> {
    pub(crate) operation: &'r str,
    /// `ended`, `failed`, or `dropped` if the caller did not wait; `begun` in a log that fails closed, before
    /// the program runs.
    pub(crate) decision: &'static str,
    /// The class of the failure, and its reason in words.
    pub(crate) class: Option<Class>,
    pub(crate) reason: Option<String>,
    pub(crate) duration_ms: u64,
}

/// A request with a credential.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CredentialUse<'r> {
    /// The kind of the credential.
    pub(crate) kind: &'r str,
    /// `allowed`, `denied` or `failed`.
    pub(crate) decision: &'static str,
    pub(crate) class: Option<Class>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum EndRecord {
    /// The command has an outcome.
    Ended(Ended),
    /// There is no outcome: `failed` if the command could not be started, `dropped` if the caller did not
    /// wait for it, `handed_over` if what waited became the command of another record.
    NoOutcome(&'static str),
}

/// A request to spawn a program: names and lengths.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SpawnRecord<'r> {
    /// The record that allowed it, if the broker then could not start it. It names the spawn.
    #[serde(skip)]
    pub(crate) allowed: Option<&'r str>,
    /// `allowed` or `denied`; `failed` if the broker allowed the program and could not start it.
    pub(crate) decision: &'static str,
    /// The program as the request names it.
    pub(crate) program: &'r str,
    /// The operation of the manifest that the arguments match.
    pub(crate) operation: Option<&'r str>,
    pub(crate) shape: ArgumentsShape,
    /// The names of the variables that the request sets.
    pub(crate) variables: Vec<&'r str>,
    pub(crate) credentials: Vec<&'r str>,
    pub(crate) directory: Option<&'r str>,
    /// The class of the failure, and its reason in words, if the spawn was denied or failed.
    pub(crate) class: Option<Class>,
    pub(crate) reason: Option<String>,
}

/// The shape of an argument list.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ArgumentsShape {
    /// The pattern of the operation.
    Pattern(String),
    /// The length of each argument, in bytes.
    Lengths(Vec<usize>),
}

/// A connection, or an attempt at one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Egress {
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    /// The address that the proxy connected to.
    pub(crate) address: Option<IpAddr>,
    /// `allowed`, `denied` or `failed`; `begun` in a log that fails closed, before the proxy connects.
    pub(crate) decision: &'static str,
    pub(crate) reason: &'static str,
    /// The class of the failure, if the connection was denied or failed.
    pub(crate) class: Option<Class>,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) duration_ms: u64,
}

/// A connection from outside to a server of the sandbox.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ingress {
    /// Who connected.
    pub(crate) from: SocketAddr,
    /// The port inside.
    pub(crate) port: u16,
    /// `allowed`, or `failed` if no server listens there; `begun` in a log that fails closed, before anything
    /// passes.
    pub(crate) decision: &'static str,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) duration_ms: u64,
}

/// The characters that remain of each text if a record is too long.
const TEXT_MAX: usize = 1000;
/// The entries that remain of each list if a record is too long.
const ENTRIES_MAX: usize = 40;

fn truncated(text: &str) -> &str {
    text.char_indices().nth(TEXT_MAX).map_or(text, |(end, _)| &text[..end])
}

impl Record<'_> {
    /// Truncates the texts and lists whose length commands and callers choose.
    fn truncate(&mut self) {
        let truncate_text = |text: &mut String| *text = truncated(text).to_owned();
        let truncate_list = |list: &mut Vec<&str>| {
            list.truncate(ENTRIES_MAX);
            list.iter_mut().for_each(|text| *text = truncated(text));
        };
        match self {
            Self::Exec { program, argv, directory, .. } => {
                truncate_text(program);
                truncate_text(directory);
                if let Some(argv) = argv {
                    argv.truncate(ENTRIES_MAX);
                    argv.iter_mut().for_each(truncate_text);
                }
            }
            Self::Spawn(SpawnRecord {
                program, shape, variables, credentials, directory, reason, ..
            }) => {
                *program = truncated(program);
                *directory = directory.map(truncated);
                truncate_list(variables);
                truncate_list(credentials);
                reason.iter_mut().for_each(truncate_text);
                match shape {
                    ArgumentsShape::Pattern(pattern) => truncate_text(pattern),
                    ArgumentsShape::Lengths(lengths) => lengths.truncate(ENTRIES_MAX),
                }
            }
            Self::Connector(ConnectorCall { operation, reason, .. }) => {
                *operation = truncated(operation);
                reason.iter_mut().for_each(truncate_text);
            }
            Self::Credential(CredentialUse { kind, .. }) => *kind = truncated(kind),
            Self::Denial { subject, reason, .. } => {
                *subject = truncated(subject);
                *reason = truncated(reason);
            }
            Self::Egress(Egress { host, .. }) => truncate_text(host),
            Self::Session { workspace, .. } => truncate_text(workspace),
            Self::SessionEnd {} | Self::Exit { .. } | Self::Limit { .. } | Self::Ingress(_) => {}
        }
    }
}

/// One line of the log: a record with the fields that every line has.
#[derive(Serialize)]
pub(crate) struct Line<'l> {
    /// RFC 3339 in UTC, with milliseconds.
    time: String,
    /// Unique among the records on this host while the process of the writer runs.
    id: &'l str,
    session: &'l str,
    /// The number of the command in its session, from 1. `None`: more than one command could be meant.
    exec: Option<u64>,
    /// The connector that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connector: Option<&'l str>,
    /// The spawn that it is about, by the id of its first record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spawn: Option<&'l str>,
    #[serde(flatten)]
    record: Record<'l>,
    /// The number of records before this one that could not be written.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) lost: u64,
    /// Whether the record was truncated to fit into a line.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    /// The hash of the line before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prev: Option<String>,
}

impl<'l> Line<'l> {
    pub(crate) fn new(id: &'l str, session: &'l str, exec: Option<u64>, record: Record<'l>) -> Self {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let (connector, spawn, prev) = (None, None, None);
        Self { time, id, session, exec, connector, spawn, record, lost: 0, cut: false, prev }
    }

    /// The line as JSON without its newline, shorter than [`chain::LINE_MAX`].
    pub(crate) fn into_bytes(mut self) -> serde_json::Result<Vec<u8>> {
        let bytes = escape::json(&self, CompactFormatter)?;
        // Room for the newline, and for one before the line.
        if (bytes.len() as u64) < chain::LINE_MAX - 2 {
            return Ok(bytes);
        }
        self.record.truncate();
        self.connector = self.connector.map(truncated);
        self.cut = true;
        escape::json(&self, CompactFormatter)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// One record of each kind, with all its fields.
    fn all() -> Vec<Record<'static>> {
        let usage = Some(Usage::default());
        vec![
            Record::Session {
                profile: Profile::RepoWrite,
                workspace: "/w".to_owned(),
                network: NetworkMode::None,
                enforcement: Level::Full,
                root: Some("image sha256:0"),
            },
            Record::SessionEnd {},
            Record::Exec {
                program: "p".to_owned(),
                arguments: 1,
                argv: Some(vec!["a".to_owned()]),
                directory: "/w".to_owned(),
                root: Some("image sha256:0"),
            },
            Record::Exit {
                ended: EndRecord::Ended(Ended::Exited),
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
            Record::Ingress(Ingress {
                from: SocketAddr::from(([127, 0, 0, 1], 1)),
                port: 1024,
                decision: "allowed",
                bytes_up: 0,
                bytes_down: 0,
                duration_ms: 0,
            }),
            Record::Spawn(SpawnRecord {
                allowed: None,
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
            Record::Connector(ConnectorCall {
                operation: "o",
                decision: "ended",
                class: None,
                reason: None,
                duration_ms: 0,
            }),
            Record::Credential(CredentialUse { kind: "oauth2", decision: "allowed", class: None }),
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
            // All other words in backticks are values or flags.
            let values = [
                "full",
                "partial",
                "none",
                "ended",
                "failed",
                "dropped",
                "handed_over",
                "pattern",
                "lengths",
                "shell",
                "--audit-arguments",
                "argv[0]",
            ];
            for word in named {
                assert!(
                    fields.contains_key(word) || values.contains(&word),
                    "{event}: no `{word}` is written"
                );
            }
        }
        let (_, section) = document.split_once("## What a line has\n").expect("the section");
        let section = words(section.split("\n## ").next().unwrap_or_default());
        for key in ["time", "event", "id", "session", "exec", "connector", "spawn", "lost", "cut", "prev"] {
            assert!(section.contains(key), "docs/audit.md lacks `{key}`");
        }
    }
}
