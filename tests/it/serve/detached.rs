//! `kennel exec -d`, and `kennel session logs`, `kill` and `wait`: a command that stays, whatever its clients
//! do.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::{
        fd::{AsRawFd, RawFd},
        unix::{fs::symlink, process::ExitStatusExt},
    },
    process::{Child, Command, Output, Stdio},
};

use kennel::client::{Call, Client, DetachedState, Event};
use kennel_helper::client_wire::{ALL_LINES, Ask};

use super::{
    Hosted, at,
    hostile::{Raw, call, encoded, memfd},
    runtime,
};
use crate::support::{ends, is_silent, may_mount, mount, only_as_root, shown, stderr, stdout, until};

/// Starts a script that stays. Returns its number.
fn start(session: &Hosted, flags: &[&str], script: &str) -> String {
    let words = [&["exec", "s", "-d"], flags, &["--", "sh", "-c", script]].concat();
    let output = session.kennel(&words).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    stdout(&output)
}

fn ask(session: &Hosted, words: &[&str]) -> Command {
    session.kennel(&[&["session"], words].concat())
}

fn answer(session: &Hosted, words: &[&str]) -> Output {
    ask(session, words).output().unwrap()
}

/// `kennel session logs` that follows.
fn following(session: &Hosted, id: &str) -> Child {
    ask(session, &["logs", "s", id, "-f"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn an_agent_starts_a_server_looks_at_it_and_stops_it() {
    ["command", "session"].into_iter().for_each(starts_looks_and_stops);
}

fn starts_looks_and_stops(isolation: &str) {
    let session = Hosted::start(&["--isolation", isolation]);
    let serve =
        "trap 'echo bye; exit 6' TERM; echo listening; echo warning >&2; while :; do sleep 0.02; done";
    assert_eq!(start(&session, &[], serve), "1");
    let mut follower = following(&session, "1");
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "listening");
    until("the other stream", || stderr(&answer(&session, &["logs", "s", "1"])) == "warning");
    let log = answer(&session, &["logs", "s", "1"]);
    assert_eq!((log.status.code(), stdout(&log).as_str()), (Some(0), "listening"));
    let log = answer(&session, &["logs", "s", "1", "--tail", "1"]);
    assert_eq!(stdout(&log).len() + stderr(&log).len(), stderr(&log).len().max(stdout(&log).len()));
    let waiting = ask(&session, &["wait", "s", "1"]).stderr(Stdio::piped()).spawn().unwrap();
    assert!(answer(&session, &["kill", "s", "1"]).status.success());
    assert_eq!(waiting.wait_with_output().unwrap().status.code(), Some(6));
    assert_eq!(lines.collect::<Vec<_>>(), ["bye"]);
    assert_eq!(follower.wait().unwrap().code(), Some(0), "whatever the command's own");
    // It has ended, and is still known.
    let killed = answer(&session, &["kill", "s", "1", "-s", "KILL"]);
    assert_eq!(
        (killed.status.code(), stderr(&killed).as_str()),
        (Some(0), "kennel: command 1: it has ended")
    );
    assert_eq!(answer(&session, &["wait", "s", "1"]).status.code(), Some(6));
    assert_eq!(stdout(&answer(&session, &["logs", "s", "1", "-f"])), "listening\nbye");
}

#[test]
fn waiting_ends_as_the_command_ended() {
    let session = Hosted::start(&[]);
    for (script, signal, code) in
        [("exit 0", None, Some(0)), ("exit 7", None, Some(7)), ("kill -9 $$", Some(9), None)]
    {
        let id = start(&session, &[], script);
        let status = answer(&session, &["wait", "s", &id]).status;
        assert_eq!((status.signal(), status.code()), (signal, code), "{script}");
        let asked = answer(&session, &["wait", "s", &id, "--exit-code"]).status;
        assert_eq!(asked.code(), code.or(Some(137)), "{script}");
    }
    let id = start(&session, &["--timeout", "100ms"], "sleep 600");
    let report = session.workspace.path().join("report");
    let output = answer(&session, &["wait", "s", &id, "--json", report.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(124));
    assert!(stderr(&output).contains("command timed out after 100ms"), "{output:?}");
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((&report["ended"], &report["exit_code"]), (&"timed_out".into(), &124.into()));
    for signal in ["INT", "SIGINT", "sigint", "2"] {
        let id = start(&session, &[], "exec sleep 600");
        assert!(answer(&session, &["kill", "s", &id, "-s", signal]).status.success());
        assert_eq!(answer(&session, &["wait", "s", &id]).status.signal(), Some(2), "{signal}");
    }
}

#[test]
fn what_does_not_exist_is_refused_with_a_sentence() {
    let (session, other) = (Hosted::start(&[]), Hosted::start(&[]));
    assert_eq!([start(&other, &[], "sleep 600"), start(&other, &[], "sleep 600")], ["1", "2"]);
    start(&session, &[], "sleep 600");
    for id in ["2", "0", "4294967295"] {
        for words in
            [&["logs", "s", id][..], &["logs", "s", id, "-f"], &["kill", "s", id], &["wait", "s", id]]
        {
            let output = answer(&session, words);
            let expected = format!("command {id}: no detached command has this number");
            assert!(stderr(&output).contains(&expected) && output.status.code() == Some(125), "{output:?}");
        }
    }
    for words in [
        &["kill", "s", "1", "-s", "0"][..],
        &["kill", "s", "1", "-s", "65"],
        &["kill", "s", "1", "-s", "NONE"],
        &["kill", "s", "-1"],
        &["kill", "s", "4294967296"],
        &["logs", "s", "1", "--tail", "-1"],
    ] {
        assert_eq!(answer(&session, words).status.code(), Some(125), "{words:?}");
    }
    assert!(answer(&session, &["kill", "s", "1"]).status.success(), "it ran all the time");
    for (flags, said) in [
        (&["--tty"][..], "'--detach' cannot be used with '--tty'"),
        (&["--json", "x"], "'--detach' cannot be used with '--json"),
    ] {
        let words = [&["exec", "s", "-d"], flags, &["--", "true"]].concat();
        let output = session.kennel(&words).output().unwrap();
        assert!(stderr(&output).contains(said) && output.status.code() == Some(125), "{output:?}");
    }
    let output = session.kennel(&["exec", "s", "-d", "--", "kennel-no-such-program"]).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(127), ""));
    assert!(stderr(&output).contains("not found in the sandbox"), "{output:?}");
}

#[test]
fn a_client_that_is_killed_or_does_not_read_changes_nothing() {
    let session = Hosted::start(&["--isolation", "command"]);
    assert!(session.is_well());
    let before = super::hostile::descriptors(&session);
    let id = start(&session, &[], "echo begun; until [ -e go ]; do sleep 0.02; done; seq 1 500000; exit 5");
    // Each has begun to follow.
    let following = || {
        let mut client = following(&session, &id);
        let mut line = [0; 6];
        client.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"begun\n");
        client
    };
    let killed: Vec<Child> = (0..3).map(|_| following()).collect();
    for mut client in killed {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    // Nobody reads what these write.
    let mut stuck: Vec<Child> = (0..10).map(|_| following()).collect();
    let reading = following();
    fs::write(session.workspace.path().join("go"), "").unwrap();
    assert_eq!(answer(&session, &["wait", "s", &id]).status.code(), Some(5));
    let read = reading.wait_with_output().unwrap();
    assert!(stdout(&read).ends_with("\n499999\n500000"), "{:?}", stderr(&read));
    assert!(session.is_well());
    // Whoever begins to read gets what is left, and learns how much is not.
    let output = stuck.pop().unwrap().wait_with_output().unwrap();
    assert!(stdout(&output).ends_with("\n500000"));
    let said = stderr(&output);
    let dropped = |line: &str| -> Option<usize> {
        let count = line.strip_prefix(&format!("kennel: note: command {id}: "))?;
        count.strip_suffix(" bytes of its output are not kept")?.parse().ok()
    };
    // One line each time that it was too slow.
    let dropped: usize = said.lines().map(|line| dropped(line).expect("a note")).sum();
    let written: usize = (1..=500_000u32).map(|number| number.to_string().len() + 1).sum();
    assert_eq!(output.stdout.len() + dropped, written);
    for mut client in stuck {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    until("the session holds no more descriptors than before", || {
        super::hostile::descriptors(&session) <= before
    });
}

#[test]
fn a_command_ends_with_its_session_and_whoever_waits_learns_it() {
    ["command", "session"].into_iter().for_each(ends_with_its_session);
}

fn ends_with_its_session(isolation: &str) {
    let session = Hosted::start(&["--isolation", isolation]);
    let id = start(&session, &[], crate::support::HEARTBEAT);
    until("a beat", || crate::support::beats(session.workspace.path()) > 0);
    let (mut follower, mut waiting) = (following(&session, &id), following(&session, &id));
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    let waiting = ask(&session, &["wait", "s", &id]).stderr(Stdio::piped()).spawn().unwrap();
    // Both are served.
    until("its clients", || {
        let stats = answer(&session, &["list", "--json"]);
        stdout(&stats).contains("\"running\": 1")
    });
    assert!(answer(&session, &["stop", "s"]).status.success());
    assert!(is_silent(session.workspace.path()));
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let said = stderr(&output);
    assert!(said.contains("ended") || said.contains("no session of that name"), "{said}");
    // The command is asked to end first. Whoever has all of its output then has lost nothing.
    let code = ends("logs -f", &mut follower).code();
    assert!(matches!(code, Some(0 | 125)), "{code:?}");
}

#[test]
fn a_log_file_has_the_whole_output_and_no_link_leads_it_elsewhere() {
    let session = Hosted::start(&[]);
    let path = |name: &str| session.workspace.path().join(name);
    fs::write(path("log"), "of an earlier one\n").unwrap();
    let id = start(&session, &["--log", "log"], "seq 1 300000; echo end >&2");
    assert!(answer(&session, &["wait", "s", &id]).status.success());
    let text = fs::read_to_string(path("log")).unwrap();
    assert!(text.starts_with("1\n2\n") && text.contains("\n300000\n") && text.contains("end\n"));
    assert_eq!(text.lines().count(), 300_001);
    assert_eq!(stdout(&answer(&session, &["logs", "s", &id, "--tail", "2"])).lines().last(), Some("300000"));
    // A command of an earlier sandbox can have made these.
    fs::create_dir(path("dir")).unwrap();
    let outside = runtime();
    fs::write(outside.path().join("kept"), "kept").unwrap();
    symlink(outside.path().join("kept"), path("link")).unwrap();
    symlink(outside.path(), path("way")).unwrap();
    nix::unistd::mkfifo(&path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for name in ["link", "way/kept", "way/new", "fifo", "dir", "absent/log", "/dev/null"] {
        let words = ["exec", "s", "-d", "--log", name, "--", "true"];
        let output = session.kennel(&words).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{name}: {output:?}");
        assert!(stderr(&output).starts_with(&format!("kennel: log file {name}: ")), "{output:?}");
    }
    assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "kept");
    assert!(!outside.path().join("new").exists());
    let output = session.kennel(&["exec", "s", "--log", "log", "--", "true"]).output().unwrap();
    assert!(stderr(&output).contains("--detach") && output.status.code() == Some(125), "{output:?}");
}

#[test]
fn a_full_disk_is_told_and_the_command_goes_on() {
    only_as_root!();
    if !may_mount("serve::detached::a_full_disk_is_told_and_the_command_goes_on") {
        return;
    }
    let session = Hosted::start(&[]);
    let disk = runtime();
    mount(&["-t", "tmpfs", "-o", "size=64k", "none"], disk.path());
    let log = disk.path().join("log");
    let id = start(
        &session,
        &["--log", log.to_str().unwrap()],
        "seq 1 100000; until [ -e go ]; do sleep 0.02; done; exit 4",
    );
    let told = || stderr(&answer(&session, &["logs", "s", &id]));
    until("it is told", || !told().is_empty());
    assert!(told().contains("log file: it lacks output: No space left on device"), "{}", told());
    assert_eq!(stdout(&answer(&session, &["logs", "s", &id, "--tail", "1"])), "100000");
    fs::write(session.workspace.path().join("go"), "").unwrap();
    let output = answer(&session, &["wait", "s", &id]);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("kennel: note: log file: it lacks output"), "{output:?}");
    assert!(fs::metadata(log).unwrap().len() > 0);
}

#[test]
fn hostile_messages_about_commands_that_stay_are_refused_and_leave_nothing() {
    let session = Hosted::start(&["--isolation", "command"]);
    start(&session, &[], "exec sleep 600");
    let before = super::hostile::descriptors(&session);
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let directory = File::open("/").unwrap();
    let read_only = File::open("/proc/self/exe").unwrap();
    let good = call(&[c"true"]);
    let whole = memfd(&good);
    let short = memfd(&good[..10]);
    let length: u32 = good.len().try_into().unwrap();
    let [whole, short, null, reader, writer, directory, read_only]: [RawFd; 7] = [
        whole.as_raw_fd(),
        short.as_raw_fd(),
        null.as_raw_fd(),
        reader.as_raw_fd(),
        writer.as_raw_fd(),
        directory.as_raw_fd(),
        read_only.as_raw_fd(),
    ];
    let detach = |length| encoded(&Ask::Detach { length });
    let mut noise = encoded(&Ask::Kill { id: 1, signal: 9 });
    noise.truncate(9);
    let cases: Vec<(&str, Vec<u8>, Vec<RawFd>)> = vec![
        ("no memfd", detach(length), vec![]),
        ("a pipe for a memfd", detach(length), vec![reader]),
        ("a directory for a memfd", detach(length), vec![directory]),
        ("a memfd that is too short", detach(length), vec![short]),
        ("half a call", detach(10), vec![whole]),
        ("a length beyond all memfds", detach(u32::MAX), vec![whole]),
        ("three descriptors", detach(length), vec![whole, null, null]),
        ("253 descriptors", detach(length), vec![whole; 253]),
        ("a device for a log", detach(length), vec![whole, null]),
        ("a pipe for a log", detach(length), vec![whole, writer]),
        ("a directory for a log", detach(length), vec![whole, directory]),
        ("a log that cannot be written", detach(length), vec![whole, read_only]),
        ("no signal", encoded(&Ask::Kill { id: 1, signal: 0 }), vec![]),
        ("a signal beyond all", encoded(&Ask::Kill { id: 1, signal: 65 }), vec![]),
        ("the highest signal", encoded(&Ask::Kill { id: 1, signal: u32::MAX }), vec![]),
        ("half an order", noise, vec![]),
        ("an unknown command", encoded(&Ask::Kill { id: 2, signal: 9 }), vec![]),
        ("no command", encoded(&Ask::Kill { id: 0, signal: 9 }), vec![]),
        ("the log of none", encoded(&Ask::Logs { id: u32::MAX, follow: 1, lines: ALL_LINES }), vec![]),
        ("the end of none", encoded(&Ask::Wait { id: 7, report: 1 }), vec![]),
    ];
    // All at once: some wait for the session to give them up.
    let ask = |(what, bytes, descriptors): &(&'static str, Vec<u8>, Vec<RawFd>)| {
        let raw = Raw::connect(&session);
        raw.send(bytes, descriptors);
        (*what, raw)
    };
    for (what, raw) in cases.iter().map(ask).collect::<Vec<_>>() {
        let answer = raw.answer();
        assert!(matches!(answer.first(), None | Some(2)), "{what}: {answer:?}");
        assert!(!answer.starts_with(&[2, 0, 0, 0, 0, 0, 0, 0]), "{what} was done");
    }
    // A second message ends the first question.
    let questions = [
        Ask::Wait { id: 1, report: 0 },
        Ask::Logs { id: 1, follow: 1, lines: ALL_LINES },
        Ask::Logs { id: 1, follow: u32::MAX, lines: 0 },
    ];
    let asked = questions.map(|question| {
        let raw = Raw::connect(&session);
        raw.send(&encoded(&question), &[]);
        raw.send(&encoded(&question), &[whole; 5]);
        (question, raw)
    });
    for (question, raw) in asked {
        assert!(raw.answer().is_empty(), "{question:?}");
    }
    let raw = Raw::connect(&session);
    raw.send(&detach(length), &[whole]);
    assert!(raw.answer().starts_with(&[11, 0, 0, 0, 2, 0, 0, 0]), "the same message, complete, starts it");
    assert!(session.is_well());
    let listed = Client::connect_in(session.socket.parent().unwrap(), "s").unwrap().detached().unwrap();
    assert_eq!(listed.iter().map(|command| command.id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((listed[0].state, listed[0].program.to_str()), (DetachedState::Running, Some("sh")));
    until("the session holds no more descriptors than before", || {
        super::hostile::descriptors(&session) <= before
    });
}

/// A client asks for everything at random, with descriptors at random.
#[test]
fn random_messages_do_not_disturb_the_session() {
    let session = Hosted::start(&[]);
    start(&session, &[], "while :; do echo line; sleep 0.01; done");
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let memfd = memfd(&call(&[c"true"]));
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..crate::support::random_cases(300) {
        let raw = Raw::connect(&session);
        for _ in 0..=random() % 2 {
            let number = u32::try_from(11 + random() % 9).unwrap();
            // Nothing that ends the command in question, or starts one.
            let mut bytes = number.to_le_bytes().to_vec();
            for _ in 0..random() % 6 {
                let word = [0, 1, 2, u64::from(u32::MAX), random()][usize::try_from(random() % 5).unwrap()];
                bytes.extend_from_slice(&word.to_le_bytes()[..4]);
            }
            let kills = number == 13 && bytes.get(4..8) == Some(&1u32.to_le_bytes());
            let count = usize::try_from(random() % 4).unwrap();
            let descriptors = [memfd.as_raw_fd(), null.as_raw_fd(), null.as_raw_fd()];
            if !kills {
                raw.send(&bytes, &descriptors[..count.min(3)]);
            }
        }
    }
    assert!(session.is_well());
    let log = answer(&session, &["logs", "s", "1", "--tail", "1"]);
    assert_eq!(stdout(&log), "line", "{log:?}");
}

#[test]
fn a_hundred_commands_stay_at_once() {
    ["command", "session"].into_iter().for_each(a_hundred_stay);
}

fn a_hundred_stay(isolation: &str) {
    let session = Hosted::start(&["--isolation", isolation]);
    let client = || Client::connect_in(session.socket.parent().unwrap(), "s").unwrap();
    for number in 1..=100 {
        let starting = client();
        starting.start_detached(Call::new("sleep").args(["600"]), None).unwrap();
        let event = starting.next().unwrap();
        assert!(matches!(event, Event::Detached(id) if id == number), "{number}: {event:?}");
    }
    let listed = client().detached().unwrap();
    assert_eq!(listed.len(), 100);
    assert!(listed.iter().all(|command| command.state == DetachedState::Running));
    assert!(answer(&session, &["kill", "s", "57"]).status.success());
    assert_eq!(shown(answer(&session, &["wait", "s", "57"]).status), Some(143));
    let listed = client().detached().unwrap();
    assert_eq!(listed[56].state, DetachedState::Ended { code: 143, signal: Some(kennel::Signal::TERM) });
    assert!(answer(&session, &["stop", "s"]).status.success());
}

#[test]
fn a_session_in_the_background_keeps_its_commands() {
    let (runtime, workspace) = (runtime(), crate::support::workspace());
    let run = |words: &[&str]| at(runtime.path(), workspace.path()).args(words).output().unwrap();
    assert!(run(&["session", "start", "--name", "b", "-q"]).status.success());
    let id = stdout(&run(&[
        "exec",
        "b",
        "--detach",
        "--setenv",
        "A=b",
        "--cwd",
        ".",
        "--",
        "sh",
        "-c",
        "echo $A; pwd",
    ]));
    assert_eq!(run(&["session", "wait", "b", &id]).status.code(), Some(0));
    let log = stdout(&run(&["session", "logs", "b", &id]));
    assert_eq!(log, format!("b\n{}", workspace.path().display()));
    assert!(run(&["session", "stop", "b"]).status.success());
}

/// Whoever follows can end early, as `head` does.
#[test]
fn a_reader_that_closes_early_is_no_error() {
    let session = Hosted::start(&[]);
    let id = start(&session, &[], "while :; do echo line; sleep 0.01; done");
    let mut follower = following(&session, &id);
    let mut first = [0; 5];
    let mut output = follower.stdout.take().unwrap();
    output.read_exact(&mut first).unwrap();
    drop(output);
    assert_eq!((&first, ends("logs -f", &mut follower).code()), (b"line\n", Some(0)));
}
