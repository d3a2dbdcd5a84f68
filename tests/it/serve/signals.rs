//! The client passes signals on to the command.

use std::{
    fs::File,
    io::{BufRead, BufReader, Lines},
    os::fd::AsFd,
    process::{Child, ChildStdout, Stdio},
    thread,
    time::Duration,
};

use kennel::client::{Call, Client, Event};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Hosted, signal};
use crate::support::{
    HEARTBEAT, SIGNALS, beats, by_env, ends, is_silent, patient, process_state, stderr, stdout, until,
};

/// Starts a script that prints `ready` first.
pub fn ready(session: &Hosted, script: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    ready_by_env(session, "--default-signal", script)
}

/// The same, with the signals of `option` set when the client starts; see [`by_env`].
fn ready_by_env(session: &Hosted, option: &str, script: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut client = by_env(option, &session.exec(&["sh", "-c", script]));
    let mut child = client.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    (child, lines)
}

#[test]
fn signals_reach_the_command() {
    let session = Hosted::start(&[]);
    for (number, name) in SIGNALS {
        let script =
            format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.02; done");
        let (mut child, mut lines) = ready(&session, &script);
        signal(&child, number);
        assert_eq!(lines.next().unwrap().unwrap(), format!("got {name}"));
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

#[test]
fn signals_end_a_command_that_does_not_catch_them() {
    let session = Hosted::start(&[]);
    for (number, name) in SIGNALS {
        let (mut child, _lines) = ready(&session, "echo ready; exec sleep 60");
        signal(&child, number);
        assert_eq!(crate::support::shown(child.wait().unwrap()), Some(128 + number as i32), "{name}");
    }
}

/// No process could pass them on to the command.
#[test]
fn signals_end_a_client_without_an_answer() {
    let session = Hosted::start(&[]);
    let tell = |number| kill(Pid::from_raw(session.host().cast_signed()), number).unwrap();
    for mut command in [session.exec(&["true"]), session.kennel(&["exec", "s", "--", "true"])] {
        tell(Signal::SIGSTOP);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        thread::sleep(patient(Duration::from_millis(300)));
        let waits = child.try_wait();
        signal(&child, Signal::SIGTERM);
        thread::sleep(patient(Duration::from_millis(300)));
        let ended = child.try_wait();
        tell(Signal::SIGCONT);
        assert_eq!(waits.unwrap(), None);
        assert_eq!(ended.unwrap().and_then(crate::support::shown), Some(128 + 15));
        assert!(stderr(&child.wait_with_output().unwrap()).contains("the session does not answer"));
    }
    assert!(session.is_well());
}

/// The user must know which process to end.
#[test]
fn a_session_that_does_not_answer_is_listed_without_a_wait() {
    let session = Hosted::start(&[]);
    let host = Pid::from_raw(session.host().cast_signed());
    kill(host, Signal::SIGSTOP).unwrap();
    let [listed, as_json, stopped] = [&["list"][..], &["list", "--json"], &["stop", "s"]].map(|arguments| {
        let mut command = session.kennel(&[&["session"], arguments].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    let [listed, as_json, stopped] =
        [listed, as_json, stopped].map(|child| thread::spawn(move || child.wait_with_output().unwrap()));
    // They get their answers before that, or never.
    let end = std::time::Instant::now() + patient(Duration::from_secs(20));
    while ![&listed, &as_json, &stopped].into_iter().all(thread::JoinHandle::is_finished) {
        if std::time::Instant::now() > end {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let in_time = [&listed, &as_json, &stopped].map(thread::JoinHandle::is_finished);
    kill(host, Signal::SIGCONT).unwrap();
    assert_eq!(in_time, [true; 3]);
    let [listed, as_json, stopped] = [listed, as_json, stopped].map(|waits| waits.join().unwrap());
    let line = stdout(&listed).lines().last().unwrap().to_owned();
    let words: Vec<&str> = line.split_whitespace().collect();
    let host = session.host().to_string();
    assert!(matches!(words[..], ["s", "-", _, "-", "-", pid, "-"] if pid == host), "{listed:?}");
    assert!(stderr(&listed).contains("it does not answer"), "{listed:?}");
    let lines: serde_json::Value = serde_json::from_slice(&as_json.stdout).unwrap();
    assert_eq!(lines[0]["pid"], session.host());
    assert!(lines[0]["ready"].is_null(), "{lines}");
    assert_eq!(stopped.status.code(), Some(125));
    assert!(stderr(&stopped).contains("it does not answer"), "{stopped:?}");
}

#[test]
fn exec_with_a_timeout_ends_although_the_session_does_not_answer() {
    let session = Hosted::start(&[]);
    let tell = |number| kill(Pid::from_raw(session.host().cast_signed()), number).unwrap();
    let exec = |timeout: &str, script: &str| {
        let mut exec = session.kennel(&["exec", "s", "--timeout", timeout, "--", "sh", "-c", script]);
        exec.stderr(Stdio::piped()).spawn().unwrap()
    };
    let running = exec(&format!("{}ms", patient(Duration::from_secs(3)).as_millis()), HEARTBEAT);
    until("it beats", || beats(session.workspace.path()) > 2);
    tell(Signal::SIGSTOP);
    let mut children = [running, exec("10ms", "touch ran")];
    let end = std::time::Instant::now() + patient(Duration::from_secs(20));
    while children.iter_mut().any(|child| child.try_wait().unwrap().is_none())
        && std::time::Instant::now() < end
    {
        thread::sleep(Duration::from_millis(50));
    }
    let ended = children.each_mut().map(|child| child.try_wait().unwrap());
    tell(Signal::SIGCONT);
    assert_eq!(ended.map(|status| status.and_then(|status| status.code())), [Some(125); 2]);
    for child in children {
        let said = stderr(&child.wait_with_output().unwrap());
        assert!(said.contains("session s: it does not answer, although the command's time is up"), "{said}");
    }
    until("it stops beating", || is_silent(session.workspace.path()));
    assert!(session.is_well() && !session.workspace.path().join("ran").exists());
}

/// timeout(1) sends SIGCONT after SIGTERM.
#[test]
fn signal_that_ended_the_command_is_not_hidden_by_a_later_one() {
    let session = Hosted::start(&["--max-output", "1G"]);
    let (mut child, _unread) = ready(&session, "echo ready; exec yes");
    // The pipe is full by then.
    thread::sleep(patient(Duration::from_millis(500)));
    signal(&child, Signal::SIGTERM);
    signal(&child, Signal::SIGCONT);
    assert_eq!(crate::support::shown(ends("it was told to", &mut child)), Some(128 + 15));
}

#[test]
fn stop_and_continue_reach_everything() {
    let session = Hosted::start(&[]);
    let dir = session.workspace.path();
    let (mut child, _lines) = ready(&session, &format!("echo ready; ({HEARTBEAT}) & wait"));
    until("it beats", || beats(dir) > 2);
    signal(&child, Signal::SIGTSTP);
    until("the client is stopped", || process_state(child.id()) == Some('T'));
    thread::sleep(Duration::from_millis(50));
    assert!(is_silent(dir), "the command is stopped too");
    signal(&child, Signal::SIGCONT);
    let before = beats(dir);
    until("it beats again", || beats(dir) > before + 2);
    // Stopped and continued a second time.
    signal(&child, Signal::SIGTSTP);
    until("the client is stopped again", || process_state(child.id()) == Some('T'));
    signal(&child, Signal::SIGCONT);
    signal(&child, Signal::SIGTERM);
    assert_eq!(crate::support::shown(child.wait().unwrap()), Some(143));
    until("it stops beating", || is_silent(dir));
}

#[test]
fn signal_before_the_command_runs_does_not_leave_it_behind() {
    let session = Hosted::start(&[]);
    for delay in [0, 1, 2, 4, 8, 16] {
        let mut child = session.exec(&["sh", "-c", HEARTBEAT]).spawn().unwrap();
        thread::sleep(Duration::from_millis(delay));
        signal(&child, Signal::SIGTERM);
        child.wait().unwrap();
        until("it stops beating", || is_silent(session.workspace.path()));
    }
}

/// The session reads it while the command waits for a worker: one is ready, and the others have to wait for
/// theirs.
#[test]
fn an_order_about_the_terminal_before_the_command_runs_does_not_drop_it() {
    let session = Hosted::start(&[]);
    let host = Pid::from_raw(session.host().cast_signed());
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    kill(host, Signal::SIGSTOP).unwrap();
    let clients = [true, false, true, false].map(|has| {
        let client = Client::connect_in(session.socket.parent().unwrap(), "s").unwrap();
        client.start(Call::new("sh").args(["-c", "exit 7"]), [null.as_fd(); 3]).unwrap();
        client.foreground(has).unwrap();
        client
    });
    kill(host, Signal::SIGCONT).unwrap();
    for client in clients {
        let event = client.next().unwrap();
        assert!(matches!(event, Event::Ended { code: 7, .. }), "{event:?}");
    }
}

#[test]
fn signals_that_the_client_inherited_as_ignored_are_not_passed_on() {
    let session = Hosted::start(&[]);
    for (number, name) in SIGNALS.into_iter().filter(|(number, _)| *number != Signal::SIGTERM) {
        let script =
            format!("trap 'exit 3' {name}; trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done");
        let (mut child, _lines) = ready_by_env(&session, &format!("--ignore-signal={name}"), &script);
        signal(&child, number);
        signal(&child, Signal::SIGTERM);
        assert_eq!(child.wait().unwrap().code(), Some(9), "{name}");
    }
}

#[test]
fn signal_storm_loses_no_status() {
    let session = Hosted::start(&[]);
    let script =
        "trap : USR1 USR2 HUP; echo ready; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.01; done; exit 6";
    for _ in 0..5 {
        let (mut child, _lines) = ready(&session, script);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            for number in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGHUP] {
                signal(&child, number);
            }
            thread::sleep(Duration::from_micros(200));
        };
        assert_eq!(status.code(), Some(6));
    }
}

#[test]
fn ignored_and_blocked_signals_of_the_client_are_not_inherited() {
    let session = Hosted::start(&[]);
    let line = "trap '' INT TERM USR1 PIPE; exec \"$@\"";
    let output = std::process::Command::new("sh")
        .current_dir(&session.workspace)
        .args(["-c", line, "sh"])
        .arg(session.client())
        .arg(&session.socket)
        .args(["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"])
        .output()
        .unwrap();
    assert_eq!(crate::support::stdout(&output), "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000");
}
