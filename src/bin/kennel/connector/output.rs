//! Output of connectors as JSON that does nothing to a terminal: characters that it obeys are written as `\u001b`, which
//! means the same to programs.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{
    Serializer,
    ser::{Formatter, PrettyFormatter},
};

use crate::escape::is_harmless;

/// Formats data as indented JSON.
pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, Harmless(PrettyFormatter::new()));
    // Plain data always serializes.
    let _ = value.serialize(&mut serializer);
    text
}

/// Escapes unsafe characters in strings. Everything else is as with the formatter within.
struct Harmless<'i>(PrettyFormatter<'i>);

impl Formatter for Harmless<'_> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, to: &mut W, fragment: &str) -> io::Result<()> {
        let mut units = [0; 2];
        for part in fragment.split_inclusive(|c| !is_harmless(c)) {
            let unsafe_at = part.char_indices().next_back().filter(|(_, c)| !is_harmless(*c));
            let (plain, last) = part.split_at(unsafe_at.map_or(part.len(), |(at, _)| at));
            to.write_all(plain.as_bytes())?;
            for c in last.chars() {
                c.encode_utf16(&mut units).iter().try_for_each(|unit| write!(to, "\\u{unit:04x}"))?;
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_array(to)
    }

    fn end_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_array(to)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(to, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_array_value(to)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object(to)
    }

    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object(to)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(to, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object_value(to)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object_value(to)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_means_the_same() {
        for text in ["", "é🐕", "\u{1b}[2J", "a\u{9b}2Jb", "\u{202e}x\u{7f}", "\u{e0001}\"\\\n"] {
            let value = json!({ text: [text, 1], "b": {} });
            let shown = String::from_utf8(super::json(&value)).expect("UTF-8");
            assert!(shown.chars().all(|c| c == '\n' || super::is_harmless(c)), "{shown}");
            assert_eq!(serde_json::from_str::<Value>(&shown).expect("JSON"), value);
        }
        assert_eq!(super::json(&json!({"a": "\u{e0001}"})), b"{\n  \"a\": \"\\udb40\\udc01\"\n}");
    }
}
