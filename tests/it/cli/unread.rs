//! If nobody reads the output, or it cannot be written, Kennel ends by itself or on a signal, and reports
//! what it can.

use std::{
    fs::{self, File},
    io::{self, PipeWriter, Read},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    pty::{OpenptyResult, openpty, posix_openpt, ptsname_r, unlockpt},
    sys::{
        signal::Signal,
        termios::{LocalFlags, SetArg, cfmakeraw, tcgetattr, tcsetattr},
    },
    unistd::write,
};
use serde_json::Value;

use super::output::{Way, denied, full, is_ended_by_signals};
use crate::{
    serve::{Hosted, signal},
    support::{
        by_env, ends, full_pipe, has, kennel, kennel_path, only_once, patient, patient_flag, payload_path,
        quiet, require, runtime, stderr, stdout, until, until_full, workspace,
    },
};

/// More than one pipe holds, less than two.
const WRITES: &str = "head -c 100000 /dev/zero";

/// A full pipe whose writer blocks.
fn full_blocking_pipe() -> (io::PipeReader, PipeWriter) {
    let (reader, writer) = full_pipe();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

#[test]
fn a_signal_ends_the_wait_for_a_reader_of_stderr() {
    only_once!();
    for way in Way::both() {
        let dir = workspace();
        let file = dir.path().join("report.json");
        let script = format!("{WRITES}; touch done");
        let (place, mut command) = way.command(dir.path(), file.to_str().unwrap(), &script);
        let ((_out, stdout), (_err, stderr)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let mut child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
        until("the command is at its end", || place.join("done").exists());
        signal(&child, Signal::SIGTERM);
        thread::sleep(Duration::from_millis(200));
        signal(&child, Signal::SIGTERM);
        // Kennel waits ten seconds to write its lines.
        ends("it was told to", &mut child);
        let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(report["truncated"], true, "{report}");
    }
}

#[test]
fn a_full_stderr_is_no_failure() {
    let dir = workspace();
    let file = dir.path().join("report.json");
    let start = |script: &str, to: Stdio| {
        let mut command = kennel(dir.path(), &["--json", file.to_str().unwrap()], &["sh", "-c", script]);
        command.stdout(Stdio::null()).stderr(to).spawn().unwrap()
    };
    let reported = |child: &mut Child| {
        let status = ends("it can", child);
        let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!((status.code(), &report["truncated"]), (Some(0), &true.into()), "{report}");
        assert!(report["failure"].is_null() && report["exit_code"] == 0, "{report}");
    };
    reported(&mut start("echo x >&2", full().into()));
    let (_reader, writer) = io::pipe().unwrap();
    // An early signal does not count as the end of the command.
    let script = format!("trap '' TERM; {{ {WRITES}; }} >&2; touch done");
    let mut child = start(&script, writer.into());
    until("the command is at its end", || dir.path().join("done").exists());
    is_ended_by_signals(&mut child);
    reported(&mut child);
}

/// Kennel gives its lines up after ten seconds. All doors wait at the same time.
#[test]
fn a_stderr_that_nobody_reads_does_not_hold_up_the_end() {
    only_once!();
    let session = Hosted::start(&[]);
    let dir = workspace();
    let absent = "kennel-absent";
    let doors = [
        ("run, a pipe that blocks", kennel(dir.path(), &[], &[absent]), full_blocking_pipe(), 127),
        ("exec", session.kennel(&["exec", "s", "--", absent]), full_blocking_pipe(), 127),
        ("kennel-exec", session.exec(&[absent]), full_blocking_pipe(), 127),
        ("run with a denial, a pipe that refuses", denied(dir.path()), full_pipe(), 0),
    ];
    let started = doors.map(|(door, mut command, (reader, writer), status)| {
        (door, reader, command.stderr(writer).spawn().unwrap(), status)
    });
    for (door, _reader, mut child, status) in started {
        assert_eq!(ends(door, &mut child).code(), Some(status), "{door}");
    }
}

/// Sends these signals to commands whose output nobody reads. The first one ends them.
fn ends_by(signals: &[Signal]) {
    for way in Way::both() {
        let dir = workspace();
        let file = dir.path().join("report.json");
        let (place, mut command) = way.command(dir.path(), file.to_str().unwrap(), "touch ran; exec yes");
        let (_reader, writer) = io::pipe().unwrap();
        let mut child = command.stdout(writer.try_clone().unwrap()).stderr(Stdio::piped()).spawn().unwrap();
        until("the command runs", || place.join("ran").exists());
        until_full(&writer);
        signals.iter().for_each(|&number| signal(&child, number));
        assert_eq!(crate::support::shown(ends("it was told to", &mut child)), Some(128 + 15));
        let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!((&report["signal"], &report["truncated"]), (&15.into(), &true.into()), "{report}");
    }
}

#[test]
fn a_signal_that_ended_the_command_is_not_needed_twice() {
    ends_by(&[Signal::SIGTERM]);
}

/// timeout(1) sends SIGCONT after SIGTERM.
#[test]
fn a_signal_that_ended_the_command_is_not_hidden_by_a_later_one() {
    ends_by(&[Signal::SIGTERM, Signal::SIGCONT, Signal::SIGWINCH]);
}

/// The result of a command on a terminal of its own whose output goes to another place.
fn shown_on(stdout: impl Into<Stdio>, mut kennel: Command) -> Output {
    let pty = openpty(None, None).unwrap();
    let stdin: OwnedFd = pty.slave;
    let mut child = kennel.stdin(stdin).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
    drop(kennel);
    ends("its command does", &mut child);
    child.wait_with_output().unwrap()
}

/// `kennel run --tty` and `kennel exec --tty`.
pub(super) fn on_terminals(dir: &Path, session: &Hosted, script: &str) -> [Command; 2] {
    on_terminals_with([&[], &[]], dir, session, script)
}

/// The same with more flags for each.
fn on_terminals_with(
    [of_run, of_exec]: [&[&str]; 2],
    dir: &Path,
    session: &Hosted,
    script: &str,
) -> [Command; 2] {
    let mut run = Command::new(kennel_path());
    let shell = ["--", "sh", "-c", script];
    run.current_dir(dir).env("LC_ALL", "C").args(["run", "--tty"]).args(quiet()).args(of_run).args(shell);
    [run, session.kennel(&[&["exec", "s", "--tty"][..], of_exec, &shell].concat())]
}

#[test]
fn output_that_cannot_be_shown_is_reported() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    for command in on_terminals(dir.path(), &session, "seq 50000; exit 3") {
        let output = shown_on(full(), command);
        let line = "write to stdout what the command wrote: No space left on device";
        assert!(output.status.code() == Some(125) && stderr(&output).contains(line), "{output:?}");
    }
}

/// The end of the command counts for more than the fate of its output. The report has our own status.
#[test]
fn output_that_cannot_be_shown_hides_neither_a_timeout_nor_a_signal() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    let time = patient_flag(Duration::from_secs(1));
    let (timed_out, exited) = (("timed_out", 124), ("exited", 125));
    for (script, (ended, code)) in [
        ("echo x; exec sleep 60", timed_out),
        ("echo x; kill -TERM $$", ("signaled", 128 + 15)),
        ("echo x; exit 3", exited),
        ("echo x", exited),
    ] {
        let files = ["of_run", "of_exec"].map(|name| dir.path().join(name));
        let flags = files.each_ref().map(|file| ["--json", file.to_str().unwrap(), "--timeout", &time]);
        let commands = on_terminals_with([&flags[0], &flags[1]], dir.path(), &session, script);
        for (command, file) in commands.into_iter().zip(&files) {
            let output = shown_on(full(), command);
            let report: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
            let told = (&report["ended"], &report["exit_code"], &report["truncated"]);
            assert_eq!(crate::support::shown(output.status), Some(code), "{script}: {output:?}");
            assert_eq!(told, (&ended.into(), &code.into(), &true.into()), "{script}: {report}");
            assert!(stderr(&output).contains("No space left on device"), "{script}: {output:?}");
            assert!(!report["failure"]["message"].is_null(), "{script}: {report}");
        }
    }
}

