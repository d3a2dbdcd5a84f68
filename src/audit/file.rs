//! The open file of a log: Kennel appends whole lines to it, in turn with other writers.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::stat::Mode;

use crate::audit::chain;
use crate::policy::audit::DATE;
use crate::sys::without_sigxfsz;

/// How long to wait for the lock of another writer.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait after the lock has timed out once. Every reader of the log can hold its lock, and must
/// not delay each line.
const LOCK_TIMEOUT_AFTER_FAILURE: Duration = Duration::from_millis(5);

/// How long a writer without a lock may take for the rest of a line: a reader can see one write(2) half done.
const PARTIAL_LINE_TIMEOUT: Duration = Duration::from_millis(100);

/// One file of a log.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: File,
    /// The day of the file, if its name has one.
    pub(crate) day: Option<String>,
    /// Whether the file ends with part of a line.
    is_partial: bool,
    /// The last line, if this process appended it.
    last: Option<Appended>,
    /// How long to wait for the lock.
    lock_timeout: Duration,
}

/// A line that this process appended.
#[derive(Debug)]
struct Appended {
    /// The size of the file after it.
    end: u64,
    /// Whether the line has a hash. If so, the next line needs one too: a line without a hash would look
    /// tampered with.
    is_chained: bool,
    hash: String,
}

/// The name of the file for a day. `None`: the template contains no `{date}`.
fn dated_name(template: &OsStr, day: &str) -> Option<OsString> {
    let (bytes, date) = (template.as_bytes(), DATE.as_bytes());
    let at = bytes.windows(date.len()).position(|part| part == date)?;
    Some(OsString::from_vec([&bytes[..at], day.as_bytes(), &bytes[at + date.len()..]].concat()))
}

