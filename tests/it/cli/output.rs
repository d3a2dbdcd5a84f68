//! The output of a command and Kennel's own lines, on their way through Kennel.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::Signal,
};
use serde_json::Value;

use crate::{
    serve::{Hosted, signal},
    support::{
        ends, full_pipe, kennel, kennel_path, patient_flag, payload_path, report, stderr, until, until_full,
        workspace,
    },
};

/// Both ways to run: `kennel run`, and `kennel exec` in a session.
pub(super) enum Way {
    Run,
    Exec(Box<Hosted>),
}

impl Way {
    pub(super) fn both() -> [Self; 2] {
        [Self::Run, Self::Exec(Box::new(Hosted::start(&[])))]
    }

    /// The command, not yet started, and the place where it runs.
    pub(super) fn command(&self, dir: &Path, json: &str, script: &str) -> (PathBuf, Command) {
        let shell = ["sh", "-c", script];
        match self {
            Self::Run => (dir.to_owned(), kennel(dir, &["--json", json], &shell)),
            Self::Exec(session) => {
                let exec = [&["exec", "s", "--json", json, "--"][..], &shell].concat();
                (session.workspace.path().to_owned(), session.kennel(&exec))
            }
        }
    }

    /// The result of a command whose output passes through Kennel, because Kennel captures it for the report.
    fn writing(&self, script: &str, stdout: impl Into<Stdio>) -> (Option<i32>, String, Value) {
        let dir = workspace();
        let file = dir.path().join("report.json");
        let (_, mut command) = self.command(dir.path(), file.to_str().unwrap(), script);
        let child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        let output = child.wait_with_output().unwrap();
        let report = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        (crate::support::shown(output.status), stderr(&output), report)
    }
}

pub(super) fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// Sends signals until the process has ended. The first signal may still reach the command, which has just
/// written its last output.
pub(super) fn is_ended_by_signals(child: &mut Child) {
    until("it ends when it is told to", || {
        signal(child, Signal::SIGTERM);
        thread::sleep(Duration::from_millis(200));
        child.try_wait().unwrap().is_some()
    });
}

/// Creates a file at a protected path. Kennel removes it and reports it.
const PROTECTED: &str = "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; echo out";

#[test]
fn output_that_cannot_be_written_is_reported() {
    for way in Way::both() {
        let (status, said, report) = way.writing(PROTECTED, full());
        let line = "write to stdout what the command wrote: No space left on device";
        assert_eq!((status, &report["exit_code"]), (Some(125), &125.into()), "{said} {report}");
        assert!(said.contains(line) && said.contains("a protected path"), "{said}");
        // The command ran, and the report says so.
        assert_eq!((&report["ended"], &report["stdout_bytes"]), (&"exited".into(), &4.into()), "{report}");
        assert_eq!((&report["truncated"], &report["failure"]["message"]), (&true.into(), &line.into()));
        assert!(!report["denials"].as_array().unwrap().is_empty(), "{report}");
    }
}

#[test]
fn a_full_stdout_has_the_hint_to_make_room_there() {
    for command in [&["probe"][..], &["policy", "show"], &["--help"]] {
        let output = Command::new(kennel_path()).args(command).stdout(full()).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{command:?}: {said}");
        assert!(said.contains("hint: make room there") && !said.contains("epoll"), "{command:?}: {said}");
    }
}

