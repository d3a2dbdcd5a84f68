//! The tool `shell`: snippets in shells that keep their directory, variables and functions.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use kennel::{Session, ShellOrigin, ShellOutput};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

use super::{
    answer::{Answer, refused},
    progress::Listener,
    result::{CommandResult, ShellState},
    run::{kept, time_limit},
};

/// The most shells: each is a process that stays.
const MOST_SHELLS: usize = 16;

/// The longest name of a shell, in bytes.
const LONGEST_ID: usize = 64;

/// The most of each output that is collected. The result has its beginning and its end.
const COLLECTED: u64 = 8 << 20;

/// The arguments of `shell`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Snippet {
    /// What to run, as a script may have it.
    snippet: String,
    /// Which shell runs it. Each name is a shell of its own. Default: main.
    id: Option<String>,
    /// Interrupt the snippet, not the shell, after this many milliseconds. The policy may have a shorter limit.
    timeout_ms: Option<u64>,
    /// How many bytes of stdout, and of stderr, the result has. Default: 65536. At most 1048576.
    max_output_bytes: Option<u64>,
}

/// The names of the shells.
#[derive(Debug, Default)]
pub(super) struct Shells(Mutex<BTreeSet<String>>);

impl Shells {
    /// Whether there is room for this shell.
    fn take(&self, id: &str) -> bool {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.contains(id) || names.len() < MOST_SHELLS && names.insert(id.to_owned())
    }
}

impl Snippet {
    /// Runs it. Dropping the future interrupts the snippet.
    pub(super) async fn call(self, session: &Session, shells: &Shells, listener: &Listener) -> Answer {
        let id = self.id.as_deref().unwrap_or("main");
        if id.is_empty() || id.len() > LONGEST_ID {
            return Err(refused(format!("arguments: `id` needs 1 to {LONGEST_ID} bytes")));
        }
        if !shells.take(id) {
            return Err(refused(format!("there are {MOST_SHELLS} shells: use one of them")));
        }
        let mut snippet = session.shell_with_id(id).snippet(&self.snippet).output_cap(COLLECTED);
        if let Some(limit) = time_limit(self.timeout_ms) {
            snippet = snippet.timeout(limit);
        }
        let [mut out, mut err] = kept(self.max_output_bytes);
        let ended = match listener.during(None, snippet.output()).await {
            Ok(ended) => ended,
            Err(error) => return Err(CommandResult::failed(&error)),
        };
        out.add(&ended.stdout);
        err.add(&ended.stderr);
        let mut result = CommandResult::of(&ended.outcome, [out, err]);
        result.shell = Some(state(&ended));
        Ok(result.answer())
    }
}

fn state(ended: &ShellOutput) -> ShellState {
    ShellState {
        directory: ended.directory.as_ref().map(|directory| directory.to_string_lossy().into_owned()),
        is_new: ended.origin != ShellOrigin::Earlier,
        has_ended: ended.has_ended,
    }
}
