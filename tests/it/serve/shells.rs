//! `kennel exec --shell`: the shell lives in the session's process, and each client runs one snippet in it.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Output, Stdio},
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Hosted, signal};
use crate::support::{ends, patient_flag, shown, stderr, stdout, until};

fn snippet(session: &Hosted, shell: &str, flags: &[&str], text: &str) -> Output {
    let arguments = [&["exec", "--shell", shell], flags, &["s", "--", text]].concat();
    session.kennel(&arguments).stdin(Stdio::null()).output().unwrap()
}

fn said(session: &Hosted, shell: &str, text: &str) -> String {
    let output = snippet(session, shell, &[], text);
    assert!(output.status.success() && stderr(&output).is_empty(), "{text}: {output:?}");
    stdout(&output)
}

#[test]
fn a_shell_of_the_session_keeps_its_state_between_clients() {
    let session = Hosted::start(&[]);
    assert_eq!(said(&session, "one", "mkdir -p d; cd d; export KEPT=1; f() { echo f $1; }"), "");
    assert_eq!(said(&session, "one", "echo ${PWD##*/} $KEPT; f x"), "d 1\nf x");
    assert_eq!(said(&session, "two", "echo ${PWD##*/} \"<$KEPT>\"").rsplit(' ').next(), Some("<>"));
    let output = snippet(&session, "one", &[], "echo out; echo err >&2; (exit 9)");
    assert_eq!(
        (output.status.code(), stdout(&output), stderr(&output)),
        (Some(9), "out".into(), "err".into())
    );
}

#[test]
fn the_snippet_may_come_from_stdin_and_be_long() {
    let session = Hosted::start(&[]);
    let mut exec = session.kennel(&["exec", "--shell", "one", "s"]);
    let mut exec = exec.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = exec.stdin.take().unwrap();
    let text = format!("var={}\necho ${{#var}}\ncat <<'END'\na b\nEND\n", "x".repeat(1 << 20));
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    let output = exec.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), format!("{}\na b", 1 << 20)));
    let mut exec = session.kennel(&["exec", "--shell", "one", "s"]);
    let mut exec = exec.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    exec.stdin.take().unwrap().write_all(b"echo a\0b").unwrap();
    let output = exec.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("NUL byte"), "{output:?}");
    let output =
        session.kennel(&["exec", "--shell", "one", "s", "--", "echo", "two words"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("put the snippet in quotes"), "{output:?}");
}

#[test]
fn output_appears_while_the_snippet_runs() {
    let session = Hosted::start(&[]);
    let mut exec = session.kennel(&[
        "exec",
        "--shell",
        "one",
        "s",
        "--",
        "echo ready; while [ ! -e go ]; do sleep 0.02; done; echo went",
    ]);
    let mut exec = exec.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(exec.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    fs::write(session.workspace.path().join("go"), "").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "went");
    assert!(exec.wait().unwrap().success());
}

#[test]
fn a_signal_to_the_client_interrupts_the_snippet_only() {
    let session = Hosted::start(&[]);
    said(&session, "one", "kept=1");
    for number in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        for flags in [&[][..], &["--exit-code"]] {
            let arguments =
                [&["exec", "--shell", "one"], flags, &["s", "--", "echo ready; sleep 1000"]].concat();
            let mut exec = session.kennel(&arguments);
            let mut exec =
                exec.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(exec.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            signal(&exec, number);
            let status = exec.wait().unwrap();
            assert_eq!(shown(status), Some(128 + number as i32), "{number}");
            assert_eq!(status.code().is_some(), !flags.is_empty(), "{number}");
            assert_eq!(said(&session, "one", "echo $kept"), "1", "{number}");
        }
    }
}

#[test]
fn a_client_that_is_killed_interrupts_its_snippet() {
    let session = Hosted::start(&[]);
    said(&session, "one", "kept=1");
    let mut exec = session.kennel(&["exec", "--shell", "one", "s", "--", "echo ready; sleep 1000"]);
    let mut exec = exec.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(exec.stdout.take().unwrap()).read_line(&mut line).unwrap();
    exec.kill().unwrap();
    exec.wait().unwrap();
    assert_eq!(said(&session, "one", "echo $kept"), "1");
}

/// It waits for its turn, and the signal is for it alone.
#[test]
fn a_signal_to_a_client_that_waits_for_its_turn_ends_only_the_client() {
    let session = Hosted::start(&[]);
    let run = |text: &str| {
        let mut exec = session.kennel(&["exec", "--shell", "one", "s", "--", text]);
        exec.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let go = session.workspace.path().join("go");
    let first = run("touch begun; while [ ! -e go ]; do sleep 0.02; done; echo first");
    until("it runs", || session.workspace.path().join("begun").exists());
    let mut second = run("touch never");
    // A signal before the session has read the request ends the client too.
    std::thread::sleep(Duration::from_millis(200));
    signal(&second, Signal::SIGINT);
    assert_eq!(shown(second.wait().unwrap()), Some(130));
    fs::write(go, "").unwrap();
    assert_eq!(stdout(&first.wait_with_output().unwrap()), "first");
    assert!(!said(&session, "one", "ls").contains("never"));
}

#[test]
fn a_timeout_interrupts_and_the_report_has_the_directory() {
    let session = Hosted::start(&[]);
    said(&session, "one", "kept=1; mkdir -p d; cd d");
    let file = session.runtime.path().join("report");
    let json = ["--json", file.to_str().unwrap()];
    let report = || -> Value { serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap() };
    let short = patient_flag(Duration::from_millis(300));
    let output = snippet(&session, "one", &[&json[..], &["--timeout", &short]].concat(), "sleep 1000");
    assert_eq!(output.status.code(), Some(124));
    assert!(stderr(&output).contains("timed out after"), "{output:?}");
    let text = report();
    let directory = session.workspace.path().canonicalize().unwrap().join("d").display().to_string();
    assert_eq!((&text["ended"], &text["shell"]["directory"]), (&"timed_out".into(), &directory.into()));
    assert_eq!((&text["shell"]["origin"], &text["shell"]["has_ended"]), (&"earlier".into(), &false.into()));
    let output = snippet(&session, "one", &json, "printf 12345; echo $kept >&2; exit 3");
    assert_eq!((output.status.code(), stdout(&output)), (Some(3), "12345".into()));
    let note = "kennel: note: shell one has ended: the next snippet runs in a new one";
    assert_eq!(stderr(&output), format!("1\n{note}"));
    let text = report();
    assert_eq!((&text["exit_code"], &text["stdout_bytes"]), (&3.into(), &5.into()));
    assert_eq!((&text["shell"]["has_ended"], &text["shell"]["directory"]), (&true.into(), &Value::Null));
    let output = snippet(&session, "one", &json, "echo \"<$kept>\"");
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "<>".into()));
    assert!(stderr(&output).contains("note: shell one: the earlier one has ended"), "{output:?}");
    assert_eq!(report()["shell"]["origin"], "replacement");
}

#[test]
fn stopping_the_session_ends_its_shells() {
    let session = Hosted::start(&[]);
    let mut exec = session.kennel(&["exec", "--shell", "one", "s", "--", "touch begun; sleep 1000"]);
    let mut exec = exec.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("it runs", || session.workspace.path().join("begun").exists());
    assert!(session.kennel(&["session", "stop", "s"]).output().unwrap().status.success());
    let status = ends("the client", &mut exec);
    assert_eq!(status.code(), Some(125), "{status:?}");
}