#[test]
fn denials_are_reported_even_if_the_report_is_lost() {
    for way in Way::both() {
        let dir = workspace();
        let (place, mut command) = way.command(dir.path(), "/dev/full", PROTECTED);
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), &b"out\n"[..]), "{said}");
        assert!(said.contains("a protected path"), "{said}");
        assert!(said.contains("report /dev/full: No space left on device"), "{said}");
        assert!(!place.join(".git/hooks/pre-commit").exists());
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_reader_that_does_not_read() {
    for way in Way::both() {
        let dir = workspace();
        let file = dir.path().join("report.json");
        // More than one pipe holds, less than two.
        let script = "head -c 100000 /dev/zero; touch done";
        let (place, mut command) = way.command(dir.path(), file.to_str().unwrap(), script);
        let (_reader, writer) = io::pipe().unwrap();
        let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        until("the command is at its end", || place.join("done").exists());
        is_ended_by_signals(&mut child);
        let output = child.wait_with_output().unwrap();
        let report: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        if report["signal"].is_null() {
            assert_eq!(output.status.code(), Some(125), "{output:?}");
            assert!(stderr(&output).contains("the command's output was not read"), "{output:?}");
        }
        assert_eq!(report["truncated"], true, "{report}");
    }
}

#[test]
fn a_command_that_gave_its_output_to_another_ends_by_itself() {
    let dir = workspace();
    let grant = format!("{}:/payload", payload_path().display());
    let file = dir.path().join("report.json");
    let json = file.to_str().unwrap();
    let longest = patient_flag(Duration::from_secs(30));
    let flags = ["--ro", &grant, "--timeout", &longest];
    let mut holds = kennel(dir.path(), &flags, &["/payload", "hold-stdout", "socket"]);
    let holder = holds.stdout(Stdio::piped()).spawn().unwrap();
    let mut gives =
        kennel(dir.path(), &["--ro", &grant, "--json", json], &["/payload", "give-stdout", "socket"]);
    let mut giver = gives.stdout(Stdio::piped()).spawn().unwrap();
    drop((holds, gives));
    until("kennel is at its end", || giver.try_wait().unwrap().is_some());
    fs::write(dir.path().join("socket.end"), "").unwrap();
    let output = giver.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"ok\n"[..]), "{output:?}");
    let report: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!((&report["stdout_bytes"], &report["truncated"]), (&3.into(), &false.into()), "{report}");
    assert_eq!(holder.wait_with_output().unwrap().stdout, b"ok\n", "it held it all the time");
}

