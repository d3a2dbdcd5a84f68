//! The envelope: a request to run a program, as plain data from JSON. Kennel trusts nothing in it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::policy::text;
use crate::report::error::policy::{PolicyError, escaped_value};
use crate::report::error::spawn::SpawnError;

/// A request to run a program.
///
/// ```
/// use kennel::broker::Envelope;
///
/// let envelope = Envelope::from_json(r#"{"program": "gh", "argv": ["gh", "issue", "list"]}"#)?;
/// assert_eq!(envelope.arguments(), ["issue", "list"]);
/// assert_eq!(envelope, Envelope::new("gh", &["issue", "list"]));
/// assert!(Envelope::from_json(r#"{"program": "gh", "argv": "gh issue list"}"#).is_err());
/// # Ok::<(), kennel::broker::SpawnError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The program: a path, or the name of a program in the manifest.
    pub program: String,
    /// The whole argument vector. It begins with `argv[0]`, so it is never empty. If the manifest has
    /// operations, it must match one of them, from its program on. The program itself gets its path in the
    /// manifest as `argv[0]`.
    #[serde(default, deserialize_with = "text::or_default")]
    pub argv: Vec<String>,
    /// Environment variables to set. The manifest must list each in `env_passthrough`.
    #[serde(default, deserialize_with = "variables")]
    pub env: BTreeMap<String, String>,
    /// The working directory: absolute or below `~/`. If the manifest has a `cwd`, it must lead to the same
    /// directory, else into a directory of the manifest. `None` or empty: the manifest's `cwd`, or `/`.
    #[serde(default)]
    pub cwd: Option<String>,
    /// The text for standard input. `None`: no input.
    #[serde(default)]
    pub stdin: Option<String>,
    /// The credentials that the program needs, by the names of their environment variables.
    #[serde(default, deserialize_with = "text::or_default")]
    pub credential_env_keys: Vec<String>,
}

/// Variables without duplicates, or `null`.
fn variables<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(transparent)]
    struct Variables(#[serde(deserialize_with = "text::unique_map")] BTreeMap<String, String>);
    text::or_default(deserializer).map(|Variables(variables)| variables)
}

impl Envelope {
    /// A request to run `program` with `arguments`. `argv[0]` is `program`.
    ///
    /// ```
    /// use kennel::broker::Envelope;
    ///
    /// assert_eq!(Envelope::new("ls", &["-l"]).argv, ["ls", "-l"]);
    /// ```
    #[must_use]
    pub fn new(program: impl Into<String>, arguments: &[&str]) -> Self {
        let program = program.into();
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        Self { argv: [program.clone()].into_iter().chain(arguments).collect(), program, ..Self::default() }
    }

    /// The arguments that the program gets: `argv` without `argv[0]`.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        self.argv.get(1..).unwrap_or_default()
    }

    /// Reads an envelope from a JSON object. Ignores keys that an envelope does not have; a connector's log
    /// says so, and [`unknown_keys`](Self::unknown_keys) names them.
    ///
    /// # Errors
    /// [`SpawnError::Envelope`] with line and column.
    pub fn from_json(text: &str) -> Result<Self, SpawnError> {
        let parsed = text::parse_json("envelope", text, "the envelope is empty");
        parsed.map_err(|error| SpawnError::Envelope(without_value(error)))
    }

    /// The keys of a JSON object that an envelope does not have: at most ten, escaped and shortened.
    ///
    /// ```
    /// use kennel::broker::Envelope;
    ///
    /// let text = r#"{"program": "gh", "argv": ["gh"], "forwarder": true}"#;
    /// assert!(Envelope::from_json(text).is_ok());
    /// assert_eq!(Envelope::unknown_keys(text), ["forwarder"]);
    /// ```
    #[must_use]
    pub fn unknown_keys(text: &str) -> Vec<String> {
        let all: BTreeMap<String, IgnoredAny> = serde_json::from_str(text).unwrap_or_default();
        let unknown = all.into_keys().filter(|key| !KEYS.contains(&&**key));
        unknown.take(MAX_NAMED).map(|key| escaped_value(&key)).collect()
    }
}

/// The keys of an envelope.
const KEYS: [&str; 6] = ["program", "argv", "env", "cwd", "stdin", "credential_env_keys"];

/// The most unknown keys that are named.
const MAX_NAMED: usize = 10;

