//! The part of an output that a model gets: its beginning and its end. What is between them is counted.

use std::collections::VecDeque;

/// What is kept of one stream.
#[derive(Debug)]
pub(super) struct Kept {
    /// The most bytes that are kept.
    cap: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    seen: u64,
}

impl Kept {
    pub(super) fn new(cap: usize) -> Self {
        Self { cap, head: Vec::new(), tail: VecDeque::new(), seen: 0 }
    }

    /// Takes what the command wrote next.
    pub(super) fn add(&mut self, bytes: &[u8]) {
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

    /// The text, with a note where something is left out, and how many bytes that are. Bytes that are no text are replaced.
    pub(super) fn text(mut self) -> (String, u64) {
        let tail: &[u8] = self.tail.make_contiguous();
        let left_out = self.seen - (self.head.len() + tail.len()) as u64;
        if left_out == 0 {
            self.head.extend(tail);
            return (String::from_utf8_lossy(&self.head).into_owned(), 0);
        }
        // No half of a character.
        let (head, tail) = (without_last_part(&self.head), without_first_part(tail));
        let left_out = self.seen - (head.len() + tail.len()) as u64;
        let [head, tail] = [head, tail].map(String::from_utf8_lossy);
        let note = format!(
            "\n[kennel: {left_out} bytes are left out here; write to a file, and read parts of it]\n"
        );
        (format!("{head}{note}{tail}"), left_out)
    }
}

/// Without the first bytes of a character whose rest is missing.
pub(super) fn without_last_part(bytes: &[u8]) -> &[u8] {
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

    fn kept(cap: usize, pieces: &[&[u8]]) -> (String, u64) {
        let mut kept = Kept::new(cap);
        pieces.iter().for_each(|piece| kept.add(piece));
        kept.text()
    }

    #[test]
    fn what_fits_is_whole() {
        for pieces in [&[&b"abcdefgh"[..]][..], &[b"a", b"bcd", b"", b"efgh"], &[b"abcdefg", b"h"]] {
            assert_eq!(kept(8, pieces), ("abcdefgh".to_owned(), 0));
        }
        assert_eq!(kept(8, &["ä".as_bytes(), b"\xff"]).0, "ä\u{fffd}");
        assert_eq!(kept(0, &[]), (String::new(), 0));
    }

    #[test]
    fn the_beginning_and_the_end_stay_and_the_rest_is_counted() {
        for pieces in [&[&b"abcdefghijkl"[..]][..], &[b"abc", b"defghijk", b"l"], &[b"abcdefghijk", b"l"]] {
            let (text, left_out) = kept(8, pieces);
            assert_eq!(left_out, 4);
            assert!(
                text.starts_with("abcd\n[kennel: 4 bytes are left out") && text.ends_with("]\nijkl"),
                "{text}"
            );
        }
        let (text, left_out) = kept(0, &[b"abc"]);
        assert!(left_out == 3 && text.contains("3 bytes"), "{text}");
    }

    #[test]
    fn no_character_is_cut() {
        let text = "ä€𝄞".repeat(50);
        for cap in 0..40 {
            let (cut, left_out) = kept(cap, &[text.as_bytes()]);
            assert!(!cut.contains('\u{fffd}'), "{cap}: {cut}");
            let (head, tail) = (cut.split("\n[").next(), cut.rsplit("]\n").next());
            let whole = head.map_or(0, str::len) + tail.map_or(0, str::len);
            assert_eq!(left_out + whole as u64, text.len() as u64, "{cap}");
        }
    }
}
