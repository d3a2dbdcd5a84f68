//! One change of a workspace as a unified diff, in the form of git: for people, and for tools that read such
//! diffs.
//!
//! What it shows is hostile. Control characters in names and lines are shown escaped, long lines are cut, and
//! what is binary or too large is only named.

use std::os::unix::ffi::OsStrExt;

use anstyle::Style;
use kennel::{
    Size,
    files::FileKind,
    internal::escape::harmless,
    overlay::{Change, Contents, ImageReview, Review, Side},
};

use crate::{
    changes::hunks::{Counts, Format, Page},
    terminal::style,
};

/// The most bytes of a file that is shown.
pub(crate) const LARGEST: u64 = 4 << 20;

/// Bytes of a file that tell whether it is text, as in git.
const LOOKED_AT: usize = 8000;

/// Changes that a diff shows, and what was and is there.
pub(crate) trait Reviewed {
    fn files(&self) -> Vec<Change>;
    fn sides(&self, change: &Change, most: u64) -> [Side; 2];
}

impl Reviewed for Review {
    fn files(&self) -> Vec<Change> {
        Self::files(self)
    }

    fn sides(&self, change: &Change, most: u64) -> [Side; 2] {
        Self::sides(self, change, most)
    }
}

impl Reviewed for ImageReview {
    fn files(&self) -> Vec<Change> {
        self.changes().to_owned()
    }

    fn sides(&self, change: &Change, most: u64) -> [Side; 2] {
        Self::sides(self, change, most)
    }
}

/// One entry of a diff: a change, or a deletion and an addition that are a rename.
pub(crate) struct Entry {
    /// What was there.
    pub(crate) before: Option<Change>,
    /// What is there.
    pub(crate) after: Option<Change>,
    /// How similar the two files of a rename are, in percent.
    pub(crate) similarity: Option<u8>,
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
        let mut page = Page::new(format);
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

/// Whether a change is a directory that its files show anyway. In the order of paths, the first of them is
/// next.
pub(crate) fn is_shown_by(change: &Change, next: Option<&Change>) -> bool {
    change.file == FileKind::Directory
        && change.kind == kennel::overlay::ChangeKind::Added
        && next.is_some_and(|next| next.path.starts_with(&change.path))
}