impl LogFile {
    /// Opens or creates the file in `directory`. It follows no link and accepts only a regular file.
    pub(crate) fn open(directory: &OwnedFd, template: &OsStr, day: &str) -> io::Result<Self> {
        let dated = dated_name(template, day);
        let name = dated.as_deref().unwrap_or(template);
        let flags = OFlag::O_RDWR
            | OFlag::O_APPEND
            | OFlag::O_CREAT
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_CLOEXEC;
        let file = File::from(openat(directory.as_fd(), name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"));
        }
        // An earlier writer may have been killed within a line.
        let last = chain::read_last_line(&file, metadata.len())?;
        let day = dated.is_some().then(|| day.to_owned());
        Ok(Self { file, day, is_partial: !last.is_whole, last: None, lock_timeout: LOCK_TIMEOUT })
    }

    /// Whether the file is that of the day and has not been removed.
    pub(crate) fn is_current(&self, day: &str) -> bool {
        self.day.as_deref().is_none_or(|own| own == day)
            && self.file.metadata().is_ok_and(|file| file.nlink() > 0)
    }

    /// Appends a line, with one write(2) unless the disk is full. After part of a line it begins a new line.
    fn append(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        if self.is_partial && stays_partial(&self.file, PARTIAL_LINE_TIMEOUT)? {
            line.insert(0, b'\n');
        }
        line.push(b'\n');
        let mut rest = &line[..];
        while !rest.is_empty() {
            match without_sigxfsz(|| (&self.file).write(rest)) {
                Ok(0) => return Err(Errno::ENOSPC.into()),
                Ok(count) => {
                    rest = &rest[count..];
                    self.is_partial = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends the line that `write` returns, while it holds the lock of the file. `write` gets the hash of
    /// the line before if that line is chained or `chain` begins a chain. Without a chain, it writes the line
    /// even if it cannot get the lock.
    pub(crate) fn append_locked(
        &mut self,
        chain: bool,
        write: impl FnOnce(Option<String>) -> io::Result<Vec<u8>>,
    ) -> io::Result<()> {
        // flock(2) belongs to the open file description, so dropping the guard releases it for every
        // descriptor.
        let locked = lock(self.file.try_clone()?, self.lock_timeout);
        self.lock_timeout = if locked.is_ok() { LOCK_TIMEOUT } else { LOCK_TIMEOUT_AFTER_FAILURE };
        let size = self.file.metadata()?.len();
        let (is_chained, prev) = match self.last.take() {
            Some(Appended { end, is_chained, hash }) if end == size => (is_chained, hash),
            // Another process has written since, and may have begun a chain.
            _ => {
                let last = chain::read_last_line(&self.file, size)?;
                self.is_partial = !last.is_whole;
                (last.is_chained(), last.hash())
            }
        };
        let is_chained = chain || is_chained;
        if !is_chained {
            let line = write(None)?;
            let hash = chain::hash(&line);
            self.append(line)?;
            return self.remember(is_chained, hash);
        }
        let _lock = locked?;
        let line = write(Some(prev))?;
        let hash = chain::hash(&line);
        if let Err(error) = self.append(line) {
            // The lock keeps other writers away, so truncating removes only this line. If the file cannot be
            // truncated, the part stays as a line of its own.
            if self.file.set_len(size).is_ok() {
                self.is_partial = false;
            }
            return Err(error);
        }
        self.remember(is_chained, hash)
    }

    /// Remembers the last line, so that it need not be read again until another process writes.
    fn remember(&mut self, is_chained: bool, hash: String) -> io::Result<()> {
        self.last = Some(Appended { end: self.file.metadata()?.len(), is_chained, hash });
        Ok(())
    }
}

/// Whether a file still ends with part of a line after `timeout`.
fn stays_partial(file: &File, timeout: Duration) -> io::Result<bool> {
    let start = Instant::now();
    while !chain::read_last_line(file, file.metadata()?.len())?.is_whole {
        if start.elapsed() > timeout {
            return Ok(true);
        }
        sleep(Duration::from_millis(1));
    }
    Ok(false)
}

/// Takes the exclusive lock of a file; waits at most `timeout`.
fn lock(mut file: File, timeout: Duration) -> io::Result<Flock<File>> {
    let start = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((_, errno)) if errno != Errno::EWOULDBLOCK || start.elapsed() > timeout => {
                return Err(errno.into());
            }
            Err((unlocked, _)) => file = unlocked,
        }
        sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_line_waits_for_a_held_lock() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = nix::fcntl::open(place.path(), crate::sys::HELD, Mode::empty()).expect("open");
        let mut log = LogFile::open(&directory, OsStr::new("log"), "2026-01-31").expect("open");
        let held = lock(File::open(place.path().join("log")).expect("read"), LOCK_TIMEOUT).expect("free");
        let start = Instant::now();
        for _ in 0..50 {
            log.append_locked(true, |_| Ok(b"{}".to_vec())).expect_err("held");
        }
        assert!(start.elapsed() < 3 * LOCK_TIMEOUT, "{:?}", start.elapsed());
        drop(held);
        log.append_locked(true, |_| Ok(b"{}".to_vec())).expect("free again");
        assert_eq!(log.lock_timeout, LOCK_TIMEOUT);
    }

    #[test]
    fn a_line_without_a_chain_is_written_without_the_lock() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = nix::fcntl::open(place.path(), crate::sys::HELD, Mode::empty()).expect("open");
        let mut log = LogFile::open(&directory, OsStr::new("log"), "2026-01-31").expect("open");
        let held = lock(File::open(place.path().join("log")).expect("read"), LOCK_TIMEOUT).expect("free");
        log.append_locked(false, |_| Ok(b"{}".to_vec())).expect("written");
        drop(held);
        log.append_locked(
            true,
            |prev| Ok(format!("{{\"prev\":\"{}\"}}", prev.expect("a hash")).into_bytes()),
        )
        .expect("written");
        // After a chained line, a line without a hash would look tampered with.
        let _held = lock(File::open(place.path().join("log")).expect("read"), LOCK_TIMEOUT).expect("free");
        log.append_locked(false, |_| Ok(b"{}".to_vec())).expect_err("held");
    }

    #[test]
    fn a_line_that_another_writer_completes_gets_no_second_newline() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("log");
        let directory = nix::fcntl::open(place.path(), crate::sys::HELD, Mode::empty()).expect("open");
        for (rest, expected) in [("}\n", "{}\n[]\n"), ("", "{\n[]\n")] {
            std::fs::write(&path, "{").expect("half a line");
            let mut log = LogFile::open(&directory, OsStr::new("log"), "2026-01-31").expect("open");
            File::options()
                .append(true)
                .open(&path)
                .and_then(|mut it| it.write_all(rest.as_bytes()))
                .expect("written");
            log.append(b"[]".to_vec()).expect("appended");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), expected);
        }
    }

    #[test]
    fn appending_waits_for_the_rest_of_a_line() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"{").expect("half a line");
        let mut other = file.try_clone().expect("a descriptor");
        assert!(stays_partial(&file, Duration::from_millis(10)).expect("read"));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                sleep(Duration::from_millis(20));
                other.write_all(b"}\n").expect("the rest");
            });
            assert!(!stays_partial(&file, Duration::from_secs(60)).expect("read"));
        });
    }

    #[test]
    fn the_day_replaces_the_date_in_the_name() {
        let name = |template: &str| dated_name(OsStr::new(template), "2026-01-31");
        assert_eq!(name("exec-{date}.log"), Some("exec-2026-01-31.log".into()));
        assert_eq!(name("{date}"), Some("2026-01-31".into()));
        assert_eq!(name("exec.log"), None);
    }
}
