//! A command as a job of an interactive shell: it reads the terminal only in the foreground, stops and goes
//! on as a plain command does, and nothing that runs inside gets what is typed to the shell.

use std::{
    fs::{self},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    pty::openpty,
    sys::{
        signal::{Signal, kill},
        termios::{LocalFlags, tcgetattr},
    },
    unistd::Pid,
};

use crate::{
    serve::Hosted,
    support::{Screen, ends, has, kennel_path, patient, quiet, require, until, workspace},
};

/// A user at an interactive shell.
struct Shell(Screen);

impl Shell {
    fn open(dir: &Path) -> Self {
        Self::run(dir, Command::new("setsid").args(["--ctty", "bash", "--norc", "--noprofile", "-i"]))
    }

    /// A program on a terminal.
    fn run(dir: &Path, program: &mut Command) -> Self {
        program
            .current_dir(dir)
            .env("LC_ALL", "C")
            .env("TERM", "dumb")
            .env("PS1", "$ ")
            .env("HOME", dir)
            .env("K", format!("{} run {}", kennel_path().display(), quiet().join(" ")));
        Self(Screen::start(program, Duration::from_secs(20)))
    }

    fn types(&mut self, text: &str) {
        self.0.type_in(text);
    }

    /// Reads until `text` appears, and forgets what came before its end.
    fn expect(&mut self, text: &str) {
        self.0.expect(text);
        let end = self.0.seen.find(text).unwrap() + text.len();
        self.0.seen.drain(..end);
    }

    /// Types a line, and reads until its output has a line `text`.
    fn says(&mut self, line: &str, text: &str) {
        self.types(&format!("{line}\n"));
        self.expect(&format!("\n{text}\r"));
    }

    /// Reads until the shell waits for a line. What is typed before that may be the command's.
    fn prompt(&mut self) {
        self.0.until("prompt", |seen| seen.ends_with("$ "));
    }

    /// Lets a moment pass in which something could happen that must not.
    fn wait(&mut self) {
        let start = Instant::now();
        while start.elapsed() < patient(Duration::from_millis(500)) {
            self.0.read_some();
        }
    }
}

/// Whether a shell that is interactive can be started here.
fn has_shell() -> bool {
    has("setsid") && has("bash")
}

/// What a command in the background reads from the terminal stops it, in `words`, which read into the file
/// `read`.
fn is_stopped_in_the_background(dir: &Path, words: &str) {
    let mut shell = Shell::open(dir);
    shell.says("set -b; echo set", "set");
    shell.types(&format!("{words} > read &\n"));
    shell.expect("Stopped");
    shell.says("echo secret'1'", "secret1");
    shell.wait();
    shell.says("echo secret'2'", "secret2");
    assert_eq!(fs::read_to_string(dir.join("read")).unwrap(), "");
    shell.types("fg\n");
    shell.wait();
    shell.types("meant\n");
    until("it reads in the foreground", || fs::read_to_string(dir.join("read")).unwrap() == "meant\n");
    shell.types("\x1a");
    shell.expect("Stopped");
    // Continued in the background, it is stopped again.
    shell.types("bg\n");
    shell.expect("Stopped");
    shell.says("echo secret'3'", "secret3");
    shell.types("fg\n");
    shell.wait();
    shell.types("\x04");
    shell.prompt();
    shell.says("echo st=$?", "st=0");
    assert_eq!(fs::read_to_string(dir.join("read")).unwrap(), "meant\n");
}

#[test]
fn a_command_that_reads_in_the_background_is_stopped_and_reads_nothing() {
    require!(has_shell(), "setsid of util-linux, bash");
    let dir = workspace();
    is_stopped_in_the_background(dir.path(), "$K -- cat");
}

#[test]
fn a_command_of_a_session_that_reads_in_the_background_is_stopped_and_reads_nothing() {
    require!(has_shell(), "setsid of util-linux, bash");
    let session = Hosted::start(&[]);
    let words = format!(
        "XDG_RUNTIME_DIR={} {} exec s -- cat",
        session.runtime.path().display(),
        kennel_path().display()
    );
    is_stopped_in_the_background(session.workspace.path(), &words);
}

