//! Escapes untrusted text for people: the result is one line, without characters that a terminal obeys or that reorder
//! text. The library and `kennel` both compile this file, and `kennel` prints nothing that has not passed it.

/// `text` as one line with unsafe characters escaped. Anybody can choose the name of a file.
pub(crate) fn harmless(text: &str) -> String {
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

/// Whether a character is safe to print. Unsafe are control characters, characters that separate lines or annotate, and
/// invisible ones that change how others look: Unicode's Default_Ignorable_Code_Point, except variation selectors, which
/// emoji need.
pub(crate) fn is_harmless(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}')
        && !matches!(c, '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        && !matches!(c, '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}')
        && !matches!(c, '\u{13430}'..='\u{1345f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::{harmless, is_harmless};

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
}
