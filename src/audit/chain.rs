//! The hash chain: each line has the SHA-256 of the line before it. Pure but for reading the last line of a file.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// The hash before the first line of a file.
pub(crate) const NONE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// A line that is longer is not one of ours.
pub(crate) const LONGEST: u64 = 1 << 20;

/// The hash of a line, without its newline.
pub(crate) fn hash(line: &[u8]) -> String {
    Sha256::digest(line).iter().fold(String::with_capacity(NONE.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What a line says about the chain.
#[derive(Deserialize)]
pub(crate) struct Link {
    /// The hash of the line before.
    pub(crate) prev: Option<String>,
}

/// The last line of a log.
#[derive(Debug)]
pub(crate) struct Last {
    /// Without its newline; `None` where there is no line.
    line: Option<Vec<u8>>,
    /// Whether it has one.
    pub(crate) is_whole: bool,
}

impl Last {
    pub(crate) fn hash(&self) -> String {
        self.line.as_deref().map_or_else(|| NONE.to_owned(), hash)
    }

    /// Whether it is one of a chain.
    pub(crate) fn is_chained(&self) -> bool {
        let link = |line| serde_json::from_slice::<Link>(line).is_ok_and(|link| link.prev.is_some());
        self.line.as_deref().is_some_and(link)
    }
}

/// The last line of a file of that size.
///
/// # Errors
/// Those of reading, and a line that is not one of ours.
pub(crate) fn last(file: &File, size: u64) -> io::Result<Last> {
    if size == 0 {
        return Ok(Last { line: None, is_whole: true });
    }
    let mut length = 4096;
    loop {
        let begin = size.saturating_sub(length);
        let mut bytes = vec![0; usize::try_from(size - begin).map_err(|_| ErrorKind::FileTooLarge)?];
        file.read_exact_at(&mut bytes, begin)?;
        let is_whole = bytes.last() == Some(&b'\n');
        if is_whole {
            bytes.pop();
        }
        match bytes.iter().rposition(|&byte| byte == b'\n') {
            Some(before) => return Ok(Last { line: Some(bytes.split_off(before + 1)), is_whole }),
            None if begin == 0 => return Ok(Last { line: Some(bytes), is_whole }),
            None if length >= LONGEST => {
                return Err(io::Error::new(ErrorKind::InvalidData, "its last line is not a record"));
            }
            None => length *= 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn last_of(bytes: &[u8]) -> io::Result<(String, bool)> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        last(&file, bytes.len() as u64).map(|last| (last.hash(), last.is_whole))
    }

    #[test]
    fn the_last_line_is_found_however_long() {
        assert_eq!(last_of(b"").expect("read"), (NONE.to_owned(), true));
        assert_eq!(last_of(b"one\n").expect("read"), (hash(b"one"), true));
        assert_eq!(last_of(b"one\ntwo").expect("read"), (hash(b"two"), false));
        assert_eq!(last_of(b"one\n\n").expect("read"), (hash(b""), true));
        let mut long = b"one\n".to_vec();
        long.extend([b'x'; 20_000]);
        assert_eq!(last_of(&long).expect("read"), (hash(&[b'x'; 20_000]), false));
    }

    #[test]
    fn what_has_no_lines_is_refused() {
        last_of(&vec![b'x'; 5 << 20]).expect_err("no line");
    }

    #[test]
    fn the_hash_is_that_of_sha256sum() {
        assert_eq!(hash(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
