//! Nothing outlives the command, and nothing outlives Kennel, however either ends.

use std::{
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    BEATEN, HEARTBEAT, beats, is_silent, kennel, patient, patient_flag, shell, succeeds, until, workspace,
};

#[test]
fn background_processes_end_with_the_command() {
    let dir = workspace();
    for script in [
        format!("({HEARTBEAT}) & {BEATEN}"),
        format!("setsid sh -c '{HEARTBEAT}' & {BEATEN}"),
        format!("nohup sh -c '{HEARTBEAT}' > /dev/null 2>&1 & {BEATEN}"),
        format!("(setsid setsid sh -c 'trap \"\" TERM HUP INT; {HEARTBEAT}' &) & {BEATEN}"),
    ] {
        let output = shell(dir.path(), &[], &script);
        assert!(output.status.success() && beats(dir.path()) > 0, "{output:?}");
        assert!(is_silent(dir.path()), "{script}");
        std::fs::remove_file(dir.path().join("beat")).unwrap();
    }
}

/// A process in the background that removes its lock when it gets SIGTERM.
const LOCKS: &str = "(trap 'rm lock; exit' TERM; touch lock; while :; do sleep 0.01; done) & until [ -e lock ]; do sleep 0.01; done";

#[test]
fn what_a_command_leaves_running_may_remove_its_locks() {
    let dir = workspace();
    let lock = dir.path().join("lock");
    for script in [LOCKS.to_owned(), format!("{LOCKS}; kill -STOP $!"), format!("{LOCKS}; exit 3")] {
        let (output, report) = crate::support::report(dir.path(), &[], &["sh", "-c", &script]);
        assert!(!lock.exists(), "{script}: {output:?}");
        assert!(report["usage"]["killed"].as_u64().is_some_and(|count| count > 0), "{report}");
    }
    // A timeout kills at once.
    let timeout = patient_flag(Duration::from_secs(1));
    let script = format!("{LOCKS}; sleep 100");
    let output = kennel(dir.path(), &["--timeout", &timeout], &["sh", "-c", &script]).output().unwrap();
    assert_eq!((output.status.code(), lock.exists()), (Some(124), true), "{output:?}");
}

#[test]
fn what_helps_a_process_to_end_does_not_count_as_left() {
    let dir = workspace();
    let left = "trap 'rm lock & /bin/true & /bin/true & exit' TERM; mkfifo pipe; exec 3<>pipe; : > lock; \
        read line <&3";
    let script = format!("({left}) & until [ -e lock ]; do sleep 0.01; done");
    let (output, report) = crate::support::report(dir.path(), &[], &["sh", "-c", &script]);
    assert_eq!(report["usage"]["killed"], 1, "{output:?}");
}

#[test]
fn what_ignores_sigterm_has_a_second() {
    let dir = workspace();
    let start = Instant::now();
    let script = format!("(trap '' TERM HUP INT; {HEARTBEAT}) & {BEATEN}; exit 4");
    let output = shell(dir.path(), &[], &script);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(1) && took < patient(Duration::from_secs(5)), "{took:?}");
    assert!(is_silent(dir.path()));
}

#[test]
fn everything_is_dead_when_the_status_is_there() {
    let dir = workspace();
    let script =
        "i=0; while [ $i -lt 40 ]; do (while :; do echo x >> file$i; done) & i=$((i+1)); done; sleep 0.1";
    let (_, report) = crate::support::report(dir.path(), &[], &["sh", "-c", script]);
    let size = || -> u64 {
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    };
    let at_end = size();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(size(), at_end, "nothing writes after the end");
    assert_eq!(report["usage"]["killed"], 40);
}

#[test]
fn timeout_ends_everything() {
    let dir = workspace();
    let script = format!("trap '' TERM INT; (setsid sh -c '{HEARTBEAT}') & while :; do sleep 1; done");
    let output =
        kennel(dir.path(), &["--timeout", &patient_flag(Duration::from_millis(300))], &["sh", "-c", &script])
            .output()
            .unwrap();
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(beats(dir.path()) > 0 && is_silent(dir.path()));
}

#[test]
fn timeout_ends_a_stopped_command() {
    let dir = workspace();
    let output =
        kennel(dir.path(), &["--timeout", "200ms"], &["sh", "-c", "kill -STOP $$"]).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{output:?}");
}

#[test]
fn timeout_holds_while_nobody_reads_the_output() {
    let dir = workspace();
    for flags in [&["--timeout", "200ms"][..], &["--timeout", "200ms", "--max-output", "1G"]] {
        let start = Instant::now();
        let mut child =
            kennel(dir.path(), flags, &["yes"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(124));
        assert!(start.elapsed() < patient(Duration::from_secs(5)), "{flags:?}");
    }
}

#[test]
fn death_of_kennel_ends_everything() {
    let dir = workspace();
    for _ in 0..3 {
        let script = format!("trap '' TERM HUP INT; (setsid sh -c '{HEARTBEAT}') & {HEARTBEAT}");
        let mut child = kennel(dir.path(), &[], &["sh", "-c", &script]).spawn().unwrap();
        until("it beats", || beats(dir.path()) > 5);
        child.kill().unwrap();
        child.wait().unwrap();
        until("it stops beating", || is_silent(dir.path()));
        std::fs::remove_file(dir.path().join("beat")).unwrap();
    }
}

#[test]
fn death_of_kennel_while_it_starts_leaves_nothing() {
    let dir = workspace();
    for delay in 0..20 {
        let mut child = kennel(dir.path(), &[], &["sh", "-c", HEARTBEAT]).spawn().unwrap();
        thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    until("it stops beating", || is_silent(dir.path()));
}

#[test]
fn zombies_are_reaped() {
    let dir = workspace();
    // Orphans: their parent ends before them, so only init can reap them.
    let script = "i=0; while [ $i -lt 50 ]; do (sleep 0.01 &) ; i=$((i+1)); done; sleep 0.5; cat /proc/[0-9]*/stat | grep -c ') Z ' || true";
    assert_eq!(succeeds(dir.path(), &[], script), "0");
}

#[test]
fn many_processes_come_and_go() {
    let dir = workspace();
    let script = "i=0; while [ $i -lt 300 ]; do /bin/true & i=$((i+1)); done; wait; echo ok";
    assert_eq!(succeeds(dir.path(), &[], script), "ok");
}

#[test]
fn command_cannot_end_or_stop_init() {
    let dir = workspace();
    let script = "kill -9 1; kill -STOP 1; kill -TERM 1; kill -INT 1; sleep 0.1; echo alive; exit 3";
    let output = shell(dir.path(), &[], script);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b"alive\n"[..]), "{output:?}");
    let output = shell(dir.path(), &[], "trap '' TERM; kill -9 -1; echo after");
    assert!(crate::support::shown(output.status).is_some_and(|code| code == 0 || code == 137), "{output:?}");
}
