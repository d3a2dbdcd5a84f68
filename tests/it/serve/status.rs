//! The input of a command and its result, through `kennel-exec`.

use std::{
    fs,
    io::Write,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    process::{Command, Output, Stdio},
    thread,
};

use super::Hosted;
use crate::support::{by_env, ends, full_pipe, patient, stderr, stdout};

#[test]
fn statuses_are_those_of_the_command() {
    let session = Hosted::start(&[]);
    fs::write(session.workspace.path().join("plain"), "x").unwrap();
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "exit 255"], 255),
        (&["kennel-no-such-program"], 127),
        (&["./plain"], 126),
    ] {
        let output = session.exec(command).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
        assert_eq!(stderr(&output).starts_with("kennel: "), matches!(code, 126 | 127), "{output:?}");
    }
}

#[test]
fn clients_die_of_the_signal_that_ended_the_command_unless_they_are_asked_for_a_status() {
    let session = Hosted::start(&[]);
    for number in [2, 3, 6, 9, 11, 13, 15, 25] {
        let script = format!("kill -{number} $$");
        let own = session.shell(&script).status;
        assert_eq!((own.signal(), own.core_dumped()), (Some(number), false), "{number}");
        let mut ignoring = by_env("--ignore-signal", session.exec(&["sh", "-c", &script]).current_dir("/"));
        assert_eq!(
            ignoring.output().unwrap().status.signal(),
            Some(number),
            "{number}: ignored by the caller"
        );
        let asked = Command::new(session.client())
            .arg(&session.socket)
            .args(["-C", "/", "--exit-code", "--", "sh", "-c", &script])
            .output()
            .unwrap();
        assert_eq!(asked.status.code(), Some(128 + number), "{asked:?}");
        let exec = |flags: &[&str]| {
            let words = [&["exec", "s"], flags, &["--", "sh", "-c", &script]].concat();
            session.kennel(&words).output().unwrap().status
        };
        assert_eq!((exec(&[]).signal(), exec(&["--exit-code"]).code()), (Some(number), Some(128 + number)));
    }
}

#[test]
fn the_separator_may_be_left_out_and_the_command_may_not() {
    let session = Hosted::start(&[]);
    let output = Command::new(session.client())
        .current_dir(&session.workspace)
        .arg(&session.socket)
        .args(["echo", "--", "x"])
        .output()
        .unwrap();
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("-- x", Some(0)));
    for arguments in [&[][..], &["/absent"], &["/absent", "--"]] {
        let output = Command::new(session.client()).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(stderr(&output).contains("usage: kennel-exec SOCKET"), "{output:?}");
    }
}

#[test]
fn the_directory_is_the_clients_own_or_the_one_that_is_named() {
    let session = Hosted::start(&[]);
    fs::create_dir(session.workspace.path().join("sub")).unwrap();
    let sub = session.workspace.path().join("sub");
    let sub = sub.to_str().unwrap();
    let at = |arguments: &[&str]| {
        let mut exec = Command::new(session.client());
        exec.current_dir("/").arg(&session.socket).args(arguments).output().unwrap()
    };
    assert_eq!(stdout(&at(&["pwd"])), "/");
    assert_eq!(stdout(&at(&["-C", sub, "pwd"])), sub);
    assert_eq!(stdout(&at(&["-C", sub, "--", "pwd"])), sub);
    assert_eq!(stdout(&at(&["-C", sub, "--", "echo", "-C", "x"])), "-C x");
    assert_eq!(stdout(&at(&["--", "echo", "-C", "x"])), "-C x");
    for (place, words) in
        [("/srv/none", "/srv/none"), ("sub", "is not absolute"), ("/etc/passwd", "/etc/passwd")]
    {
        let output = at(&["-C", place, "--", "echo", "ran"]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0), "{output:?}");
        assert!(stderr(&output).contains(words), "{output:?}");
    }
    for arguments in [&["-C"][..], &["-C", "/"], &["-C", "/", "--"]] {
        let output = at(arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        assert!(stderr(&output).contains("usage: kennel-exec SOCKET"), "{output:?}");
    }
}

