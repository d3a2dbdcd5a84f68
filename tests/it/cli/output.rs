//! What a command writes and what is called after it, on the way through Kennel.

use std::{
    fs::{self, File},
    io::{self, Read},
    process::Stdio,
    thread,
    time::Duration,
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde_json::Value;

use crate::support::{kennel, report, stderr, workspace};

/// What comes of a command that writes, where its output passes through Kennel because it is reported.
fn writing(script: &str, stdout: impl Into<Stdio>) -> (Option<i32>, String, Value) {
    let dir = workspace();
    let file = dir.path().join("report.json");
    let mut command = kennel(dir.path(), &["--json", file.to_str().unwrap()], &["sh", "-c", script]);
    let child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let output = child.wait_with_output().unwrap();
    let report = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    (output.status.code(), stderr(&output), report)
}

#[test]
fn output_that_cannot_be_written_is_not_lost_in_silence() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (status, said, report) = writing("echo out", full);
    assert_eq!((status, &report["exit_code"]), (Some(125), &125.into()), "{said} {report}");
    assert!(said.contains("write to stdout what the command wrote: No space left on device"), "{said}");
}

#[test]
fn names_of_files_say_nothing_in_our_place() {
    let dir = workspace();
    let name = "m\u{1b}[2J\nkennel: all is well";
    let module = dir.path().join(".git/modules").join(name);
    for inner in ["objects", "refs"] {
        fs::create_dir_all(module.join(inner)).unwrap();
    }
    fs::write(module.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    let (output, said) = report(dir.path(), &[], &["mkdir", module.join("hooks").to_str().unwrap()]);
    assert!(output.status.success() && !module.join("hooks").exists(), "{output:?}");
    let words = stderr(&output);
    assert!(words.contains("m\\u{1b}[2J\\nkennel: all is well/hooks"), "{words}");
    assert!(words.lines().all(|line| !line.starts_with("kennel: all is well")), "{words}");
    let denials = said["denials"].as_array().unwrap();
    let shown = |key: &str| denials.iter().all(|one| !one[key].as_str().unwrap().contains(char::is_control));
    assert!(!denials.is_empty() && shown("subject") && shown("reason"), "{said}");
}

#[test]
fn a_command_whose_reader_is_gone_is_told() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let (status, said, report) = writing("exec yes", writer);
    assert_eq!((status, &report["signal"]), (Some(128 + 13), &13.into()), "{said} {report}");
}

#[test]
fn a_pipe_that_somebody_made_non_blocking_gets_all() {
    let (mut reader, writer) = io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let slow = thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        all.len()
    });
    let (status, said, report) = writing("yes | head -c 1000000", writer);
    assert_eq!((status, &report["stdout_bytes"]), (Some(0), &1_000_000.into()), "{said} {report}");
    assert_eq!(slow.join().unwrap(), 1_000_000);
}
