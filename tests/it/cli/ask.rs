//! `--ask`: a person at a terminal decides about hosts that no rule decides.

use std::{
    fs::{self},
    io::Write,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::origin;
use crate::support::{
    Screen, TempDir, has, kennel_path, only_once, patient, quiet, require, stderr, workspace,
};

/// A user at a terminal, and `kennel run --ask` on it.
struct Window {
    screen: Screen,
    home: TempDir,
    dir: TempDir,
}

impl Window {
    fn open(flags: &[&str], script: &str) -> Self {
        Self::at(workspace(), flags, script)
    }

    fn at(home: TempDir, flags: &[&str], script: &str) -> Self {
        let dir = workspace();
        let mut kennel = Command::new("setsid");
        kennel.arg("--ctty").arg(kennel_path()).args(["run", "--ask"]).args(quiet());
        kennel.args(flags).args(["--", "sh", "-c", script]).current_dir(dir.path());
        kennel
            .env("HOME", home.path())
            .env_remove("XDG_CONFIG_HOME")
            .env("NO_COLOR", "1")
            .env("LC_ALL", "C")
            .env("TERM", "xterm");
        Self { screen: Screen::start(&mut kennel, Duration::from_secs(10)), home, dir }
    }

    fn type_in(&mut self, text: &str) {
        self.screen.type_in(text);
    }

    fn expect(&mut self, text: &str) {
        self.screen.expect(text);
    }

    /// Waits for a question and answers it, not sooner than a person could.
    fn answer(&mut self, rule: &str, text: &str) {
        self.expect(&format!("kennel: allow {rule}?"));
        self.screen.seen.clear();
        thread::sleep(Duration::from_millis(600));
        self.type_in(text);
    }

    /// Waits for the end. Returns the exit status and what was seen since the last question.
    fn end(&mut self) -> (Option<i32>, String) {
        let (status, seen) = self.screen.end_with(Duration::from_secs(45), |_| None);
        (status.code(), seen)
    }
}

/// A script that requests a URL of the host so many times, and prints the statuses.
fn get(port: u16, times: usize) -> String {
    let proxy = "-x http://127.0.0.1:3128 --noproxy ''";
    let one = format!("curl -s -o /dev/null -w 'got:%{{http_code}} ' {proxy} http://127.0.0.1:{port}/");
    vec![one; times].join("; ")
}

#[test]
fn once_asks_again_and_for_the_session_does_not() {
    require!(has("setsid") && has("curl"), "setsid of util-linux, and curl");
    let port = origin();
    let rule = format!("127.0.0.1:{port}");
    let mut window = Window::open(&[], &get(port, 4));
    window.answer(&rule, "o\r");
    window.expect("got:200");
    window.answer(&rule, "s\r");
    let (status, seen) = window.end();
    assert_eq!(status, Some(0), "{seen}");
    assert_eq!((seen.matches("got:200").count(), seen.matches("allow ").count()), (3, 0), "{seen}");
    assert!(!window.home.path().join(".config").exists(), "nothing is kept");
}

#[test]
fn no_is_no_for_the_run() {
    require!(has("setsid") && has("curl"), "setsid of util-linux, and curl");
    let port = origin();
    let rule = format!("127.0.0.1:{port}");
    for answer in ["\r", "n\r", "\u{3}"] {
        let script = format!("trap '' INT; {}", get(port, 2));
        let mut window = Window::open(&[], &script);
        window.answer(&rule, answer);
        let (_, seen) = window.end();
        assert!(!seen.contains("got:200") && !seen.contains("kennel: allow "), "{answer:?}: {seen}");
    }
    // Nor is a word that no answer is, such as that to a question of the command.
    let mut window = Window::open(&[], &get(port, 1));
    window.answer(&rule, "y\r");
    window.expect("please type o, s, a or n");
    window.type_in("n\r");
    let (_, seen) = window.end();
    assert!(seen.contains("got:403"), "{seen}");
}

#[test]
fn always_is_written_to_the_user_s_file_and_comments_stay() {
    require!(has("setsid") && has("curl"), "setsid of util-linux, and curl");
    let port = origin();
    let rule = format!("127.0.0.1:{port}");
    let mut window = Window::open(&[], &get(port, 2));
    window.expect("always adds it to ~/.config/kennel/config.toml");
    window.expect("[a]lways, [N]o");
    window.answer(&rule, "a\r");
    let (status, seen) = window.end();
    let file = window.home.path().join(".config/kennel/config.toml");
    assert!(status == Some(0) && seen.matches("got:200").count() == 2, "{seen}");
    assert!(seen.replace("\n  ", " ").contains(&format!("config.toml now allows {rule}")), "{seen}");
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("[network]\nallow = [\"{rule}\"]\n"));
    fs::write(&file, format!("# mine\n[network]\nallow = [\"{rule}\"] # why\n")).unwrap();
    let other = origin();
    let home = std::mem::replace(&mut window.home, workspace());
    let mut window = Window::at(home, &[], &format!("{}; {}", get(port, 1), get(other, 1)));
    window.answer(&format!("127.0.0.1:{other}"), "a\r");
    let (_, seen) = window.end();
    let file = window.home.path().join(".config/kennel/config.toml");
    let text = format!("# mine\n[network]\nallow = [\"{rule}\", \"127.0.0.1:{other}\"] # why\n");
    assert_eq!(fs::read_to_string(file).unwrap(), text, "{seen}");
}

