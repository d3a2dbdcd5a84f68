//! Texts for the subject and the reason of a denial.

use std::path::Path;

use crate::report::escape::is_harmless;

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

/// Longest subject of a denial, in characters.
pub(crate) const LONGEST: usize = 300;
