//! An open log: it switches to a new file each day and counts lost records.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::time::SystemTime;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::audit;
use crate::audit::file::LogFile;
use crate::audit::record::Line;
use crate::policy::audit::Audit;
use crate::report::error::Error;
use crate::report::failure;
use crate::report::shortage::of_path;
use crate::sys::{HELD, locked};

/// The log of a policy. All sandboxes of that policy share it.
#[derive(Debug)]
pub(crate) struct Log {
    audit: Audit,
    directory: OwnedFd,
    name: OsString,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The current file; `None`: it could not be opened again.
    file: Option<LogFile>,
    /// The number of records lost since the last line that was written.
    lost: u64,
    /// All records that were lost.
    losses: Option<Losses>,
}

/// Records that could not be written.
#[derive(Debug)]
struct Losses {
    count: u64,
    /// Why the last one could not be written.
    cause: String,
}

impl Log {
    /// Opens or creates the log; its path is absolute. The log keeps its directory open, so that every later
    /// file is created in the same directory.
    ///
    /// # Errors
    /// The file cannot be opened or created, or is not a log.
    pub(crate) fn open(audit: &Audit) -> Result<Self, Error> {
        Self::try_open(audit).map_err(|source| open_error(audit, source))
    }

    fn try_open(audit: &Audit) -> io::Result<Self> {
        audit::create_default_directory(&audit.path)?;
        let parent = audit.path.parent().unwrap_or(Path::new("/"));
        let name = audit.path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let directory = open(parent, HELD | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let file = LogFile::open(&directory, &name, &audit::day(SystemTime::now()))?;
        let state = Mutex::new(State { file: Some(file), lost: 0, losses: None });
        Ok(Self { audit: audit.clone(), directory, name, state })
    }

    /// The settings of the policy.
    pub(crate) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Appends a line.
    ///
    /// # Errors
    /// The line could not be written. The log counts lost lines, reports the first with `tracing`, and tells
    /// their number in the next line that it writes.
    pub(crate) fn write(&self, mut line: Line<'_>) -> io::Result<()> {
        let mut state = locked(&self.state);
        line.lost = state.lost;
        let written = self.append(&mut state, line, &audit::day(SystemTime::now()));
        match &written {
            Ok(()) => state.lost = 0,
            Err(error) => {
                if state.lost == 0 {
                    let path = self.audit.path.display();
                    tracing::error!(%path, %error, "the audit log cannot be written");
                }
                state.lost += 1;
                let count = state.losses.take().map_or(0, |losses| losses.count) + 1;
                state.losses = Some(Losses { count, cause: failure::words(error) });
            }
        }
        written
    }

    /// A message about the records that could not be written, if there are any.
    pub(crate) fn losses(&self) -> Option<String> {
        let state = locked(&self.state);
        let Losses { count, cause } = state.losses.as_ref()?;
        let path = failure::shown(&self.audit.path);
        Some(format!("audit log {path}: records that could not be written: {count}: {cause}"))
    }

    fn append(&self, state: &mut State, mut line: Line<'_>, today: &str) -> io::Result<()> {
        let file = match state.file.take().filter(|file| file.is_current(today)) {
            Some(file) => state.file.insert(file),
            None => state.file.insert(LogFile::open(&self.directory, &self.name, today)?),
        };
        file.append_locked(self.audit.chain, |prev| {
            line.prev = prev;
            Ok(line.into_bytes()?)
        })
    }
}

/// The error for a log that cannot be opened.
fn open_error(audit: &Audit, source: io::Error) -> Error {
    let otherwise = match source.kind() {
        _ if source.raw_os_error() == Some(libc::ELOOP) => {
            "name the file itself: Kennel does not follow links; of /dev/fd, it accepts descriptors from 3 on"
        }
        io::ErrorKind::InvalidData => {
            "name another file: this one is not a log, or something else wrote to it"
        }
        io::ErrorKind::InvalidInput => "name a new file or an existing log",
        _ => "name a file in a directory that you can write",
    };
    let remedy = Some(of_path(&source, otherwise, otherwise));
    Error::Grant { what: "audit log", path: audit.path.clone(), source, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::chain::verify_audit;
    use crate::audit::record::{ArgumentsShape, Record, SpawnRecord};
    use crate::report::enforcement::Protection;

    #[test]
    fn each_day_has_its_own_file_and_chain() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("exec-{date}.log");
        let log = Log::open(&Audit { chain: true, ..Audit::new(path) }).expect("open");
        let mut state = log.state.lock().expect("not poisoned");
        for day in ["2026-01-31", "2026-01-31", "2026-02-01", "2026-02-02", "2026-02-02"] {
            let line = Line::new("1", "s", None, Record::SessionEnd {});
            log.append(&mut state, line, day).expect("written");
        }
        for (day, records) in [("2026-01-31", 2), ("2026-02-01", 1), ("2026-02-02", 2)] {
            let found = verify_audit(place.path().join(format!("exec-{day}.log")), None).expect("whole");
            assert_eq!((found.records, found.chained), (records, records), "{day}");
        }
    }

    #[test]
    fn a_chain_continues_for_writers_that_do_not_ask_for_one() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("log");
        for (chain, chained) in [(false, 0), (true, 1), (false, 2), (true, 3)] {
            let log = Log::open(&Audit { chain, ..Audit::new(&path) }).expect("open");
            log.write(Line::new("1", "s", None, Record::SessionEnd {})).expect("written");
            let found = verify_audit(&path, None).expect("whole");
            assert_eq!(found.chained, chained, "after {chain}");
        }
    }

