//! The part of an output that a result has: its beginning and its end. What is between them is counted.

use std::collections::VecDeque;

use rmcp::model::ContentBlock;

use crate::mcp::answer::{own, quoted};

/// The part of one stream.
#[derive(Debug)]
pub(crate) struct Clip {
    /// The most bytes that are kept.
    cap: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    seen: u64,
}

/// A stream as text. Bytes that are no text are replaced.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) begin: String,
    /// The end of a long one.
    pub(crate) end: Option<String>,
    /// How many bytes are between them.
    pub(crate) left_out: u64,
}

impl Clip {
    pub(crate) fn new(cap: usize) -> Self {
        Self { cap, head: Vec::new(), tail: VecDeque::new(), seen: 0 }
    }

    /// Bytes so far, kept or not.
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// Everything so far, if that and this many more bytes do not fit together, but everything so far does.
    pub(crate) fn before_overflow(&mut self, more: usize) -> Option<Vec<u8>> {
        let so_far = self.head.len() + self.tail.len();
        let is_whole = so_far as u64 == self.seen;
        let fits = so_far + more <= self.cap;
        (is_whole && !fits).then(|| [&*self.head, self.tail.make_contiguous()].concat())
    }

    /// Takes what the command wrote next.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        let room = (self.cap / 2).saturating_sub(self.head.len());
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend(first);
        let most = self.cap - self.cap / 2;
        let rest = rest.get(rest.len().saturating_sub(most)..).unwrap_or_default();
        let too_many = (self.tail.len() + rest.len()).saturating_sub(most);
        self.tail.drain(..too_many.min(self.tail.len()));
        self.tail.extend(rest);
    }

    pub(crate) fn text(mut self) -> Text {
        let tail: &[u8] = self.tail.make_contiguous();
        if self.seen == (self.head.len() + tail.len()) as u64 {
            self.head.extend(tail);
            let begin = String::from_utf8_lossy(&self.head).into_owned();
            return Text { begin, end: None, left_out: 0 };
        }
        // No half of a character.
        let (head, tail) = (without_last_part(&self.head), without_first_part(tail));
        let left_out = self.seen - (head.len() + tail.len()) as u64;
        let [begin, end] = [head, tail].map(|part| String::from_utf8_lossy(part).into_owned());
        Text { begin, end: Some(end), left_out }
    }
}

impl Text {
    /// The items for a model. `rest` says where it finds what is left out.
    pub(crate) fn items(&self, rest: &str) -> Vec<ContentBlock> {
        let note = own(&format!("{} bytes are left out here: {rest}", self.left_out));
        let end = self.end.iter().flat_map(|end| [note.clone(), quoted(end)]);
        let items = [quoted(&self.begin)].into_iter().chain(end);
        items.filter(|item| !item.is_empty()).map(ContentBlock::text).collect()
    }
}

/// Without the first bytes of a character whose rest is missing.
pub(crate) fn without_last_part(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.get(..error.valid_up_to()).unwrap_or(bytes),
        _ => bytes,
    }
}

/// Without the last bytes of a character whose beginning is missing.
fn without_first_part(bytes: &[u8]) -> &[u8] {
    let part = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    bytes.get(part..).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clipped(cap: usize, pieces: &[&[u8]]) -> Text {
        let (mut clip, mut whole) = (Clip::new(cap), Vec::<u8>::new());
        for piece in pieces {
            if let Some(before) = clip.before_overflow(piece.len()) {
                assert_eq!(before, whole);
            }
            clip.add(piece);
            whole.extend(*piece);
        }
        clip.text()
    }

    #[test]
    fn what_fits_is_whole() {
        for pieces in [&[&b"abcdefgh"[..]][..], &[b"a", b"bcd", b"", b"efgh"], &[b"abcdefg", b"h"]] {
            assert_eq!(clipped(8, pieces), Text { begin: "abcdefgh".to_owned(), end: None, left_out: 0 });
        }
        assert_eq!(clipped(8, &["ä".as_bytes(), b"\xff"]).begin, "ä\u{fffd}");
        assert!(clipped(0, &[]).items("").is_empty());
    }

    #[test]
    fn the_beginning_and_the_end_stay_and_the_rest_is_counted() {
        for pieces in [&[&b"abcdefghijkl"[..]][..], &[b"abc", b"defghijk", b"l"], &[b"abcdefghijk", b"l"]] {
            let text = clipped(8, pieces);
            let expected = Text { begin: "abcd".to_owned(), end: Some("ijkl".to_owned()), left_out: 4 };
            assert_eq!(text, expected);
        }
        let text = clipped(0, &[b"abc"]);
        assert!(text.left_out == 3 && text.items("x").len() == 1, "{text:?}");
    }

    #[test]
    fn no_character_is_cut() {
        let text = "ä€𝄞".repeat(50);
        for cap in 0..40 {
            let Text { begin, end, left_out } = clipped(cap, &[text.as_bytes()]);
            let end = end.unwrap_or_default();
            assert!(!begin.contains('\u{fffd}') && !end.contains('\u{fffd}'), "{cap}: {begin} {end}");
            assert_eq!(left_out + (begin.len() + end.len()) as u64, text.len() as u64, "{cap}");
        }
    }
}
