//! What is typed at `--tty`.

use std::{fs, fs::File, io::Write, process::Stdio};

use nix::{
    pty::openpty,
    sys::termios::{LocalFlags, tcgetattr},
};

use super::unread::on_terminals;
use crate::{
    listen::Hosted,
    support::{ends, until, workspace},
};

/// It is its controlling terminal all the same.
#[test]
fn control_c_reaches_a_command_that_has_no_descriptor_of_its_terminal() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    let script =
        "trap 'exit 5' INT; exec </dev/null >/dev/null 2>&1; touch closed; while :; do sleep 0.05; done";
    let places = [dir.path(), session.workspace.path()];
    for (command, place) in on_terminals(dir.path(), &session, script).iter_mut().zip(places) {
        let pty = openpty(None, None).unwrap();
        let mut child = command.stdin(pty.slave).stdout(Stdio::null()).spawn().unwrap();
        until("it has let go of its terminal", || place.join("closed").exists());
        until("ours is raw", || !tcgetattr(&pty.master).unwrap().local_flags.contains(LocalFlags::ISIG));
        File::from(pty.master.try_clone().unwrap()).write_all(b"\x03").unwrap();
        assert_eq!(ends("it is interrupted", &mut child).code(), Some(5));
        fs::remove_file(place.join("closed")).unwrap();
    }
}