#[test]
fn keys_answer_the_question_and_do_not_reach_the_command() {
    require!(has("setsid") && has("curl"), "setsid of util-linux, and curl");
    let port = origin();
    let rule = format!("127.0.0.1:{port}");
    // The command reads the terminal all the time, and prints what looks like an answer.
    let script = format!(
        "(while read line; do echo \"read:$line\"; done < /dev/tty) & echo o; {}; sleep 0.3",
        get(port, 1)
    );
    let mut window = Window::open(&[], &script);
    window.answer(&rule, "s\r");
    window.expect("got:200");
    window.type_in("mine\r");
    let (_, seen) = window.end();
    assert!(seen.contains("read:mine") && !seen.contains("read:s"), "{seen}");
}

#[test]
fn keys_that_were_meant_for_the_command_answer_nothing() {
    require!(has("setsid") && has("curl"), "setsid of util-linux, and curl");
    let port = origin();
    let mut window = Window::open(&[], &get(port, 1));
    window.expect(&format!("kennel: allow 127.0.0.1:{port}?"));
    // Faster than a person can read.
    window.type_in("s\r");
    thread::sleep(Duration::from_millis(600));
    assert!(!window.screen.seen.contains("got:"));
    window.type_in("n\r");
    let (_, seen) = window.end();
    assert!(seen.contains("got:403"), "{seen}");
}

#[test]
fn waiting_connections_to_one_host_are_one_question() {
    require!(has("setsid") && has("curl"), "setsid of util-linux, and curl");
    let port = origin();
    let script = format!("for i in 1 2 3 4 5; do {} & done; wait", get(port, 1));
    let mut window = Window::open(&[], &script);
    window.answer(&format!("127.0.0.1:{port}"), "s\r");
    let (_, seen) = window.end();
    assert_eq!((seen.matches("got:200").count(), seen.matches("allow ").count()), (5, 0), "{seen}");
}

#[test]
fn output_of_the_command_waits_for_the_answer() {
    require!(has("setsid") && has("curl"), "setsid of util-linux, and curl");
    let port = origin();
    let script =
        format!("{} & sleep 0.5; while [ ! -e stop ]; do echo noise; sleep 0.02; done; wait", get(port, 1));
    let mut window = Window::open(&[], &script);
    window.expect("[N]o (30 s): ");
    thread::sleep(Duration::from_millis(900));
    while window.screen.read_some() {}
    assert!(!window.screen.seen.contains("noise"), "{}", window.screen.seen);
    window.type_in("s\r");
    window.expect("noise");
    fs::write(window.dir.path().join("stop"), "").unwrap();
    let (_, seen) = window.end();
    assert!(seen.contains("got:200"), "{seen}");
}

/// What is left open when the command ends keeps nobody waiting.
#[test]
fn a_question_ends_with_the_command() {
    require!(has("setsid") && has("curl"), "setsid of util-linux, and curl");
    let port = origin();
    let mut window = Window::open(&[], &format!("{} & sleep 1; echo done", get(port, 1)));
    window.expect("kennel: allow ");
    let start = Instant::now();
    let (status, seen) = window.end();
    assert!(
        status == Some(0) && seen.contains("done") && start.elapsed() < patient(Duration::from_secs(8)),
        "{seen}"
    );
}

#[test]
fn without_an_answer_it_is_no() {
    only_once!();
    require!(has("setsid") && has("curl"), "setsid of util-linux, and curl");
    let (port, other) = (origin(), origin());
    let mut window = Window::open(&[], &format!("({}) & {}; wait", get(port, 2), get(other, 1)));
    let start = Instant::now();
    let (_, seen) = window.end();
    let took = start.elapsed();
    assert!(seen.contains("no answer, so no") && seen.matches("got:403").count() == 3, "{seen}");
    assert!(took >= Duration::from_secs(29) && took < patient(Duration::from_secs(45)), "{took:?}");
}

#[test]
fn nothing_is_asked_without_a_terminal_or_a_proxy() {
    require!(has("setsid"), "setsid of util-linux");
    let dir = workspace();
    for (flags, words) in [
        (&[][..], "answers come from a terminal, and standard input is none"),
        (&["--net", "host"], "standard input is none"),
    ] {
        let mut kennel = Command::new(kennel_path());
        let mut child = kennel
            .args(["run", "--ask"])
            .args(flags)
            .args(["--", "echo", "ran"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(b"a\no\ns\n");
        let output = child.wait_with_output().unwrap();
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
        assert!(stderr(&output).contains(words), "{output:?}");
    }
    for flags in
        [&["--net", "host"][..], &["--net", "none"], &["--profile", "no-network"], &["--profile", "full-dev"]]
    {
        let (status, seen) = Window::open(flags, "echo ran").end();
        assert!(
            status == Some(125) && seen.contains("only Kennel's own proxy asks") && !seen.contains("ran\n"),
            "{seen}"
        );
    }
}
