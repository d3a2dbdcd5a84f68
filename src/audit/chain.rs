//! The hash chain: each line has the SHA-256 of the line before it. Pure but for reading the last line of a file.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::report::audit_error::AuditError;

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

// Whether a log is whole: each line a record, each with the hash of the one before it.

/// What [`verify_audit`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// How many lines there are.
    pub records: u64,
    /// How many of them have the hash of the line before: from the first that does, all do.
    pub chained: u64,
    /// The hash of the last line. Keep it elsewhere to notice when lines are cut off at the end, which the chain alone does
    /// not show.
    pub head: String,
}

/// Reads a log and checks its chain of hashes. A log without a chain is accepted: nothing in it is chained.
///
/// `head` is an earlier [`Verified::head`] that was kept elsewhere: its line must still be there.
///
/// # Errors
/// [`AuditError::Read`]; [`AuditError::Broken`] for the first line that is not a record, or whose hash is not that of the
/// line before it, and if the line of `head` is missing.
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
    let mut is_missing = head.is_some_and(|head| head != NONE);
    let unreadable = |source| AuditError::Read { path: path.to_owned(), source };
    let mut file = BufReader::new(open(path).map_err(unreadable)?);
    let mut found = Verified { records: 0, chained: 0, head: NONE.to_owned() };
    let mut line = Vec::new();
    loop {
        line.clear();
        file.by_ref().take(LONGEST).read_until(b'\n', &mut line).map_err(unreadable)?;
        if line.is_empty() && is_missing {
            let reason = "the line with the expected hash is not in it: lines were cut off, or changed";
            return Err(AuditError::Broken { path: path.to_owned(), line: found.records, reason });
        }
        if line.is_empty() {
            return Ok(found);
        }
        found = next(found, &line).map_err(|(line, reason)| AuditError::Broken {
            path: path.to_owned(),
            line,
            reason,
        })?;
        is_missing &= head != Some(&*found.head);
    }
}

/// Without waiting for the writer of a FIFO.
fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
    }
}

/// What is known after one more line.
fn next(before: Verified, line: &[u8]) -> Result<Verified, (u64, &'static str)> {
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

#[cfg(test)]
mod verify_tests {
    use super::*;

    /// A log with chained lines, and the hash of each.
    fn chained(lines: &[&str]) -> (String, Vec<String>) {
        let (mut text, mut prev, mut heads) = (String::new(), super::NONE.to_owned(), Vec::new());
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
    fn a_whole_log_is_whole() {
        let (text, heads) = chained(&["a", "b", "c"]);
        let found = verify(&text, None).expect("whole");
        assert_eq!((found.records, found.chained, &found.head), (3, 3, &heads[2]));
        for head in &heads {
            verify(&text, Some(head)).expect("in it");
        }
        let plain = verify("{\"event\":\"a\"}\n", None).expect("whole");
        assert_eq!((plain.records, plain.chained), (1, 0));
        assert_eq!(verify("", None).expect("empty").head, super::NONE);
    }

    #[test]
    fn what_is_no_file_is_no_log_and_keeps_nobody_waiting() {
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
        // Only a hash that was kept shows that the end is missing.
        let cut = joined(&lines[..2]);
        verify(&cut, None).expect("whole by itself");
        assert_eq!(verify(&cut, Some(&heads[2])).map_err(|broken| broken.0), Err(2));
    }
}
