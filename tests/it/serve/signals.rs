//! A signal while the session does not answer, or while nobody reads. `command::signals` has the usual ones.

use std::{fs::File, os::fd::AsFd, process::Stdio, thread, time::Duration};

use kennel::client::{Call, Client, Event};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Hosted, signal};
use crate::support::{HEARTBEAT, beats, ends, is_silent, patient, stderr, stdout, until, until_full};

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
        let mut ended = Ok(None);
        until("it was told to", || {
            ended = child.try_wait();
            !matches!(ended, Ok(None))
        });
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
    let (_unread, writer) = std::io::pipe().unwrap();
    let mut child = session.exec(&["yes"]).stdout(writer.try_clone().unwrap()).spawn().unwrap();
    until_full(&writer);
    signal(&child, Signal::SIGTERM);
    signal(&child, Signal::SIGCONT);
    assert_eq!(crate::support::shown(ends("it was told to", &mut child)), Some(128 + 15));
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
