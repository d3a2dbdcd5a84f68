//! Every message for people and every report for programs. It decides nothing, and stops for nobody who does
//! not read.

pub(crate) mod remedy;

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
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anstyle::Style;
use kennel::{
    Error, Outcome,
    internal::{
        escape::{self, harmless},
        inherited_descriptor, terminal_size,
    },
    report::{Enforcement, Entry, Note, PublishedPort, Remedy, Report, State},
};
use serde::Serialize;
use serde_json::ser::{CompactFormatter, PrettyFormatter};
use textwrap::{Options, WordSeparator, WordSplitter, fill};

use crate::{
    process::descriptor::{reopen, reopen_nonblocking, write_all, write_patiently},
    terminal::{
        style::{self, Paint},
        table::Table,
    },
};
use remedy::FLAGS;

/// How long to wait for a stderr that takes nothing before dropping messages.
const STDERR_PATIENCE: Duration = Duration::from_secs(10);

/// Whether to drop messages because nobody reads stderr.
static STDERR_STALLED: AtomicBool = AtomicBool::new(false);

/// Prints one line on stderr. If stderr is closed or its disk is full, the exit status still tells how the
/// command ended.
pub(crate) fn say(line: impl Display) {
    // Anybody can choose a file name, and a terminal obeys control characters.
    message(&harmless(&line.to_string()), style::REMARK);
}

/// Prints a harmless message on stderr, on a terminal in colour and no wider than that.
fn message(line: &str, kind: Style) {
    let columns = terminal_size(io::stderr()).ok().map(|(_, columns)| columns);
    show(&styled(&within(line, columns), kind, Paint::stderr()));
}

/// A message whose lines end between words, if there is a terminal of that many columns. A flag stays with
/// its value, and what is longer than a line stays whole, so that both can be copied.
fn within(line: &str, columns: Option<u16>) -> String {
    /// Stands for a space that ends no line.
    const KEPT: &str = "\u{e000}";
    let Some(columns) = columns.filter(|columns| *columns > 0) else { return line.to_owned() };
    let mut kept = String::with_capacity(line.len());
    let mut words = line.split(' ').peekable();
    while let Some(word) = words.next() {
        kept += word;
        if words.peek().is_some() {
            let takes_value = !word.is_empty() && flag_in(word) == word;
            kept += if takes_value { KEPT } else { " " };
        }
    }
    let options = Options::new(columns.into()).subsequent_indent("  ").break_words(false);
    let options =
        options.word_splitter(WordSplitter::NoHyphenation).word_separator(WordSeparator::AsciiSpace);
    fill(&kept, options).replace(KEPT, " ")
}

/// Prints one line on stderr that is harmless and may have styles.
pub(crate) fn show(line: &str) {
    let line = format!("{line}\n");
    if STDERR_STALLED.load(Relaxed) {
        return;
    }
    let told = match reopen_nonblocking(io::stderr(), 2) {
        Some(stderr) => write_patiently(stderr, line.as_bytes(), STDERR_PATIENCE),
        None => write_patiently(io::stderr(), line.as_bytes(), STDERR_PATIENCE),
    };
    if told.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        STDERR_STALLED.store(true, Relaxed);
    }
}

/// The flag that a word begins with, without the punctuation after it.
fn flag_in(word: &str) -> &str {
    if word.starts_with("--") { word.trim_end_matches([';', ',', ':', '.', ')']) } else { "" }
}

/// A message with styles: for the name of this program, which tells remarks and errors apart, for what kind
/// of line it is, and for each flag that it names.
fn styled(line: &str, kind: Style, paint: Paint) -> String {
    const KINDS: [(&str, Style); 2] = [("hint:", style::HINT), ("note:", style::NOTE)];
    let Some(text) = line.strip_prefix("kennel: ").filter(|_| paint.is_on()) else { return line.to_owned() };
    let word = |word: &str| match flag_in(word) {
        "" => word.to_owned(),
        flag => {
            format!("{}{}", paint.paint(style::LITERAL, flag), word.get(flag.len()..).unwrap_or_default())
        }
    };
    let words = |text: &str| text.split(' ').map(word).collect::<Vec<_>>().join(" ");
    match KINDS.iter().find_map(|(kind, style)| Some((kind, style, text.strip_prefix(kind)?))) {
        Some((kind, style, text)) => {
            format!("{} {}{}", paint.paint(style::FAINT, "kennel:"), paint.paint(*style, kind), words(text))
        }
        None => format!("{} {}", paint.paint(kind, "kennel:"), words(text)),
    }
}

