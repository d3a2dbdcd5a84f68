//! The error of policies. It names the key and the value, so that the user finds both.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use crate::report::escape::harmless;
use crate::report::failure;
use crate::report::failure::{Boundary, Class, Details, Failure, failure_of};
use crate::report::remedy::Remedy;
use crate::report::shortage::of_path;

/// Why a policy was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The text cannot be parsed: wrong TOML or JSON, an unknown key, a value of the wrong type.
    #[error("{file}:{line}:{column}: {message}")]
    Syntax {
        /// The file as [`Policy::load`](crate::policy::Policy::load) got it, otherwise `policy`.
        file: String,
        /// Line, counted from 1.
        line: usize,
        /// Column in characters, counted from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// A value is invalid, alone or together with the rest of the policy.
    #[error("{key}{}: {reason}", quoted(value))]
    Value {
        /// The place of the value, as in a policy file: `limits.cpus`, `mounts[2].target`.
        key: String,
        /// The value, shortened if it is long, with control characters escaped. Empty if there was none.
        value: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// Two mounts contradict each other at the same path.
    #[error("conflict at {}: {first} and {second}; keep one", failure::shown(target))]
    Conflict {
        /// The path inside the sandbox.
        target: PathBuf,
        /// The mount that comes first in the policy.
        first: String,
        /// The mount that contradicts it.
        second: String,
    },
    /// The policy file cannot be read; `source()` says why.
    #[error("read {}", failure::shown(path))]
    Read {
        /// The file as it was given.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Longest value in a message, in characters.
const VALUE_MAX: usize = 80;
/// Longest message of a parser, in characters. The list of all protections fits, but not a megabyte of
/// garbage.
const MESSAGE_MAX: usize = 1000;

failure_of!(PolicyError);

impl PolicyError {
    /// The failure class that machines read.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let class = match self {
            Self::Syntax { .. } | Self::Read { .. } => Class::LoadFailed,
            Self::Value { .. } | Self::Conflict { .. } => Class::CapabilityDenied,
        };
        Failure::new(class, Boundary::Manifest, failure::chain(self), Details::None)
    }

    /// What a person can do about it, if anything is known.
    pub(crate) fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Read { source, .. } => {
                Some(of_path(source, "run as a user who may read it", "name a file that is there"))
            }
            _ => None,
        }
    }

    /// An error about a value.
    pub(crate) fn value(key: impl Into<String>, value: impl Display, reason: impl Into<String>) -> Self {
        let value = one_line(&value.to_string(), VALUE_MAX);
        PolicyError::Value { key: key.into(), value, reason: reason.into() }
    }

    /// An error about a value that is a path.
    pub(crate) fn path(key: impl Into<String>, path: &Path, reason: impl Into<String>) -> Self {
        Self::value(key, path.display(), reason)
    }

    /// A syntax error at a byte offset.
    pub(crate) fn syntax(file: &str, text: &[u8], offset: usize, message: &str) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let column = String::from_utf8_lossy(&before[line_start..]).chars().count() + 1;
        Self::syntax_at(file, line, column, message)
    }

    /// A syntax error at a known position.
    pub(crate) fn syntax_at(file: &str, line: usize, column: usize, message: &str) -> Self {
        PolicyError::Syntax { file: file.to_owned(), line, column, message: one_line(message, MESSAGE_MAX) }
    }
}

/// A value in backquotes, as it follows its key.
fn quoted(value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" `{value}`") }
}

/// A value as it may appear in a message.
pub(crate) fn escaped_value(value: &str) -> String {
    one_line(value, VALUE_MAX)
}

/// A message that may contain untrusted text.
pub(crate) fn escaped_message(message: &str) -> String {
    one_line(message, MESSAGE_MAX)
}

/// Untrusted text for a message: escaped, and at most `max` characters long.
fn one_line(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => harmless(text.get(..end).unwrap_or_default()) + "…",
        None => harmless(text),
    }
}

/// Declares an enum as `words!` does, whose words are also read. `as` gives the key for error messages.
macro_rules! policy_words {
    ($(#[$meta:meta])* pub enum $name:ident as $key:literal { $($variants:tt)+ }) => {
        $crate::report::words::words! { $(#[$meta])* pub enum $name { $($variants)+ } }

        impl std::str::FromStr for $name {
            type Err = $crate::report::error::policy::PolicyError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL.into_iter().find(|word| word.as_str() == text).ok_or_else(|| {
                    let known = Self::ALL.map(|word| format!("`{word}`")).join(", ");
                    $crate::report::error::policy::PolicyError::value($key, text, format!("expected one of {known}"))
                })
            }
        }
    };
}
pub(crate) use policy_words;

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro writes pub, and this enum stays in the test")]
mod words_tests {
    policy_words! {
        /// A word of the test.
        pub enum Fruit as "fruit" {
            /// Round.
            Apple = "apple",
            /// Long.
            StarFruit = "star-fruit",
        }
    }

    #[test]
    fn word_is_the_same_in_text_and_in_serde() {
        for fruit in Fruit::ALL {
            assert_eq!(fruit.to_string().parse::<Fruit>().expect("parses"), fruit);
            assert_eq!(serde_json::to_value(fruit).expect("serialises"), fruit.as_str());
        }
        assert_eq!(format!("{:>6}", Fruit::Apple), " apple");
    }

    #[test]
    fn unknown_word_lists_the_known_ones() {
        let error = "Apple".parse::<Fruit>().expect_err("words are lower case");
        assert_eq!(error.to_string(), "fruit `Apple`: expected one of `apple`, `star-fruit`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_hostile_values_stay_one_short_line() {
        let value = format!("\u{1b}[2J\n{}", "x".repeat(10 << 20));
        let text = PolicyError::value("hostname", value, "no").to_string();
        assert!(text.starts_with("hostname `\\u{1b}[2J\\nxxx"), "{text}");
        assert!(text.len() < 150 && text.ends_with("…`: no"), "{text}");
    }

    #[test]
    fn syntax_counts_lines_and_characters_from_one() {
        for (offset, place) in [(0, "f:1:1: m"), (3, "f:1:3: m"), (4, "f:2:1: m"), (99, "f:2:2: m")] {
            assert_eq!(PolicyError::syntax("f", "aé\nb".as_bytes(), offset, "m").to_string(), place);
        }
    }

    #[test]
    fn a_value_that_is_not_there_has_no_quotes() {
        assert_eq!(PolicyError::value("hostname", "", "is missing").to_string(), "hostname: is missing");
        assert_eq!(PolicyError::value("hostname", "a b", "no").to_string(), "hostname `a b`: no");
    }

    #[test]
    fn cause_of_a_read_error_comes_only_through_source() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let error = PolicyError::Read { path: "/p".into(), source };
        assert_eq!(error.to_string(), "read /p");
        assert!(std::error::Error::source(&error).is_some());
    }
}
