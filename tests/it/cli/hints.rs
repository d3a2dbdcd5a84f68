//! Hints: on a terminal, a command that failed is told what of Kennel's own doing may be the reason, in three
//! lines at most. Doing what a hint says helps. A pipe gets none, and neither does a failure that is the
//! command's own.

mod session;

use std::{
    fs::{self, File},
    io::Read,
    os::{fd::OwnedFd, unix::fs::symlink},
    path::Path,
    process::{Command, Stdio},
    thread,
};

use nix::pty::openpty;

use crate::{
    launch::cgroups::has_groups,
    serve::Hosted,
    support::{
        TempDir, has, kennel, make_repository, require, require_ci_only, stderr, until, workspace,
        write_program,
    },
};

/// Runs a script with stderr on a terminal. Returns the exit status and Kennel's lines.
fn at_terminal(dir: &Path, flags: &[&str], script: &str) -> (Option<i32>, Vec<String>) {
    command_at_terminal(dir, None, flags, &["sh", "-c", script])
}

fn command_at_terminal(
    dir: &Path,
    home: Option<&Path>,
    flags: &[&str],
    command: &[&str],
) -> (Option<i32>, Vec<String>) {
    let mut command = kennel(dir, flags, command);
    if let Some(home) = home {
        command.env("HOME", home);
    }
    with_terminal(command)
}

/// Runs a command with stderr on a terminal, and nothing else of its own.
fn with_terminal(mut command: Command) -> (Option<i32>, Vec<String>) {
    let pty = openpty(None, None).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::from(pty.slave));
    seen(command, pty.master)
}

/// The same on a terminal of the command's own, whose output passes through Kennel.
fn on_own_terminal(dir: &Path, flags: &[&str], script: &str) -> (Option<i32>, Vec<String>) {
    with_own_terminal(&kennel(dir, &[&["--tty"], flags].concat(), &["sh", "-c", script]))
}

/// Runs a command whose terminal is all of its standard descriptors.
fn with_own_terminal(plain: &Command) -> (Option<i32>, Vec<String>) {
    let pty = openpty(None, None).unwrap();
    let peer = File::from(pty.slave);
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(plain.get_program()).args(plain.get_args());
    command.current_dir(plain.get_current_dir().unwrap()).env("LC_ALL", "C");
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(peer.try_clone().unwrap()).stdout(peer.try_clone().unwrap()).stderr(peer);
    seen(command, pty.master)
}

/// Runs a command to its end. Returns its status and Kennel's lines on the terminal.
fn seen(mut command: Command, master: OwnedFd) -> (Option<i32>, Vec<String>) {
    let mut child = command.env("NO_COLOR", "1").spawn().unwrap();
    // The last descriptor of this side.
    drop(command);
    let mut master = File::from(master);
    let reading = thread::spawn(move || {
        let mut bytes = Vec::new();
        // EIO is the end of a terminal.
        let _ = master.read_to_end(&mut bytes);
        String::from_utf8(bytes).unwrap()
    });
    let status = child.wait().unwrap().code();
    let seen = reading.join().unwrap();
    // Without a cgroup, or a user namespace, some limits and walls have a line of their own.
    let is_of_host = |line: &str| line.contains(" degraded: ") || line.contains("user_namespace off");
    let is_own = |line: &&str| line.starts_with("kennel: ") && !is_of_host(line);
    (status, seen.lines().filter(is_own).map(str::to_owned).collect())
}

/// The places of the examples.
struct Places {
    workspace: TempDir,
    /// What the sandbox does not show.
    hidden: TempDir,
    /// What is granted read-only.
    read_only: TempDir,
}

impl Places {
    fn new() -> Self {
        let places = Self { workspace: workspace(), hidden: workspace(), read_only: workspace() };
        for place in [&places.workspace, &places.hidden, &places.read_only] {
            fs::write(place.path().join("f"), "x\n").unwrap();
        }
        fs::write(places.read_only.path().join("old"), "").unwrap();
        places
    }

    fn fill(&self, text: &str) -> String {
        let places = [("{hid}", &self.hidden), ("{ro}", &self.read_only), ("{ws}", &self.workspace)];
        places.iter().fold(text.to_owned(), |text, (name, place)| {
            text.replace(name, &place.path().display().to_string())
        })
    }
}

/// The flags in a hint: `--rw PATH allows it`, `--net proxy --allow HOST:PORT allows it`. In a session the
/// words `a session started with` come first.
fn flags_of(hint: &str) -> Vec<String> {
    let remedy = hint.rsplit_once("; ").expect("a remedy").1;
    let mut words = remedy.strip_prefix(OF_SESSION).unwrap_or(remedy).split(' ');
    let mut flags = Vec::new();
    while let Some(flag) = words.next().filter(|word| word.starts_with("--")) {
        flags.push(format!("{flag}={}", words.next().expect("a value")));
    }
    assert!(!flags.is_empty(), "{hint}");
    flags
}

