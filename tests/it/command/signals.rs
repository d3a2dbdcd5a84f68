//! Signals sent to the process that somebody started reach the command, whichever door it came through;
//! stopping stops it and continuing continues it.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;

use crate::{
    serve::{Hosted, signal},
    support::{
        BEATEN, HEARTBEAT, SIGNALS, TempDir, beats, by_env, is_silent, kennel, process_state, shown, stdout,
        until, workspace,
    },
};

/// The processes that pass signals on: `kennel run`, `kennel exec`, and the installed client.
enum Door {
    Run(TempDir),
    Exec(Hosted),
    Client(Hosted),
}

impl Door {
    fn name(&self) -> &'static str {
        match self {
            Self::Run(_) => "kennel run",
            Self::Exec(_) => "kennel exec",
            Self::Client(_) => "kennel-exec",
        }
    }

    /// The workspace.
    fn path(&self) -> &Path {
        match self {
            Self::Run(workspace) => workspace.path(),
            Self::Exec(session) | Self::Client(session) => session.workspace.path(),
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        match self {
            Self::Run(workspace) => kennel(workspace.path(), &[], words),
            Self::Exec(session) => session.kennel(&[&["exec", "s", "--"], words].concat()),
            Self::Client(session) => session.exec(words),
        }
    }

    /// Whether it still runs commands.
    fn is_well(&self) -> bool {
        self.command(&["sh", "-c", "exit 7"]).status().unwrap().code() == Some(7)
    }

    /// Starts a script that prints a line when it is ready.
    fn ready(&self, script: &str) -> (Child, impl Iterator<Item = String> + use<>) {
        self.ready_by_env("--default-signal", script)
    }

    /// The same, with the signals of `option` set at the start; see [`by_env`].
    fn ready_by_env(&self, option: &str, script: &str) -> (Child, impl Iterator<Item = String> + use<>) {
        let mut command = by_env(option, &self.command(&["sh", "-c", script]));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("ready"), "{}", self.name());
        (child, lines)
    }
}

/// Does the same at each door, side by side.
fn at_each_door(act: impl Fn(&Door) + Sync) {
    let session = || Hosted::start(&[]);
    let doors = [Door::Run(workspace()), Door::Exec(session()), Door::Client(session())];
    thread::scope(|scope| doors.iter().for_each(|door| drop(scope.spawn(|| act(door)))));
}

#[test]
fn signals_reach_a_command_that_handles_them() {
    at_each_door(|door| {
        for (number, name) in SIGNALS {
            let script =
                format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.02; done");
            let (mut child, mut lines) = door.ready(&script);
            signal(&child, number);
            assert_eq!(lines.next(), Some(format!("got {name}")), "{}", door.name());
            assert_eq!(child.wait().unwrap().code(), Some(9), "{}: {name}", door.name());
        }
    });
}

#[test]
fn signals_end_a_command_that_does_not() {
    at_each_door(|door| {
        for (number, name) in SIGNALS {
            let (mut child, _lines) = door.ready("echo ready; exec sleep 60");
            signal(&child, number);
            let status = shown(child.wait().unwrap());
            assert_eq!(status, Some(128 + number as i32), "{}: {name}", door.name());
        }
    });
}

#[test]
fn signals_reach_the_whole_process_group() {
    at_each_door(|door| {
        // The parent is ready before the child reports it for both.
        let script = "trap 'wait; echo parent; exit 4' TERM; \
                      (trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.02; done) & wait";
        let (mut child, lines) = door.ready(script);
        signal(&child, Signal::SIGTERM);
        assert_eq!(lines.collect::<Vec<_>>(), ["child", "parent"], "{}", door.name());
        assert_eq!(child.wait().unwrap().code(), Some(4), "{}", door.name());
    });
}

#[test]
fn ignored_signal_is_ignored() {
    at_each_door(|door| {
        let script = "trap '' TERM; echo ready; until [ -e sent ]; do sleep 0.01; done; echo still here";
        let (mut child, mut lines) = door.ready(script);
        signal(&child, Signal::SIGTERM);
        fs::write(door.path().join("sent"), "").unwrap();
        assert_eq!(lines.next().as_deref(), Some("still here"), "{}", door.name());
        assert!(child.wait().unwrap().success(), "{}", door.name());
    });
}