#[test]
fn a_socket_that_is_not_there_is_named_with_a_remedy() {
    let session = Hosted::start(&[]);
    let long = format!("/tmp/{}", "x".repeat(200));
    for (path, words) in [
        ("/tmp/kennel-absent.sock", "no session listens here"),
        (&long, "longer"),
        ("/dev/null", "no session"),
        ("/tmp/kennel\u{1b}[2Jabsent", "kennel-exec: /tmp/kennel?[2Jabsent: no session listens here"),
    ] {
        let output = Command::new(session.client()).args([path, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains(&path.replace('\u{1b}', "?")) && said.contains(words), "{output:?}");
    }
}

#[test]
fn a_timeout_of_the_policy_is_124_with_a_message() {
    let session = Hosted::start(&["--timeout", "200ms"]);
    let output = session.shell("sleep 60 & sleep 60");
    assert_eq!(output.status.code(), Some(124));
    assert_eq!(stderr(&output), "kennel: command timed out after 200ms");
}

#[test]
fn status_arrives_even_if_nobody_reads_the_message() {
    let session = Hosted::start(&[]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(session.exec(&["kennel-absent"]).stderr(writer).status().unwrap().code(), Some(127));
}

#[test]
fn names_in_messages_are_escaped_on_one_line() {
    let session = Hosted::start(&[]);
    let name = "x\u{202e}\u{1b}[2J\nkennel: all is well";
    let says = |told: Output| (told.status.code(), stderr(&told));
    let expected = r"kennel: x\u{202e}\u{1b}[2J\nkennel: all is well: not found in the sandbox";
    for (name, expected) in [(name, expected), ("größe", "kennel: größe: not found in the sandbox")] {
        for told in [session.exec(&[name]).output(), session.kennel(&["exec", "s", "--", name]).output()] {
            let (status, said) = says(told.unwrap());
            let mut lines = said.lines();
            assert_eq!((status, lines.next()), (Some(127), Some(expected)));
            assert!(lines.all(|line| line.starts_with("kennel: hint: ")), "{said}");
        }
    }
}

#[test]
fn long_messages_are_cut_between_characters() {
    let session = Hosted::start(&[]);
    for start in ["", "a", "aa"] {
        let name = start.to_owned() + &"€".repeat(8000);
        let told = [session.exec(&[&name]).output(), session.kennel(&["exec", "s", "--", &name]).output()];
        for told in told.map(Result::unwrap) {
            assert!(!told.status.success() && told.stderr.len() > 16000, "{}", told.stderr.len());
            let said = String::from_utf8(told.stderr).unwrap();
            assert!(said.ends_with("€\n") && said.lines().count() == 1, "{}", &said[said.len() - 40..]);
        }
    }
}

/// The command has the client's stderr and can make it non-blocking.
#[test]
fn messages_wait_for_a_non_blocking_stderr() {
    let session = Hosted::start(&[]);
    let clients = [session.exec(&["kennel-absent"]), session.kennel(&["exec", "s", "--", "kennel-absent"])];
    let waiting = clients.map(|mut client| {
        let (reader, writer) = full_pipe();
        (reader, client.stderr(writer).spawn().unwrap())
    });
    // Time in which the lines could be lost.
    thread::sleep(std::time::Duration::from_secs(1));
    for (mut reader, mut child) in waiting {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut reader, &mut said).unwrap();
        assert_eq!(ends("with a reader", &mut child).code(), Some(127));
        assert!(said.trim_start_matches('.').starts_with("kennel: kennel-absent: not found"), "{said}");
    }
}

#[test]
fn bytes_pass_both_ways_as_they_are() {
    let session = Hosted::start(&[]);
    let bytes: Vec<u8> =
        (0..250_000u32).flat_map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    let mut child = session
        .exec(&["sh", "-c", "echo apart >&2; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(stderr(&output), "apart");
    assert!(output.stdout == bytes, "{} bytes came back", output.stdout.len());
}

#[test]
fn closed_standard_descriptors_are_as_good_as_null() {
    let session = Hosted::start(&[]);
    let run = |redirections: &str, script: &str| {
        let line = format!("exec \"$@\" {redirections}");
        let (client, socket) = (session.client(), session.socket.display().to_string());
        let mut shell = Command::new("sh");
        shell.current_dir(&session.workspace).args(["-c", &line, "sh"]).arg(client);
        shell.args([&socket, "--", "sh", "-c", script]).output().unwrap()
    };
    assert_eq!(stdout(&run("<&-", "read x || echo end")), "end");
    assert_eq!(run("<&- >&- 2>&-", "echo x; echo y >&2; exit 6").status.code(), Some(6));
    assert_eq!(stderr(&run(">&-", "echo x; echo y >&2")), "y");
}

#[test]
fn environment_of_the_client_is_laid_over_that_of_the_session() {
    let session = Hosted::start(&["--setenv", "FROM_SESSION=1", "--setenv", "BOTH=session"]);
    let output = session
        .exec(&["sh", "-c", "echo $FROM_SESSION $BOTH $ONLY"])
        .env("BOTH", "client")
        .env("ONLY", "a=b c")
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "1 client a=b c");
}

#[test]
fn fixed_environment_of_ci_only_stays_fixed() {
    crate::support::require_ci_only!();
    let session = Hosted::start(&["--profile", "ci-only", "--pass-env", "PASSED"]);
    let output = session
        .exec(&["sh", "-c", "echo $PATH $PASSED $OTHER $USER; command -v evil"])
        .env("PATH", "/evil")
        .env("USER", "evil")
        .env("PASSED", "yes")
        .env("OTHER", "no")
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin yes ci");
}

#[test]
fn directory_of_the_client_is_that_of_the_command() {
    let session = Hosted::start(&[]);
    let below = session.workspace.path().join("a b");
    fs::create_dir(&below).unwrap();
    let output = session.exec(&["pwd"]).current_dir(&below).output().unwrap();
    assert_eq!(stdout(&output), below.display().to_string());
}

#[test]
fn directory_outside_of_the_view_is_an_error() {
    let session = Hosted::start(&[]);
    let output =
        session.exec(&["sh", "-c", "echo ran"]).current_dir(session.runtime.path()).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(125), ""));
    assert!(
        stderr(&output).contains("working directory") && stderr(&output).contains("kennel-test-run-"),
        "{output:?}"
    );
}

