//! `kennel session` and `kennel exec`.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    pty::openpty,
    sys::signal::Signal,
};
use serde_json::Value;

use crate::{
    serve::signal,
    support::{
        HEARTBEAT, beats, ends, has, is_root, is_silent, kennel_path, patient_flag, require, runtime, stderr,
        stdout, until, until_full, workspace,
    },
};

use crate::support::{Screen, World};

/// A session in the background, stopped at the end of the test.
struct Background {
    world: World,
}

impl Background {
    fn start(flags: &[&str]) -> Self {
        let background = Self { world: World::new() };
        let output = background.session(&[&["start", "--name", "s"], flags].concat());
        assert!(output.status.success(), "{output:?}");
        assert_eq!(stdout(&output), background.world.runtime().join("kennel/s.sock").display().to_string());
        background
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.world.kennel(arguments)
    }

    fn session(&self, arguments: &[&str]) -> Output {
        self.command(&[&["session"], arguments].concat()).output().unwrap()
    }

    fn exec(&self, flags: &[&str], command: &[&str]) -> Output {
        self.command(&[&["exec", "s"], flags, &["--"], command].concat()).output().unwrap()
    }

    fn pid(&self) -> i32 {
        let list: Value = serde_json::from_slice(&self.session(&["list", "--json"]).stdout).unwrap();
        list[0]["pid"].as_i64().unwrap().try_into().unwrap()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.session(&["stop", "s"]);
    }
}

#[test]
fn the_audit_log_names_the_workspace_in_full() {
    let place = workspace();
    let log = place.path().join("log");
    let session = Background::start(&["--workspace", "./", "--audit", log.to_str().unwrap()]);
    let text = std::fs::read_to_string(&log).unwrap();
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let workspace = session.world.path().to_str().unwrap();
    assert_eq!((&first["event"], &first["workspace"]), (&"session".into(), &workspace.into()));
}

#[test]
fn session_is_started_listed_used_and_stopped() {
    let session = Background::start(&[]);
    let output = session.exec(&[], &["sh", "-c", "pwd; echo x > here; exit 5"]);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(5), session.world.path().display().to_string())
    );
    assert_eq!(fs::read_to_string(session.world.at("here")).unwrap(), "x\n");
    let list: Value = serde_json::from_slice(&session.session(&["list", "--json"]).stdout).unwrap();
    assert_eq!(
        (&list[0]["name"], &list[0]["running"], &list[0]["served"]),
        (&"s".into(), &0.into(), &1.into())
    );
    let table = stdout(&session.session(&["list"]));
    let workspace = session.world.path().to_str().unwrap();
    let line = table.lines().nth(1).unwrap_or_default();
    assert!(table.starts_with("NAME ") && line.starts_with("s ") && line.ends_with(workspace), "{table}");
    assert!(line.contains(" repo-write ") && list[0]["profile"] == "repo-write", "{table} {list}");
    assert_eq!(list[0]["workspace"], workspace);
    assert!(list[0]["age_s"].as_u64().is_some_and(|age| age < 600), "{list}");
    assert!(list[0]["idle_s"].as_u64().is_some_and(|idle| idle < 600), "{list}");
    let pid = session.pid();
    let output = session.session(&["stop", "s"]);
    assert!(output.status.success() && stderr(&output).is_empty(), "{output:?}");
    until("the process is gone", || !Path::new(&format!("/proc/{pid}")).exists());
    let left: Vec<_> = fs::read_dir(session.world.runtime().join("kennel")).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "the client: {left:?}");
    assert_eq!(session.session(&["list", "--json"]).stdout, b"[]\n");
    let output = session.session(&["stop", "s"]);
    assert!(output.status.success() && stderr(&output).contains("no session of that name is running"));
    let output = session.exec(&[], &["true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("hint: start it with kennel session start"), "{output:?}");
}

/// Neither a command that runs nor one that stays lets it end, and lists do not keep it.
#[test]
fn a_session_that_nobody_uses_ends_after_its_time() {
    let session = Background { world: World::new() };
    let start = session.session(&["start", "--name", "s", "--idle", &patient_flag(Duration::from_secs(2))]);
    assert!(start.status.success(), "{start:?}");
    let pid = session.pid();
    // A process that a command left behind does not count.
    let output = session.exec(&["-d"], &["sh", "-c", "sleep 1000 & sleep 3"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "1"), "{output:?}");
    let list: Value = serde_json::from_slice(&session.session(&["list", "--json"]).stdout).unwrap();
    assert!(list[0]["idle_s"].is_null(), "it is in use: {list}");
    assert_eq!(session.session(&["wait", "s", "1", "--exit-code"]).status.code(), Some(0));
    let output = session.exec(&[], &["sh", "-c", "sleep 3; echo done"]);
    assert_eq!(stdout(&output), "done", "{output:?}");
    until("it ends, however often it is listed", || {
        session.session(&["list"]);
        !Path::new(&format!("/proc/{pid}")).exists()
    });
    assert_eq!(session.session(&["list", "--json"]).stdout, b"[]\n");
    // In the foreground too.
    assert!(session.session(&["start", "--name", "s", "--foreground", "--idle", "10ms"]).status.success());
}

/// A command that runs keeps the session from showing it, and the grants of the policy do not depend on it.
#[test]
fn a_note_says_that_a_toolchain_was_updated() {
    let session = Background { world: World::new() };
    let home = workspace();
    let bin = home.path().join(".deno/bin");
    let install = |text: &str| {
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("tool"), text).unwrap();
    };
    install("one");
    let start = session
        .command(&["session", "start", "--name", "s", "--isolation", "command"])
        .env("HOME", home.path())
        .output()
        .unwrap();
    assert!(start.status.success(), "{start:?}");
    let tool = bin.join("tool").display().to_string();
    let read = || session.exec(&[], &["cat", &tool]);
    let output = read();
    assert!(stdout(&output) == "one" && output.stderr.is_empty(), "{output:?}");
    fs::rename(&bin, home.path().join(".deno/old")).unwrap();
    install("two");
    let output = read();
    let note = "was replaced outside; commands see what was there before; prepare a new session";
    let said = format!("kennel: note: {}: {note}", bin.display());
    assert!(stdout(&output) == "one" && stderr(&output).starts_with(&said), "{output:?}");
}

