//! Two texts as the hunks of a unified diff. What it shows is hostile: control characters are shown escaped,
//! and long lines are cut.

use std::ops::Range;

use anstyle::Style;
use imara_diff::{Algorithm, Diff, Hunk, InternedInput, sources::byte_lines};
use kennel::internal::escape::harmless;

use crate::terminal::style::{self, Paint};

/// The most characters of a line that are shown.
const LONGEST_LINE: usize = 2000;

/// Unchanged lines around a change, if the user does not say.
pub(crate) const CONTEXT: u32 = 3;

/// How a diff looks.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    pub(crate) paint: Paint,
    /// Unchanged lines around a change.
    pub(crate) context: u32,
}

/// What an entry comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) added: u32,
    pub(crate) removed: u32,
    /// Whether lines were compared.
    pub(crate) is_text: bool,
}

/// The hunks of two texts with these names. Empty if they are equal.
pub(crate) fn of_texts(names: [&str; 2], [before, after]: [&str; 2], format: Format) -> String {
    let mut page = Page::new(format);
    page.contents(&names.map(harmless), [before.as_bytes(), after.as_bytes()]);
    page.text
}

/// A text that grows line by line.
pub(crate) struct Page {
    pub(crate) text: String,
    format: Format,
}

impl Page {
    pub(crate) fn new(format: Format) -> Self {
        Self { text: String::new(), format }
    }

    pub(crate) fn line(&mut self, style: Style, line: &str) {
        self.text.push_str(&self.format.paint.paint(style, line));
        self.text.push('\n');
    }

    /// The hunks of two texts.
    pub(crate) fn contents(&mut self, names: &[String; 2], [before, after]: [&[u8]; 2]) -> Counts {
        let input = InternedInput::new(byte_lines(before), byte_lines(after));
        let mut diff = Diff::compute(Algorithm::Histogram, &input);
        diff.postprocess_lines(&input);
        let counts = Counts { added: diff.count_additions(), removed: diff.count_removals(), is_text: true };
        let hunks: Vec<Hunk> = diff.hunks().collect();
        if !hunks.is_empty() {
            self.line(style::TITLE, &format!("--- {}", names[0]));
            self.line(style::TITLE, &format!("+++ {}", names[1]));
        }
        let context = self.format.context;
        let is_near = |one: &Hunk, next: &Hunk| {
            next.before.start.saturating_sub(one.before.end) <= context.saturating_mul(2)
        };
        for group in hunks.chunk_by(is_near) {
            self.group(&input, group);
        }
        counts
    }

    /// Hunks that stand together, with the lines around them.
    fn group(&mut self, input: &InternedInput<&[u8]>, hunks: &[Hunk]) {
        let (Some(first), Some(last)) = (hunks.first(), hunks.last()) else { return };
        let most = u32::try_from(input.before.len()).unwrap_or(u32::MAX);
        let lead = first.before.start.min(self.format.context);
        let tail = (most - last.before.end).min(self.format.context);
        let before = first.before.start - lead..last.before.end + tail;
        let after = first.after.start - lead..last.after.end + tail;
        let place = format!("@@ -{} +{} @@", range(&before), range(&after));
        self.line(style::HUNK, &place);
        let mut at = before.start;
        for hunk in hunks {
            self.lines(input, &input.before, at..hunk.before.start, ' ');
            self.lines(input, &input.before, hunk.before.clone(), '-');
            self.lines(input, &input.after, hunk.after.clone(), '+');
            at = hunk.before.end;
        }
        self.lines(input, &input.before, at..before.end, ' ');
    }

    /// Lines of one side, after the sign of a diff.
    fn lines(
        &mut self,
        input: &InternedInput<&[u8]>,
        tokens: &[imara_diff::Token],
        which: Range<u32>,
        sign: char,
    ) {
        let style = match sign {
            '-' => style::REMOVED,
            '+' => style::ADDED,
            _ => Style::new(),
        };
        for token in tokens.get(which.start as usize..which.end as usize).unwrap_or_default() {
            let line: &[u8] = input.interner[*token];
            let text = line.strip_suffix(b"\n");
            self.line(style, &format!("{sign}{}", escaped_line(text.unwrap_or(line))));
            if text.is_none() {
                self.line(Style::new(), "\\ No newline at end of file");
            }
        }
    }
}

/// The place of a hunk in a file. An empty one stands behind the line before it.
fn range(lines: &Range<u32>) -> String {
    match lines.end - lines.start {
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        count => format!("{},{count}", lines.start + 1),
    }
}

/// A line of a file, escaped and cut. Tabs stay.
fn escaped_line(line: &[u8]) -> String {
    let mut text = String::new();
    for chunk in line.get(..LONGEST_LINE * 4).unwrap_or(line).utf8_chunks() {
        let parts = chunk.valid().split('\t').map(harmless).collect::<Vec<_>>();
        text.push_str(&parts.join("\t"));
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    match text.char_indices().nth(LONGEST_LINE) {
        Some((end, _)) => {
            text.truncate(end);
            format!("{text}… (a line of {} bytes)", line.len())
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(before: &str, after: &str, context: u32) -> String {
        let mut page = Page::new(Format { paint: Paint::none(), context });
        page.contents(&["a/x".to_owned(), "b/x".to_owned()], [before.as_bytes(), after.as_bytes()]);
        page.text
    }

    #[test]
    fn hunks_have_the_places_of_diff() {
        let before: String = (1..=20).map(|number| format!("{number}\n")).collect();
        let after = before.replace("\n4\n", "\nnew\n4\n").replace("\n18\n", "\n");
        let expected = "--- a/x\n+++ b/x\n@@ -3,2 +3,3 @@\n 3\n+new\n 4\n@@ -17,3 +18,2 @@\n 17\n-18\n 19\n";
        assert_eq!(text(&before, &after, 1), expected);
        let near = text(&before, &before.replace("\n4\n", "\n4a\n").replace("\n7\n", "\n7a\n"), 1);
        assert_eq!(near.matches("@@ -").count(), 1, "{near}");
        assert_eq!(text("", "a\n", 3), "--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+a\n");
        assert_eq!(
            text("a", "a\n", 3),
            "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"
        );
        assert_eq!(text("a\n", "a\n", 3), "");
    }

    #[test]
    fn lines_are_escaped_and_cut() {
        assert_eq!(escaped_line(b"\ta\x1b[2J\r\xff"), "\ta\\u{1b}[2J\\r\\xff");
        let long = escaped_line(&[b'a'; 10_000]);
        assert!(long.len() < 2100 && long.ends_with("… (a line of 10000 bytes)"), "{long}");
    }
}