/// Reads from the terminal in every way, in sessions of its own, deaf to what would stop it.
const HOSTILE: &str = r#"
exec 3<&0 4<&1 5<&2
trap '' TTIN TTOU HUP INT TSTP
for fd in 3 4 5; do
    (setsid sh -c "cat <&$fd >> got; cat /proc/self/fd/$fd >> got" 3<&3 4<&4 5<&5 &)
    (cat <&$fd >> got 2>> errors &)
done
(setsid sh -c 'cat < /dev/tty >> got' 2>> errors &)
(while :; do cat < /dev/tty >> got 2>> errors; sleep 0.1; done &)
(setsid sh -c 'cat < /dev/pts/0 >> got' 2>> errors &)
echo started > started
"#;

#[test]
fn a_hostile_command_in_the_background_reads_nothing_and_ends_with_kennel() {
    require!(has_shell(), "setsid of util-linux, bash");
    let dir = workspace();
    fs::write(dir.path().join("hostile"), format!("{HOSTILE}sleep 60\n")).unwrap();
    let mut shell = Shell::open(dir.path());
    shell.types("$K -- sh hostile &\n");
    until("it reads", || dir.path().join("started").exists());
    shell.wait();
    for number in 1..5 {
        shell.says(&format!("echo secret'{number}'"), &format!("secret{number}"));
        shell.wait();
    }
    assert_eq!(fs::read_to_string(dir.path().join("got")).unwrap_or_default(), "");
    shell.types("kill %1; wait\n");
    shell.says("echo secret'5'", "secret5");
    assert_eq!(fs::read_to_string(dir.path().join("got")).unwrap_or_default(), "");
}

#[test]
fn what_is_typed_after_a_hostile_command_is_the_shell_s() {
    require!(has_shell(), "setsid of util-linux, bash");
    let dir = workspace();
    fs::write(dir.path().join("hostile"), HOSTILE).unwrap();
    let mut shell = Shell::open(dir.path());
    shell.says("$K -- sh hostile; echo st=$?", "st=0");
    for number in 1..4 {
        shell.says(&format!("echo secret'{number}'"), &format!("secret{number}"));
    }
    shell.wait();
    let got = fs::read_to_string(dir.path().join("got")).unwrap_or_default();
    assert!(!got.contains("secret"), "{got:?}");
}

#[test]
fn a_job_stops_and_goes_on_in_the_background_and_in_the_foreground() {
    require!(has_shell(), "setsid of util-linux, bash");
    let dir = workspace();
    let mut shell = Shell::open(dir.path());
    for command in ["sleep 60", "cat", "sh -c 'read x; sleep 60'"] {
        shell.types(&format!("$K -- {command}\n"));
        shell.wait();
        shell.types("\x1a");
        shell.expect("Stopped");
        shell.says("jobs | wc -l", "1");
        shell.types("fg\n");
        shell.wait();
        shell.types("\x03");
        shell.prompt();
        shell.says("echo st=$?", "st=130");
    }
    shell.types("$K -- sleep 60\n");
    shell.wait();
    shell.types("\x1a");
    shell.expect("Stopped");
    shell.says("bg; jobs | grep -c Running", "1");
    shell.types("fg\n");
    shell.wait();
    shell.types("\x03");
    shell.prompt();
    shell.says("echo st=$?", "st=130");
}

#[test]
fn what_is_typed_ahead_of_a_command_that_reads_nothing_is_the_shell_s() {
    require!(has_shell(), "setsid of util-linux, bash");
    let dir = workspace();
    let mut shell = Shell::open(dir.path());
    shell.types("$K -- sleep 2\n");
    shell.wait();
    shell.types("echo a'h'ead\n");
    shell.expect("\nahead\r");
}

#[test]
fn a_command_that_first_waits_for_input_gets_it() {
    require!(has_shell(), "setsid of util-linux, bash");
    let dir = workspace();
    let mut shell = Shell::open(dir.path());
    // bash waits with select(2).
    shell.types("$K -- bash -c 'echo ready; read -t 20 x; echo got:$x'\n");
    shell.expect("\nready\r");
    shell.wait();
    shell.types("hello\n");
    shell.expect("\ngot:hello\r");
}