#[test]
fn list_is_complete_or_an_error() {
    let session = Background::start(&[]);
    let list = || session.session(&["list", "--json"]);
    let directory = session.world.runtime().join("kennel");
    let mode = |mode| fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
    // A process that listens there and that no client of ours can talk to.
    let _other = UnixListener::bind(directory.join("x.sock")).unwrap();
    let output = list();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("x.sock: ") && stdout(&output).contains("\"s\""), "{output:?}");
    // Root can read the second directory.
    let refused = if is_root() { &[0o777][..] } else { &[0o777, 0o400, 0o000] };
    for &refused in refused {
        mode(refused);
        let output = list();
        assert_eq!(output.status.code(), Some(125), "{refused:o}: {output:?}");
        assert!(stderr(&output).contains("kennel: hint: "), "{refused:o}: {output:?}");
    }
    mode(0o700);
    let elsewhere = runtime();
    for absent in [elsewhere.path().to_owned(), elsewhere.path().join("a/b")] {
        let mut list = session.command(&["session", "list", "--json"]);
        let output = list.env("XDG_RUNTIME_DIR", absent).output().unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"[]\n"[..]), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn stop_ends_what_runs() {
    let session = Background::start(&[]);
    let mut child =
        session.command(&["exec", "s", "--", "sh", "-c", HEARTBEAT]).stderr(Stdio::null()).spawn().unwrap();
    until("it beats", || beats(session.world.path()) > 2);
    assert!(session.session(&["stop", "s"]).status.success());
    assert!(is_silent(session.world.path()), "when stop returns, nothing runs");
    assert_eq!(child.wait().unwrap().code(), Some(125));
}

#[test]
fn start_that_fails_says_why_and_leaves_nothing() {
    let session = Background { world: World::new() };
    let start = |arguments: &[&str]| {
        let output = session.session(&[&["start"], arguments].concat());
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(output.stdout.is_empty());
        stderr(&output)
    };
    assert!(start(&["--name", "s", "--ro", "/absent"]).contains("/absent"));
    assert!(start(&["--name", "../x"]).contains("session name `../x`"));
    assert!(start(&["--name", ""]).contains("is empty"));
    assert!(start(&[]).contains("--name"));
}

#[test]
fn start_that_cannot_print_its_socket_leaves_nothing() {
    let world = World::new();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (reader, unread) = std::io::pipe().unwrap();
    drop(reader);
    for (stdout, cause) in [(Stdio::from(full), "No space left on device"), (unread.into(), "Broken pipe")] {
        let mut start = world.kennel(&["session", "start", "--name", "s"]);
        let output = start.stdout(stdout).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let words = format!("the session was ended: print the path of its socket: {cause}");
        assert!(stderr(&output).contains(&words), "{output:?}");
        let left: Vec<_> = fs::read_dir(world.runtime().join("kennel")).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "the client: {left:?}");
    }
}

