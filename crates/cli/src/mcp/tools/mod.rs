//! The tools: their names, what they say about themselves, and which of them a policy has. A tool uses the
//! session and nothing else.

pub(super) mod changes;
pub(super) mod files;
pub(super) mod publish;
pub(super) mod read;
pub(super) mod run;
pub(super) mod shell;

use std::sync::Arc;

use kennel::{NetworkMode, Policy};
use rmcp::{
    handler::server::tool::schema_for_type,
    model::{JsonObject, Tool, ToolAnnotations},
    schemars::JsonSchema,
};
use serde_json::Value;

use super::output::result::CommandResult;
use run::Run;
use shell::Snippet;

/// A tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Run,
    Shell,
    ReadFile,
    WriteFile,
    EditFile,
    ListDir,
    Changes,
    Commit,
    Publish,
}

impl Name {
    pub(crate) const ALL: [Self; 9] = [
        Self::Run,
        Self::Shell,
        Self::ReadFile,
        Self::WriteFile,
        Self::EditFile,
        Self::ListDir,
        Self::Changes,
        Self::Commit,
        Self::Publish,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Shell => "shell",
            Self::ReadFile => "read_file",
            Self::WriteFile => "write_file",
            Self::EditFile => "edit_file",
            Self::ListDir => "list_dir",
            Self::Changes => "changes",
            Self::Commit => "commit",
            Self::Publish => "publish",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// Why this policy has no such tool, and what a person can do.
    pub(crate) fn missing(self, policy: &Policy, may_commit: bool) -> Option<&'static str> {
        match self {
            Self::Changes | Self::Commit if policy.overlay.is_none() => Some(
                "no tool `changes` or `commit`: commands change the workspace itself; a person can start `kennel mcp` with --overlay \
                 to keep changes apart",
            ),
            Self::Commit if !may_commit => Some(
                "no tool `commit`: a person looks at the changes and applies them, with kennel diff and kennel commit, after this \
                 server has ended; or starts `kennel mcp` with --allow-commit",
            ),
            Self::Publish if policy.effective_network() == NetworkMode::Host => {
                Some("no tool `publish`: servers already listen in the network of this machine")
            }
            _ => None,
        }
    }

    /// The definition for clients.
    pub(crate) fn tool(self, policy: &Policy) -> Tool {
        let reaches_out = policy.effective_network() != NetworkMode::None;
        let reads = || ToolAnnotations::new().read_only(true).open_world(false);
        let writes = || ToolAnnotations::new().read_only(false).destructive(true);
        let (title, text, input, output, hints) = match self {
            Self::Run => (
                "Run a command",
                "Run a command in the sandbox and return its output and exit status. What it leaves running lives on until the \
                 server ends; redirect the output of such a process to a file.",
                schema::<Run>(),
                schema::<CommandResult>(),
                writes().open_world(reaches_out),
            ),
            Self::Shell => (
                "Run a snippet in a shell",
                "Run a snippet in a shell in the sandbox that keeps its directory, variables and functions between calls. Calls \
                 of one shell run one after the other.",
                schema::<Snippet>(),
                schema::<CommandResult>(),
                writes().open_world(reaches_out),
            ),
            Self::ReadFile => (
                "Read a file",
                "Read a file of the sandbox, or a part of it by bytes or by lines. The text has a line about the part before it.",
                schema::<read::Read>(),
                schema::<read::ReadResult>(),
                reads(),
            ),
            Self::WriteFile => (
                "Write a file",
                "Write a whole file of the sandbox, and make the directories above it. It replaces an existing file at once.",
                schema::<files::Write>(),
                schema::<files::WriteResult>(),
                writes().idempotent(true).open_world(false),
            ),
            Self::EditFile => (
                "Edit a file",
                "Replace a text in a file of the sandbox. The file must have the text exactly once.",
                schema::<files::Edit>(),
                schema::<files::EditResult>(),
                writes().open_world(false),
            ),
            Self::ListDir => (
                "List a directory",
                "List the entries of a directory of the sandbox, with kind and size.",
                schema::<files::List>(),
                schema::<files::ListResult>(),
                reads(),
            ),
            Self::Changes => (
                "List changes",
                "List what commands changed in the workspace and nobody applied yet.",
                schema::<changes::Changes>(),
                schema::<changes::ChangesResult>(),
                reads(),
            ),
            Self::Commit => (
                "Apply changes",
                "Apply changes to the workspace of the person, outside of the sandbox. No command may run meanwhile.",
                schema::<changes::Commit>(),
                schema::<changes::CommitResult>(),
                writes().idempotent(true).open_world(false),
            ),
            Self::Publish => (
                "Publish a port",
                "Make a TCP server in the sandbox reachable for programs of this machine, such as a browser, and return its URL. \
                 It is on 127.0.0.1, at a port that is free.",
                schema::<publish::Publish>(),
                schema::<publish::PublishResult>(),
                ToolAnnotations::new().read_only(false).destructive(false).idempotent(true).open_world(true),
            ),
        };
        Tool::new(self.as_str(), text, input)
            .with_title(title)
            .with_raw_output_schema(output)
            .with_annotations(hints)
    }
}

/// The JSON schema of a type, without what only some clients understand.
fn schema<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    let mut schema = JsonObject::clone(&schema_for_type::<T>());
    plain(&mut schema);
    Arc::new(schema)
}

/// Takes away names of integer types, of Rust types, and of the schema's language.
fn plain(schema: &mut JsonObject) {
    for key in ["$schema", "format", "title"] {
        if schema.get(key).is_some_and(Value::is_string) {
            schema.remove(key);
        }
    }
    schema.values_mut().for_each(plain_value);
}

fn plain_value(value: &mut Value) {
    match value {
        Value::Object(inner) => plain(inner),
        Value::Array(inner) => inner.iter_mut().for_each(plain_value),
        _ => {}
    }
}
