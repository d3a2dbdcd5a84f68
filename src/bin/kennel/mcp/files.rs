//! The tools `read_file`, `write_file` and `list_dir`. The library resolves the paths inside, with the rights of a command.

use std::io::SeekFrom;

use base64::{Engine, engine::general_purpose::STANDARD};
use kennel::{Error, FileEntry, FileKind, Session};
use rmcp::{
    model::CallToolResult,
    schemars::{self, JsonSchema},
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::{
    answer::{Answer, answer, failed, refused},
    kept::without_last_part,
};
use crate::escape::harmless;

/// How much of a file a result has, if the call does not say.
const PIECE: u64 = 64 << 10;

/// The most that a call can ask for.
const MOST: u64 = 1 << 20;

/// How many entries of a directory a result has, if the call does not say.
const ENTRIES: u64 = 1000;

/// The most that a call can ask for.
const MOST_ENTRIES: u64 = 10_000;

/// The arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Read {
    /// A path in the sandbox. A relative path starts where commands start.
    path: String,
    /// The byte to begin with. Default: 0.
    offset: Option<u64>,
    /// How many bytes. Default: 65536. At most 1048576.
    limit: Option<u64>,
}

/// The arguments of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Write {
    /// A path in the sandbox. A relative path starts where commands start. Its directory must exist.
    path: String,
    /// The whole new contents.
    content: String,
    /// What `content` is: utf-8 (the default), or base64.
    encoding: Option<Encoding>,
}

/// How bytes are written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
enum Encoding {
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

/// The result of `read_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReadResult {
    /// The part of the file.
    content: String,
    /// What `content` is: utf-8, or base64 if the part is no text.
    encoding: Encoding,
    /// The byte with which it begins.
    offset: u64,
    /// How many bytes it has.
    bytes: u64,
    /// The size of the whole file, in bytes.
    size: u64,
    /// The offset of the next part; null at the end of the file.
    next_offset: Option<u64>,
}

/// The result of `write_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WriteResult {
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

impl Read {
    pub(super) async fn call(self, session: &Session) -> Answer {
        let (offset, limit) = (self.offset.unwrap_or(0), self.limit.unwrap_or(PIECE).min(MOST));
        let mut file = session.open_read(&self.path).await.map_err(|error| failed(&error))?;
        let unread = |source| failed(&Error::Io { what: "read the file", source });
        let size = file.size().await.map_err(unread)?;
        let mut bytes = Vec::new();
        if offset < size {
            file.seek(SeekFrom::Start(offset)).await.map_err(unread)?;
            file.take(limit).read_to_end(&mut bytes).await.map_err(unread)?;
        }
        Ok(part(bytes, offset, size))
    }
}

/// The answer with a part of a file.
fn part(bytes: Vec<u8>, offset: u64, size: u64) -> CallToolResult {
    let is_text = |bytes: &[u8]| !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok();
    // The next part begins with the character that does not end here.
    let whole = without_last_part(&bytes);
    let ends_in_file = offset.saturating_add(bytes.len() as u64) < size;
    let taken = if ends_in_file && !whole.is_empty() && is_text(whole) { whole } else { &bytes };
    let (content, encoding) = match std::str::from_utf8(taken) {
        Ok(text) if is_text(taken) => (text.to_owned(), Encoding::Utf8),
        _ => (STANDARD.encode(taken), Encoding::Base64),
    };
    let end = offset.saturating_add(taken.len() as u64);
    let next_offset = (end < size && !taken.is_empty()).then_some(end);
    let mut text = content.clone();
    let note = match (encoding, next_offset) {
        (Encoding::Utf8, None) if offset == 0 => None,
        (_, None) => Some(String::new()),
        (_, Some(next)) => Some(format!("; go on with offset {next}")),
    };
    if let Some(more) = note {
        let base64 = if encoding == Encoding::Base64 { " in base64" } else { "" };
        text += &format!("\n[kennel: bytes {offset} to {end} of {size}{base64}{more}]");
    }
    let bytes = taken.len() as u64;
    answer(text, &ReadResult { content, encoding, offset, bytes, size, next_offset })
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
        session.write(&self.path, bytes).await.map_err(|error| failed(&error))?;
        Ok(answer(format!("wrote {count} bytes"), &WriteResult { bytes: count }))
    }
}

impl List {
    pub(super) async fn call(self, session: &Session) -> Answer {
        let path = self.path.as_deref().unwrap_or(".");
        let listed = session.list(path).await.map_err(|error| failed(&error))?;
        let total = listed.len() as u64;
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (offset, limit) = (self.offset.unwrap_or(0), self.limit.unwrap_or(ENTRIES).min(MOST_ENTRIES));
        let entries: Vec<Entry> =
            listed.iter().skip(number(offset)).take(number(limit)).map(Entry::of).collect();
        let mut lines: Vec<String> = entries.iter().map(Entry::line).collect();
        let end = offset.saturating_add(entries.len() as u64);
        if total == 0 {
            lines.push("[empty]".to_owned());
        } else if end < total {
            lines.push(format!("[kennel: {} of {total} entries; go on with offset {end}]", entries.len()));
        }
        Ok(answer(lines.join("\n"), &ListResult { entries, total }))
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
        let name = harmless(&self.name);
        match &*self.kind {
            "directory" => format!("{name}/"),
            "file" => format!("{name}  {} bytes", self.size),
            kind => format!("{name}  ({kind})"),
        }
    }
}
