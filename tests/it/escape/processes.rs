//! No process of a command survives it, and none delays its end.

use std::{
    fs,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use super::{check, check_outside, command, lines};
use crate::{
    plan::limits::has_pid_max,
    support::{is_root, patient, patient_flag, workspace},
};

/// Runs an attempt. Returns how long it took and how it ended.
fn timed(flags: &[&str], attempt: &[&str]) -> (Vec<String>, Option<i32>, Duration) {
    let ws = workspace();
    let start = Instant::now();
    let output = command(ws.path(), flags, attempt).output().unwrap();
    (lines(&output), crate::support::shown(output.status), start.elapsed())
}

#[test]
fn a_daemon_does_not_survive() {
    for attempt in ["daemon", "subreaper"] {
        let ws = workspace();
        let heart = ws.path().join("heart").display().to_string();
        let output = command(ws.path(), &[], &[attempt, &heart]).output().unwrap();
        assert_eq!(lines(&output).last().map(String::as_str), Some("ok"), "{output:?}");
        let beat = fs::read_to_string(&heart).unwrap();
        thread::sleep(Duration::from_millis(200));
        assert_eq!(fs::read_to_string(&heart).unwrap(), beat, "{attempt}: it still beats");
        // The reverse: while the command runs, so does its daemon.
        assert!(!beat.is_empty());
    }
}

#[test]
fn a_daemon_does_not_survive_the_death_of_kennel() {
    let ws = workspace();
    let heart = ws.path().join("heart").display().to_string();
    let mut child =
        command(ws.path(), &[], &["daemon-and-wait", &heart]).stdout(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + patient(Duration::from_secs(10));
    while !fs::read(&heart).is_ok_and(|beat| !beat.is_empty()) {
        assert!(Instant::now() < end, "it never beat");
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    thread::sleep(Duration::from_millis(300));
    let beat = fs::read_to_string(&heart).unwrap();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(fs::read_to_string(&heart).unwrap(), beat, "it still beats");
}

#[test]
fn killing_everyone_kills_only_what_is_inside() {
    let (said, code, _) = timed(&[], &["kill-everyone"]);
    assert_eq!((said.as_slice(), code), (&["ok".to_owned()][..], Some(0)));
}

#[test]
fn a_fork_bomb_is_bounded() {
    let unheld = is_root() && !has_pid_max();
    let (said, code, took) = if unheld {
        let flags =
            ["-q", "--cgroup", "off", "--pids", "50", "--timeout", "1s", "--on-unavailable", "degrade"];
        timed(&flags, &["fork-bomb"])
    } else {
        timed(&["-q", "--cgroup", "off", "--pids", "50"], &["fork-bomb"])
    };
    if unheld {
        // Nothing but the timeout limits real root there.
        assert_eq!(code, Some(124), "{said:?}");
    } else {
        assert_eq!((said.as_slice(), code), (&["EAGAIN".to_owned()][..], Some(0)));
    }
    assert!(took < patient(Duration::from_secs(20)), "{took:?}");
}

#[test]
fn orphans_are_reaped() {
    let (said, code, _) = timed(&[], &["orphans"]);
    assert_eq!((said.as_slice(), code), (&["0".to_owned()][..], Some(0)), "zombies left");
}

#[test]
fn a_command_that_ignores_every_signal_ends_in_time() {
    let (said, code, took) =
        timed(&["-q", "--timeout", &patient_flag(Duration::from_millis(300))], &["stubborn"]);
    assert_eq!((said.as_slice(), code), (&["ok".to_owned()][..], Some(124)));
    assert!(took < patient(Duration::from_secs(5)), "{took:?}");
}

#[test]
fn a_command_that_stops_itself_ends_in_time() {
    let (said, code, took) =
        timed(&["-q", "--timeout", &patient_flag(Duration::from_millis(300))], &["stop-self"]);
    assert_eq!((said.as_slice(), code), (&["ok".to_owned()][..], Some(124)));
    assert!(took < patient(Duration::from_secs(5)), "{took:?}");
}

#[test]
fn a_stopped_process_does_not_hold_up_the_end() {
    let (said, code, took) = timed(&[], &["stop-and-leave"]);
    assert_eq!((said.as_slice(), code), (&["ok".to_owned()][..], Some(0)));
    assert!(took < patient(Duration::from_secs(5)), "{took:?}");
}

/// IPC objects of the host have keys that everybody can name.
#[test]
fn shared_memory_of_the_host_is_not_there() {
    let ws = workspace();
    let key = i64::from(std::process::id()) + 0x6b65_0000;
    let (make, find) = (format!("shmget {key} 4096 0x3b6"), format!("shmget {key} 4096 0"));
    check_outside(&[(&make, "ok")]);
    check(ws.path(), &[], &[(&find, "ENOENT")]);
    // IPC_RMID
    check_outside(&[(&find, "ok"), ("shmctl % 0 0", "ok")]);
}

#[test]
fn queues_of_the_host_are_not_there() {
    let ws = workspace();
    let name = format!("kennel-escape-{}", std::process::id());
    check_outside(&[(&format!("mq_open s:{name} 0x42 0x1b6 0"), "ok")]);
    check(ws.path(), &[], &[(&format!("mq_open s:{name} 2 0 0"), "ENOENT")]);
    check_outside(&[(&format!("mq_open s:{name} 2 0 0"), "ok"), (&format!("mq_unlink s:{name}"), "ok")]);
}