/// Removes the value from serde's message. Serde quotes a value of the wrong type, which may be secret; its
/// type is enough.
fn without_value(error: PolicyError) -> PolicyError {
    let PolicyError::Syntax { file, line, column, message } = error else { return error };
    // A fixed suffix is safe to keep. If the message was cut off in the middle of a long value, drop its end
    // too.
    let wanted = ["a table", "a list", "a string"].map(|wanted| format!(", expected {wanted}"));
    let wanted = wanted.into_iter().find(|wanted| message.ends_with(wanted)).unwrap_or_default();
    let cut = message.strip_prefix("invalid ").and_then(|rest| rest.split_once(": ")).map(|(what, value)| {
        let kind: String = value.chars().take_while(char::is_ascii_alphabetic).collect();
        format!("invalid {what}: {kind}{wanted}")
    });
    PolicyError::Syntax { file, line, column, message: cut.unwrap_or(message) }
}

/// Shows names and sizes only: arguments, values and input may be secret.
impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("program", &self.program)
            .field("arguments", &self.arguments().len())
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("cwd", &self.cwd)
            .field("stdin_bytes", &self.stdin.as_ref().map(String::len))
            .field("credential_env_keys", &self.credential_env_keys)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_cut_is_not_shown_either() {
        let long = format!(r#"{{"program":"p","env":"{}"}}"#, "hidden, expected hidden".repeat(1000));
        let error = Envelope::from_json(&long).expect_err("none").chain();
        assert!(error.ends_with(": invalid type: string"), "{error}");
    }

    #[test]
    fn errors_name_the_place_and_no_value() {
        for (text, said) in [
            (r#"{"program":"p","env":"hidden, expected x"}"#, "invalid type: string, expected a table"),
            (r#"{"program":"p","env":{"A":["hidden"]}}"#, "invalid type: list, expected a string"),
            (r#"{"program":"p","argv":"hidden"}"#, "invalid type: string, expected a list"),
            (r#"{"program":"p","env":{"A":7777}}"#, "invalid type: integer, expected a string"),
            (r#"{"program":"p","env":{"A":"hidden"#, "EOF while parsing a string"),
        ] {
            let error = Envelope::from_json(text).expect_err("none").chain();
            assert!(error.ends_with(said), "{error}");
            assert!(!error.contains("hidden") && !error.contains("7777"), "{error}");
        }
    }

    #[test]
    fn null_is_what_an_absent_key_is() {
        let nulls = r#"{"program": "a", "argv": null, "env": null, "cwd": null, "stdin": null,
            "credential_env_keys": null}"#;
        let absent = Envelope { program: "a".to_owned(), ..Envelope::default() };
        assert_eq!(Envelope::from_json(nulls).expect("an envelope"), absent);
        Envelope::from_json(r#"{"program": null}"#).expect_err("it needs a program");
    }

    #[test]
    fn unknown_keys_are_ignored_and_named() {
        let text =
            r#"{"program": "a", "forwarder": {"x": [1]}, "argv": ["a"], "forwarder": 2, "\u001b[2J": null}"#;
        assert_eq!(Envelope::from_json(text).expect("an envelope"), Envelope::new("a", &[]));
        assert_eq!(Envelope::unknown_keys(text), ["\\u{1b}[2J", "forwarder"]);
        let many: String = (0..50).map(|number| format!(r#""k{number}": 1, "#)).collect();
        let text = format!(r#"{{{many}"{}": 1}}"#, "x".repeat(100_000));
        let keys = Envelope::unknown_keys(&text);
        assert!(keys.len() == 10 && keys.iter().all(|key| key.len() < 1000), "{keys:?}");
    }

    #[test]
    fn debug_output_shows_no_values() {
        let envelope = Envelope {
            env: [("GH_HOST".to_owned(), "hidden".to_owned())].into(),
            stdin: Some("hidden".to_owned()),
            ..Envelope::new("gh", &["hidden"])
        };
        let text = format!("{envelope:?}");
        assert!(text.contains("GH_HOST") && !text.contains("hidden"), "{text}");
    }

    #[test]
    fn what_is_no_envelope_is_told_with_its_place() {
        for (text, said) in [
            ("", "envelope:1:1: the envelope is empty"),
            ("[]", "envelope:1:1: expected an object"),
            ("{}", "envelope:1:2: missing field `program`"),
            (r#"{"program": "a", "env": {"A": "1", "A": "2"}}"#, "envelope:1:38: duplicate key `A`"),
            (r#"{"program": "a", "program": "b"}"#, "envelope:1:26: duplicate field `program`"),
        ] {
            let error = Envelope::from_json(text).expect_err(text).to_string();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }
}
