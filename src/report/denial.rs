//! Denials: what the sandbox refused, and the texts for people about it.

use std::path::Path;

use serde::Serialize;

use crate::report::enforcement::Protection;
use crate::report::escape::is_harmless;

/// Something that the sandbox blocked or moved aside, or kept for you to check ([`Basis::Kept`]).
///
/// Connections and protected paths are always reported, the rest only with [`Policy::explain`], which reads the
/// command's output and finds only what it says in English.
///
/// [`Policy::explain`]: crate::policy::Policy::explain
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Denial {
    /// The protection that refused it.
    pub protection: Protection,
    /// What was refused: a path, a destination, a system call. One line, without control characters.
    pub subject: String,
    /// Why, and what Kennel did about it.
    pub reason: String,
    /// How Kennel knows.
    pub basis: Basis,
    /// The flag of `kennel run` that would allow it, if there is one. `reason` contains it, too. Unknown parts are in
    /// capitals: `--allow HOST:PORT`.
    pub remedy: Option<String>,
}

/// How Kennel knows that something was refused.
///
/// ```
/// use kennel::Basis;
///
/// assert!(Basis::Observed.is_certain() && Basis::Derived.is_certain() && !Basis::Possible.is_certain());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Basis {
    /// Kennel refused it, or the kernel reported it.
    Observed,
    /// The command's output names it with an error, and under this policy no other result is possible. Kennel knows only
    /// from the output that the command tried.
    Derived,
    /// The command's output names it with an error that this policy causes there. Something else may have caused it too.
    Possible,
    /// Nothing was refused: the command created something at a protected path, and Kennel kept it because its directory is
    /// new, too.
    Kept,
}

impl Basis {
    /// Whether it is certain that the sandbox refused it.
    #[must_use]
    pub fn is_certain(self) -> bool {
        matches!(self, Self::Observed | Self::Derived)
    }
}

// Texts of a denial.

/// Longest subject of a denial, in characters.
pub(crate) const LONGEST: usize = 300;

/// The flag that lets commands change what git obeys in repositories.
pub(crate) const TRUST_GIT: &str = "--git trust";

/// A reason, followed by the flag that would change it.
pub(crate) fn advice(reason: String, flag: Option<&str>, would: &str) -> String {
    match flag {
        Some(flag) => format!("{reason}; {flag} {would}"),
        None => reason,
    }
}

/// A path for people: one line, with unsafe characters replaced by `?`, and in quotes if its end would not be clear.
pub(crate) fn shown(path: &Path) -> String {
    let text = clean(&path.to_string_lossy());
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@%,=:~".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "?")) }
}

/// A command's text for people: unsafe characters replaced by `?`, and cut to [`LONGEST`].
pub(crate) fn clean(text: &str) -> String {
    let plain = |c: char| if is_harmless(c) { c } else { '?' };
    text.chars().take(LONGEST).map(plain).collect()
}

// The limits that can end a command.
