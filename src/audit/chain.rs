//! The hash chain of a log: each line has the SHA-256 of the line before it, and [`verify_audit`] checks
//! them.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::report::error::audit::AuditError;

/// The previous hash of the first line of a file.
pub(crate) const NO_LINE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The longest line of a log, in bytes with its newline. Kennel writes no longer ones.
pub(crate) const LINE_MAX: u64 = 1 << 20;

/// The hash of a line, without its newline.
pub(crate) fn hash(line: &[u8]) -> String {
    Sha256::digest(line).iter().fold(String::with_capacity(NO_LINE.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The part of a line that belongs to the chain.
#[derive(Deserialize)]
pub(crate) struct Link {
    /// The hash of the line before; `None`: the line is not chained.
    pub(crate) prev: Option<String>,
}

/// The last line of a log.
#[derive(Debug)]
pub(crate) struct LastLine {
    /// The line without its newline; `None`: the file is empty.
    line: Option<Vec<u8>>,
    /// Whether the line ends with a newline. True for an empty file.
    pub(crate) is_whole: bool,
}

impl LastLine {
    pub(crate) fn hash(&self) -> String {
        self.line.as_deref().map_or_else(|| NO_LINE.to_owned(), hash)
    }

    /// Whether the line has the hash of the line before it.
    pub(crate) fn is_chained(&self) -> bool {
        let link = |line| serde_json::from_slice::<Link>(line).is_ok_and(|link| link.prev.is_some());
        self.line.as_deref().is_some_and(link)
    }
}

/// Reads the last line of a file with this size.
///
/// # Errors
/// The file cannot be read, or the line is longer than [`LINE_MAX`].
pub(crate) fn read_last_line(file: &File, size: u64) -> io::Result<LastLine> {
    if size == 0 {
        return Ok(LastLine { line: None, is_whole: true });
    }
    let mut length = 4096;
    loop {
        let start = size.saturating_sub(length);
        let mut bytes = vec![0; usize::try_from(size - start).map_err(|_| ErrorKind::FileTooLarge)?];
        file.read_exact_at(&mut bytes, start)?;
        let is_whole = bytes.last() == Some(&b'\n');
        if is_whole {
            bytes.pop();
        }
        match bytes.iter().rposition(|&byte| byte == b'\n') {
            Some(newline) => return Ok(LastLine { line: Some(bytes.split_off(newline + 1)), is_whole }),
            None if start == 0 => return Ok(LastLine { line: Some(bytes), is_whole }),
            None if length >= LINE_MAX => {
                return Err(io::Error::new(ErrorKind::InvalidData, "its last line is not a record"));
            }
            None => length *= 4,
        }
    }
}

/// The result of [`verify_audit`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// The number of lines.
    pub records: u64,
    /// The number of lines with the hash of the line before. After the first such line, every line has one.
    pub chained: u64,
    /// The hash of the last line. Keep it elsewhere to notice if lines are cut off at the end: the chain
    /// alone does not show that.
    pub head: String,
}

/// Reads a log and checks its chain of hashes. It accepts a log without a chain; [`Verified::chained`] is
/// then 0.
///
/// `head` is a [`Verified::head`] from an earlier check: the log must still contain its line.
///
/// # Errors
/// [`AuditError::Read`] if the log cannot be read. [`AuditError::Broken`] for the first line that is not a
/// record or has the wrong hash, and if the line of `head` is missing.
///
/// ```
/// # let place = tempfile::tempdir()?;
/// let path = place.path().join("log");
/// std::fs::write(&path, "{\"prev\":\"not the hash of nothing\"}\n")?;
/// let error = kennel::verify_audit(&path, None).unwrap_err();
/// assert!(error.to_string().ends_with("line 1: its hash is not that of the line before"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn verify_audit(path: impl AsRef<Path>, head: Option<&str>) -> Result<Verified, AuditError> {
    let path = path.as_ref();
    let mut is_head_missing = head.is_some_and(|head| head != NO_LINE);
    let unreadable = |source| AuditError::Read { path: path.to_owned(), source };
    let mut file = BufReader::new(open(path).map_err(unreadable)?);
    let mut verified = Verified { records: 0, chained: 0, head: NO_LINE.to_owned() };
    let mut line = Vec::new();
    loop {
        line.clear();
        file.by_ref().take(LINE_MAX).read_until(b'\n', &mut line).map_err(unreadable)?;
        if line.is_empty() && is_head_missing {
            let reason = "the line with the expected hash is not in it: lines were cut off, or changed";
            return Err(AuditError::Broken { path: path.to_owned(), line: verified.records, reason });
        }
        if line.is_empty() {
            return Ok(verified);
        }
        verified = verify_line(verified, &line).map_err(|(line, reason)| AuditError::Broken {
            path: path.to_owned(),
            line,
            reason,
        })?;
        is_head_missing &= head != Some(&*verified.head);
    }
}

/// Opens a regular file. With O_NONBLOCK, open(2) of a FIFO does not wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
    }
}