#[test]
fn background_session_holds_no_descriptor_of_its_starter() {
    let session = Background { world: World::new() };
    // A pipe as descriptor 9. Its end comes when no process holds it any more.
    let line = "exec 9>&1; \"$@\" >/dev/null 2>&1";
    let output = Command::new("sh")
        .args(["-c", line, "sh"])
        .arg(kennel_path())
        .args(["session", "start", "--name", "s"])
        .env("XDG_RUNTIME_DIR", session.world.runtime())
        .current_dir(&session.world)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let pid = session.pid();
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links: Vec<_> = links.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    let standard =
        (0..3).all(|fd| fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap() == Path::new("/dev/null"));
    assert!(standard, "{links:?}");
    assert!(!links.iter().any(|link| link.to_string_lossy().starts_with("pipe:")), "{links:?}");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    assert_eq!(fields[3], pid.to_string(), "a session of its own");
}

#[test]
fn terminated_host_cleans_up() {
    let session = Background::start(&[]);
    let pid = session.pid();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    until("the process is gone", || !Path::new(&format!("/proc/{pid}")).exists());
    assert!(!session.world.runtime().join("kennel/s.sock").exists());
}

#[test]
fn exec_has_flags_of_its_own() {
    let session = Background::start(&["--setenv", "A=session"]);
    fs::create_dir(session.world.at("sub")).unwrap();
    let output = session
        .exec(&["--cwd", "sub", "--setenv", "A=exec", "--setenv", "B=2"], &["sh", "-c", "pwd; echo $A $B"]);
    let sub = session.world.at("sub");
    assert_eq!(stdout(&output), format!("{}\nexec 2", sub.display()));
    let output = session.exec(&["--timeout", "100ms"], &["sleep", "60"]);
    assert_eq!(output.status.code(), Some(124));
    assert_eq!(stderr(&output).trim_end(), "kennel: command timed out after 100ms", "{output:?}");
    let output = session.exec(&["--cwd", "/root-of-nobody"], &["true"]);
    assert!(output.status.code() == Some(125) && stderr(&output).contains("working directory"), "{output:?}");
    for (command, code) in [("kennel-absent", 127), ("/etc/passwd", 126)] {
        assert_eq!(session.exec(&[], &[command]).status.code(), Some(code), "{command}");
    }
}

/// Not ignored: whoever names a variable relies on it.
#[test]
fn a_variable_that_the_session_keeps_as_it_is_is_refused() {
    let session = Background::start(&["--setenv", "HOME=/home/of-policy"]);
    for name in ["HOME", "TMPDIR", "TEMP", "http_proxy", "NO_PROXY"] {
        let set = format!("{name}=/elsewhere");
        for flags in [&[][..], &["-d"]] {
            let flags = [flags, &["--setenv", &set]].concat();
            let output = session.exec(&flags, &["sh", "-c", "echo ran"]);
            assert_eq!(output.status.code(), Some(125), "{name}: {output:?}");
            let said = stderr(&output);
            assert!(
                said.contains(&format!("environment variable `{name}`: the sandbox keeps it as it is")),
                "{said}"
            );
        }
    }
    let same = session
        .exec(&["--setenv", "HOME=/home/of-policy", "--setenv", "A=1"], &["sh", "-c", "echo $HOME $A"]);
    assert_eq!(stdout(&same), "/home/of-policy 1", "to name what it is anyway changes nothing: {same:?}");
}

#[test]
fn stdin_of_exec_is_passed_with_and_without_the_flag_for_it() {
    let session = Background::start(&[]);
    for flags in [&[] as &[&str], &["-i"], &["--interactive"]] {
        let mut cat = session.command(&[&["exec", "s"], flags, &["cat"]].concat());
        let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        cat.stdin.take().unwrap().write_all(b"typed").unwrap();
        assert_eq!(stdout(&cat.wait_with_output().unwrap()), "typed", "{flags:?}");
    }
}