    /// A writer that began without a chain notices that another writer has begun one.
    #[test]
    fn concurrent_writers_take_turns() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("log");
        let open = |chain| Log::open(&Audit { chain, ..Audit::new(&path) }).expect("open");
        let logs = [open(false), open(true), open(false), open(true)];
        std::thread::scope(|scope| {
            for log in &logs {
                scope.spawn(|| {
                    for _ in 0..50 {
                        log.write(Line::new("1", "s", None, Record::SessionEnd {})).expect("written");
                    }
                });
            }
        });
        let found = verify_audit(&path, None).expect("whole");
        assert_eq!(found.records, 200);
        assert!(found.chained >= 50, "{found:?}");
    }

    #[test]
    fn a_record_of_any_size_can_be_verified() {
        let place = tempfile::tempdir().expect("a directory");
        let audit = Audit { chain: true, ..Audit::new(place.path().join("log")) };
        let (huge, many) = ("\u{1}".repeat(1 << 20), vec!["\u{1}".repeat(1 << 14); 1 << 6]);
        let exec = Record::Exec {
            program: huge.clone(),
            arguments: many.len(),
            argv: Some(many.clone()),
            directory: huge.clone(),
            root: None,
        };
        let spawn = Record::Spawn(SpawnRecord {
            allowed: None,
            decision: "denied",
            program: &huge,
            operation: None,
            shape: ArgumentsShape::Lengths(vec![usize::MAX; 1 << 17]),
            variables: many.iter().map(String::as_str).collect(),
            credentials: many.iter().map(String::as_str).collect(),
            directory: Some(&huge),
            class: None,
            reason: Some(huge.clone()),
        });
        let denial = Record::Denial { protection: Protection::Seccomp, subject: &huge, reason: &huge };
        for record in [exec, spawn, denial] {
            // Opening the log again reads its last line.
            let log = Log::open(&audit).expect("open");
            log.write(Line::new("1", "s", None, record)).expect("written");
        }
        let found = verify_audit(&audit.path, None).expect("whole");
        assert_eq!((found.records, found.chained), (3, 3));
        let text = std::fs::read_to_string(&audit.path).expect("a log");
        assert_eq!(text.matches(r#""cut":true"#).count(), 3);
    }

    #[test]
    fn each_failed_attempt_to_open_the_file_again_is_an_error() {
        let place = tempfile::tempdir().expect("a directory");
        let log = Log::open(&Audit::new(place.path().join("log"))).expect("open");
        std::fs::remove_file(place.path().join("log")).expect("removed");
        std::fs::create_dir(place.path().join("log")).expect("a directory in its place");
        for _ in 0..2 {
            log.write(Line::new("1", "s", None, Record::SessionEnd {})).expect_err("no file");
        }
        std::fs::remove_dir(place.path().join("log")).expect("removed");
        log.write(Line::new("1", "s", None, Record::SessionEnd {})).expect("a file again");
        let text = std::fs::read_to_string(place.path().join("log")).expect("written");
        assert!(text.ends_with("\"lost\":2}\n"), "{text}");
    }
}
