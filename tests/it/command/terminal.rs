//! `--tty`: the command gets a terminal of its own, and the user's terminal shows it.

use std::{
    fs::File,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
    process::Command,
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    pty::openpty,
    sys::{
        signal::{Signal, kill},
        termios::{LocalFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr},
    },
    unistd::Pid,
};

use crate::support::{
    Screen, ends, has, has_scopes, kennel_path, only_once, patient, patient_flag, quiet, refused, require,
    run, stderr, until, until_full, workspace,
};

/// `kennel run --tty` on a user's terminal.
struct Window;

impl Window {
    /// Runs `sh -c SCRIPT` with this terminal as Kennel's controlling terminal.
    fn open(dir: &Path, script: &str) -> Screen {
        Self::start(Command::new("setsid").arg("--ctty").arg(kennel_path()), dir, script)
    }

    fn start(kennel: &mut Command, dir: &Path, script: &str) -> Screen {
        Self::with(&[], kennel, dir, script)
    }

    /// The same with more flags.
    fn with(flags: &[&str], kennel: &mut Command, dir: &Path, script: &str) -> Screen {
        let is_quiet = flags.contains(&"--quiet");
        let remarks = if is_quiet { &[][..] } else { quiet() };
        kennel.args(["run", "--tty"]).args(remarks).args(flags).args(["--", "sh", "-c", script]);
        kennel.current_dir(dir).env("LC_ALL", "C").env("TERM", "xterm");
        Screen::start(kennel, Duration::from_secs(10))
    }
}

#[test]
fn command_has_a_terminal_of_the_window_s_size() {
    require!(has("setsid"), "setsid of util-linux");
    let dir = workspace();
    let script = "tty; stty size; test -t 0 -a -t 1 -a -t 2 && echo all; echo x > /dev/tty; echo $TERM; ls -1 /dev/pts; exit 7";
    let (status, seen) = Window::open(dir.path(), script).end();
    assert_eq!((status, seen.as_str()), (Some(7), "/dev/pts/0\n33 77\nall\nx\nxterm\n0\nptmx\n"));
}

#[test]
fn typing_reaches_the_command_and_is_echoed() {
    require!(has("setsid"), "setsid of util-linux");
    let dir = workspace();
    let mut window = Window::open(dir.path(), "echo ready; read line; echo got:$line; cat; echo end");
    window.expect("ready");
    window.type_in("hello\n");
    window.expect("got:hello\r\n");
    window.type_in("to cat\n");
    window.expect("to cat\r\nto cat");
    window.type_in("\x04");
    let (status, seen) = window.end();
    assert!(status == Some(0) && seen.ends_with("end\n"), "{seen}");
    assert!(seen.contains("ready\nhello\ngot:hello\n"), "{seen:?}");
}

#[test]
fn control_c_reaches_the_command_and_not_kennel() {
    require!(has("setsid"), "setsid of util-linux");
    let dir = workspace();
    let mut window =
        Window::open(dir.path(), "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done");
    window.expect("ready");
    window.type_in("\x03");
    let (status, seen) = window.end();
    assert!(status == Some(5) && seen.contains("caught"), "{seen:?}");
    let mut window = Window::open(dir.path(), "echo ready; exec sleep 60");
    window.expect("ready");
    window.type_in("\x03");
    assert_eq!(window.end().0, Some(130));
}

#[test]
fn job_control_works() {
    require!(has("setsid") && has("bash"), "setsid of util-linux, bash");
    let dir = workspace();
    let mut window = Window::open(dir.path(), "exec bash --norc --noprofile -i");
    window.type_in("PS1=; sleep 100 & jobs\n");
    window.expect("Running");
    window.type_in("sleep 200\n");
    std::thread::sleep(patient(Duration::from_millis(300)));
    window.type_in("\x1a");
    window.expect("Stopped");
    window.type_in("bg %2; jobs; kill %1 %2; wait; echo all''done; exit 3\n");
    window.expect("alldone");
    let (status, seen) = window.end();
    assert_eq!(status, Some(3), "{seen}");
    assert!(!seen.contains("no job control") && !seen.contains("cannot set terminal"), "{seen}");
}

#[test]
fn window_that_is_resized_resizes_the_terminal() {
    require!(has("setsid"), "setsid of util-linux");
    let dir = workspace();
    let mut window = Window::open(
        dir.path(),
        "trap 'echo now $(stty size)' WINCH; echo ready; while :; do sleep 0.05; done",
    );
    window.expect("ready");
    let stdin = window.peer.try_clone().unwrap();
    let stty = Command::new("stty").args(["rows", "40", "cols", "120"]).stdin(stdin).status().unwrap();
    assert!(stty.success());
    window.expect("now 40 120");
    window.type_in("\x03");
    assert_eq!(window.end().0, Some(130));
}

#[test]
fn window_is_raw_meanwhile_and_as_before_afterwards() {
    let dir = workspace();
    // It is not the controlling terminal here: that one would be hung up at the end.
    let mut window = Window::start(&mut Command::new(kennel_path()), dir.path(), "echo ready; read x");
    let peer = window.peer.try_clone().unwrap();
    window.expect("ready");
    assert!(!tcgetattr(&peer).unwrap().local_flags.contains(LocalFlags::ICANON), "raw");
    window.type_in("\n");
    window.end();
    let flags = tcgetattr(&peer).unwrap().local_flags;
    assert!(flags.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG), "{flags:?}");
}

#[test]
fn large_output_is_shown_whole() {
    require!(has("setsid"), "setsid of util-linux");
    let dir = workspace();
    let (status, seen) = Window::open(dir.path(), "seq 1 20000; echo last").end();
    assert!(
        status == Some(0) && seen.ends_with("19999\n20000\nlast\n"),
        "{}",
        &seen[seen.len().saturating_sub(50)..]
    );
    assert_eq!(seen.lines().count(), 20001);
}

