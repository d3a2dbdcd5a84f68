//! The file that a log is written to now: opened in a directory that is held, appended to, and never left with half a
//! line that looks like a record.

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

/// How long another writer may take for a line.
const PATIENCE: Duration = Duration::from_secs(1);

/// And while one holds it for longer than that: whoever may read the log can, and nobody shall wait for each line.
const NO_PATIENCE: Duration = Duration::from_millis(5);

/// How long a writer without a lock may take for the rest of a line: one write(2) can be seen half done.
const PATIENCE_FOR_REST: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct LogFile {
    file: File,
    /// The day that it is for, where its name has one.
    pub(crate) day: Option<String>,
    /// Whether it ends with part of a line.
    torn: bool,
    /// Its last line, where that is ours.
    last: Option<Written>,
    /// How long it waits for others.
    patience: Duration,
}

/// A line that was appended.
#[derive(Debug)]
struct Written {
    /// The size of the file then.
    end: u64,
    /// Whether it is one of a chain: a line without a hash behind it would look as if somebody had cut that off.
    is_chained: bool,
    hash: String,
}

/// The name of a day's file, where names have days.
fn name_of(template: &OsStr, day: &str) -> Option<OsString> {
    let (bytes, date) = (template.as_bytes(), DATE.as_bytes());
    let at = bytes.windows(date.len()).position(|part| part == date)?;
    Some(OsString::from_vec([&bytes[..at], day.as_bytes(), &bytes[at + date.len()..]].concat()))
}

