//! The tool `read_file`: a part of a file by bytes or by lines.

use std::io::{self, SeekFrom};

use base64::{Engine, engine::general_purpose::STANDARD};
use kennel::{Error, Session, files::FileReader};
use rmcp::{
    model::{CallToolResult, ContentBlock},
    schemars::{self, JsonSchema},
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, BufReader};

use super::{
    answer::{Answer, answer_of, failed, own, refused},
    files::Encoding,
    kept::without_last_part,
};
use crate::escape::harmless;

/// How many bytes a result has, if the call does not say.
const PIECE: u64 = 64 << 10;

/// The most bytes that a call can ask for.
const MOST: u64 = 1 << 20;

/// How many lines a result has, if the call does not say.
const LINES: u64 = 2000;

/// How many bytes before a line are read to find it.
const MOST_BEFORE: u64 = 256 << 20;

/// The arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Read {
    /// A path in the sandbox. A relative path starts where commands start.
    path: String,
    /// The byte to begin with. Default: 0. Not with `line` or `lines`.
    offset: Option<u64>,
    /// How many bytes. Default: 65536. At most 1048576.
    limit: Option<u64>,
    /// The line to begin with, from 1.
    line: Option<u64>,
    /// How many lines, as far as they fit into `limit`. Default with `line`: 2000.
    lines: Option<u64>,
    /// base64 for a file that is no text. Default: utf-8.
    encoding: Option<Encoding>,
}

/// The result of `read_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReadResult {
    /// The part of the file.
    content: String,
    /// What `content` is: utf-8, or base64 if the call asked for it.
    encoding: Encoding,
    /// The byte with which it begins.
    offset: u64,
    /// How many bytes it has.
    bytes: u64,
    /// The size of the whole file, in bytes.
    size: u64,
    /// The offset of the next part; null at the end of the file.
    next_offset: Option<u64>,
    /// The line after the last one, if the call asked for lines and there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_line: Option<u64>,
}

/// Bytes of a file.
struct Part {
    bytes: Vec<u8>,
    offset: u64,
    size: u64,
    /// The first line and the number of lines, if the call asked for lines.
    lines: Option<(u64, u64)>,
}

fn unread(source: io::Error) -> CallToolResult {
    failed(&Error::Io { what: "read the file", source })
}

impl Read {
    pub(super) async fn call(self, session: &Session) -> Answer {
        let by_line = self.line.is_some() || self.lines.is_some();
        let base64 = self.encoding == Some(Encoding::Base64);
        if by_line && (self.offset.is_some() || base64) {
            return Err(refused("arguments: lines go with neither `offset` nor base64"));
        }
        if self.line == Some(0) {
            return Err(refused("arguments: the first `line` is 1"));
        }
        let file = session.open_read(&self.path).await.map_err(|error| failed(&error))?;
        let part = if by_line { self.lines_of(file).await? } else { self.bytes_of(file).await? };
        part.answer(&self.path, base64)
    }

    fn most(&self) -> u64 {
        self.limit.unwrap_or(PIECE).min(MOST)
    }

    async fn bytes_of(&self, mut file: FileReader) -> Result<Part, CallToolResult> {
        let offset = self.offset.unwrap_or(0);
        let size = file.size().await.map_err(unread)?;
        let mut bytes = Vec::new();
        if offset < size {
            file.seek(SeekFrom::Start(offset)).await.map_err(unread)?;
            file.take(self.most()).read_to_end(&mut bytes).await.map_err(unread)?;
        }
        Ok(Part { bytes, offset, size, lines: None })
    }

    async fn lines_of(&self, file: FileReader) -> Result<Part, CallToolResult> {
        let size = file.size().await.map_err(unread)?;
        let (first, most) = (self.line.unwrap_or(1), self.most());
        let mut file = BufReader::with_capacity(1 << 16, file);
        let (mut line, mut offset) = (1, 0);
        while line < first {
            let there = file.fill_buf().await.map_err(unread)?;
            if there.is_empty() {
                break;
            }
            let end = there.iter().position(|byte| *byte == b'\n');
            let count = end.map_or(there.len(), |end| end + 1);
            line += u64::from(end.is_some());
            offset += count as u64;
            file.consume(count);
            if offset > MOST_BEFORE {
                return Err(refused(format!("line {first} is not in the first 256 MiB: use `offset`")));
            }
        }
        let (mut bytes, mut lines, mut rest) = (Vec::new(), 0, file.take(most));
        while lines < self.lines.unwrap_or(LINES) {
            let before = bytes.len();
            if rest.read_until(b'\n', &mut bytes).await.map_err(unread)? == 0 {
                break;
            }
            // Half of a line only if it is alone.
            if rest.limit() == 0 && bytes.last() != Some(&b'\n') && before > 0 {
                bytes.truncate(before);
                break;
            }
            lines += 1;
        }
        Ok(Part { bytes, offset, size, lines: Some((line, lines)) })
    }
}

impl Part {
    fn answer(self, path: &str, base64: bool) -> Answer {
        let Self { bytes, offset, size, lines } = self;
        let is_text = |bytes: &[u8]| !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok();
        // The next part begins with the character that does not end here.
        let whole = without_last_part(&bytes);
        let ends_in_file = offset.saturating_add(bytes.len() as u64) < size;
        let taken =
            if !base64 && ends_in_file && !whole.is_empty() && is_text(whole) { whole } else { &bytes };
        let (content, encoding) = match std::str::from_utf8(taken) {
            _ if base64 => (STANDARD.encode(taken), Encoding::Base64),
            Ok(text) if is_text(taken) => (text.to_owned(), Encoding::Utf8),
            _ => {
                return Err(refused(format!(
                    "{} is no text there: it has {size} bytes; ask for `encoding` base64, or look at it with a command",
                    harmless(path)
                )));
            }
        };
        let end = offset.saturating_add(taken.len() as u64);
        let next_offset = (end < size && !taken.is_empty()).then_some(end);
        let is_cut = !taken.ends_with(b"\n");
        let next_line =
            lines.map(|(first, count)| first + count).filter(|_| next_offset.is_some() && !is_cut);
        let places = match lines {
            Some((first, count)) if count > 0 => format!("lines {first} to {}, ", first + count - 1),
            _ => String::new(),
        };
        let next = match (next_line, next_offset) {
            (Some(line), _) => format!("; go on with line {line}"),
            (_, Some(offset)) => format!("; go on with offset {offset}"),
            _ => String::new(),
        };
        let form = if base64 { " in base64" } else { "" };
        // It comes first: what the file has cannot look like it.
        let about = own(&format!("{places}bytes {offset} to {end} of {size}{form}{next}"));
        let items = [about].into_iter().chain(Some(content.clone()).filter(|content| !content.is_empty()));
        let items = items.map(ContentBlock::text).collect();
        let bytes = taken.len() as u64;
        let result = ReadResult { content, encoding, offset, bytes, size, next_offset, next_line };
        Ok(answer_of(items, &result))
    }
}