/// The terminal stays the command's: it is not hung up, and can be opened again.
#[test]
fn a_terminal_that_is_closed_for_a_while_is_shown_afterwards() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    let closed = "exec </dev/null >/dev/null 2>&1; sleep 0.5";
    let opened = "exec </dev/tty >/dev/tty 2>&1; sleep 0.3";
    let script =
        format!("echo first; {closed}; {opened}; seq 4000; {closed}; {opened}; echo last; {closed}; exit 3");
    for command in on_terminals(dir.path(), &session, &script) {
        let output = shown_on(Stdio::piped(), command);
        let seen = stdout(&output);
        assert!(output.status.code() == Some(3) && seen.ends_with("4000\r\nlast"), "{output:?}");
        assert_eq!(seen.lines().count(), 4002);
    }
}

/// A reader such as a pager may pause for any time.
#[test]
fn a_reader_that_pauses_gets_all_output() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    let slow = on_terminals(dir.path(), &session, "seq 200").map(|mut command| {
        thread::spawn(move || {
            let (mut reader, writer) = full_blocking_pipe();
            let pty = openpty(None, None).unwrap();
            let mut child = command.stdin(pty.slave).stdout(writer).spawn().unwrap();
            drop(command);
            // Longer than Kennel waits for a terminal that takes nothing.
            thread::sleep(Duration::from_secs(7));
            let mut all = String::new();
            reader.read_to_string(&mut all).unwrap();
            (child.wait().unwrap().code(), all.trim_start_matches('.').lines().count())
        })
    });
    for reader in slow {
        assert_eq!(reader.join().unwrap(), (Some(0), 200));
    }
}

