//! `--as-owner` copies all streams between root and the owner's process. That shows nowhere.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::AsFd,
        unix::{fs::chown, process::ExitStatusExt},
    },
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::{
    Screen, TempDir, descendants, ends, has, kennel, kennel_path, lives, only_as_root, require, stdout,
    until, workspace,
};

fn of_owner() -> TempDir {
    let dir = workspace();
    chown(dir.path(), Some(1000), Some(1000)).unwrap();
    dir
}

fn command(dir: &Path, script: &str) -> Command {
    kennel(dir, &["--as-owner"], &["sh", "-c", script])
}

/// A line of a shell with `$K` as Kennel.
fn by_shell(dir: &Path, script: &str) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", script]).current_dir(dir);
    shell.env("K", format!("{} run -q --as-owner", kennel_path().display()));
    shell
}

#[test]
fn it_ends_as_its_command() {
    only_as_root!();
    let dir = of_owner();
    assert_eq!(command(dir.path(), "exit 7").status().unwrap().code(), Some(7));
    assert_eq!(command(dir.path(), "kill -KILL $$").status().unwrap().signal(), Some(libc::SIGKILL));
    let status = kennel(dir.path(), &["--as-owner"], &["/nowhere"]).output().unwrap().status;
    assert_eq!(status.code(), Some(127));
    for (signal, trapped) in [(Signal::SIGTERM, 9), (Signal::SIGHUP, 10)] {
        let name = signal.as_str();
        let script =
            format!("trap 'exit {trapped}' {}; echo ready; while :; do sleep 0.05; done", &name[3..]);
        let mut child = command(dir.path(), &script).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        assert_eq!(ends(name, &mut child).code(), Some(trapped), "{name}");
    }
}

#[test]
fn streams_are_as_without_it() {
    only_as_root!();
    let dir = of_owner();
    let output = command(dir.path(), "cat; echo end").stdin(Stdio::null()).output().unwrap();
    assert_eq!(stdout(&output), "end");
    // In the order of one file, and by the names of the streams.
    let both = by_shell(
        dir.path(),
        "$K sh -c 'for i in 1 2 3; do echo o$i; echo e$i >&2; done; echo x > /dev/stdout' 2>&1 | cat",
    );
    assert_eq!(
        stdout(&{
            let mut both = both;
            both.output().unwrap()
        })
        .replace('\n', " "),
        "o1 e1 o2 e2 o3 e3 x"
    );
    // Large output and input, and a reader that leaves.
    let much = by_shell(dir.path(), "head -c 64M /dev/zero | $K sh -c 'cat; head -c 64M /dev/zero' | wc -c")
        .output()
        .unwrap();
    assert_eq!(stdout(&much), (128 << 20).to_string());
    let left = by_shell(dir.path(), "$K yes | head -1; echo ${PIPESTATUS[0]}").output().unwrap();
    assert_eq!(stdout(&left), "y\n141");
    // A file is left where the command has stopped reading.
    fs::write(dir.path().join("lines"), "one\ntwo\nthree\n").unwrap();
    let rest = by_shell(dir.path(), "{ $K sh -c 'read a; echo got $a'; cat; } < lines").output().unwrap();
    assert_eq!(stdout(&rest), "got one\ntwo\nthree");
}

#[test]
fn a_conversation_passes_at_once() {
    only_as_root!();
    let dir = of_owner();
    let mut child = command(dir.path(), "while read -r line; do echo \"<$line>\"; done")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut said) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    for word in ["a", "b"] {
        writeln!(stdin, "{word}").unwrap();
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, format!("<{word}>\n"));
    }
    drop(stdin);
    assert_eq!(said.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert_eq!(ends("it ends with its input", &mut child).code(), Some(0));
}