#[test]
fn a_quiet_exec_prints_errors_and_no_remarks() {
    let session = Background::start(&["--explain"]);
    let place = session.world.runtime().join("report");
    let json = place.to_str().unwrap();
    // The command's own stderr stays, and its status may be one that Kennel has, too.
    let refused = ["sh", "-c", "echo own >&2; echo x > /usr/kennel-test; exit 127"];
    let said = |flags: &[&str], command: &[&str]| {
        let output = session.exec(flags, command);
        let text = String::from_utf8(output.stderr).unwrap();
        let (remarks, own): (Vec<_>, Vec<_>) =
            text.lines().map(str::to_owned).partition(|line| line.starts_with("kennel: "));
        (output.status.code(), own, remarks)
    };
    let (code, own, remarks) = said(&[], &refused);
    assert!(code == Some(127) && own[0] == "own" && !remarks.is_empty(), "{own:?} {remarks:?}");
    let quiet = said(&["-q", "--json", json], &refused);
    assert_eq!(quiet, (Some(127), own, vec![]));
    let report: Value = serde_json::from_str(&fs::read_to_string(&place).unwrap()).unwrap();
    assert_ne!(report["denials"], Value::Array(vec![]), "the report has what is not printed");
    let timeout = ["--quiet", "--timeout", "100ms"];
    assert_eq!(said(&timeout, &["sleep", "60"]), (Some(124), vec![], vec![]));
    let (code, _, error) = said(&["-q"], &["kennel-absent"]);
    assert!(code == Some(127) && error[0].contains("kennel-absent"), "{error:?}");
}

#[test]
fn environment_of_exec_s_caller_does_not_pass() {
    let session = Background::start(&[]);
    let mut command = session.command(&["exec", "s", "--", "sh", "-c", "echo secret:$SECRET"]);
    assert_eq!(stdout(&command.env("SECRET", "hunter2").output().unwrap()), "secret:");
}

#[test]
fn report_of_exec_is_that_of_run() {
    let session = Background::start(&[]);
    let file = session.world.runtime().join("report");
    let path = file.display().to_string();
    let read = || -> Value { serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap() };
    let output = session.exec(&["--json", &path], &["sh", "-c", "printf 12345; printf 123 >&2; exit 4"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(4), "12345"));
    let report = read();
    assert_eq!((&report["ended"], &report["exit_code"]), (&"exited".into(), &4.into()));
    assert_eq!((&report["stdout_bytes"], &report["stderr_bytes"]), (&5.into(), &3.into()));
    assert_eq!(report["enforcement"]["protections"][0]["name"], "user_namespace");
    let (_, of_run) = crate::support::report(session.world.path(), &[], &["true"]);
    let keys = |report: &Value| report.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&report), keys(&of_run));
    session.exec(&["--json", &path, "--timeout", "50ms"], &["sleep", "60"]);
    assert_eq!((&read()["ended"], &read()["failure"]["class"]), (&"timed_out".into(), &"timeout".into()));
    session.exec(&["--json", &path], &["kennel-absent"]);
    assert_eq!((&read()["ended"], &read()["exit_code"]), (&"failed".into(), &127.into()));
    session.session(&["stop", "s"]);
    session.exec(&["--json", &path], &["true"]);
    assert_eq!((&read()["ended"], &read()["exit_code"]), (&"failed".into(), &125.into()));
}

