//! A log that is open: which file it is in, and what has been lost.

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
use crate::sys::locked;

/// The log of a policy, for all sandboxes made of it.
#[derive(Debug)]
pub(crate) struct Log {
    audit: Audit,
    directory: OwnedFd,
    name: OsString,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// None where a file could not be opened anew.
    file: Option<LogFile>,
    /// Records that could not be written since the last that could.
    lost: u64,
    /// How many could not be written in all, and why not the last.
    unwritten: Option<(u64, String)>,
}

impl Log {
    /// Opens or makes the log; its path is absolute. Its directory is held from here on: names in it may come and go.
    ///
    /// # Errors
    /// It can be neither opened nor made, or is no log.
    pub(crate) fn open(audit: &Audit) -> Result<Self, Error> {
        Self::try_open(audit).map_err(|source| not_opened(audit, source))
    }

    fn try_open(audit: &Audit) -> io::Result<Self> {
        audit::make(&audit.path)?;
        let parent = audit.path.parent().unwrap_or(Path::new("/"));
        let name = audit.path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let directory = open(parent, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let file = LogFile::open(&directory, &name, &audit::day(SystemTime::now()))?;
        let state = Mutex::new(State { file: Some(file), lost: 0, unwritten: None });
        Ok(Self { audit: audit.clone(), directory, name, state })
    }

    /// What the policy says of it.
    pub(crate) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Appends a line.
    ///
    /// # Errors
    /// It is not written. What is lost is counted, and told once here and in the next line that is written.
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
                let before = state.unwritten.take().map_or(0, |(before, _)| before);
                state.unwritten = Some((before + 1, failure::words(error)));
            }
        }
        written
    }

    /// That records could not be written, if so, in words.
    pub(crate) fn unwritten(&self) -> Option<String> {
        let state = locked(&self.state);
        let (count, cause) = state.unwritten.as_ref()?;
        let path = failure::shown(&self.audit.path);
        Some(format!("audit log {path}: records that could not be written: {count}: {cause}"))
    }

    fn append(&self, state: &mut State, mut line: Line<'_>, today: &str) -> io::Result<()> {
        let file = match state.file.take().filter(|file| file.is_current(today)) {
            Some(file) => state.file.insert(file),
            None => state.file.insert(LogFile::open(&self.directory, &self.name, today)?),
        };
        file.append_in_turn(self.audit.chain, |prev| {
            line.prev = prev;
            Ok(line.into_bytes()?)
        })
    }
}

/// For a log that cannot be opened.
pub(crate) fn not_opened(audit: &Audit, source: io::Error) -> Error {
    let otherwise = match source.kind() {
        _ if source.raw_os_error() == Some(libc::ELOOP) => {
            "name the file itself: links to one are not followed; of /dev/fd, descriptors from 3 on are taken"
        }
        io::ErrorKind::InvalidData => {
            "name another file: this one is not a log, or something else wrote to it"
        }
        io::ErrorKind::InvalidInput => "name a file that is not there yet, or a log",
        _ => "name a file in a directory that you can write",
    };
    let remedy = Some(of_path(&source, otherwise, otherwise).to_owned());
    Error::Grant { what: "audit log", path: audit.path.clone(), source, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::chain::verify_audit;
    use crate::audit::record::{ArgumentsShape, Record, Spawn};
    use crate::report::enforcement::Protection;

    #[test]
    fn a_new_day_is_a_new_file_with_a_chain_of_its_own() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("exec-{date}.log");
        let log = Log::open(&Audit { chain: true, ..Audit::new(path) }).expect("open");
        let mut state = log.state.lock().expect("nobody else");
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
    fn a_chain_goes_on_also_for_who_does_not_ask_for_one() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("log");
        for (chain, chained) in [(false, 0), (true, 1), (false, 2), (true, 3)] {
            let log = Log::open(&Audit { chain, ..Audit::new(&path) }).expect("open");
            log.write(Line::new("1", "s", None, Record::SessionEnd {})).expect("written");
            let found = verify_audit(&path, None).expect("whole");
            assert_eq!(found.chained, chained, "after {chain}");
        }
    }

    /// Who began without a chain sees that another has begun one meanwhile.
    #[test]
    fn writers_side_by_side_take_turns() {
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
    fn a_record_of_any_size_is_a_line_that_can_be_verified() {
        let place = tempfile::tempdir().expect("a directory");
        let audit = Audit { chain: true, ..Audit::new(place.path().join("log")) };
        let (huge, many) = ("\u{1}".repeat(1 << 20), vec!["\u{1}".repeat(1 << 14); 1 << 6]);
        let exec = Record::Exec {
            program: huge.clone(),
            arguments: many.len(),
            argv: Some(many.clone()),
            directory: huge.clone(),
        };
        let spawn = Record::Spawn(Spawn {
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
            // Opened anew each time: the last line is what is read then.
            let log = Log::open(&audit).expect("open");
            log.write(Line::new("1", "s", None, record)).expect("written");
        }
        let found = verify_audit(&audit.path, None).expect("whole");
        assert_eq!((found.records, found.chained), (3, 3));
        let text = std::fs::read_to_string(&audit.path).expect("a log");
        assert_eq!(text.matches(r#""cut":true"#).count(), 3);
    }

    #[test]
    fn a_file_that_cannot_be_opened_again_is_an_error_each_time() {
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
