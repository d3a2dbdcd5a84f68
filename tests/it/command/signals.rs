//! Signals sent to Kennel reach the command; stopping stops it and continuing continues it.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::{
    BEATEN, HEARTBEAT, SIGNALS, beats, by_env, is_silent, kennel, kennel_path, process_state, stdout, until,
    workspace,
};

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap())
}

/// Starts a script that prints a line when it is ready.
fn ready(dir: &Path, script: &str) -> (Child, impl Iterator<Item = String> + use<>) {
    ready_by_env(dir, "--default-signal", script)
}

/// The same, with the signals of `option` set when Kennel starts; see [`by_env`].
fn ready_by_env(dir: &Path, option: &str, script: &str) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut kennel = by_env(option, &kennel(dir, &[], &["sh", "-c", script]));
    let mut child = kennel.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    (child, lines)
}

#[test]
fn signals_reach_a_command_that_handles_them() {
    let dir = workspace();
    for (signal, name) in SIGNALS {
        let script =
            format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.02; done");
        let (mut child, mut lines) = ready(dir.path(), &script);
        kill(pid(&child), signal).unwrap();
        assert_eq!(lines.next().as_deref(), Some(format!("got {name}").as_str()));
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

#[test]
fn signals_end_a_command_that_does_not() {
    let dir = workspace();
    for (signal, name) in SIGNALS {
        let (mut child, _lines) = ready(dir.path(), "echo ready; exec sleep 60");
        kill(pid(&child), signal).unwrap();
        assert_eq!(crate::support::shown(child.wait().unwrap()), Some(128 + signal as i32), "{name}");
    }
}

#[test]
fn signals_reach_the_whole_process_group() {
    let dir = workspace();
    // The parent is ready before the child reports it for both.
    let script = "trap 'wait; echo parent; exit 4' TERM; (trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.02; done) & wait";
    let (mut child, lines) = ready(dir.path(), script);
    kill(pid(&child), Signal::SIGTERM).unwrap();
    let said: Vec<String> = lines.collect();
    assert_eq!(
        (child.wait().unwrap().code(), said),
        (Some(4), vec!["child".to_owned(), "parent".to_owned()])
    );
}

#[test]
fn ignored_signal_is_ignored() {
    let dir = workspace();
    let (mut child, mut lines) = ready(dir.path(), "trap '' TERM; echo ready; sleep 0.3; echo still here");
    kill(pid(&child), Signal::SIGTERM).unwrap();
    assert_eq!(lines.next().as_deref(), Some("still here"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn signals_that_kennel_inherited_as_ignored_are_not_passed_on() {
    let dir = workspace();
    for (signal, name) in SIGNALS.into_iter().filter(|(signal, _)| *signal != Signal::SIGTERM) {
        let script =
            format!("trap 'exit 3' {name}; trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done");
        let (mut child, _lines) = ready_by_env(dir.path(), &format!("--ignore-signal={name}"), &script);
        kill(pid(&child), signal).unwrap();
        kill(pid(&child), Signal::SIGTERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(9), "{name}");
    }
}

#[test]
fn stop_and_continue_reach_everything() {
    let dir = workspace();
    let script = format!("echo ready; ({HEARTBEAT}) & wait");
    let (mut child, _lines) = ready(dir.path(), &script);
    until("it beats", || beats(dir.path()) > 2);
    kill(pid(&child), Signal::SIGTSTP).unwrap();
    until("kennel is stopped", || process_state(child.id()) == Some('T'));
    assert!(is_silent(dir.path()), "the command is stopped too");
    kill(pid(&child), Signal::SIGCONT).unwrap();
    let before = beats(dir.path());
    until("it beats again", || beats(dir.path()) > before + 2);
    kill(pid(&child), Signal::SIGTERM).unwrap();
    assert_eq!(crate::support::shown(child.wait().unwrap()), Some(143));
}

#[test]
fn command_can_stop_and_continue_its_own_children() {
    let dir = workspace();
    let script = format!(
        "({HEARTBEAT}) & {BEATEN}; kill -STOP $!; a=$(wc -c < beat); sleep 0.1; b=$(wc -c < beat); kill -CONT $!; while c=$(wc -c < beat); [ $c -le $b ]; do sleep 0.1; done; test $((b - a)) -le 1 && echo ok"
    );
    assert_eq!(stdout(&crate::support::shell(dir.path(), &["--timeout", "60s"], &script)), "ok");
}

#[test]
fn signal_before_the_command_runs_does_not_leave_it_behind() {
    let dir = workspace();
    for delay in [0, 1, 2, 4, 8, 16] {
        let mut child = kennel(dir.path(), &[], &["sh", "-c", HEARTBEAT]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(delay));
        kill(pid(&child), Signal::SIGTERM).unwrap();
        child.wait().unwrap();
        assert!(is_silent(dir.path()), "after {delay} ms");
    }
}

#[test]
fn signal_storm_loses_no_status() {
    let dir = workspace();
    let (mut child, _lines) = ready(
        dir.path(),
        "trap : USR1 USR2 HUP; echo ready; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.02; done; exit 6",
    );
    while child.try_wait().unwrap().is_none() {
        for signal in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGHUP] {
            let _ = kill(pid(&child), signal);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(child.wait().unwrap().code(), Some(6));
}

#[test]
fn ignored_and_blocked_signals_of_the_caller_are_not_inherited() {
    let dir = workspace();
    let kennel = kennel_path();
    let script = format!(
        "trap '' INT TERM USR1 PIPE; exec '{}' run -- grep -E '^Sig(Ign|Blk)' /proc/self/status",
        kennel.display()
    );
    let output =
        std::process::Command::new("sh").current_dir(dir.path()).args(["-c", &script]).output().unwrap();
    assert_eq!(stdout(&output), "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000");
}