/// The flags, and those of the hint in place of those that say otherwise.
fn with_advice(flags: &[String], advice: &[String]) -> Vec<String> {
    let is_replaced = |flag: &String| {
        let Some((name, value)) = flag.split_once('=') else { return false };
        let mut advice = advice.iter().filter_map(|advice| advice.split_once('='));
        match name {
            "--ro" | "--rw" => advice.any(|(_, granted)| Path::new(value).starts_with(granted)),
            _ => advice.any(|(other, _)| name == other && name != "--allow"),
        }
    };
    flags.iter().filter(|flag| !is_replaced(flag)).chain(advice).cloned().collect()
}

/// Runs with flags as text.
fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// The flags, the script, and what the hint names. A part in capitals gets the last value.
const HELPED: &[(&[&str], &str, &str, &str)] = &[
    // A path that is hidden.
    (&[], "cat {hid}/f", "kennel: hint: {hid}/f: ", ""),
    (&[], "cat < {hid}/f", "kennel: hint: {hid}/f: ", ""),
    (&[], "grep -r --file={hid}/f .", "kennel: hint: {hid}/f: ", ""),
    (&[], "cd {hid} && ls", "kennel: hint: {hid}: ", ""),
    (&[], "cp {hid}/f copy", "kennel: hint: {hid}/f: ", ""),
    (&[], "echo x > {hid}/new", "kennel: hint: {hid}/new: ", ""),
    (&[], "echo x > {hid}/f", "kennel: hint: {hid}/f: ", ""),
    (&[], "cp f {hid}/copy", "kennel: hint: {hid}/copy: ", ""),
    (&[], "mkdir {hid}/made", "kennel: hint: {hid}/made: ", ""),
    // A path that is read-only.
    (&["--ro={ro}"], "touch {ro}/new", "kennel: hint: {ro}/new: read-only: {ro} is granted for reading", ""),
    (&["--ro={ro}"], "echo y > {ro}/f", "kennel: hint: {ro}/f: ", ""),
    (&["--ro={ro}"], "cp f {ro}/copy", "kennel: hint: {ro}/copy: ", ""),
    (&["--profile=read-only"], "touch ./made", "kennel: hint: {ws}/made: read-only: the workspace", ""),
    // A path that is there, read-only, and that the command has not read.
    (
        &["--ro={ro}"],
        "sed -i s/x/y/ {ro}/f",
        "kennel: hint: {ro}/f: read-only: {ro} is granted for reading; ",
        "",
    ),
    (&["--ro={ro}"], "rm {ro}/old", "kennel: hint: {ro}/old: ", ""),
    (&["--ro={ro}"], "touch {ro}/f", "kennel: hint: {ro}/f: ", ""),
    (&["--ro={ro}"], "chmod 600 {ro}/f", "kennel: hint: {ro}/f: ", ""),
    (&["--ro={ro}"], "tee {ro}/f < f", "kennel: hint: {ro}/f: ", ""),
    (&["--ro={ro}"], "cp f {ro}/", "kennel: hint: {ro}: ", ""),
    (&["--ro={ro}"], "cp ./f {ro}", "kennel: hint: {ro}: ", ""),
    (&["--ro={ro}"], "test -w {ro}/f", "kennel: hint: {ro}/f: ", ""),
    (&["--profile=read-only"], "sed -i s/x/x/ ./f", "kennel: hint: {ws}/f: read-only: the workspace", ""),
    // The network, and limits.
    (
        &["--net=none"],
        "./fetch https://example.org/x",
        "kennel: hint: example.org: the sandbox has no network",
        "",
    ),
    (
        &["--profile=no-network"],
        "./fetch --url=https://example.org/x",
        "kennel: hint: example.org: the sandbox has no network",
        "",
    ),
    (&["--timeout=200ms"], "sleep 1", "kennel: hint: wall time: the limit is 200ms", "20s"),
    (
        &["--max-output=1K", "--output-ends"],
        "head -c 5000 /dev/zero",
        "kennel: hint: output: the limit is 1K",
        "1M",
    ),
    (
        &["--cpu-time=1s"],
        "perl -e 'do { $x++ for 1 .. 100_000 } while (times)[0] < 1.5'",
        "kennel: hint: processor time: the limit is 1s",
        "20s",
    ),
];

