//! The terminal that the user of `--tty` types at.

use std::{fs, fs::File, io::Write, os::fd::AsFd, process::Stdio};

use nix::{
    pty::openpty,
    sys::{
        signal::Signal,
        termios::{LocalFlags, SetArg, tcgetattr, tcsetattr},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use super::unread::on_terminals;
use crate::{
    serve::{Hosted, signal},
    support::{ends, until, workspace},
};

fn is_raw(terminal: impl AsFd) -> bool {
    !tcgetattr(terminal).unwrap().local_flags.intersects(LocalFlags::ICANON | LocalFlags::ISIG)
}

/// It is still the controlling terminal of the command.
#[test]
fn control_c_reaches_a_command_that_has_no_descriptor_of_its_terminal() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    let script =
        "trap 'exit 5' INT; exec </dev/null >/dev/null 2>&1; touch closed; while :; do sleep 0.05; done";
    let places = [dir.path(), session.workspace.path()];
    for (command, place) in on_terminals(dir.path(), &session, script).iter_mut().zip(places) {
        let pty = openpty(None, None).unwrap();
        let mut child = command.stdin(pty.slave).stdout(Stdio::null()).spawn().unwrap();
        until("it has closed its terminal", || place.join("closed").exists());
        until("ours is raw", || is_raw(&pty.master));
        File::from(pty.master.try_clone().unwrap()).write_all(b"\x03").unwrap();
        assert_eq!(ends("it is interrupted", &mut child).code(), Some(5));
        fs::remove_file(place.join("closed")).unwrap();
    }
}

/// Meanwhile the shell around it has the terminal, with modes of its own.
#[test]
fn a_stopped_kennel_gives_the_terminal_back_and_takes_it_again() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    let script = "trap 'stty size > size' WINCH; echo > size; while :; do sleep 0.05; done";
    let places = [dir.path(), session.workspace.path()];
    for (command, place) in on_terminals(dir.path(), &session, script).iter_mut().zip(places) {
        let pty = openpty(None, None).unwrap();
        let before = tcgetattr(&pty.master).unwrap();
        let mut child = command.stdin(pty.slave).stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        until("the command runs", || place.join("size").exists());
        for (stops, rows) in [(Signal::SIGTSTP, 40), (Signal::SIGSTOP, 50)] {
            until("ours is raw", || is_raw(&pty.master));
            signal(&child, stops);
            let stopped = || waitpid(pid, Some(WaitPidFlag::WUNTRACED | WaitPidFlag::WNOHANG)).unwrap();
            until("it is stopped", || stopped() != WaitStatus::StillAlive);
            if stops == Signal::SIGTSTP {
                assert!(!is_raw(&pty.master), "no other process may put it back");
            }
            tcsetattr(&pty.master, SetArg::TCSANOW, &before).unwrap();
            // The command is not told of this. The shell, which has the terminal, is.
            kennel::Terminal::set_size(&pty.master, rows, 120).unwrap();
            signal(&child, Signal::SIGCONT);
            until("ours is raw again", || is_raw(&pty.master));
            let size = format!("{rows} 120\n");
            until("the command has the new size", || fs::read_to_string(place.join("size")).unwrap() == size);
        }
        signal(&child, Signal::SIGTERM);
        assert_eq!(crate::support::shown(ends("it is told to", &mut child)), Some(128 + 15));
        assert_eq!(tcgetattr(&pty.master).unwrap().local_flags, before.local_flags);
    }
}
