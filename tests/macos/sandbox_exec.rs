//! A stand-in for sandbox-exec(1) of macOS: `sandbox-exec -p PROFILE PROGRAM ARG…`.
//!
//! It reads the profile with parsers that are not Kennel's. It starts the program if the profile allows that,
//! without confining it, so that streams, signals, limits and ends are real. What a confined program could do
//! is asked with a program named `attempt`: `attempt OPERATION SUBJECT` ends with 0 if the profile allows the
//! operation, and with 1 if not. `OPERATION:link` is about a symbolic link at that path, and
//! `OPERATION:directory` about a directory.

#![expect(clippy::print_stderr, reason = "as the real one says it")]

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[path = "judge.rs"]
mod judge;

use judge::{Profile, Subject};

fn main() -> ExitCode {
    let mut words = env::args().skip(1);
    assert_eq!(words.next().as_deref(), Some("-p"));
    let profile = Profile::parse(&words.next().expect("a profile"));
    assert!(!profile.rules().is_empty());
    let program = words.next().expect("a program");
    let rest: Vec<String> = words.collect();
    let shown = |path: &str| real(Path::new(path)).to_string_lossy().into_owned();
    if !program.ends_with("/attempt") {
        if !profile.allows("process-exec", &Subject::File(&shown(&program))) {
            // sysexits(3): what the real one says is EX_NOPERM too.
            eprintln!("sandbox-exec: execvp() of '{program}' failed: Operation not permitted");
            return ExitCode::from(71);
        }
        let error = Command::new(&program).args(rest).exec();
        panic!("{program}: {error}");
    }
    let [operation, subject] = &*rest else { panic!("attempt OPERATION SUBJECT") };
    let (operation, kind) = operation.split_once(':').unwrap_or((operation, "file"));
    let path = if kind == "link" { real_place(Path::new(subject)) } else { shown(subject) };
    let subject = match operation.split('-').next() {
        Some("network") if !subject.starts_with('/') => Subject::Address(subject),
        Some("mach") => Subject::Service(subject),
        Some("signal") => Subject::Stranger,
        Some("sysctl") => Subject::Parameter(subject),
        _ if kind == "link" => Subject::Link(&path),
        _ if kind == "directory" => Subject::Directory(&path),
        Some("process") if operation == "process-fork" => Subject::Nothing,
        _ => Subject::File(&path),
    };
    ExitCode::from(u8::from(!profile.allows(operation, &subject)))
}

/// The real path of a link itself.
fn real_place(path: &Path) -> String {
    let parent = real(path.parent().expect("a directory"));
    parent.join(path.file_name().expect("a name")).to_string_lossy().into_owned()
}

/// The path that the kernel of macOS would compare: links are resolved as far as the path exists, and what is
/// a link into `/private` there is one here too.
fn real(path: &Path) -> PathBuf {
    let existing = path.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(path);
    let missing = path.strip_prefix(existing).unwrap_or(Path::new(""));
    let mut real = existing.canonicalize().unwrap_or_else(|_| existing.to_owned());
    if !missing.as_os_str().is_empty() {
        real.push(missing);
    }
    match ["/tmp", "/var", "/etc"].iter().any(|link| real.starts_with(link)) {
        true => Path::new("/private").join(real.strip_prefix("/").expect("absolute")),
        false => real,
    }
}