/// Prints lines that another Kennel process sent: its remarks, or an error with its hint.
pub(crate) fn relay(lines: &[u8], is_error: bool) {
    let kind = if is_error { style::ERROR } else { style::REMARK };
    String::from_utf8_lossy(lines).lines().for_each(|line| message(&harmless(line), kind));
}

/// Prints the addresses of published ports that the kernel chose: nobody knows them yet.
pub(crate) fn chosen(published: &[PublishedPort]) {
    let chosen = published.iter().filter(|port| port.chosen);
    chosen.for_each(|port| say(format_args!("kennel: published {port}")));
}

/// Prints an answer on stdout. A reader that closes early is no error.
///
/// # Errors
/// stdout cannot be written.
pub(crate) fn print(text: &[u8]) -> Result<(), Error> {
    printed(write_all(io::stdout(), text))
}

/// Treats the result of a finished write to stdout as [`print`] does.
///
/// # Errors
/// stdout could not be written.
pub(crate) fn printed(written: io::Result<()>) -> Result<(), Error> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::Io { what: "write to stdout", source: error })
        }
        _ => Ok(()),
    }
}

/// Prints an error with its causes on one line and its remedy on another.
pub(crate) fn error(error: &Error) {
    error_lines(&error.lines(FLAGS));
}

/// Prints the lines of an error.
pub(crate) fn error_lines(lines: &[String]) {
    lines.iter().for_each(|line| message(&harmless(line), style::ERROR));
}

/// Prints which protections are weaker than asked, and what was denied.
fn remarks(outcome: &Outcome) {
    degraded(&outcome.enforcement);
    outcome.remarks(FLAGS).iter().for_each(say);
}

/// Prints [`remarks`] unless `is_quiet`. Lost output and lost records are printed in any case.
pub(crate) fn end(outcome: &Outcome, is_quiet: bool) {
    if !is_quiet {
        return remarks(outcome);
    }
    let lost = outcome.unwritten.iter().chain(&outcome.unaudited);
    lost.for_each(|why| say(format_args!("kennel: {why}")));
}

/// Prints the protections that are weaker than asked, unless another protection does the same, and the notes.
pub(crate) fn degraded(enforcement: &Enforcement) {
    for entry in enforcement.remarkable() {
        say(format_args!("kennel: {} {}: {}", entry.name, state(entry.state), entry.detail));
    }
    for (cause, remedy) in causes(enforcement.remarkable()) {
        say(format_args!("kennel: cgroups: {cause}"));
        say(format_args!("kennel: hint: {}", remedy.in_words(FLAGS)));
    }
    enforcement.notes().iter().for_each(note);
}

/// The notes that were printed.
static NOTED: Mutex<Vec<Note>> = Mutex::new(Vec::new());

/// Prints a note, unless it was printed before.
pub(crate) fn note(note: &Note) {
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !noted.contains(note) {
        noted.push(note.clone());
        say(note.line(FLAGS));
    }
}

