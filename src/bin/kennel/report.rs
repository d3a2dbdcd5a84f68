//! What is said to people and machines about a run: one place for every message.

use std::{
    collections::HashSet,
    fmt::Display,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileTypeExt, OpenOptionsExt},
    },
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use kennel::{Enforcement, Entry, Error, Outcome, Report, State, inherited_descriptor};
use serde::Serialize;

use crate::{
    descriptor::{anew, unblocked, write_all, write_patiently},
    escape::harmless,
};

/// How long stderr may take nothing before what we have to say is dropped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether nothing more is said, because nobody reads.
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// One line to whoever watches. Where nobody does, a closed pipe or a full disk, the exit status is still the command's.
pub(crate) fn say(line: impl Display) {
    // Names of files are not ours, and a terminal obeys some characters.
    let line = harmless(&line.to_string()) + "\n";
    if IS_DONE.load(Relaxed) {
        return;
    }
    let told = match unblocked(io::stderr(), "/proc/self/fd/2") {
        Some(stderr) => write_patiently(stderr, line.as_bytes(), PATIENCE),
        None => write_patiently(io::stderr(), line.as_bytes(), PATIENCE),
    };
    if told.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        IS_DONE.store(true, Relaxed);
    }
}

/// Lines that another process of ours has to say.
pub(crate) fn pass(lines: &[u8]) {
    String::from_utf8_lossy(lines).lines().for_each(say);
}

/// Answers on stdout. A reader that has seen enough is no error.
///
/// # Errors
/// It cannot be written.
pub(crate) fn answer(text: &[u8]) -> Result<(), Error> {
    answered(write_all(io::stdout(), text))
}

/// The same of an answer that was written already.
///
/// # Errors
/// It could not be written.
pub(crate) fn answered(written: io::Result<()>) -> Result<(), Error> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::Io { what: "write to stdout", source: error })
        }
        _ => Ok(()),
    }
}

/// One line with the chain of causes, one with the remedy.
pub(crate) fn error(error: &Error) {
    error.lines().iter().for_each(say);
}

/// What was not enforced as asked, and what was refused.
pub(crate) fn remarks(outcome: &Outcome) {
    weak(&outcome.enforcement);
    outcome.remarks().iter().for_each(say);
}

/// [`remarks`], unless they are to be left out; what was lost is said in any case.
pub(crate) fn end(outcome: &Outcome, is_quiet: bool) {
    if !is_quiet {
        return remarks(outcome);
    }
    let lost = outcome.unwritten.iter().chain(&outcome.unaudited);
    lost.for_each(|why| say(format_args!("kennel: {why}")));
}

/// What was not enforced as asked, and nothing else keeps.
pub(crate) fn weak(enforcement: &Enforcement) {
    for entry in enforcement.remarkable() {
        say(format_args!("kennel: {} {}: {}", entry.name, state(entry.state), entry.detail));
    }
    for (cause, remedy) in causes(enforcement.remarkable()) {
        say(format_args!("kennel: cgroups: {cause}"));
        say(format_args!("kennel: hint: {remedy}"));
    }
}

/// Why limits are weaker, and what would help: each once.
fn causes<'e>(entries: impl Iterator<Item = &'e Entry>) -> Vec<(&'e str, &'e str)> {
    let mut causes: Vec<_> =
        entries.filter_map(|entry| entry.cause.as_deref().zip(entry.remedy.as_deref())).collect();
    let mut told = HashSet::new();
    causes.retain(|cause| told.insert(*cause));
    causes
}

fn state(state: State) -> &'static str {
    match state {
        State::Enforced => "enforced",
        State::Degraded => "degraded",
        State::Off => "off",
    }
}