impl LogFile {
    /// Opens or makes it. Never through a link in its last part, and never something that is no file.
    pub(crate) fn open(directory: &OwnedFd, template: &OsStr, day: &str) -> io::Result<Self> {
        let dated = name_of(template, day);
        let name = dated.as_deref().unwrap_or(template);
        let flags = OFlag::O_RDWR
            | OFlag::O_APPEND
            | OFlag::O_CREAT
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_CLOEXEC;
        let file = File::from(openat(directory.as_fd(), name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"));
        }
        // Whoever wrote to it before may have been cut off.
        let last = chain::last(&file, found.len())?;
        let day = dated.is_some().then(|| day.to_owned());
        Ok(Self { file, day, torn: !last.is_whole, last: None, patience: PATIENCE })
    }

    /// Whether it has a name still, and is that of the day.
    pub(crate) fn is_current(&self, day: &str) -> bool {
        self.day.as_deref().is_none_or(|own| own == day)
            && self.file.metadata().is_ok_and(|file| file.nlink() > 0)
    }

    /// Appends a line by one write(2), as far as the disk has room.
    pub(crate) fn append(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        if self.torn && stays_torn(&self.file, PATIENCE_FOR_REST)? {
            line.insert(0, b'\n');
        }
        line.push(b'\n');
        let mut rest = &line[..];
        while !rest.is_empty() {
            match without_sigxfsz(|| (&self.file).write(rest)) {
                Ok(0) => return Err(Errno::ENOSPC.into()),
                Ok(count) => {
                    rest = &rest[count..];
                    self.torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends the line that `write` makes, while nobody else appends: of the hash of the line before, where that is one of a
    /// chain or `chain` begins one. Where nobody asks for a chain, a lock that is not to be had is no reason to lose a line.
    pub(crate) fn append_in_turn(
        &mut self,
        chain: bool,
        write: impl FnOnce(Option<String>) -> io::Result<Vec<u8>>,
    ) -> io::Result<()> {
        // A lock is the open file's, so it is let go with this name for it.
        let locked = lock(self.file.try_clone()?, self.patience);
        self.patience = if locked.is_ok() { PATIENCE } else { NO_PATIENCE };
        let size = self.file.metadata()?.len();
        let (is_chained, prev) = match self.last.take() {
            Some(Written { end, is_chained, hash }) if end == size => (is_chained, hash),
            // Another has written since, and may have begun a chain.
            _ => {
                let last = chain::last(&self.file, size)?;
                self.torn = !last.is_whole;
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
            // Nobody else can have written behind it. Where it may not be taken away, it stays as a line of its own.
            if self.file.set_len(size).is_ok() {
                self.torn = false;
            }
            return Err(error);
        }
        self.remember(is_chained, hash)
    }

    /// What needs not be read again as long as nobody else writes.
    fn remember(&mut self, is_chained: bool, hash: String) -> io::Result<()> {
        self.last = Some(Written { end: self.file.metadata()?.len(), is_chained, hash });
        Ok(())
    }
}

/// Whether a file ends with part of a line that nobody is about to end.
fn stays_torn(file: &File, patience: Duration) -> io::Result<bool> {
    let begun = Instant::now();
    while !chain::last(file, file.metadata()?.len())?.is_whole {
        if begun.elapsed() > patience {
            return Ok(true);
        }
        sleep(Duration::from_millis(1));
    }
    Ok(false)
}

fn lock(mut file: File, patience: Duration) -> io::Result<Flock<File>> {
    let begun = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((_, errno)) if errno != Errno::EWOULDBLOCK || begun.elapsed() > patience => {
                return Err(errno.into());
            }
            Err((back, _)) => file = back,
        }
        sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_the_lock_is_waited_for_once() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = nix::fcntl::open(place.path(), OFlag::O_PATH, Mode::empty()).expect("open");
        let mut log = LogFile::open(&directory, OsStr::new("log"), "2026-01-31").expect("open");
        let held = lock(File::open(place.path().join("log")).expect("read"), PATIENCE).expect("free");
        let begun = Instant::now();
        for _ in 0..50 {
            log.append_in_turn(true, |_| Ok(b"{}".to_vec())).expect_err("held");
        }
        assert!(begun.elapsed() < 3 * PATIENCE, "{:?}", begun.elapsed());
        drop(held);
        log.append_in_turn(true, |_| Ok(b"{}".to_vec())).expect("free again");
        assert_eq!(log.patience, PATIENCE);
    }

    #[test]
    fn a_plain_line_is_not_lost_for_want_of_a_lock() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = nix::fcntl::open(place.path(), OFlag::O_PATH, Mode::empty()).expect("open");
        let mut log = LogFile::open(&directory, OsStr::new("log"), "2026-01-31").expect("open");
        let held = lock(File::open(place.path().join("log")).expect("read"), PATIENCE).expect("free");
        log.append_in_turn(false, |_| Ok(b"{}".to_vec())).expect("written");
        drop(held);
        log.append_in_turn(true, |prev| {
            Ok(format!("{{\"prev\":\"{}\"}}", prev.expect("a hash")).into_bytes())
        })
        .expect("written");
        // From then on nothing is written behind it that could not be told from a cut.
        let _held = lock(File::open(place.path().join("log")).expect("read"), PATIENCE).expect("free");
        log.append_in_turn(false, |_| Ok(b"{}".to_vec())).expect_err("held");
    }

    #[test]
    fn a_line_that_another_was_writing_is_not_ended_twice() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("log");
        let directory = nix::fcntl::open(place.path(), OFlag::O_PATH, Mode::empty()).expect("open");
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
    fn the_rest_of_a_line_is_waited_for() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"{").expect("half a line");
        let mut other = file.try_clone().expect("a descriptor");
        assert!(stays_torn(&file, Duration::from_millis(10)).expect("read"));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                sleep(Duration::from_millis(20));
                other.write_all(b"}\n").expect("the rest");
            });
            assert!(!stays_torn(&file, Duration::from_secs(60)).expect("read"));
        });
    }

    #[test]
    fn the_day_stands_where_the_name_says() {
        let name = |template: &str| name_of(OsStr::new(template), "2026-01-31");
        assert_eq!(name("exec-{date}.log"), Some("exec-2026-01-31.log".into()));
        assert_eq!(name("{date}"), Some("2026-01-31".into()));
        assert_eq!(name("exec.log"), None);
    }
}