#[test]
fn signals_that_a_door_inherited_as_ignored_are_not_passed_on() {
    at_each_door(|door| {
        for (number, name) in SIGNALS.into_iter().filter(|(number, _)| *number != Signal::SIGTERM) {
            let script =
                format!("trap 'exit 3' {name}; trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done");
            let (mut child, _lines) = door.ready_by_env(&format!("--ignore-signal={name}"), &script);
            signal(&child, number);
            signal(&child, Signal::SIGTERM);
            assert_eq!(child.wait().unwrap().code(), Some(9), "{}: {name}", door.name());
        }
    });
}

#[test]
fn stop_and_continue_reach_everything() {
    at_each_door(|door| {
        let (name, dir) = (door.name(), door.path());
        let (mut child, _lines) = door.ready(&format!("echo ready; ({HEARTBEAT}) & wait"));
        until("it beats", || beats(dir) > 2);
        signal(&child, Signal::SIGTSTP);
        until("the door is stopped", || process_state(child.id()) == Some('T'));
        match door {
            Door::Run(_) => assert!(is_silent(dir), "the command is stopped too"),
            // A session learns it later.
            _ => until("the command is stopped too", || is_silent(dir)),
        }
        signal(&child, Signal::SIGCONT);
        let before = beats(dir);
        until("it beats again", || beats(dir) > before + 2);
        // Stopped and continued a second time.
        signal(&child, Signal::SIGTSTP);
        until("the door is stopped again", || process_state(child.id()) == Some('T'));
        signal(&child, Signal::SIGCONT);
        signal(&child, Signal::SIGTERM);
        assert_eq!(shown(child.wait().unwrap()), Some(143), "{name}");
        until("it stops beating", || is_silent(dir));
    });
}

/// SIGKILL, which no process passes on.
#[test]
fn the_death_of_a_door_ends_its_command() {
    at_each_door(|door| {
        let script = format!("trap '' TERM HUP INT; echo ready; ({HEARTBEAT}) & wait");
        let (mut child, _lines) = door.ready(&script);
        until("it beats", || beats(door.path()) > 2);
        child.kill().unwrap();
        child.wait().unwrap();
        until("it stops beating", || is_silent(door.path()));
        assert!(door.is_well(), "{}", door.name());
    });
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
    at_each_door(|door| {
        for delay in [0, 1, 2, 4, 8, 16] {
            let mut child = door.command(&["sh", "-c", HEARTBEAT]).stderr(Stdio::null()).spawn().unwrap();
            thread::sleep(Duration::from_millis(delay));
            signal(&child, Signal::SIGTERM);
            child.wait().unwrap();
            match door {
                Door::Run(_) => assert!(is_silent(door.path()), "after {delay} ms"),
                _ => until("it stops beating", || is_silent(door.path())),
            }
        }
    });
}

#[test]
fn signal_storm_loses_no_status() {
    at_each_door(|door| {
        let script =
            "trap : USR1 USR2 HUP; echo ready; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.01; done; exit 6";
        for pause in [200, 200, 200, 1000, 1000].map(Duration::from_micros) {
            let (mut child, _lines) = door.ready(script);
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                for number in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGHUP] {
                    signal(&child, number);
                }
                thread::sleep(pause);
            };
            assert_eq!(status.code(), Some(6), "{}: each {pause:?}", door.name());
        }
    });
}

#[test]
fn ignored_and_blocked_signals_of_the_caller_are_not_inherited() {
    at_each_door(|door| {
        let shows = door.command(&["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"]);
        for option in ["--ignore-signal=INT,TERM,USR1,PIPE", "--block-signal=INT,TERM,USR1,PIPE"] {
            let output = by_env(option, &shows).output().unwrap();
            let none = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000";
            assert_eq!(stdout(&output), none, "{}: {option}: {output:?}", door.name());
        }
    });
}
