//! What a report says about the shell that ran a snippet.

use serde::Serialize;

/// Which shell ran a snippet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ShellOrigin {
    /// The one of the call before.
    Earlier,
    /// A new one, for the first call.
    First,
    /// A new one, because the earlier one has ended. Nothing of its state is left.
    Replacement,
}

/// The shell of a snippet, in the report of `kennel exec --shell`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ShellReport {
    /// Which shell ran it.
    pub origin: ShellOrigin,
    /// Whether the shell has ended. The next call starts a new one.
    pub has_ended: bool,
    /// The directory of the shell after the snippet, if there is one.
    pub directory: Option<String>,
}
