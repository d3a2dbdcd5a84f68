//! Colours: which style stands for what, and which streams show them.
//!
//! [`Paint`] adds styles to text that is harmless already: escape untrusted text first (`escape`), since
//! escaping later would destroy the codes of the styles.

use std::{
    io::{stderr, stdout},
    str::FromStr,
};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

/// `kennel:` before an error.
pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
/// `kennel:` before a remark: a denial, a weaker protection, a limit that was hit.
pub(crate) const REMARK: Style = AnsiColor::Yellow.on_default().bold();
/// The word `hint:`.
pub(crate) const HINT: Style = AnsiColor::Green.on_default().bold();
/// The word `note:`.
pub(crate) const NOTE: Style = AnsiColor::Cyan.on_default().bold();
/// A flag or a command that the reader can type.
pub(crate) const LITERAL: Style = Style::new().bold();
/// The title of a table, or the name of a file in a diff.
pub(crate) const TITLE: Style = Style::new().bold();
/// What matters less: origins, units, unchanged lines.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// What is enforced, allowed or writable.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What is weaker than asked.
pub(crate) const WEAK: Style = AnsiColor::Yellow.on_default();
/// What is refused, hidden or off.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// An added line of a diff.
pub(crate) const ADDED: Style = AnsiColor::Green.on_default();
/// A removed line of a diff.
pub(crate) const REMOVED: Style = AnsiColor::Red.on_default();
/// The line that says where a part of a diff stands (`@@ … @@`).
pub(crate) const HUNK: Style = AnsiColor::Cyan.on_default();

/// When to use colours: `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum When {
    /// On terminals, unless `NO_COLOR`, `CLICOLOR=0` or `TERM=dumb` forbids it; elsewhere with
    /// `CLICOLOR_FORCE`.
    #[default]
    Auto,
    Always,
    Never,
}

impl When {
    pub(crate) const WORDS: [&str; 3] = ["auto", "always", "never"];

    /// Holds for every stream of this process from now on.
    pub(crate) fn apply(self) {
        match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::AlwaysAnsi,
            Self::Never => ColorChoice::Never,
        }
        .write_global();
    }
}

impl FromStr for When {
    type Err = std::fmt::Error;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(std::fmt::Error),
        }
    }
}

/// Adds styles if its stream shows them.
#[derive(Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    pub(crate) fn stdout() -> Self {
        Self(AutoStream::choice(&stdout()) != ColorChoice::Never)
    }

    pub(crate) fn stderr() -> Self {
        Self(AutoStream::choice(&stderr()) != ColorChoice::Never)
    }

    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self(false)
    }

    /// Whether the stream shows styles.
    pub(crate) fn is_on(self) -> bool {
        self.0
    }

    /// `text`, which must be harmless, in a style. Pad a column before it gets its style.
    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}
