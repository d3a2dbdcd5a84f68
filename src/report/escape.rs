//! Escapes untrusted text for people: the result is one line, without characters that a terminal obeys or
//! that reorder text. `kennel` prints nothing that has not passed it.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Serializer, ser::Formatter};

/// `text` as one line with unsafe characters escaped. Anybody can choose the name of a file.
pub fn harmless(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) {
            line.push(c);
        } else {
            line.extend(c.escape_default());
        }
    }
    line
}

/// Whether a character is safe to print. Unsafe are control characters, characters that separate lines or
/// annotate, and invisible ones that change how others look: Unicode's Default_Ignorable_Code_Point, except
/// variation selectors, which emoji need.
pub fn is_harmless(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}')
        && !matches!(c, '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        && !matches!(c, '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}')
        && !matches!(c, '\u{13430}'..='\u{1345f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Data as JSON that does nothing to a terminal: unsafe characters are written as `\u001b`, which means the
/// same to programs.
///
/// # Errors
/// The data has what JSON cannot hold, such as a path that is not UTF-8.
pub fn json(value: &impl Serialize, form: impl Formatter) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut text, Harmless(form)))?;
    Ok(text)
}

/// Escapes unsafe characters in strings. Everything else is as with the formatter within.
struct Harmless<F>(F);

impl<F: Formatter> Formatter for Harmless<F> {
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
    use serde_json::{
        Value, json,
        ser::{CompactFormatter, PrettyFormatter},
    };

    use super::{harmless, is_harmless, json};

    #[test]
    fn what_a_terminal_obeys_or_what_reorders_a_line_is_shown_as_its_number() {
        let marks = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}'];
        let embeddings = ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        let unseen = ['\u{34f}', '\u{115f}', '\u{180b}', '\u{3164}', '\u{ffa0}', '\u{1d173}', '\u{e0100}'];
        let controls = ('\0'..' ').chain('\u{7f}'..='\u{9f}');
        for c in marks.into_iter().chain(unseen).chain(embeddings).chain(controls) {
            assert!(!is_harmless(c), "{c:?}");
            let line = harmless(&format!("a{c}b"));
            assert_eq!(line, format!("a{}b", c.escape_default()));
            assert!(line.is_ascii() && harmless(&line) == line, "{line}");
        }
    }

    #[test]
    fn letters_are_themselves() {
        for text in ["", "a b", "\\u{202e}", "größe", "名前", "שלום", "مرحبا", "e\u{301}", "🐕"]
        {
            assert_eq!(harmless(text), text);
        }
    }

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_means_the_same() {
        for text in ["", "é🐕", "\u{1b}[2J", "a\u{9b}2Jb", "\u{202e}x\u{7f}", "\u{e0001}\"\\\n"] {
            let value = json!({ text: [text, 1], "b": {} });
            let shown =
                String::from_utf8(json(&value, PrettyFormatter::new()).expect("data")).expect("UTF-8");
            assert!(shown.chars().all(|c| c == '\n' || is_harmless(c)), "{shown}");
            assert_eq!(serde_json::from_str::<Value>(&shown).expect("JSON"), value);
            if text.chars().all(is_harmless) {
                assert_eq!(shown, serde_json::to_string_pretty(&value).expect("data"));
            }
        }
        assert_eq!(
            json(&json!({"a": "\u{e0001}"}), CompactFormatter).expect("data"),
            b"{\"a\":\"\\udb40\\udc01\"}"
        );
    }
}