/// Another process that holds the terminal can make it non-blocking.
#[test]
fn a_non_blocking_terminal_shows_all_output_and_takes_input() {
    let dir = workspace();
    let script = "read x; seq 1 60000; echo $x; read y; echo $y last";
    let mut window = Window::start(&mut Command::new(kennel_path()), dir.path(), script);
    fcntl(&window.peer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    until("it is raw", || !tcgetattr(&window.peer).unwrap().local_flags.contains(LocalFlags::ICANON));
    std::thread::sleep(patient(Duration::from_millis(200)));
    window.type_in("first\n");
    window.expect("60000\r\nfirst");
    window.type_in("second\n");
    let (status, seen) = window.end();
    assert!(status == Some(0) && seen.ends_with("second last\n"), "{}", &seen[seen.len() - 50..]);
    assert_eq!(seen.lines().filter(|line| line.parse::<u32>().is_ok()).count(), 60000);
}

/// Another process that holds the terminal can set this. A read that returns nothing is no hangup then.
#[test]
fn a_terminal_whose_reads_return_at_once_takes_input() {
    let dir = workspace();
    let script = "read x; echo got $x; read y; echo $y last";
    let mut window = Window::start(&mut Command::new(kennel_path()), dir.path(), script);
    until("it is raw", || !tcgetattr(&window.peer).unwrap().local_flags.contains(LocalFlags::ICANON));
    let mut set = tcgetattr(&window.peer).unwrap();
    set.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
    set.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
    tcsetattr(&window.peer, SetArg::TCSANOW, &set).unwrap();
    window.type_in("first\n");
    window.expect("got first");
    std::thread::sleep(patient(Duration::from_millis(300)));
    window.type_in("second\n");
    let (status, seen) = window.end();
    assert!(status == Some(0) && seen.ends_with("second last\n"), "{status:?} {seen:?}");
}

#[test]
fn an_unread_terminal_stops_neither_timeout_nor_signal() {
    only_once!();
    let dir = workspace();
    let time = patient_flag(Duration::from_secs(1));
    let kennel = || Command::new(kennel_path());
    let mut timed = Window::with(&["--timeout", &time], &mut kennel(), dir.path(), "exec yes");
    let mut ended = Window::with(&[], &mut kennel(), dir.path(), "touch ran; exec yes");
    until("the command runs", || dir.path().join("ran").exists());
    until_full(&ended.peer);
    kill(Pid::from_raw(ended.child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(crate::support::shown(ends("it was told to", &mut ended.child)), Some(128 + 15));
    assert_eq!(ends("its time is over", &mut timed.child).code(), Some(124));
}

#[test]
fn background_process_on_the_terminal_does_not_hold_up_the_end() {
    require!(has("setsid"), "setsid of util-linux");
    let dir = workspace();
    let mut kennel = Command::new("setsid");
    kennel.arg("--ctty").arg(kennel_path());
    // Kennel would say that the process has ended with the command.
    let script = "trap '' HUP; sleep 60 & echo done";
    let (status, seen) = Window::with(&["--quiet"], &mut kennel, dir.path(), script).end();
    assert_eq!((status, seen.as_str()), (Some(0), "done\n"));
}

#[test]
fn terminal_without_a_window_is_refused() {
    let dir = workspace();
    let said = refused(dir.path(), &["--tty"]);
    assert_eq!(said, "kennel: --tty: needs a terminal as standard input");
    let said = stderr(&run(dir.path(), &["--tty", "--max-output", "1K"], &["true"]));
    assert!(said.contains("'--tty' cannot be used with '--max-output <SIZE>'"), "{said}");
}

/// Otherwise it would look as if the user had hung up.
#[test]
fn a_terminal_without_input_is_refused() {
    let dir = workspace();
    let pty = openpty(None, None).unwrap();
    let peer = format!("/proc/self/fd/{}", pty.slave.as_raw_fd());
    let writing = File::options().write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(peer).unwrap();
    let mut command = Command::new(kennel_path());
    command.current_dir(dir.path()).args(["run", "--tty", "--", "touch", "ran"]);
    let output = command.stdin(writing).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("open only for writing"), "{output:?}");
    assert!(!dir.path().join("ran").exists());
}

#[test]
fn failing_start_on_a_terminal_leaves_the_window_as_it_was() {
    let dir = workspace();
    let pty = openpty(None, None).unwrap();
    let output = Command::new(kennel_path())
        .current_dir(dir.path())
        .args(["run", "--tty", "--", "kennel-no-such-program"])
        .stdin(pty.slave.try_clone().unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(stderr(&output).contains("not found in the sandbox"));
    assert!(tcgetattr(&pty.slave).unwrap().local_flags.contains(LocalFlags::ICANON));
}

#[test]
fn errors_on_the_terminal_are_explained_on_request() {
    require!(has("setsid"), "setsid of util-linux");
    // Without them every run is made quiet, because it has a remark of its own.
    require!(has_scopes(), "Landlock with scopes");
    let dir = workspace();
    let open = |flags: &[&str]| {
        let mut kennel = Command::new("setsid");
        kennel.arg("--ctty").arg(kennel_path()).env("NO_COLOR", "1");
        Window::with(flags, &mut kennel, dir.path(), "cat /srv/kennel-nothing")
    };
    let (status, seen) = open(&["--explain"]).end();
    let line = "\nkennel: possibly denied: /srv/kennel-nothing: the sandbox does not show it; ";
    assert!(status == Some(1) && seen.replace("\n  ", " ").contains(line), "{seen}");
    let (status, seen) = open(&[]).end();
    assert!(status == Some(1) && !seen.contains("kennel: "), "{seen}");
}