/// The same, for limits of a cgroup.
const HELPED_WITH_GROUPS: &[(&[&str], &str, &str, &str)] = &[
    (&["--memory=32M"], "perl -e '$_ = \"x\" x 100_000_000'", "kennel: hint: memory: the limit is 32M", "1G"),
    (
        &["--pids=5"],
        "for n in 1 2 3 4 5 6 7 8; do sleep 1 & done; wait",
        "kennel: hint: processes: the limit is 5",
        "100",
    ),
];

/// What comes before the flags of a session.
const OF_SESSION: &str = "a session started with ";

#[test]
fn doing_what_a_hint_says_helps() {
    let run = |places: &Places, flags: &[String], script: &str| {
        at_terminal(places.workspace.path(), &words(flags), script)
    };
    all_help(|_| true, run);
}

/// Runs each example, does what its hint says, and runs it again.
fn all_help(
    is_meant: impl Fn(&[&str]) -> bool,
    run: impl Fn(&Places, &[String], &str) -> (Option<i32>, Vec<String>),
) {
    let places = Places::new();
    let fetch = places.workspace.path().join("fetch");
    write_program(&fetch, "#!/bin/sh\ntest -n \"$HTTPS_PROXY\"\n");
    let with_groups = if has_groups() { HELPED_WITH_GROUPS } else { &[] };
    for (flags, script, expected, value) in HELPED.iter().chain(with_groups) {
        if script.starts_with("perl") && !has("perl") || !is_meant(flags) {
            continue;
        }
        let (script, expected) = (places.fill(script), places.fill(expected));
        let mut flags: Vec<String> = flags.iter().map(|flag| places.fill(flag)).collect();
        let run = |flags: &[String]| run(&places, flags, &script);
        // The first advice may not be the last: a path that is shown may then be read-only.
        let mut is_helped = false;
        for turn in 0..2 {
            let (code, lines) = run(&flags);
            is_helped = code == Some(0);
            if is_helped {
                assert_eq!(lines, Vec::<String>::new(), "{script}");
                break;
            }
            let hint = lines.iter().find(|line| line.starts_with("kennel: hint: "));
            let hint = hint.unwrap_or_else(|| panic!("{script} with {flags:?}: {code:?} {lines:?}"));
            assert!(turn > 0 || hint.starts_with(&expected), "{script}: {hint}");
            let advice: Vec<String> = flags_of(hint)
                .into_iter()
                .map(|flag| match flag.split_once('=') {
                    Some((name, unknown)) if unknown.chars().all(char::is_uppercase) => {
                        format!("{name}={value}")
                    }
                    _ => flag,
                })
                .collect();
            flags = with_advice(&flags, &advice);
        }
        assert!(is_helped || run(&flags).0 == Some(0), "{script} with {flags:?}");
    }
}

#[test]
fn hints_are_for_terminals_unless_they_are_asked_for() {
    let places = Places::new();
    let dir = places.workspace.path();
    for (flags, script, ..) in HELPED {
        let flags: Vec<String> = flags.iter().map(|flag| places.fill(flag)).collect();
        let output = kennel(dir, &words(&flags), &["sh", "-c", &places.fill(script)]).output().unwrap();
        assert!(!stderr(&output).contains("hint: "), "{script}: {output:?}");
    }
    let script = places.fill("cat {hid}/f");
    let (code, lines) = at_terminal(dir, &["--quiet"], &script);
    assert_eq!((code, lines), (Some(1), vec![]));
}

#[test]
fn a_failure_of_the_command_s_own_says_nothing() {
    require!(has("git"), "git");
    let places = Places::new();
    let dir = places.workspace.path();
    make_repository(&dir.join(".git"));
    symlink(places.hidden.path().join("f"), dir.join("link")).unwrap();
    let granted = format!("--ro={}", places.read_only.path().display());
    fs::write(places.read_only.path().join("raises.py"), "raise\n").unwrap();
    write_program(places.read_only.path().join("fails"), "#!/bin/sh\nexit 1\n");
    for script in [
        "false",
        "exit 3",
        "grep absent f",
        "grep absent {ro}/f",
        "grep absent /usr/share/common-licenses/* /etc/hosts",
        // What it has read is not what it could not change.
        "sed q1 {ro}/f",
        "cat {ro}/f missing",
        "grep -r absent {ro}",
        "find {ro} -name f -exec false {} +",
        "python3 {ro}/raises.py",
        "sh {ro}/raises.py",
        "{ro}/fails",
        "cd {ro}; false",
        "git -C {ro} rev-parse absent",
        // No flag allows it, and it may only look.
        "ls /usr/lib/nothing",
        "touch /usr/nothing",
        "rm /usr/bin/env",
        "cp f /usr/share/",
        "false {ro}/is/no/path",
        "cat missing",
        "cat /nowhere/x /tmp/missing",
        "touch /tmp/made; mkdir made; false",
        "git config --get no.such",
        "git commit -m empty",
        "make nothing",
        "curl https://127.0.0.1:1/",
        "sleep 60 & kill $$",
        // A command may have made the link.
        "cat link",
        // A user ended it.
        "cat {hid}/f; exit 130",
        // It succeeds.
        "cat {hid}/f || true",
        "true",
    ] {
        let script = places.fill(script);
        let (_, lines) = at_terminal(dir, &[&granted], &script);
        assert_eq!(lines, Vec::<String>::new(), "{script}");
    }
}

