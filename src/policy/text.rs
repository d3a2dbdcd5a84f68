//! Reads and parses settings files: bounded in size, strict, and with line and column in every error.

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
use crate::report::error::policy::PolicyError;
use crate::sys::descriptor::inherited_descriptor;

/// The largest file, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Parses TOML; `empty` is the message for an empty text.
///
/// # Errors
/// Line, column, and what is wrong there.
pub(crate) fn parse_toml<T: DeserializeOwned>(file: &str, text: &str, empty: &str) -> Result<T, PolicyError> {
    refuse_empty(file, text, empty)?;
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let start = || error.span().map_or(0, |span| span.start);
        let offset = mount_text::offset(text, error.message()).unwrap_or_else(start);
        PolicyError::syntax(file, text.as_bytes(), offset, &without_rust_types(error.message()))
    })
}

/// Parses a JSON object; `empty` is the message for an empty text.
///
/// # Errors
/// Line, column, and what is wrong there.
pub(crate) fn parse_json<T: DeserializeOwned>(file: &str, text: &str, empty: &str) -> Result<T, PolicyError> {
    refuse_empty(file, text, empty)?;
    // Serde would read an array as the fields in order.
    if text.trim_start().starts_with('[') {
        return Err(PolicyError::syntax_at(file, 1, 1, "expected an object, not an array"));
    }
    serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line().max(1), error.column().max(1));
        let message = error.to_string();
        let suffix = format!(" at line {} column {}", error.line(), error.column());
        let message = message.strip_suffix(&suffix).unwrap_or(&message);
        PolicyError::syntax_at(file, line, column, &without_rust_types(message))
    })
}

/// Replaces the names of Rust types in serde's messages about values of the wrong type.
fn without_rust_types(message: &str) -> String {
    if message == "wanted string or table" {
        return "invalid type: expected a word".to_owned();
    }
    let parts = message.rsplit_once(", expected ").and_then(|(start, expected)| {
        let (problem, found) = start.split_once(": ").filter(|(what, _)| what.starts_with("invalid "))?;
        Some((problem, found, expected))
    });
    let Some((problem, found, expected)) = parts else { return message.to_owned() };
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
    format!("{problem}: {found}, expected {expected}")
}

/// The absolute path of `file`, without resolving links. Errors name `path`.
///
/// # Errors
/// The current directory does not exist any more.
pub(crate) fn absolute(file: &Path, path: &Path) -> Result<PathBuf, PolicyError> {
    std::path::absolute(file).map_err(|source| PolicyError::Read { path: path.to_owned(), source })
}

/// Refuses an empty text: it is more likely a truncated file than a wish for every default.
///
/// # Errors
/// `message`, if the text is only white space.
pub(crate) fn refuse_empty(file: &str, text: &str, message: &str) -> Result<(), PolicyError> {
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(PolicyError::syntax_at(file, 1, 1, message));
    }
    Ok(())
}

/// Reads a regular file of at most 1 MiB, or an inherited descriptor, which may be a pipe.
///
/// # Errors
/// The file cannot be read, is not a regular file, is too large, or is not UTF-8.
pub(crate) fn read(what: &str, path: &Path) -> Result<String, PolicyError> {
    let unreadable = |source| PolicyError::Read { path: path.to_owned(), source };
    let file = match inherited_descriptor(path) {
        Some(descriptor) => File::from(descriptor.map_err(unreadable)?),
        None => {
            // Without O_NONBLOCK, open(2) of a FIFO waits for a writer. Regular files ignore the flag.
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

/// Deserializes a map and refuses duplicate keys. Serde's own map would keep the last one.
pub(crate) fn unique_map<'de, D, K, V>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord + fmt::Display,
    V: Deserialize<'de>,
{
    deserializer.deserialize_map(UniqueMap(PhantomData))
}

/// Deserializes a value, or `null` as the default: some JSON libraries write an empty list or map so, as that
/// of Go does.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
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
    fn messages_about_types_do_not_name_rust_types() {
        for (message, expected) in [
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
            assert_eq!(without_rust_types(message), expected);
        }
    }
}
