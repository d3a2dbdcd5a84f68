//! The tools `write_file`, `edit_file` and `list_dir`. The library resolves the paths inside, with the rights
//! of a command.

use std::{io, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};
use kennel::{
    Error, Session,
    files::{FileEntry, FileKind},
};
use rmcp::{
    model::ContentBlock,
    schemars::{self, JsonSchema},
};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use super::answer::{Answer, answer, answer_of, failed, own, quoted, refused};
use crate::escape::harmless;

/// The largest file that `edit_file` edits, in bytes.
const MOST_EDITED: u64 = 4 << 20;

/// The most that the names of a result have together, in bytes.
const MOST_NAMES: usize = 1 << 20;

/// How many entries of a directory a result has, if the call does not say.
const ENTRIES: u64 = 1000;

/// The most that a call can ask for.
const MOST_ENTRIES: u64 = 10_000;

/// The arguments of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Write {
    /// A path in the sandbox. A relative path starts where commands start. Directories above it are made.
    path: String,
    /// The whole new contents.
    content: String,
    /// What `content` is: utf-8 (the default), or base64.
    encoding: Option<Encoding>,
}

/// The arguments of `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Edit {
    /// A path in the sandbox. A relative path starts where commands start.
    path: String,
    /// The text to replace. The file must have it exactly once: give enough of the lines around.
    old_text: String,
    /// What comes in its place.
    new_text: String,
}

/// How bytes are written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(super) enum Encoding {
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

/// The arguments of `list_dir`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    /// A path in the sandbox. A relative path starts where commands start. Default: that directory.
    path: Option<String>,
    /// How many entries to skip. Default: 0.
    offset: Option<u64>,
    /// How many entries to list. Default: 1000. At most 10000.
    limit: Option<u64>,
}

/// The result of `write_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WriteResult {
    /// How many bytes the file has now.
    bytes: u64,
}

/// The result of `edit_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EditResult {
    /// The line in which the new text begins, from 1.
    line: u64,
    /// How many bytes the file has now.
    bytes: u64,
}

/// The result of `list_dir`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListResult {
    /// Sorted by name.
    entries: Vec<Entry>,
    /// How many the directory has.
    total: u64,
}

/// An entry of a directory.
#[derive(Debug, Serialize, JsonSchema)]
struct Entry {
    /// Its name. Bytes that are no text are replaced.
    name: String,
    /// file, directory, link or other. Links are not followed.
    kind: String,
    /// In bytes.
    size: u64,
}

impl Write {
    pub(super) async fn call(self, session: &Session) -> Answer {
        let bytes = match self.encoding {
            Some(Encoding::Base64) => {
                let decoded = STANDARD.decode(self.content.as_bytes());
                decoded.map_err(|error| refused(format!("arguments: `content` is no base64: {error}")))?
            }
            _ => self.content.into_bytes(),
        };
        let count = bytes.len() as u64;
        write(session, &self.path, bytes).await.map_err(|error| failed(&error))?;
        Ok(answer(format!("wrote {count} bytes"), &WriteResult { bytes: count }))
    }
}

/// Writes a file, and makes the directories above it if they are missing.
async fn write(session: &Session, path: &str, bytes: Vec<u8>) -> Result<(), Error> {
    let is = |error: &Error, kind| matches!(error, Error::File { source, .. } if source.kind() == kind);
    let mut missing = Vec::new();
    let above = Path::new(path).ancestors().skip(1).take_while(|above| !above.as_os_str().is_empty());
    for above in above {
        match session.stat(above).await {
            Err(error) if is(&error, io::ErrorKind::NotFound) => missing.push(above),
            // What keeps the file from being written, writing it tells.
            _ => break,
        }
    }
    for above in missing.iter().rev() {
        match session.mkdir(above).await {
            Err(error) if !is(&error, io::ErrorKind::AlreadyExists) => return Err(error),
            _ => {}
        }
    }
    session.write(path, bytes).await
}