#[test]
fn what_no_flag_makes_writable_is_explained() {
    let dir = workspace();
    let line = "kennel: hint: /usr/x: read-only: /usr is shown by the profile; work on a copy";
    let (code, lines) = at_terminal(dir.path(), &[], "echo x > /usr/x");
    assert!(code != Some(0) && lines == [line], "{lines:?}");
    // They may only read.
    for script in ["sed -n 's/a/' /etc/passwd", "cat /usr/x"] {
        let (_, lines) = at_terminal(dir.path(), &[], script);
        assert_eq!(lines, Vec::<String>::new(), "{script}");
    }
}

#[test]
fn errors_on_a_terminal_that_kennel_reads_make_hints() {
    require!(has("setsid"), "setsid of util-linux");
    let places = Places::new();
    let dir = places.workspace.path();
    let run = |flags: &[String], text: &str| {
        fs::write(dir.join("tool"), places.fill(text)).unwrap();
        on_own_terminal(dir, &words(flags), "sh tool")
    };
    symlink(places.hidden.path().join("f"), dir.join("link")).unwrap();
    let granted = [places.fill("--ro={ro}")];
    for (text, subject) in [
        ("cat {hid}/f", "{hid}/f"),
        ("for name in a b c d; do touch {ro}/$name || status=1; done; exit $status", "{ro}/a"),
        ("echo x > {hid}/new", "{hid}/new"),
    ] {
        let (code, lines) = run(&granted, text);
        let expected = places.fill(&format!("kennel: hint: {subject}: "));
        assert!(code != Some(0) && lines.len() == 1 && lines[0].starts_with(&expected), "{text}: {lines:?}");
        let flags = with_advice(&granted, &flags_of(&lines[0]));
        assert_eq!(run(&flags, text), (Some(0), vec![]), "{text}");
    }
    for text in [
        "false",
        "grep absent f",
        "cat missing",
        "cat {hid}/f; true",
        "cat {hid}/f; kill -INT $$",
        // No flag helps, or a command must not make Kennel recommend it.
        "touch /usr/x",
        "cat link",
        "cat ~/.ssh/id_rsa",
    ] {
        assert_eq!(run(&granted, text).1, Vec::<String>::new(), "{text}");
    }
    // What was typed and is not there outside.
    assert_eq!(on_own_terminal(dir, &[], "cat /nowhere/x"), (Some(1), vec![]));
}

