//! `kennel session ps`: what runs in a session, whatever commands do to their names.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::Stdio,
};

use serde_json::Value;

use super::Hosted;
use crate::support::{descendants, has, require, stderr, stdout, until};

const ISOLATIONS: [&str; 2] = ["command", "session"];

fn started(isolation: &str) -> Hosted {
    Hosted::start(&["--isolation", isolation])
}

/// The processes of the session as `--json` has them.
fn listed(session: &Hosted) -> Vec<Value> {
    let output = session.kennel(&["session", "ps", "s", "--json"]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["processes"].as_array().unwrap().clone()
}

fn line(process: &Value) -> String {
    let words = process["arguments"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    words.collect::<Vec<_>>().join(" ")
}

fn detach(session: &Hosted, command: &[&str]) -> String {
    let output = session.kennel(&[&["exec", "s", "-d", "--"], command].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    stdout(&output)
}

#[test]
fn an_idle_session_runs_nothing_although_kennel_has_processes_there() {
    for isolation in ISOLATIONS {
        let session = started(isolation);
        until("processes of Kennel", || !descendants(session.host()).is_empty());
        assert_eq!(listed(&session), [] as [Value; 0], "{isolation}");
        assert!(session.shell("true").status.success());
        until("the end of the command", || listed(&session).is_empty());
        let table = session.kennel(&["session", "ps", "s"]).output().unwrap();
        assert_eq!(stdout(&table), "    PID   ID STATE       AGE      CPU  MEMORY  COMMAND");
    }
}

#[test]
fn each_process_is_shown_with_its_numbers_and_its_command() {
    for isolation in ISOLATIONS {
        let session = started(isolation);
        let first = detach(&session, &["sh", "-c", "echo $$ > pid; sleep 1001 & wait"]);
        let second = detach(&session, &["sleep", "1002"]);
        until("three processes", || listed(&session).len() == 3);
        let processes = listed(&session);
        let of = |text: &str| processes.iter().find(|process| line(process).contains(text)).expect(text);
        let (shell, child, other) = (of("echo"), of("sleep 1001"), of("sleep 1002"));
        let expected = [&first, &first, &second].map(|id| id.parse::<u64>().ok());
        assert_eq!([shell, child, other].map(|process| process["command"].as_u64()), expected, "{isolation}");
        let pid = fs::read_to_string(session.workspace.path().join("pid")).unwrap();
        assert_eq!(shell["pid"].to_string(), pid.trim(), "{isolation}");
        for process in [shell, child, other] {
            let host = u32::try_from(process["host_pid"].as_u64().unwrap()).unwrap();
            assert!(descendants(session.host()).contains(&host), "{isolation}: {process}");
            assert!(process["memory"].as_u64().unwrap() > 0, "{process}");
        }
        let table = stdout(&session.kennel(&["session", "ps", "s"]).output().unwrap());
        let row = table.lines().find(|line| line.ends_with("  sleep 1002")).expect("the row");
        let words: Vec<_> = row.split_whitespace().collect();
        assert_eq!(words[..3], [other["pid"].to_string().as_str(), second.as_str(), "sleeping"]);
    }
}

#[test]
fn what_an_ended_command_left_is_shown_with_its_number() {
    let session = started("session");
    let id = detach(&session, &["sh", "-c", "sleep 1003 & exit 4"]);
    until("the end of the shell", || listed(&session).len() == 1);
    let processes = listed(&session);
    assert_eq!(
        (line(&processes[0]).as_str(), processes[0]["command"].as_u64()),
        ("sleep 1003", id.parse().ok())
    );
    let all = session.kennel(&["session", "ps", "s", "--all"]).output().unwrap();
    let all = stdout(&all);
    let row = all.lines().last().unwrap();
    assert!(row.starts_with("      -    1 exit 4") && row.ends_with("  sh"), "{all}");
    let without = stdout(&session.kennel(&["session", "ps", "s"]).output().unwrap());
    assert!(!without.contains("exit 4"), "{without}");
    assert!(session.kennel(&["session", "kill", "s", &id, "-s", "KILL"]).status().unwrap().success());
}

#[test]
fn a_command_of_a_client_is_shown_without_a_number() {
    for isolation in ISOLATIONS {
        let session = started(isolation);
        // Nor do workers that have served such a command give it their number.
        for _ in 0..3 {
            let id = detach(&session, &["true"]);
            assert!(session.kennel(&["session", "wait", "s", &id]).status().unwrap().success());
        }
        let mut client = session.exec(&["sh", "-c", "echo ready; read x"]);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(client.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let processes = listed(&session);
        assert_eq!(processes.len(), 1, "{isolation}: {processes:?}");
        assert_eq!(
            (line(&processes[0]).as_str(), &processes[0]["command"]),
            ("sh -c echo ready; read x", &Value::Null)
        );
        client.stdin.take().unwrap().write_all(b"\n").unwrap();
        client.wait().unwrap();
    }
}

#[test]
fn names_that_imitate_or_that_a_terminal_obeys_are_harmless() {
    require!(has("python3"), "no python3");
    // A name with a parenthesis and a state, and one that is not UTF-8. Arguments with a line, an escape, and
    // nothing.
    let script = "import ctypes, os, time
c = ctypes.CDLL(None)
names = [b'x) R 1 (y', b'\\xff\\xfe', b'a\\nNSpid:\\t7']
for name in names:
    if os.fork() == 0:
        c.prctl(15, name)
        time.sleep(1000)
os.execv('/bin/sleep', ['k\\x1b[2Jennel\\n 1 - init', '1004'])";
    for isolation in ISOLATIONS {
        let session = started(isolation);
        detach(&session, &["python3", "-c", script]);
        until("four processes with their names", || {
            let processes = listed(&session);
            processes.len() == 4
                && ["x) R 1 (y", "\u{fffd}\u{fffd}", "a\nNSpid:\t7"]
                    .iter()
                    .all(|name| processes.iter().any(|process| process["name"] == *name))
                && processes.iter().any(|process| line(process).contains("1004"))
        });
        let processes = listed(&session);
        let mut numbers: Vec<_> = processes.iter().map(|process| process["pid"].as_u64().unwrap()).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), 4, "{isolation}: {processes:?}");
        assert!(processes.iter().all(|process| process["state"] == "sleeping"), "{processes:?}");
        assert!(
            processes.iter().all(|process| process["pid"] != 7 || isolation == "session"),
            "{processes:?}"
        );
        let table = session.kennel(&["session", "ps", "s"]).output().unwrap().stdout;
        let table = String::from_utf8(table).unwrap();
        assert!(table.contains("k\\u{1b}[2Jennel\\n 1 - init 1004"), "{table}");
        assert_eq!(table.lines().count(), 5, "{table}");
        assert!(!table.contains('\u{1b}'));
    }
}

#[test]
fn a_long_command_line_is_cut() {
    let session = started("command");
    let long = "x".repeat(100_000);
    detach(&session, &["sh", "-c", "sleep 1005; exit", &long]);
    until("both processes", || listed(&session).len() == 2);
    let processes = listed(&session);
    let shell = processes.iter().find(|process| line(process).starts_with("sh")).unwrap();
    let length: usize =
        shell["arguments"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().len() + 1).sum();
    assert_eq!((length - 1, &shell["is_cut"]), (2048, &Value::Bool(true)));
    let table = stdout(&session.kennel(&["session", "ps", "s"]).output().unwrap());
    assert!(table.contains("xxx…"), "{table}");
}

#[test]
fn of_very_many_processes_the_oldest_are_listed_and_the_others_counted() {
    require!(has("python3"), "no python3");
    let session = started("session");
    let script = "import os, signal
for _ in range(1100):
    if os.fork() == 0:
        signal.pause()
open('done', 'w').close()
signal.pause()";
    let id = detach(&session, &["python3", "-c", script]);
    until("the processes", || session.workspace.path().join("done").exists());
    let output = session.kennel(&["session", "ps", "s"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!((table.lines().count(), table.matches("open('done'").count()), (1025, 1024));
    assert_eq!(stderr(&output), "kennel: note: 77 more processes are not listed");
    assert!(session.kennel(&["session", "kill", "s", &id, "-s", "KILL"]).status().unwrap().success());
    until("their end", || listed(&session).is_empty());
}

#[test]
fn a_session_that_is_not_there_has_no_processes_to_list() {
    let session = started("command");
    let output = session.kennel(&["session", "ps", "other"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stdout(&output).is_empty() && stderr(&output).contains("other"), "{output:?}");
}