#[test]
fn nothing_is_left_when_root_s_process_is_killed() {
    only_as_root!();
    let dir = of_owner();
    for script in
        ["trap '' HUP TERM; echo ready; while :; do sleep 0.1; done", "setsid sleep 100 & echo ready; wait"]
    {
        let mut child = command(dir.path(), script).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let all = descendants(child.id());
        assert!(all.len() > 2, "{all:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        until("everything is dead", || !all.iter().any(|pid| lives(*pid)));
    }
}

#[test]
fn relative_paths_need_a_directory_that_the_owner_may_enter() {
    only_as_root!();
    let (root, dir) = (workspace(), of_owner());
    fs::set_permissions(root.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    fs::create_dir(root.path().join("own")).unwrap();
    chown(root.path().join("own"), Some(1000), Some(1000)).unwrap();
    let output = command(&root.path().join("own"), "id -u").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.stdout.is_empty() && said.contains("cannot enter the current directory"), "{said}");
    let elsewhere = ["--as-owner", "--workspace", dir.path().to_str().unwrap()];
    let output = kennel(root.path(), &elsewhere, &["id", "-u"]).output().unwrap();
    assert_eq!(stdout(&output), "1000", "{output:?}");
}

#[test]
fn variables_pass_by_name() {
    only_as_root!();
    let dir = of_owner();
    let run = |flags: &[&str]| {
        let mut words = vec!["--as-owner"];
        words.extend(flags);
        let mut command = kennel(dir.path(), &words, &["sh", "-c", "echo $TOKEN-$LANG"]);
        stdout(&command.env("TOKEN", "t").env("LANG", "C.UTF-8").output().unwrap())
    };
    assert_eq!(run(&[]), "-C.UTF-8");
    assert_eq!(run(&["--pass-env", "TOKEN"]), "t-C.UTF-8");
    assert_eq!(run(&["--env", "inherit"]), "t-C.UTF-8");
    // A file that is not root's asks in vain.
    fs::write(dir.path().join("policy.toml"), "[env]\npass = [\"TOKEN\"]\n").unwrap();
    let policy = dir.path().join("policy.toml");
    assert_eq!(run(&["--policy", policy.to_str().unwrap()]), "-C.UTF-8");
}

/// A person at an interactive shell of root's.
fn at_shell(dir: &Path) -> Screen {
    // Whoever runs the tests in the background ignores the keys.
    let mut shell = Command::new("env");
    shell
        .args(["--default-signal=INT,QUIT", "setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"])
        .current_dir(dir);
    shell.env("LC_ALL", "C").env("TERM", "dumb").env("PS1", "$ ").env("HOME", dir);
    shell.env("K", format!("{} run -q --as-owner", kennel_path().display()));
    Screen::start(&mut shell, Duration::from_secs(20))
}

/// Reads until the shell waits for a line, and types one. What is typed before that is the command's.
fn types_line(screen: &mut Screen, line: &str) {
    screen.until("prompt", |seen| seen.ends_with("$ "));
    screen.type_in(line);
    screen.type_in("\r");
}

/// Reads until `text` appears, and forgets what came before its end.
fn expect(screen: &mut Screen, text: &str) {
    screen.expect(text);
    let end = screen.seen.find(text).unwrap() + text.len();
    screen.seen.drain(..end);
}

#[test]
fn a_terminal_is_as_without_it() {
    only_as_root!();
    require!(has("setsid") && has("bash"), "setsid and bash");
    let dir = of_owner();
    let mut screen = at_shell(dir.path());
    types_line(
        &mut screen,
        "$K sh -c 'stty size; test -t 0 && test -t 2 && echo is-tty; read a; echo got-$a; until stty size | grep -q 40.100; do sleep 0.05; done; echo resized'",
    );
    expect(&mut screen, "\n33 77");
    expect(&mut screen, "\nis-tty");
    kennel::Terminal::set_size(screen.master.as_fd(), 40, 100).unwrap();
    screen.type_in("keys\r");
    expect(&mut screen, "\ngot-keys");
    expect(&mut screen, "\nresized");
    // A key that interrupts.
    types_line(&mut screen, "$K sh -c 'echo ready; exec sleep 100'; echo st=$?");
    expect(&mut screen, "\nready");
    screen.type_in("\x03");
    types_line(&mut screen, "echo after=$?");
    expect(&mut screen, "\nafter=130");
    // A job that is stopped at the moment at which it begins to read, and goes on.
    types_line(&mut screen, "$K sh -c 'echo first; read a; echo second-$a'");
    expect(&mut screen, "\nfirst");
    screen.type_in("\x1a");
    expect(&mut screen, "Stopped");
    types_line(&mut screen, "echo at-the-shell$((1+1))");
    expect(&mut screen, "\nat-the-shell2");
    types_line(&mut screen, "fg");
    expect(&mut screen, "second-$a'");
    screen.type_in("line\r");
    expect(&mut screen, "\nsecond-line");
    types_line(&mut screen, "exit");
}

#[test]
fn keys_go_to_whoever_reads_them() {
    only_as_root!();
    require!(has("setsid") && has("bash"), "setsid and bash");
    let dir = of_owner();
    let mut screen = at_shell(dir.path());
    // In a pipeline Kennel takes no key until its command reads: another program may.
    types_line(
        &mut screen,
        "$K sh -c 'echo ready; sleep 100' | sh -c 'read a; echo $a; read k < /dev/tty; echo other-$k; kill 0'",
    );
    expect(&mut screen, "\nready");
    screen.type_in("keys\r");
    expect(&mut screen, "\nother-keys");
    types_line(&mut screen, "$K sh -c 'echo ready; read a; echo got-$a' | cat");
    expect(&mut screen, "\nready");
    screen.type_in("mine\r");
    expect(&mut screen, "\ngot-mine");
    // In the background, what it reads stops it.
    types_line(&mut screen, "set -b; $K sh -c 'read a; echo got-$a' &");
    expect(&mut screen, "Stopped");
    screen.type_in("echo secret$((1+1))\r");
    expect(&mut screen, "\nsecret2");
    types_line(&mut screen, "fg");
    expect(&mut screen, "echo got-$a'");
    screen.type_in("meant\r");
    expect(&mut screen, "\ngot-meant");
    types_line(&mut screen, "exit");
}

/// Another process of the owner that has the pipe open cannot keep root's process from its end.
#[test]
fn who_holds_a_pipe_delays_nothing() {
    only_as_root!();
    let dir = of_owner();
    let mut child = command(dir.path(), "echo ready; read a; echo done")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let all = descendants(child.id());
    // Opening a pipe of the owner's by its name gives another descriptor of it.
    let held: Vec<File> = all
        .iter()
        .filter_map(|pid| File::options().write(true).open(format!("/proc/{pid}/fd/1")).ok())
        .collect();
    assert!(!held.is_empty());
    child.stdin.take().unwrap().write_all(b"x\n").unwrap();
    assert_eq!(ends("it ends", &mut child).code(), Some(0));
    line.clear();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "done\n");
    drop(held);
}