impl Edit {
    pub(super) async fn call(self, session: &Session) -> Answer {
        let Self { path, old_text, new_text } = self;
        if old_text.is_empty() {
            return Err(refused("arguments: `old_text` is empty: write_file writes a whole file"));
        }
        let file = session.open_read(&path).await.map_err(|error| failed(&error))?;
        let mut text = String::new();
        match file.take(MOST_EDITED + 1).read_to_string(&mut text).await {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(refused(format!("{} is no UTF-8 text: edit it with a command", harmless(&path))));
            }
            Err(source) => return Err(failed(&Error::Io { what: "read the file", source })),
            Ok(count) if count as u64 > MOST_EDITED => {
                return Err(refused(format!(
                    "{} has more than 4 MiB: edit it with a command",
                    harmless(&path)
                )));
            }
            Ok(_) => {}
        }
        let at = place(&text, &old_text).map_err(|why| refused(format!("{}: {why}", harmless(&path))))?;
        let line = 1 + text.get(..at).unwrap_or_default().matches('\n').count() as u64;
        text.replace_range(at..at + old_text.len(), &new_text);
        let bytes = text.len() as u64;
        session.write(&path, text).await.map_err(|error| failed(&error))?;
        Ok(answer(format!("replaced the text in line {line}"), &EditResult { line, bytes }))
    }
}

/// Where the only `old` begins, or why there is none.
fn place(text: &str, old: &str) -> Result<usize, String> {
    let lines = |at: usize| 1 + text.get(..at).unwrap_or_default().matches('\n').count();
    let Some(at) = text.find(old) else {
        let has_others = !old.contains('\r') && text.replace("\r\n", "\n").contains(old);
        let others = if has_others { ": its lines end in CRLF, so `old_text` needs \\r\\n" } else { "" };
        return Err(format!("the text does not occur{others}"));
    };
    let first = old.chars().next().map_or(1, char::len_utf8);
    match text.get(at + first..).and_then(|rest| rest.find(old)) {
        None => Ok(at),
        Some(next) => Err(format!(
            "the text occurs more than once, in line {} and in line {}: give more of the lines around it",
            lines(at),
            lines(at + first + next)
        )),
    }
}

impl List {
    pub(super) async fn call(self, session: &Session) -> Answer {
        let path = self.path.as_deref().unwrap_or(".");
        let listed = session.list(path).await.map_err(|error| failed(&error))?;
        let total = listed.len() as u64;
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (offset, limit) = (self.offset.unwrap_or(0), self.limit.unwrap_or(ENTRIES).min(MOST_ENTRIES));
        let mut room = MOST_NAMES;
        let fits = |entry: &&FileEntry| {
            let before = room;
            room = room.saturating_sub(entry.name.len());
            before > 0
        };
        let asked = listed.iter().skip(number(offset)).take(number(limit));
        let entries: Vec<Entry> = asked.take_while(fits).map(Entry::of).collect();
        let lines: Vec<String> = entries.iter().map(Entry::line).collect();
        let mut items = Vec::new();
        if !lines.is_empty() {
            items.push(ContentBlock::text(lines.join("\n")));
        }
        let end = offset.saturating_add(entries.len() as u64);
        if total == 0 {
            items.push(ContentBlock::text(own("the directory is empty")));
        } else if end < total {
            let more = format!("{} of {total} entries; go on with offset {end}", entries.len());
            items.push(ContentBlock::text(own(&more)));
        }
        Ok(answer_of(items, &ListResult { entries, total }))
    }
}

impl Entry {
    fn of(entry: &FileEntry) -> Self {
        let kind = match entry.kind {
            FileKind::File => "file",
            FileKind::Directory => "directory",
            FileKind::Link => "link",
            _ => "other",
        };
        Self { name: entry.name.to_string_lossy().into_owned(), kind: kind.to_owned(), size: entry.size }
    }

    fn line(&self) -> String {
        let name = quoted(&harmless(&self.name));
        match &*self.kind {
            "directory" => format!("{name}/"),
            "file" => format!("{name}  {} bytes", self.size),
            kind => format!("{name}  ({kind})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_replaced_only_where_it_is_the_only_one() {
        assert_eq!(place("one\ntwo\n", "two"), Ok(4));
        assert_eq!(place("ä", "ä"), Ok(0));
        for (text, old, why) in [
            ("one", "two", "the text does not occur"),
            (
                "a\r\nb\r\n",
                "a\nb",
                "the text does not occur: its lines end in CRLF, so `old_text` needs \\r\\n",
            ),
            (
                "x\ny\nx",
                "x",
                "the text occurs more than once, in line 1 and in line 3: give more of the lines around it",
            ),
            ("ääa äää", "ää", "in line 1 and in line 1"),
            ("aaa", "aa", "more than once"),
        ] {
            let refused = place(text, old).expect_err("it is refused");
            assert!(refused.contains(why), "{text:?}: {refused}");
        }
    }
}