#[test]
fn flags_of_all_commands_may_stand_before_the_verb() {
    let background = Background { world: World::new() };
    let output =
        background.command(&["--color", "never", "session", "start", "--name", "s"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stdout(&background.exec(&[], &["echo", "ran"])), "ran");
}

/// Runs `kennel exec s -it -- sh -c SCRIPT` on a terminal. Returns the status and the shown text. `talk` gets
/// the text so far and returns what to type.
fn on_terminal(
    session: &Background,
    script: &str,
    talk: impl FnMut(&str) -> Option<&'static str>,
) -> (Option<i32>, String) {
    let mut exec = Command::new("setsid");
    exec.arg("--ctty").arg(kennel_path()).args(["exec", "s", "-it", "--", "sh", "-c", script]);
    exec.current_dir(&session.world).env("XDG_RUNTIME_DIR", session.world.runtime()).env("TERM", "vt52");
    let within = Duration::from_secs(15);
    let (status, seen) = Screen::start(&mut exec, within).end_with(within, talk);
    (crate::support::shown(status), seen)
}

#[test]
fn exec_on_a_terminal_is_a_window_onto_it() {
    require!(has("setsid"), "setsid of util-linux");
    let session = Background::start(&[]);
    let script = "stty size; test -t 0 -a -t 1 -a -t 2 && echo all; echo $TERM; exit 7";
    let (status, seen) = on_terminal(&session, script, |_| None);
    assert_eq!((status, seen.as_str()), (Some(7), "33 77\nall\nvt52\n"));
    let mut typed = 0;
    let (status, seen) = on_terminal(&session, "echo ready; read x; echo got:$x; exec sleep 60", |seen| {
        let next = match typed {
            0 if seen.contains("ready") => "hello\n",
            1 if seen.contains("got:hello") => "\x03",
            _ => return None,
        };
        typed += 1;
        Some(next)
    });
    assert_eq!(status, Some(130), "{seen}");
    let (status, seen) = on_terminal(&session, "seq 1 5000; echo last", |_| None);
    assert!(status == Some(0) && seen.ends_with("4999\n5000\nlast\n") && seen.lines().count() == 5001);
}

/// `kennel exec s --tty` on a terminal that nobody reads, once it is full.
fn on_unread_terminal(session: &Background, script: &str, flags: OFlag) -> (Child, File, File) {
    let pty = openpty(None, None).unwrap();
    let (master, peer) = (File::from(pty.master), File::from(pty.slave));
    fcntl(&peer, FcntlArg::F_SETFL(flags)).unwrap();
    let end = || Stdio::from(peer.try_clone().unwrap());
    let script = format!("touch ran; {script}");
    let mut exec = session.command(&["exec", "s", "--tty", "--", "sh", "-c", &script]);
    let child = exec.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    until("the command runs", || session.world.at("ran").exists());
    until_full(&peer);
    fs::remove_file(session.world.at("ran")).unwrap();
    (child, master, peer)
}

#[test]
fn exec_on_a_terminal_that_nobody_reads_waits_for_it_and_passes_signals_on() {
    let session = Background::start(&[]);
    let (mut child, _master, _peer) = on_unread_terminal(&session, "exec yes", OFlag::empty());
    signal(&child, Signal::SIGTERM);
    assert_eq!(crate::support::shown(ends("it was told to", &mut child)), Some(128 + 15));
    for flags in [OFlag::empty(), OFlag::O_NONBLOCK] {
        let (mut child, mut master, peer) = on_unread_terminal(&session, "seq 1 60000; echo last", flags);
        let reader = std::thread::spawn(move || {
            let (mut seen, mut bytes) = (Vec::new(), [0; 4096]);
            // It ends when nobody holds the other side any more.
            while let Ok(count @ 1..) = master.read(&mut bytes) {
                seen.extend_from_slice(&bytes[..count]);
            }
            String::from_utf8(seen).unwrap()
        });
        assert_eq!(ends("it is read now", &mut child).code(), Some(0));
        drop(peer);
        let seen = reader.join().unwrap();
        assert!(seen.ends_with("\n60000\r\nlast\r\n") && seen.lines().count() == 60001, "{}", seen.len());
    }
}

#[test]
fn exec_without_a_terminal_cannot_have_one() {
    let session = Background::start(&[]);
    let mut command = session.command(&["exec", "s", "--tty", "--", "true"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).ends_with("kennel: --tty: needs a terminal as standard input"), "{output:?}");
}

#[test]
fn help_is_enough_to_succeed() {
    for (arguments, words) in [
        (&["session", "--help"][..], &["start", "list", "stop", "kennel session start --name a1"][..]),
        (&["session", "start", "--help"], &["--name", "--foreground", "--profile", "--rw"]),
        (
            &["exec", "--help"],
            &["--cwd", "--setenv", "--timeout", "--tty", "--json", "Exit status", "kennel exec a1 make test"],
        ),
        (&["--help"], &["session", "exec"]),
    ] {
        let output = Command::new(kennel_path()).args(arguments).output().unwrap();
        let text = stdout(&output);
        assert!(output.status.success() && words.iter().all(|word| text.contains(word)), "{text}");
        assert!(!text.contains("What `start` starts"), "{text}");
    }
}

#[test]
fn a_session_explains_to_each_client_its_own_refusals() {
    let background = Background::start(&["--explain"]);
    let output = background.exec(&[], &["sh", "-c", "unshare -U true; LC_ALL=C touch /usr/x"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for line in ["kennel: denied: unshare(CLONE_NEWUSER): ", "kennel: denied: /usr/x: "] {
        assert!(said.lines().any(|said| said.starts_with(line)), "{line}: {said}");
    }
    let output = background.exec(&[], &["true"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}