/// A pipe that the owner fills without end does not hold up root's process, which looks how much of a file
/// was read.
#[test]
fn who_fills_a_pipe_delays_nothing() {
    only_as_root!();
    let dir = of_owner();
    fs::write(dir.path().join("lines"), "one\ntwo\n").unwrap();
    let mut child = command(dir.path(), "read a; echo $a; until test -e go; do sleep 0.05; done")
        .stdin(File::open(dir.path().join("lines")).unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "one\n");
    // Each has the pipe as its standard input, and a blocking read of it would wait.
    let pids = descendants(child.id());
    let fill = "for pid; do cat /dev/zero > /proc/$pid/fd/0 & done; echo; wait";
    let mut filling = Command::new("setpriv");
    filling.args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "sh", "-c", fill, "fill"]);
    filling.args(pids.iter().map(u32::to_string)).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut filling = std::os::unix::process::CommandExt::process_group(&mut filling, 0).spawn().unwrap();
    filling.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    fs::write(dir.path().join("go"), "").unwrap();
    let status = ends("it ends", &mut child);
    let _ = nix::sys::signal::killpg(Pid::from_raw(filling.id().cast_signed()), Signal::SIGKILL);
    filling.wait().unwrap();
    assert_eq!(status.code(), Some(0));
}