/// One line a protection, and then why limits are weaker.
pub(crate) fn enforcement_table(enforcement: &Enforcement) -> String {
    let line =
        |entry: &Entry| format!("{:<20} {:<9} {}\n", entry.name.as_str(), state(entry.state), entry.detail);
    let lines = enforcement.protections().iter().map(line);
    let causes = causes(enforcement.protections().iter());
    lines.chain(causes.iter().map(|(cause, remedy)| format!("cgroups: {cause}\nhint: {remedy}\n"))).collect()
}

/// Pretty JSON of plain data.
///
/// # Errors
/// A path in it that is not UTF-8: JSON has no way to write that.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string_pretty(value);
    text.map_err(|error| Error::Io { what: "write as JSON", source: error.into() })
}

/// Creates the file of `--json`. In the workspace an earlier command may have left a link in its place, which must not
/// lead us elsewhere, or a pipe, which nobody reads, and so may anybody in a place such as /dev/shm; only what names a
/// descriptor, such as /dev/stdout, may lead elsewhere, and what it leads to is somebody's already.
///
/// # Errors
/// What cannot be written, or is no file.
pub(crate) fn create(path: &Path) -> Result<File, Error> {
    let copy = |ours: BorrowedFd<'_>| Ok(ours.try_clone_to_owned()?.into());
    let opened = match path.to_str() {
        Some("/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1") => copy(io::stdout().as_fd()),
        Some("/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2") => copy(io::stderr().as_fd()),
        // One of our own is nobody's report.
        Some(text) if names_descriptor(text) => {
            inherited_descriptor(path).transpose().and_then(|_| anew(path))
        }
        _ => create_file(path),
    };
    opened.map_err(|error| unwritten(path, error))
}

/// `/dev/stdin`, `/dev/fd/N`, `/proc/…/fd/N`.
fn names_descriptor(path: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_process = |text: &str| matches!(text, "self" | "thread-self") || is_number(text);
    match path.split('/').collect::<Vec<_>>()[..] {
        ["", "dev", "stdin" | "stdout" | "stderr"] => true,
        ["", "dev", "fd", number] => is_number(number),
        ["", "proc", process, "fd", number] => is_process(process) && is_number(number),
        _ => false,
    }
}

/// Through no link, and waiting for nobody: an empty file, or a device of the system's.
fn create_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        file.set_len(0)?;
    } else if !kind.is_char_device() || !path.starts_with("/dev") {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// Writes the report of a command, however it went.
pub(crate) fn write(file: &File, path: &Path, report: &[u8]) -> Result<(), Error> {
    let written = write_all(file, report).and_then(|()| write_all(file, b"\n"));
    written.map_err(|error| unwritten(path, error))
}

fn unwritten(path: &Path, source: io::Error) -> Error {
    let remedy = match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room on the file system of --json",
        _ if source.raw_os_error() == Some(libc::ELOOP) => {
            "name the file itself with --json: a link to one is not followed"
        }
        _ => "name a file that can be written with --json",
    };
    Error::Grant { what: "report", path: path.to_owned(), source, remedy: Some(remedy.into()) }
}

/// The object of `--json`, on one line.
pub(crate) fn object(report: &Report) -> Vec<u8> {
    // Plain data; nothing in it can fail to be JSON.
    serde_json::to_vec(report).unwrap_or_default()
}

/// The object that a session made of a command of which not all was shown, with our own status, and `why` where that is
/// told.
pub(crate) fn unshown(object: &[u8], code: u8, why: Option<&Error>) -> Vec<u8> {
    let Ok(serde_json::Value::Object(mut report)) = serde_json::from_slice(object) else {
        return object.to_owned();
    };
    report.insert("exit_code".to_owned(), code.into());
    report.insert("truncated".to_owned(), true.into());
    // What ended it is told first.
    let has_failed = report.get("failure").is_some_and(|failure| !failure.is_null());
    if let Some(error) = why.filter(|_| !has_failed) {
        report.insert("failure".to_owned(), serde_json::to_value(error.failure()).unwrap_or_default());
    }
    serde_json::to_vec(&report).unwrap_or_default()
}
