//! What a denial is about, in words for people: a path, a flag, a text of the command.

use std::path::Path;

use crate::report::escape::is_harmless;

/// A reason with the flag that would change it.
pub(crate) fn advice(reason: String, flag: Option<&str>, would: &str) -> String {
    match flag {
        Some(flag) => format!("{reason}; {flag} {would}"),
        None => reason,
    }
}

/// A path for people: on one line, without anything that a terminal obeys or that reorders a line, and in quotes where it
/// would not end where it seems to.
pub(crate) fn shown(path: &Path) -> String {
    let text = clean(&path.to_string_lossy());
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@%,=:~".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "?")) }
}

/// Text of a command's for people, cut to a length.
pub(crate) fn clean(text: &str) -> String {
    let plain = |c: char| if is_harmless(c) { c } else { '?' };
    text.chars().take(LONGEST).map(plain).collect()
}

/// Longest subject, in characters.
pub(crate) const LONGEST: usize = 300;