/// Checks one more line.
fn verify_line(before: Verified, line: &[u8]) -> Result<Verified, (u64, &'static str)> {
    let number = before.records + 1;
    let line = line.strip_suffix(b"\n").ok_or((number, "is cut off"))?;
    let link: Link = serde_json::from_slice(line).map_err(|_| (number, "is not a record"))?;
    let chained = match link.prev {
        Some(prev) if prev == before.head => before.chained + 1,
        Some(_) => return Err((number, "its hash is not that of the line before")),
        None if before.chained > 0 => return Err((number, "has no hash, although the line before does")),
        None => 0,
    };
    Ok(Verified { records: number, chained, head: hash(line) })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn last_of(bytes: &[u8]) -> io::Result<(String, bool)> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        read_last_line(&file, bytes.len() as u64).map(|last| (last.hash(), last.is_whole))
    }

    #[test]
    fn the_last_line_is_found_at_any_length() {
        assert_eq!(last_of(b"").expect("read"), (NO_LINE.to_owned(), true));
        assert_eq!(last_of(b"one\n").expect("read"), (hash(b"one"), true));
        assert_eq!(last_of(b"one\ntwo").expect("read"), (hash(b"two"), false));
        assert_eq!(last_of(b"one\n\n").expect("read"), (hash(b""), true));
        let mut long = b"one\n".to_vec();
        long.extend([b'x'; 20_000]);
        assert_eq!(last_of(&long).expect("read"), (hash(&[b'x'; 20_000]), false));
    }

    #[test]
    fn a_file_without_lines_is_refused() {
        last_of(&vec![b'x'; 5 << 20]).expect_err("no line");
    }

    #[test]
    fn the_hash_is_the_same_as_from_sha256sum() {
        assert_eq!(hash(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}

#[cfg(test)]
mod verify_tests {
    use super::*;

    /// A log with chained lines, and the hash of each.
    fn chained(lines: &[&str]) -> (String, Vec<String>) {
        let (mut text, mut prev, mut heads) = (String::new(), super::NO_LINE.to_owned(), Vec::new());
        for line in lines {
            let line = format!("{{\"event\":\"{line}\",\"prev\":\"{prev}\"}}");
            prev = super::hash(line.as_bytes());
            heads.push(prev.clone());
            text.push_str(&line);
            text.push('\n');
        }
        (text, heads)
    }

    fn verify(text: &str, head: Option<&str>) -> Result<Verified, (u64, &'static str)> {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("log");
        std::fs::write(&path, text).expect("written");
        verify_audit(&path, head).map_err(|error| match error {
            AuditError::Broken { line, reason, .. } => (line, reason),
            error => panic!("{error}"),
        })
    }

    #[test]
    fn an_unchanged_log_is_accepted() {
        let (text, heads) = chained(&["a", "b", "c"]);
        let found = verify(&text, None).expect("whole");
        assert_eq!((found.records, found.chained, &found.head), (3, 3, &heads[2]));
        for head in &heads {
            verify(&text, Some(head)).expect("in it");
        }
        let plain = verify("{\"event\":\"a\"}\n", None).expect("whole");
        assert_eq!((plain.records, plain.chained), (1, 0));
        assert_eq!(verify("", None).expect("empty").head, super::NO_LINE);
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let place = tempfile::tempdir().expect("a directory");
        let fifo = place.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
        for path in [&*fifo, place.path(), Path::new("/dev/zero")] {
            let error = verify_audit(path, None).expect_err("no log");
            assert!(matches!(error, AuditError::Read { .. }), "{error:?}");
        }
    }

    #[test]
    fn every_change_is_noticed() {
        let (text, heads) = chained(&["a", "b", "c"]);
        let lines: Vec<&str> = text.lines().collect();
        let joined = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let hash = "its hash is not that of the line before";
        assert_eq!(verify(&text.replace("\"b\"", "\"x\""), None), Err((3, hash)));
        assert_eq!(verify(&joined(&[lines[0], lines[2]]), None), Err((2, hash)));
        assert_eq!(verify(&joined(&[lines[1], lines[0], lines[2]]), None), Err((1, hash)));
        assert_eq!(verify(&joined(&[lines[0], "{}", lines[1]]), None).map_err(|broken| broken.0), Err(2));
        assert_eq!(verify(text.trim_end(), None), Err((3, "is cut off")));
        assert_eq!(verify("not json\n", None), Err((1, "is not a record")));
        // Only a hash that was kept elsewhere shows that the end is missing.
        let cut = joined(&lines[..2]);
        verify(&cut, None).expect("whole by itself");
        assert_eq!(verify(&cut, Some(&heads[2])).map_err(|broken| broken.0), Err(2));
    }
}
