//! One change of a workspace as a unified diff, in the form of git: for people, and for tools that read such
//! diffs.
//!
//! What it shows is hostile. Control characters in names and lines are shown escaped, long lines are cut, and
//! what is binary or too large is only named.

use std::{ops::Range, os::unix::ffi::OsStrExt};

use anstyle::Style;
use imara_diff::{Algorithm, Diff, Hunk, InternedInput, sources::byte_lines};
use kennel::{
    Size,
    files::FileKind,
    internal::escape::harmless,
    overlay::{Change, Contents, Side},
};

use crate::terminal::style::{self, Paint};

/// The most bytes of a file that is shown.
pub(crate) const LARGEST: u64 = 4 << 20;

/// The most characters of a line that are shown.
const LONGEST_LINE: usize = 2000;

/// Unchanged lines around a change, if the user does not say.
pub(crate) const CONTEXT: u32 = 3;

/// Bytes of a file that tell whether it is text, as in git.
const LOOKED_AT: usize = 8000;

/// One entry of a diff: a change, or a deletion and an addition that are a rename.
pub(crate) struct Entry {
    /// What was there.
    pub(crate) before: Option<Change>,
    /// What is there.
    pub(crate) after: Option<Change>,
    /// How similar the two files of a rename are, in percent.
    pub(crate) similarity: Option<u8>,
}

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

/// The path of a change as people see it: `kennel::overlay::Change` escapes it.
pub(crate) fn name(change: &Change) -> String {
    change.to_string().chars().skip(2).collect()
}

impl Entry {
    /// The names before and after.
    pub(crate) fn names(&self) -> [String; 2] {
        let before = self.before.as_ref().or(self.after.as_ref()).map(name).unwrap_or_default();
        let after = self.after.as_ref().map_or_else(|| before.clone(), name);
        [before, after]
    }

    pub(crate) fn is_rename(&self) -> bool {
        self.similarity.is_some()
    }

    /// The text of the diff, which ends with a line break, and its counts.
    pub(crate) fn render(&self, sides: &[Side; 2], format: Format) -> (String, Counts) {
        let [before, after] = sides;
        let is_replaced = kind(before) != kind(after) && !is_one_sided(before, after);
        if !is_replaced {
            return self.render_sides(before, after, format);
        }
        let nothing = Side::default();
        let (mut text, removed) = self.render_sides(before, &nothing, format);
        let (more, added) = self.render_sides(&nothing, after, format);
        text.push_str(&more);
        let is_text = removed.is_text && added.is_text;
        (text, Counts { added: added.added, removed: removed.removed, is_text })
    }

    fn render_sides(&self, before: &Side, after: &Side, format: Format) -> (String, Counts) {
        let [old, new] = self.names();
        let mut page = Page { text: String::new(), format };
        page.line(style::TITLE, &format!("diff --git a/{old} b/{new}"));
        self.headers(before, after, &mut page);
        let counts = match bodies(before, after, self.is_rename()) {
            Bodies::Text(before_text, after_text) => {
                let names = [side_name("a/", &old, before), side_name("b/", &new, after)];
                page.contents(&names, [&before_text, &after_text])
            }
            Bodies::Differ(how) => {
                page.line(
                    Style::new(),
                    &how.replace("{a}", &side_name("a/", &old, before))
                        .replace("{b}", &side_name("b/", &new, after)),
                );
                Counts::default()
            }
            Bodies::None => Counts::default(),
        };
        (page.text, counts)
    }

    /// The lines about kinds, modes and names.
    fn headers(&self, before: &Side, after: &Side, page: &mut Page) {
        let mut say = |line: String| page.line(style::TITLE, &line);
        match (&before.contents, &after.contents) {
            (Contents::Nothing, _) => say(format!("new {} mode {}", word(after), mode(after))),
            (_, Contents::Nothing) => say(format!("deleted {} mode {}", word(before), mode(before))),
            _ if mode(before) != mode(after) => {
                say(format!("old mode {}", mode(before)));
                say(format!("new mode {}", mode(after)));
            }
            _ => {}
        }
        if let Some(similarity) = self.similarity {
            let [old, new] = self.names();
            say(format!("similarity index {similarity}%"));
            say(format!("rename from {old}"));
            say(format!("rename to {new}"));
        }
    }
}

/// What kind of file it is.
fn kind(side: &Side) -> &'static str {
    match side.contents {
        Contents::Link(_) => "link",
        Contents::Directory => "directory",
        Contents::Other => "special file",
        _ => "file",
    }
}

