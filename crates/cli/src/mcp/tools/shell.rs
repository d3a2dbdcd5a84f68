//! The tool `shell`: snippets in shells that keep their directory, variables and functions.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use kennel::{Session, ShellOutput, report::ShellOrigin};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

use super::run::{Shared, clip_size, own_limit, time_limit};
use crate::mcp::{
    answer::{Answer, refused},
    output::{
        overflow::LARGEST,
        progress::Listener,
        result::{CommandResult, Ending, ShellState, Written},
    },
};

/// The most shells: each is a process that stays.
const MOST_SHELLS: usize = 16;

/// The longest name of a shell, in bytes.
const LONGEST_ID: usize = 64;

/// The arguments of `shell`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snippet {
    /// What to run, as a script may have it.
    snippet: String,
    /// Which shell runs it. Each name is a shell of its own. Default: main.
    id: Option<String>,
    /// Interrupt the snippet, not the shell, after this many milliseconds. The policy may have a shorter
    /// limit.
    timeout_ms: Option<u64>,
    /// How many bytes of stdout, and of stderr, the result has. Default: 30000. At most 1048576. A file in
    /// the sandbox has the rest.
    max_output_bytes: Option<u64>,
}

/// The names of the shells.
#[derive(Debug, Default)]
pub(crate) struct Shells(Mutex<BTreeSet<String>>);

impl Shells {
    /// Whether there is room for this shell.
    fn take(&self, id: &str) -> bool {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.contains(id) || names.len() < MOST_SHELLS && names.insert(id.to_owned())
    }
}

impl Snippet {
    /// Runs it. Dropping the future interrupts the snippet.
    pub(crate) async fn call(
        self,
        session: &Session,
        shells: &Shells,
        shared: &Shared,
        listener: &Listener,
    ) -> Answer {
        let id = self.id.as_deref().unwrap_or("main");
        if id.is_empty() || id.len() > LONGEST_ID {
            return Err(refused(format!("arguments: `id` needs 1 to {LONGEST_ID} bytes")));
        }
        if !shells.take(id) {
            return Err(refused(format!("there are {MOST_SHELLS} shells: use one of them")));
        }
        let mut snippet = session.shell_with_id(id).snippet(&self.snippet).output_cap(LARGEST);
        if let Some(limit) = time_limit(self.timeout_ms) {
            snippet = snippet.timeout(limit);
        }
        let mut ended = match listener.during(None, snippet.output()).await {
            Ok(ended) => ended,
            Err(error) => return Err(CommandResult::failed(&error)),
        };
        let written = async |name, bytes: &[u8], seen: Option<u64>| {
            let (bytes, dropped) = without_marker(bytes, seen);
            let mut stream = shared.outputs.stream(session, name, clip_size(self.max_output_bytes));
            stream.add(bytes);
            Written::of(stream, dropped).await
        };
        let stdout = written("stdout", &ended.stdout, ended.outcome.stdout_bytes).await;
        let stderr = written("stderr", &ended.stderr, ended.outcome.stderr_bytes).await;
        let advice = own_limit(&mut ended.outcome, self.timeout_ms, shared.timeout);
        let shell = Some(state(&ended));
        Ok(Ending { outcome: &ended.outcome, stdout, stderr, advice, shell }.answer())
    }
}

/// Collected bytes without the line that follows a cut stream, and how many bytes were dropped. A snippet may
/// print such a line itself; only what it wrote altogether tells.
fn without_marker(bytes: &[u8], seen: Option<u64>) -> (&[u8], u64) {
    let Some(seen) = seen.filter(|seen| *seen != bytes.len() as u64) else { return (bytes, 0) };
    let (start, end) = ("\n[kennel: output truncated, ", " bytes dropped]\n");
    let whole = |digits: usize| {
        let kept = bytes.len().checked_sub(start.len() + digits + end.len())?;
        let dropped = seen.checked_sub(kept as u64)?;
        let (bytes, marker) = bytes.split_at_checked(kept)?;
        (marker == format!("{start}{dropped}{end}").as_bytes()).then_some((bytes, dropped))
    };
    (1..=20).find_map(whole).unwrap_or((bytes, 0))
}

fn state(ended: &ShellOutput) -> ShellState {
    ShellState {
        directory: ended.directory.as_ref().map(|directory| directory.to_string_lossy().into_owned()),
        is_new: ended.origin != ShellOrigin::Earlier,
        has_ended: ended.has_ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_marker_of_a_cut_stream_is_no_output() {
        let marker = |dropped: u64| format!("\n[kennel: output truncated, {dropped} bytes dropped]\n");
        for dropped in [1, 9, 10, 123_456] {
            let text = format!("abc{}", marker(dropped));
            assert_eq!(without_marker(text.as_bytes(), Some(3 + dropped)), (&b"abc"[..], dropped));
            assert_eq!(
                without_marker(text.as_bytes(), Some(text.len() as u64)),
                (text.as_bytes(), 0),
                "printed"
            );
            let both = format!("{text}{}", marker(7));
            assert_eq!(without_marker(both.as_bytes(), Some(text.len() as u64 + 7)), (text.as_bytes(), 7));
        }
        assert_eq!(without_marker(b"", None), (&b""[..], 0));
    }
}