#[test]
fn there_are_three_lines_at_most_and_each_path_is_named_once() {
    let places = Places::new();
    for name in ["a", "b", "c", "d"] {
        fs::write(places.hidden.path().join(name), "").unwrap();
    }
    let dir = places.workspace.path();
    let (_, lines) =
        at_terminal(dir, &[], &places.fill("cat {hid}/a {hid}/b; cat {hid}/c {hid}/d {hid}/a; false"));
    assert_eq!(lines.len(), 3, "{lines:?}");
    let (_, lines) = at_terminal(dir, &[], &places.fill("cat {hid}/a {hid}/a; cat {hid}/a"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    let (_, lines) = at_terminal(dir, &["--explain"], &places.fill("cat {hid}/a"));
    assert!(lines.len() == 1 && lines[0].contains("possibly denied: "), "{lines:?}");
}

#[test]
fn a_subdirectory_is_named_if_what_a_program_searches_is_above() {
    let top = workspace();
    let sub = top.path().join("sub");
    fs::create_dir(&sub).unwrap();
    fs::write(top.path().join("Cargo.toml"), "").unwrap();
    write_program(sub.join("cargo"), "#!/bin/sh\ntest -e ../Cargo.toml\n");
    let run = |flags: &[&str]| command_at_terminal(&sub, None, flags, &["./cargo"]);
    let (code, lines) = run(&[]);
    let advice = format!("; --rw {} shows it", top.path().display());
    assert!(code == Some(1) && lines.len() == 1 && lines[0].ends_with(&advice), "{lines:?}");
    assert_eq!(run(&["--rw", top.path().to_str().unwrap()]), (Some(0), vec![]));
    // Then the file above is not what it misses.
    fs::write(sub.join("Cargo.toml"), "").unwrap();
    assert_eq!(run(&[]), (Some(1), vec![]));
    let output = kennel(&sub, &["--explain"], &["./cargo"]).output().unwrap();
    assert_eq!(stderr(&output), "");
    fs::remove_file(sub.join("Cargo.toml")).unwrap();
    let output = kennel(&sub, &["--explain"], &["./cargo"]).output().unwrap();
    assert!(stderr(&output).ends_with(&advice), "a pipe gets it on request: {output:?}");
}

#[test]
fn settings_of_a_repository_are_named() {
    require!(has("git"), "git");
    for command in ["git config core.pager less", "git remote add o /x", "git branch -m other"] {
        let dir = workspace();
        make_repository(&dir.path().join(".git"));
        let (code, lines) = at_terminal(dir.path(), &[], command);
        assert_ne!(code, Some(0), "{command}");
        assert_eq!(lines.len(), 1, "{command}: {lines:?}");
        let advice = flags_of(&lines[0]);
        assert_eq!(advice, ["--git=trust"], "{command}");
        // The branch has its new name already.
        if !command.contains("branch") {
            assert_eq!(at_terminal(dir.path(), &words(&advice), command).0, Some(0), "{command}");
        }
    }
}

#[test]
fn an_identity_for_commits_is_named() {
    require!(has("git"), "git");
    let (dir, home) = (workspace(), workspace());
    make_repository(&dir.path().join(".git"));
    for (key, value) in [("user.name", "me"), ("user.email", "me@example.org")] {
        let mut config = Command::new("git");
        config.args(["config", "--file"]).arg(home.path().join(".gitconfig")).args([key, value]);
        assert!(config.status().unwrap().success());
    }
    let commit = ["git", "commit", "--allow-empty", "-qm", "x"];
    let run = |flags: &[&str]| command_at_terminal(dir.path(), Some(home.path()), flags, &commit);
    assert_eq!(run(&[]), (Some(0), vec![]), "it is shown by default");
    let (code, lines) = run(&["--git=workspace"]);
    assert_eq!((code, lines.len()), (Some(128), 1), "{lines:?}");
    assert_eq!(run(&words(&flags_of(&lines[0]))).0, Some(0), "{lines:?}");
    require_ci_only!();
    let strict = ["--profile=ci-only".to_owned()];
    let (code, lines) = run(&words(&strict));
    assert_eq!((code, lines.len()), (Some(128), 1), "{lines:?}");
    assert_eq!(run(&words(&with_advice(&strict, &flags_of(&lines[0])))).0, Some(0), "{lines:?}");
}

#[test]
fn an_identity_in_variables_is_passed_on() {
    require!(has("git"), "git");
    let dir = workspace();
    make_repository(&dir.path().join(".git"));
    let mut commit =
        kennel(dir.path(), &["--git", "workspace"], &["git", "commit", "--allow-empty", "-qm", "x"]);
    commit.env("GIT_AUTHOR_NAME", "me").env("GIT_COMMITTER_NAME", "me").env("EMAIL", "me@example.org");
    let output = commit.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_server_that_was_meant_to_stay_is_named() {
    let dir = workspace();
    let (code, lines) = at_terminal(dir.path(), &[], "sleep 60 & sleep 60 & sleep 0.2");
    let expected = "kennel: hint: background: 2 processes that the command left running ended with it; \
                    a server of a session is a command of its own: kennel exec NAME -- SERVER &";
    assert_eq!((code, lines), (Some(0), vec![expected.to_owned()]));
    let session = Hosted::start(&[]);
    let mut server =
        session.kennel(&["exec", "s", "--", "sh", "-c", "echo > up; exec sleep 60"]).spawn().unwrap();
    until("the server is up", || session.workspace.path().join("up").exists());
    let output = session.kennel(&["exec", "s", "--", "sh", "-c", "cat up"]).output().unwrap();
    assert!(output.status.success() && server.try_wait().unwrap().is_none(), "{output:?}");
    server.kill().unwrap();
    server.wait().unwrap();
    // Nothing says that this one was meant to stay.
    fs::write(dir.path().join("tool"), "sleep 60 &\nsleep 0.2\nexit 1\n").unwrap();
    assert_eq!(at_terminal(dir.path(), &[], "sh tool"), (Some(1), vec![]));
}
