//! Files of settings as text: read with a bound, parsed strictly, with the place of what is wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};

use crate::policy::mount_text;
use crate::report::policy_error::PolicyError;
use crate::sys::packet::inherited_descriptor;

/// Largest file, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Parses TOML; `empty` is what is said of a text with nothing in it.
///
/// # Errors
/// Line, column, and what is wrong there.
pub(crate) fn parse_toml<T: DeserializeOwned>(file: &str, text: &str, empty: &str) -> Result<T, PolicyError> {
    refuse_empty(file, text, empty)?;
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let begins = || error.span().map_or(0, |span| span.start);
        let offset = mount_text::offset(text, error.message()).unwrap_or_else(begins);
        PolicyError::syntax(file, text.as_bytes(), offset, &plain(error.message()))
    })
}

/// Parses a JSON object.
///
/// # Errors
/// Line, column, and what is wrong there.
pub(crate) fn parse_json<T: DeserializeOwned>(file: &str, text: &str, empty: &str) -> Result<T, PolicyError> {
    refuse_empty(file, text, empty)?;
    // Serde would take an array as the fields in order; nobody means that.
    if text.trim_start().starts_with('[') {
        return Err(PolicyError::syntax_at(file, 1, 1, "expected an object, not an array"));
    }
    serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line().max(1), error.column().max(1));
        let whole = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        PolicyError::syntax_at(file, line, column, &plain(whole.strip_suffix(&place).unwrap_or(&whole)))
    })
}

/// What serde says of a value of the wrong kind, without the words of Rust.
fn plain(message: &str) -> String {
    if message == "wanted string or table" {
        return "invalid type: expected a word".to_owned();
    }
    let said = message.rsplit_once(", expected ").and_then(|(said, expected)| {
        let (what, found) = said.split_once(": ").filter(|(what, _)| what.starts_with("invalid "))?;
        Some((what, found, expected))
    });
    let Some((what, found, expected)) = said else { return message.to_owned() };
    let expected = match expected {
        "u32" => "a whole number from 0 to 4294967295",
        "u64" => "a whole number, 0 or more",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "path string" => "a path",
        _ if expected.starts_with("struct ") => "a table",
        _ => expected,
    };
    let found = match found {
        "map" => "table".into(),
        "sequence" => "list".into(),
        _ => found.replacen("floating point `", "number `", 1),
    };
    format!("{what}: {found}, expected {expected}")
}

/// Where `file` lies, links unresolved; `path` is what it is called.
///
/// # Errors
/// The current directory is gone.
pub(crate) fn absolute(file: &Path, path: &Path) -> Result<PathBuf, PolicyError> {
    std::path::absolute(file).map_err(|source| PolicyError::Read { path: path.to_owned(), source })
}

/// An empty text is more likely a file cut short than somebody who wants every default.
///
/// # Errors
/// Nothing but white space.
pub(crate) fn refuse_empty(file: &str, text: &str, said: &str) -> Result<(), PolicyError> {
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(PolicyError::syntax_at(file, 1, 1, said));
    }
    Ok(())
}

/// Reads a file of at most 1 MiB, or what this process was given by a descriptor, which may be a pipe.
///
/// # Errors
/// It cannot be read, is no regular file, too large, or no UTF-8.
pub(crate) fn read(what: &str, path: &Path) -> Result<String, PolicyError> {
    let unreadable = |source| PolicyError::Read { path: path.to_owned(), source };
    let file = match inherited_descriptor(path) {
        Some(given) => File::from(given.map_err(unreadable)?),
        None => {
            // Opening a FIFO waits for a writer; with O_NONBLOCK it does not, and for a regular file nothing changes.
            let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
            let file = file.map_err(unreadable)?;
            if !file.metadata().map_err(unreadable)?.is_file() {
                return Err(PolicyError::path(what, path, "is not a regular file"));
            }
            file
        }
    };
    let mut bytes = Vec::new();
    let size = file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if u64::try_from(size).is_ok_and(|size| size > FILE_MAX) {
        return Err(PolicyError::path(what, path, "is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        PolicyError::syntax(&path.display().to_string(), error.as_bytes(), offset, "the text is not UTF-8")
    })
}

/// Reads a map in which no key is said twice; serde's own would keep the last.
pub(crate) fn unique_map<'de, D, K, V>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord + fmt::Display,
    V: Deserialize<'de>,
{
    deserializer.deserialize_map(UniqueMap(PhantomData))
}

struct UniqueMap<K, V>(PhantomData<(K, V)>);

impl<'de, K, V> Visitor<'de> for UniqueMap<K, V>
where
    K: Deserialize<'de> + Ord + fmt::Display,
    V: Deserialize<'de>,
{
    type Value = BTreeMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(key) = access.next_key::<K>()? {
            if map.contains_key(&key) {
                return Err(de::Error::custom(format!("duplicate key `{key}`")));
            }
            map.insert(key, access.next_value()?);
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_wrong_kind_are_told_without_words_of_rust() {
        for (said, plainly) in [
            (
                "invalid type: boolean `true`, expected struct Overlay",
                "invalid type: boolean `true`, expected a table",
            ),
            (
                "invalid type: string \"a, expected u64\", expected u64",
                "invalid type: string \"a, expected u64\", expected a whole number, 0 or more",
            ),
            ("invalid type: sequence, expected a sequence", "invalid type: list, expected a list"),
            ("invalid type: map, expected f64", "invalid type: table, expected a number"),
            (
                "invalid type: floating point `1.5`, expected u64",
                "invalid type: number `1.5`, expected a whole number, 0 or more",
            ),
            (
                "unknown field `a, expected u64`, expected `b`",
                "unknown field `a, expected u64`, expected `b`",
            ),
        ] {
            assert_eq!(plain(said), plainly);
        }
    }
}