#[test]
fn arguments_of_a_mebibyte_arrive() {
    let session = Hosted::start(&[]);
    let argument = "x".repeat(120 << 10);
    let mut command = vec!["sh", "-c", "echo $#; for a; do echo ${#a}; done | sort -u"];
    command.push("sh");
    command.extend([argument.as_str(); 10]);
    let output = session.exec(&command).output().unwrap();
    assert_eq!(stdout(&output), format!("10\n{}", 120 << 10));
    // Around the longest message that fits in a packet.
    for length in (32 << 10) - 3000..(32 << 10) + 100 {
        if length % 53 == 0 {
            let argument = "y".repeat(length);
            let output =
                session.exec(&["sh", "-c", "echo ${#1}", "sh", &argument]).env_clear().output().unwrap();
            assert_eq!(stdout(&output), length.to_string(), "{output:?}");
        }
    }
}

#[test]
fn fifty_at_once_get_their_own_answers() {
    let session = Hosted::start(&[]);
    let children: Vec<_> = (0..50)
        .map(|number| {
            let script = format!("sleep 0.0{}; echo {number}; exit {number}", number % 10);
            let child = session.exec(&["sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
            (number, child)
        })
        .collect();
    for (number, child) in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), stdout(&output)), (Some(number), number.to_string()));
    }
}