#[test]
fn a_shell_inside_has_job_control_and_says_nothing() {
    require!(has_shell(), "setsid of util-linux, bash");
    let dir = workspace();
    let mut shell = Shell::open(dir.path());
    shell.types("$K --setenv 'PS1=inner> ' -- bash --norc --noprofile\n");
    shell.wait();
    assert!(
        !shell.0.seen.contains("job control") && !shell.0.seen.contains("cannot set"),
        "{:?}",
        shell.0.seen
    );
    shell.says("stty size; echo in'side'", "33 77");
    shell.expect("\ninside\r");
    shell.types("sleep 60\n");
    shell.wait();
    shell.types("\x1a");
    shell.expect("Stopped");
    shell.says("bg; kill %1; wait; echo wai'ted'", "waited");
    shell.types("suspend -f\n");
    shell.expect("Stopped");
    shell.prompt();
    shell.says("echo out'er'", "outer");
    shell.types("fg\n");
    shell.wait();
    shell.says("echo ag'ain'", "again");
    shell.types("exit 5\n");
    shell.prompt();
    shell.says("echo st=$?", "st=5");
    shell.says("stty -a | grep -o -w icanon", "icanon");
}

#[test]
fn output_and_size_are_those_of_the_terminal() {
    require!(has_shell(), "setsid of util-linux, bash");
    let dir = workspace();
    let kennel = kennel_path();
    let script = "tty; stty size; test -t 0 -a -t 1 -a -t 2 && echo all; seq 1 5000; echo err >&2; echo last";
    let mut terminal = Shell::run(
        dir.path(),
        Command::new("setsid")
            .arg("--ctty")
            .arg(kennel)
            .arg("run")
            .args(quiet())
            .args(["--", "sh", "-c", script]),
    );
    terminal.expect("last\r\n");
    let status = ends("it is over", &mut terminal.0.child);
    assert!(status.success(), "{status}");
    let mut terminal = Shell::open(dir.path());
    terminal.types(
        "$K -- sh -c 'tty; stty size; test -t 0 -a -t 1 -a -t 2 && echo all; seq 1 3; echo err >&2'\n",
    );
    terminal.expect("\r\n/dev/pts/0\r\n33 77\r\nall\r\n1\r\n2\r\n3\r\nerr\r\n");
    terminal.types("$K -- sh -c 'test -t 0 && ! test -t 1 && echo piped; read x; echo got:$x' | cat\n");
    terminal.expect("piped\r\n");
    terminal.types("line\n");
    terminal.expect("got:line\r\n");
}

#[test]
fn the_key_that_interrupts_ends_a_script_around_a_command_that_reads() {
    require!(has_shell(), "setsid of util-linux, bash");
    let dir = workspace();
    let mut shell = Shell::open(dir.path());
    shell.types("bash -c 'for i in 1 2; do echo start $i; '\"$K\"' -- cat; done; echo loop-end'\n");
    shell.expect("start 1\r");
    shell.wait();
    shell.types("\x03");
    shell.prompt();
    shell.says("echo st=$?", "st=130");
    assert!(!shell.0.seen.contains("start 2"), "{:?}", shell.0.seen);
}

/// The terminal is not the controlling terminal here: that one would be hung up at the end.
#[test]
fn the_terminal_s_modes_are_as_before_when_kennel_is_ended() {
    let dir = workspace();
    let pty = openpty(None, None).unwrap();
    let end = || Stdio::from(pty.slave.try_clone().unwrap());
    let before = tcgetattr(&pty.slave).unwrap();
    let mut child = Command::new(kennel_path())
        .args(["run", "--", "cat"])
        .current_dir(dir.path())
        .stdin(end())
        .stdout(end())
        .stderr(end())
        .spawn()
        .unwrap();
    let is_raw = || !tcgetattr(&pty.slave).unwrap().local_flags.contains(LocalFlags::ICANON);
    until("it reads keys", is_raw);
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(ends("it was told to", &mut child).signal(), Some(15));
    assert_eq!(tcgetattr(&pty.slave).unwrap(), before);
}

#[test]
fn a_background_command_that_nobody_can_continue_reads_the_end_of_input() {
    require!(has_shell(), "setsid of util-linux, bash");
    let dir = workspace();
    let mut shell = Shell::open(dir.path());
    // The group is orphaned as soon as the subshell has ended.
    shell.types("(sh -c \"sleep 1; $K -- sh -c 'cat > read; echo over > over'\" &)\n");
    until("it reads", || dir.path().join("over").exists());
    shell.says("echo secret'1'", "secret1");
    assert_eq!(fs::read_to_string(dir.path().join("read")).unwrap(), "");
}
