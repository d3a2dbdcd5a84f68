//! Keys of a manifest that Kennel does not know. They are ignored, because other tools read the file too, and
//! noted, because one may be a misspelled restriction. Pure.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::report::enforcement::Note;
use crate::report::error::policy::{PolicyError, escaped_value};

/// The keys of a table that Kennel reads.
struct Known {
    keys: &'static [(&'static str, Below)],
    /// Whether tables of other tools are expected here. They get no note.
    is_shared: bool,
}

/// What is below a key.
enum Below {
    Value,
    Table(&'static Known),
    /// Tables in a list.
    List(&'static Known),
    /// Tables by names that the manifest chooses.
    Named(&'static Known),
}
use Below::{List, Named, Table, Value};

const WHOLE: Known = Known {
    keys: &[("connector", Table(&CONNECTOR)), ("capabilities", Table(&CAPABILITIES))],
    is_shared: true,
};
const CONNECTOR: Known =
    Known { keys: &[("name", Value), ("version", Value), ("publisher", Value)], is_shared: true };
const CAPABILITIES: Known = Known {
    keys: &[
        ("network", Table(&NETWORK)),
        ("spawn", Table(&SPAWN)),
        ("credential", Table(&CREDENTIAL)),
        ("limits", Table(&LIMITS)),
    ],
    is_shared: false,
};
const NETWORK: Known = Known { keys: &[("hosts", Value)], is_shared: false };
const CREDENTIAL: Known =
    Known { keys: &[("kind", Value), ("header", Value), ("format", Value)], is_shared: true };
const LIMITS: Known = Known { keys: &[("memory_bytes", Value), ("wall_seconds", Value)], is_shared: false };
const SPAWN: Known = Known {
    keys: &[
        ("programs", List(&PROGRAM)),
        ("env_passthrough", Value),
        ("credential_env_keys", Value),
        ("fs_read", Value),
        ("fs_write", Value),
        ("cwd", Value),
        ("operations", Named(&OPERATION)),
        ("limits", Table(&SPAWN_LIMITS)),
    ],
    is_shared: false,
};
const PROGRAM: Known = Known { keys: &[("path", Value), ("hash", Value)], is_shared: false };
const OPERATION: Known = Known { keys: &[("argv", Value), ("allow_dash", Value)], is_shared: false };
const SPAWN_LIMITS: Known = Known {
    keys: &[
        ("max_memory_bytes", Value),
        ("max_wall_seconds", Value),
        ("max_stdout_bytes", Value),
        ("max_stderr_bytes", Value),
    ],
    is_shared: false,
};

/// The most notes about one manifest.
const MAX_NOTES: usize = 100;

/// A note for each key that Kennel ignores, with its place.
pub(crate) fn notes(file: &str, text: &str) -> Vec<Note> {
    let mut found = Vec::new();
    // The text has been read once, so this never fails.
    if let Ok(whole) = DeTable::parse(text) {
        look(whole.get_ref(), &WHOLE, &mut found);
    }
    found.truncate(MAX_NOTES);
    let note = |(key, at): (String, usize)| {
        let place = match PolicyError::syntax(file, text.as_bytes(), at, "") {
            PolicyError::Syntax { file, line, column, .. } => format!("{file}:{line}:{column}"),
            _ => file.to_owned(),
        };
        Note::new(
            &place,
            &format!("Kennel does not know the key `{}` and ignores it", escaped_value(&key)),
            None,
        )
    };
    found.into_iter().map(note).collect()
}

/// Adds each unknown key with the position of its first byte.
fn look(table: &DeTable<'_>, known: &Known, found: &mut Vec<(String, usize)>) {
    for (key, value) in table {
        let value: &Spanned<DeValue<'_>> = value;
        let value = value.get_ref();
        match known.keys.iter().find(|(name, _)| *name == &**key.get_ref()).map(|(_, below)| below) {
            None if known.is_shared && value.is_table() => {}
            None => found.push((key.get_ref().to_string(), key.span().start)),
            Some(Value) => {}
            Some(Table(below)) => value.as_table().into_iter().for_each(|table| look(table, below, found)),
            Some(List(below)) => {
                let entries = value.as_array().into_iter().flatten();
                entries
                    .filter_map(|entry| entry.get_ref().as_table())
                    .for_each(|table| look(table, below, found));
            }
            Some(Named(below)) => {
                let entries = value.as_table().into_iter().flatten();
                let tables = entries.filter_map(|(_, entry)| entry.get_ref().as_table());
                tables.for_each(|table| look(table, below, found));
            }
        }
    }
}