#[test]
fn output_cap_of_the_policy_holds_for_clients() {
    let session = Hosted::start(&["--max-output", "10"]);
    let output = session.shell("printf 0123456789abcdef; printf 12345 >&2; exit 3");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stdout(&output), "0123456789\n[kennel: output truncated, 6 bytes dropped]");
    assert_eq!(stderr(&output), "12345");
}

#[test]
fn a_stream_that_the_command_closes_is_closed() {
    let session = Hosted::start(&[]);
    let line = "\"$@\" | { cat; echo end; }";
    let start = std::time::Instant::now();
    let (client, socket) = (session.client(), session.socket.display().to_string());
    let mut child = Command::new("sh")
        .current_dir(&session.workspace)
        .args(["-c", line, "sh"])
        .arg(client)
        .args([&socket, "--", "sh", "-c", "exec >&-; touch closed; sleep 1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = String::new();
    // The client itself holds its end until the command ends. The session must not hold another.
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut seen).unwrap();
    assert!(
        child.wait().unwrap().success()
            && seen == "end\n"
            && start.elapsed() < patient(std::time::Duration::from_secs(9))
    );
}

/// A process that was killed while it wrote the client left a part of it.
#[test]
fn half_written_clients_are_removed_later() {
    let runtime = super::runtime();
    let kennel = runtime.path().join("kennel");
    fs::create_dir(&kennel).unwrap();
    fs::set_permissions(&kennel, fs::Permissions::from_mode(0o700)).unwrap();
    let [old, new, other] =
        [".kennel-0123456789abcdef.tmp", ".kennel-fedcba9876543210.tmp", ".kennel-notes.tmp"]
            .map(|name| kennel.join(name));
    let days_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3 * 24 * 60 * 60);
    for path in [&old, &new, &other] {
        fs::write(path, "part").unwrap();
    }
    for path in [&old, &other] {
        fs::File::options().write(true).open(path).unwrap().set_modified(days_ago).unwrap();
    }
    let _session = Hosted::start_in(runtime, &[]);
    assert!(!old.exists() && new.exists() && other.exists());
}

#[test]
fn client_is_private_to_its_owner_and_replaced_if_it_differs() {
    let session = Hosted::start(&[]);
    let path = session.client();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o700);
    let good = fs::read(&path).unwrap();
    for spoil in 0..4 {
        let runtime = super::runtime();
        let kennel = runtime.path().join("kennel");
        fs::create_dir(&kennel).unwrap();
        fs::set_permissions(&kennel, fs::Permissions::from_mode(0o700)).unwrap();
        let there = kennel.join("kennel-exec");
        let victim = runtime.path().join("victim");
        fs::write(&victim, "mine").unwrap();
        match spoil {
            0 => fs::write(&there, "#!/bin/sh\necho evil\n").unwrap(),
            1 => std::os::unix::fs::symlink(&victim, &there).unwrap(),
            2 => fs::hard_link(&victim, &there).unwrap(),
            _ => {
                fs::write(&there, &good).unwrap();
                fs::set_permissions(&there, fs::Permissions::from_mode(0o777)).unwrap();
            }
        }
        let session = Hosted::start_in(runtime, &[]);
        assert!(session.is_well(), "{spoil}");
        let meta = fs::symlink_metadata(&there).unwrap();
        assert!(meta.is_file() && meta.permissions().mode() & 0o7777 == 0o700, "{spoil}");
        assert_eq!(fs::read(&there).unwrap(), good, "{spoil}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine", "{spoil}");
    }
    let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().flatten().collect();
    assert_eq!(names.len(), 3, "socket, lock, client: {names:?}");
    assert!(Command::new(&path).output().unwrap().status.signal().is_none());
}