/// Why limits are weaker and what helps, each pair once.
fn causes<'e>(entries: impl Iterator<Item = &'e Entry>) -> Vec<(&'e str, &'e Remedy)> {
    let mut causes: Vec<_> =
        entries.filter_map(|entry| entry.cause.as_deref().zip(entry.remedy.as_ref())).collect();
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

/// A table of the protections, then the reasons for weaker limits.
pub(crate) fn enforcement_table(enforcement: &Enforcement) -> String {
    let table = Table::stdout();
    let row = |entry: &Entry| {
        let style = match entry.state {
            State::Enforced => style::GOOD,
            State::Degraded => style::WEAK,
            State::Off => style::BAD,
        };
        table.row("", entry.name.as_str(), style, state(entry.state), &entry.detail)
    };
    let rows = enforcement.protections().iter().map(row);
    let causes = causes(enforcement.protections().iter());
    let causes = causes.iter().map(|(cause, remedy)| {
        table.line("", "cgroups:", style::WEAK, cause)
            + &table.line("", "hint:", style::HINT, &remedy.in_words(FLAGS))
    });
    rows.chain(causes).collect()
}

/// Formats plain data as indented JSON that does nothing to a terminal.
///
/// # Errors
/// The data contains a path that is not UTF-8, which JSON cannot hold.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Error> {
    let text = escape::json(value, PrettyFormatter::new());
    let text = text.map_err(|error| Error::Io { what: "write as JSON", source: error.into() })?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Creates the file of `--json`. An earlier command may have left a link or a pipe at that path in the
/// workspace, and any user in a directory such as /dev/shm. So only a path that names a descriptor, such as
/// /dev/stdout, may lead elsewhere; the caller opened that file.
///
/// # Errors
/// The file cannot be written, or is not a regular file.
pub(crate) fn create(path: &Path) -> Result<File, Error> {
    let copy = |ours: BorrowedFd<'_>| Ok(ours.try_clone_to_owned()?.into());
    let opened = match path.to_str() {
        Some("/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1") => copy(io::stdout().as_fd()),
        Some("/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2") => copy(io::stderr().as_fd()),
        // A descriptor that Kennel opened itself is not for reports.
        Some(text) if names_descriptor(text) => {
            inherited_descriptor(path).transpose().and_then(|_| reopen(path))
        }
        _ => create_file(path),
    };
    opened.map_err(|error| unwritten(path, error))
}

/// Matches `/dev/stdin`, `/dev/fd/N` and `/proc/…/fd/N`.
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

/// Opens an empty file or a system device, without following a link or waiting for a reader.
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

/// Writes the report of a command.
pub(crate) fn write(file: &File, path: &Path, report: &[u8]) -> Result<(), Error> {
    let written = write_all(file, report).and_then(|()| write_all(file, b"\n"));
    written.map_err(|error| unwritten(path, error))
}

fn unwritten(path: &Path, source: io::Error) -> Error {
    let remedy = match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space on the file system of --json"
        }
        _ if source.raw_os_error() == Some(libc::ELOOP) => {
            "pass the file itself to --json: links are not followed"
        }
        _ => "pass a writable file to --json",
    };
    Error::Grant { what: "report", path: path.to_owned(), source, remedy: Some(remedy.into()) }
}

/// The object of `--json`, on one line.
pub(crate) fn object(report: &Report) -> Vec<u8> {
    json_line(&report.clone().worded(FLAGS))
}

/// Formats plain data as JSON on one line.
pub(crate) fn json_line(value: &impl Serialize) -> Vec<u8> {
    // Plain data always serializes.
    escape::json(value, CompactFormatter).unwrap_or_default()
}

/// Corrects the report that a session made, if some output was not shown: sets the exit status and, if there
/// is one, the error `why`.
pub(crate) fn correct_unshown(object: &[u8], code: u8, why: Option<&Error>) -> Vec<u8> {
    let Ok(serde_json::Value::Object(mut report)) = serde_json::from_slice(object) else {
        return object.to_owned();
    };
    report.insert("exit_code".to_owned(), code.into());
    report.insert("truncated".to_owned(), true.into());
    // The reason why the command ended comes first.
    let has_failed = report.get("failure").is_some_and(|failure| !failure.is_null());
    if let Some(error) = why.filter(|_| !has_failed) {
        report.insert(
            "failure".to_owned(),
            serde_json::to_value(error.failure().worded(FLAGS)).unwrap_or_default(),
        );
    }
    json_line(&report)
}