/// A repository that git takes for one of a submodule, with a name that a command could have chosen.
fn submodule(workspace: &Path, name: &str) -> PathBuf {
    let module = workspace.join(".git/modules").join(name);
    for inner in ["objects", "refs"] {
        fs::create_dir_all(module.join(inner)).unwrap();
    }
    fs::write(module.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    module
}

#[test]
fn names_of_files_say_nothing_in_our_place() {
    let dir = workspace();
    let module = submodule(dir.path(), "m\u{1b}[2J\nkennel: all is well");
    let (output, said) = report(dir.path(), &[], &["mkdir", module.join("hooks").to_str().unwrap()]);
    assert!(output.status.success() && !module.join("hooks").exists(), "{output:?}");
    let words = stderr(&output);
    assert!(words.contains("m\\u{1b}[2J\\nkennel: all is well/hooks"), "{words}");
    assert!(words.lines().all(|line| !line.starts_with("kennel: all is well")), "{words}");
    let denials = said["denials"].as_array().unwrap();
    let shown = |key: &str| denials.iter().all(|one| !one[key].as_str().unwrap().contains(char::is_control));
    assert!(!denials.is_empty() && shown("subject") && shown("reason"), "{said}");
}

/// Kennel reports what an earlier command left before the next command has done anything.
#[test]
fn names_of_earlier_files_say_nothing_in_our_place() {
    let told = |name: &str, flags: &[&str]| {
        let dir = workspace();
        let module = submodule(dir.path(), name);
        fs::write(module.join("config"), "").unwrap();
        fs::hard_link(module.join("config"), module.join("other")).unwrap();
        let (output, said) = report(dir.path(), flags, &["true"]);
        (crate::support::shown(output.status), stderr(&output), said)
    };
    let (name, shown) = (
        "m\u{202e}\u{2066}\u{1b}[2J\nkennel: all is well",
        r"m\u{202e}\u{2066}\u{1b}[2J\nkennel: all is well/config",
    );
    let plain = |text: &str| !text.chars().any(|c| c.is_control() || "\u{202e}\u{2066}".contains(c));
    let (status, words, said) = told(name, &[]);
    assert!(status == Some(0) && words.contains(shown) && words.lines().all(plain), "{words}");
    assert!(words.lines().all(|line| !line.starts_with("kennel: all is well")), "{words}");
    let details = said["enforcement"]["protections"].as_array().unwrap();
    assert!(details.iter().all(|entry| plain(entry["detail"].as_str().unwrap())), "{said}");
    assert!(told("größe", &[]).1.contains("modules/größe/config has other hard links"));
    crate::support::require_ci_only!();
    let (status, words, said) = told(name, &["--profile", "ci-only"]);
    assert!(status == Some(125) && words.contains(shown) && words.lines().all(plain), "{words}");
    assert!(words.lines().all(|line| !line.starts_with("kennel: all is well")), "{words}");
    assert!(plain(said["failure"]["message"].as_str().unwrap()), "{said}");
}

/// A run with a denial, not yet started. Its command makes the file `ran`.
pub(super) fn denied(dir: &Path) -> Command {
    let hooks = submodule(dir, "m").join("hooks");
    let script = format!("mkdir '{}' && touch ran", hooks.display());
    kennel(dir, &[], &["sh", "-c", &script])
}

#[test]
fn a_denial_is_reported_even_if_the_command_filled_stderr() {
    let (mut reader, writer) = full_pipe();
    let dir = workspace();
    let mut child = denied(dir.path()).stderr(writer).spawn().unwrap();
    until("the command ran", || dir.path().join("ran").exists());
    // Time in which the line could be lost.
    thread::sleep(Duration::from_secs(2));
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!(ends("with a reader", &mut child).code(), Some(0));
    let said = said.trim_start_matches('.');
    let denials = said.lines().filter(|line| line.starts_with("kennel: denied: "));
    assert!(denials.count() == 1 && said.ends_with('\n'), "{said}");
}

#[test]
fn a_command_without_a_reader_gets_sigpipe() {
    for way in Way::both() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        // The command would not end by itself. Its end shows whether it was told.
        let (status, said, report) = way.writing("exec timeout 20 yes", writer);
        assert_eq!((status, &report["exit_code"]), (Some(128 + 13), &(128 + 13).into()), "{said} {report}");
    }
}

#[test]
fn a_non_blocking_pipe_gets_all_output() {
    for way in Way::both() {
        let (mut reader, writer) = io::pipe().unwrap();
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let other = writer.try_clone().unwrap();
        let slow = thread::spawn(move || {
            until_full(&other);
            drop(other);
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all.len()
        });
        let (status, said, report) = way.writing("yes | head -c 1000000", writer);
        assert_eq!((status, &report["stdout_bytes"]), (Some(0), &1_000_000.into()), "{said} {report}");
        assert_eq!(slow.join().unwrap(), 1_000_000);
    }
}

/// `2>&1` with a report: two pipes would mix up the lines.
#[test]
fn one_pipe_for_both_streams_keeps_the_order() {
    let script = "i=0; while [ $i -lt 200 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done";
    let expected: String = (0..200).map(|i| format!("o{i}\ne{i}\n")).collect();
    let session = crate::serve::Hosted::start(&[]);
    let dir = workspace();
    let mut doors = [
        kennel(dir.path(), &["--json", "/dev/null"], &["sh", "-c", script]),
        session.kennel(&["exec", "--json", "/dev/null", "s", "--", "sh", "-c", script]),
    ];
    for door in &mut doors {
        let (mut reader, writer) = std::io::pipe().unwrap();
        door.stdout(writer.try_clone().unwrap()).stderr(writer);
        let mut child = door.spawn().unwrap();
        // It holds the writing end, too.
        door.stdout(Stdio::null()).stderr(Stdio::null());
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(said, expected, "{door:?}");
    }
}