/// What git calls it: a link is a file there.
fn word(side: &Side) -> &'static str {
    if matches!(side.contents, Contents::Link(_)) { "file" } else { kind(side) }
}

/// The mode as git writes it, but with all permission bits: Kennel commits them.
fn mode(side: &Side) -> String {
    let bits = side.mode.bits() & 0o1777;
    match side.contents {
        Contents::Link(_) => "120000".to_owned(),
        Contents::Directory => format!("{:06o}", 0o040_000 | bits),
        _ => format!("100{:03o}", bits & 0o777),
    }
}

fn side_name(prefix: &str, name: &str, side: &Side) -> String {
    match side.contents {
        Contents::Nothing => "/dev/null".to_owned(),
        _ => format!("{prefix}{name}"),
    }
}

/// What follows the headers.
enum Bodies {
    Text(Vec<u8>, Vec<u8>),
    /// A sentence about `{a}` and `{b}`.
    Differ(String),
    None,
}

fn bodies(before: &Side, after: &Side, is_rename: bool) -> Bodies {
    let sides = [before, after];
    if let Some(why) = sides.iter().find_map(|side| match &side.contents {
        Contents::Unreadable(why) => Some(harmless(why)),
        _ => None,
    }) {
        return Bodies::Differ(format!("Files {{a}} and {{b}} cannot be compared: {why}"));
    }
    if let Some(size) = sides.iter().find_map(|side| match side.contents {
        Contents::Large(size) => Some(size),
        _ => None,
    }) {
        let size = Size::from_bytes(size.next_multiple_of(1 << 20));
        return Bodies::Differ(format!("Files {{a}} and {{b}} differ: too large to show ({size})"));
    }
    if sides.iter().any(|side| matches!(side.contents, Contents::Other)) {
        return Bodies::Differ("FIFOs, sockets and devices are neither shown nor committed".to_owned());
    }
    let [Some(old), Some(new)] = sides.map(bytes) else { return Bodies::None };
    let is_same = old == new && mode(before) == mode(after);
    if is_same && !is_rename && kind(before) == kind(after) && !is_one_sided(before, after) {
        return Bodies::Differ("Only times or attributes of {a} and {b} differ".to_owned());
    }
    let is_binary = |bytes: &[u8]| bytes.iter().take(LOOKED_AT).any(|byte| *byte == 0);
    if is_binary(&old) || is_binary(&new) {
        let differ = old != new;
        return if differ {
            Bodies::Differ("Binary files {a} and {b} differ".to_owned())
        } else {
            Bodies::None
        };
    }
    Bodies::Text(old, new)
}

fn is_one_sided(before: &Side, after: &Side) -> bool {
    [before, after].iter().any(|side| matches!(side.contents, Contents::Nothing))
}

/// The bytes to compare; `None` for a directory.
fn bytes(side: &Side) -> Option<Vec<u8>> {
    match &side.contents {
        Contents::Nothing => Some(Vec::new()),
        Contents::File(bytes) => Some(bytes.clone()),
        Contents::Link(to) => Some(to.as_os_str().as_bytes().to_vec()),
        _ => None,
    }
}

/// The hunks of two texts with these names. Empty if they are equal.
pub(crate) fn of_texts(names: [&str; 2], [before, after]: [&str; 2], format: Format) -> String {
    let mut page = Page { text: String::new(), format };
    page.contents(&names.map(harmless), [before.as_bytes(), after.as_bytes()]);
    page.text
}

/// A text that grows line by line.
struct Page {
    text: String,
    format: Format,
}

impl Page {
    fn line(&mut self, style: Style, line: &str) {
        self.text.push_str(&self.format.paint.paint(style, line));
        self.text.push('\n');
    }

    /// The hunks of two texts.
    fn contents(&mut self, names: &[String; 2], [before, after]: [&[u8]; 2]) -> Counts {
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

/// Whether a change is a directory that its files show anyway. In the order of paths, the first of them is
/// next.
pub(crate) fn is_shown_by(change: &Change, next: Option<&Change>) -> bool {
    change.file == FileKind::Directory
        && change.kind == kennel::overlay::ChangeKind::Added
        && next.is_some_and(|next| next.path.starts_with(&change.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(before: &str, after: &str, context: u32) -> String {
        let mut page = Page { text: String::new(), format: Format { paint: Paint::none(), context } };
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