/// A full terminal that refuses writes instead of blocking.
fn full_terminal() -> OpenptyResult {
    let pty = openpty(None, None).unwrap();
    fcntl(&pty.slave, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let mut raw = tcgetattr(&pty.slave).unwrap();
    cfmakeraw(&mut raw);
    tcsetattr(&pty.slave, SetArg::TCSANOW, &raw).unwrap();
    // The terminal passes on what it took, which makes room for a moment.
    until("it is full", || {
        let was_full = write(&pty.slave, b".").is_err();
        while write(&pty.slave, &[b'.'; 64]).is_ok() || write(&pty.slave, b".").is_ok() {}
        thread::sleep(Duration::from_millis(50));
        was_full && write(&pty.slave, b".").is_err()
    });
    pty
}

#[test]
fn output_that_a_terminal_does_not_take_is_reported() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    let unread = on_terminals(dir.path(), &session, "echo x").map(|mut command| {
        let pty = full_terminal();
        let stdin = pty.slave.try_clone().unwrap();
        (command.stdin(stdin).stdout(pty.slave).stderr(Stdio::piped()).spawn().unwrap(), pty.master)
    });
    for (mut child, _master) in unread {
        ends("nobody reads it", &mut child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(stderr(&output).contains("what the command wrote: nobody reads it"), "{output:?}");
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_reader_of_the_terminal() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    let files = ["of_run", "of_exec"].map(|name| dir.path().join(name));
    let flags = files.each_ref().map(|file| ["--json", file.to_str().unwrap()]);
    let script = "echo x; touch done";
    let commands = on_terminals_with([&flags[0], &flags[1]], dir.path(), &session, script);
    let places = [dir.path(), session.workspace.path()];
    for ((mut command, place), file) in commands.into_iter().zip(places).zip(&files) {
        let (_reader, writer) = full_blocking_pipe();
        let pty = openpty(None, None).unwrap();
        let mut child = command.stdin(pty.slave).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        until("the command is at its end", || place.join("done").exists());
        thread::sleep(patient(Duration::from_millis(500)));
        is_ended_by_signals(&mut child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(stderr(&output).contains("what the command wrote: nobody reads it"), "{output:?}");
        let report: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!((&report["exit_code"], &report["truncated"]), (&125.into(), &true.into()), "{report}");
    }
}

#[test]
fn a_terminal_whose_reader_is_gone_is_read_on() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    for command in on_terminals(dir.path(), &session, "seq 50000; exit 3") {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = shown_on(writer, command);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
    }
}

#[test]
fn a_command_that_gave_its_terminal_to_another_ends_by_itself() {
    let dir = workspace();
    let grant = format!("{}:/payload", payload_path().display());
    let session = Hosted::start(&["--ro", &grant]);
    let place = session.workspace.path();
    let longest = patient_flag(Duration::from_secs(30));
    let uses = ["/payload", "use-stdout", "socket"];
    let gives = "/payload give-stdout socket; echo last";
    let run = kennel(dir.path(), &["--ro", &grant, "--timeout", &longest], &uses);
    let exec = session.kennel(&[&["exec", "s", "--timeout", &longest, "--"][..], &uses].concat());
    let [_, gives_exec] = on_terminals(dir.path(), &session, gives);
    let mut gives_run = Command::new(kennel_path());
    let shell = ["--ro", &grant, "--", "sh", "-c", gives];
    gives_run.current_dir(dir.path()).args(["run", "--tty"]).args(quiet()).args(shell);
    for (place, mut uses, gives) in [(dir.path(), run, gives_run), (place, exec, gives_exec)] {
        let mut user = uses.stdout(Stdio::null()).spawn().unwrap();
        let output = shown_on(Stdio::piped(), gives);
        fs::write(place.join("socket.end"), "").unwrap();
        assert!(output.status.success() && stdout(&output).contains("last"), "{output:?}");
        assert_eq!(user.wait().unwrap().code(), Some(0), "it used it all the time");
    }
}

#[test]
fn a_hangup_reaches_the_command() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    let script = "trap '' HUP; touch ran; cat; touch over";
    let places = [dir.path(), session.workspace.path()];
    for (place, mut command) in places.into_iter().zip(on_terminals(dir.path(), &session, script)) {
        // No other child may hold it.
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
        unlockpt(&master).unwrap();
        let peer = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open(ptsname_r(&master).unwrap());
        let end = || peer.as_ref().unwrap().try_clone().unwrap();
        let mut child = command.stdin(end()).stdout(end()).stderr(Stdio::null()).spawn().unwrap();
        until("the command runs", || place.join("ran").exists());
        let flags = || tcgetattr(peer.as_ref().unwrap()).unwrap().local_flags;
        until("it is raw", || !flags().contains(LocalFlags::ICANON));
        drop((master, command));
        let status = ends("its terminal is gone", &mut child);
        assert!(place.join("over").exists(), "it read an end, and went on: {status}");
    }
}

/// The signals for which a process has a handler, a bit each.
fn caught_signals(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

#[test]
fn ignored_signals_do_not_end_a_session() {
    let (dir, runtime) = (workspace(), runtime());
    let mut start = Command::new(kennel_path());
    start.args(["session", "start", "--name", "s", "--foreground"]);
    start.current_dir(dir.path()).env("XDG_RUNTIME_DIR", runtime.path());
    let mut host = by_env("--ignore-signal=HUP", &start).stdout(Stdio::null()).spawn().unwrap();
    until("it catches signals", || caught_signals(host.id()) >> (Signal::SIGTERM as i32 - 1) & 1 == 1);
    signal(&host, Signal::SIGHUP);
    signal(&host, Signal::SIGTERM);
    assert_eq!(host.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn a_probe_without_descriptors_says_why() {
    only_once!();
    require!(has("prlimit"), "prlimit of util-linux");
    for count in 4..40 {
        let mut probe = Command::new("prlimit");
        let output = probe.arg(format!("--nofile={count}")).arg(kennel_path()).arg("probe").output().unwrap();
        // A panic has status 101.
        assert!(matches!(output.status.code(), Some(0 | 1 | 125)), "{count}: {output:?}");
        assert!(output.status.code() != Some(125) || !(output.stderr.is_empty() && output.stdout.is_empty()));
    }
}
