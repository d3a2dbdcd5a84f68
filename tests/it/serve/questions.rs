//! What a client asks a session besides commands: files, changes, ports, and output that the session
//! collects.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::AsRawFd,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    path::Path,
};

use kennel::{
    Error,
    client::Client,
    files::FileKind,
    overlay::{ChangeKind, Conflicts},
};
use kennel_helper::{
    client_wire::{Answer, Ask, COLLECTS},
    wire::{Cursor, Field},
};
use serde_json::Value;

use super::{Hosted, hostile};
use crate::support::until;

fn client(hosted: &Hosted) -> Client {
    Client::connect_in(hosted.socket.parent().unwrap(), "s").unwrap()
}

fn contents(hosted: &Hosted, path: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    client(hosted).read(path)?.read_to_end(&mut bytes).unwrap();
    Ok(bytes)
}

fn written(hosted: &Hosted, path: &str, bytes: &[u8]) -> Result<(), Error> {
    let new = client(hosted).write(path, None)?;
    new.file().write_all(bytes).unwrap();
    new.keep()
}

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    match result.unwrap_err() {
        Error::File { source, .. } => source.raw_os_error().unwrap(),
        error => panic!("{error:?}"),
    }
}

#[test]
fn a_written_file_appears_whole_and_is_read_back() {
    let hosted = Hosted::start(&[]);
    written(&hosted, "a b%41", b"one").unwrap();
    assert_eq!(fs::read(hosted.workspace.path().join("a b%41")).unwrap(), b"one");
    assert_eq!(contents(&hosted, "a b%41").unwrap(), b"one");
    let large = vec![7; 3 << 20];
    written(&hosted, "a b%41", &large).unwrap();
    assert!(contents(&hosted, "a b%41").unwrap() == large);
    // What another process of the session wrote is the same file.
    assert!(hosted.shell("test $(wc -c < 'a b%41') = 3145728").status.success());
    let name = Path::new(OsStr::from_bytes(b"\xff%"));
    let new = client(&hosted).write(name, Some(0o4751)).unwrap();
    new.keep().unwrap();
    let mode = fs::metadata(hosted.workspace.path().join(name)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7700, 0o700, "no set-user-id bit");
    let entries = client(&hosted).list(".").unwrap();
    assert!(entries.iter().any(|entry| entry.name == name), "{entries:?}");
}

#[test]
fn a_file_that_is_not_kept_leaves_nothing() {
    let hosted = Hosted::start(&[]);
    fs::write(hosted.workspace.path().join("old"), "old").unwrap();
    let names = || fs::read_dir(hosted.workspace.path()).unwrap().count();
    let before = names();
    for path in ["old", "new"] {
        let new = client(&hosted).write(path, None).unwrap();
        new.file().write_all(b"half").unwrap();
        drop(new);
    }
    until("nothing is left", || names() == before);
    assert_eq!(contents(&hosted, "old").unwrap(), b"old");
    assert_eq!(errno(contents(&hosted, "new")), libc::ENOENT);
}

#[test]
fn files_are_those_of_the_sandbox() {
    let hosted = Hosted::start(&[]);
    let workspace = hosted.workspace.path();
    symlink("/etc/passwd", workspace.join("link")).unwrap();
    fs::write(workspace.join("file"), "").unwrap();
    assert!(hosted.shell("mkfifo fifo; mkdir -p .git/hooks").status.success());
    assert_eq!(contents(&hosted, "link").unwrap(), hosted.shell("cat /etc/passwd").stdout);
    for (path, expected) in [
        ("missing", libc::ENOENT),
        ("", libc::ENOENT),
        (".", libc::EISDIR),
        ("file/below", libc::ENOTDIR),
        ("fifo", libc::EOPNOTSUPP),
        ("/proc/cpuinfo", libc::EOPNOTSUPP),
        ("/root/.ssh/id_rsa", libc::ENOENT),
        ("a\0b", libc::EINVAL),
    ] {
        assert_eq!(errno(contents(&hosted, path)), expected, "{path:?}");
    }
    for (path, expected) in [
        ("/etc/x", libc::EROFS),
        ("/proc/x", libc::EROFS),
        (".git/hooks/x", libc::EROFS),
        ("missing/x", libc::ENOENT),
    ] {
        let errno = errno(written(&hosted, path, b""));
        assert!(errno == expected || path.starts_with("/proc"), "{path:?}: {errno}");
    }
    let info = client(&hosted).stat("file").unwrap();
    assert_eq!((info.kind, info.size), (FileKind::File, 0));
    assert!(client(&hosted).stat(".").unwrap().is_dir());
    client(&hosted).mkdir("d").unwrap();
    assert_eq!(errno(client(&hosted).mkdir("d")), libc::EEXIST);
    assert_eq!(errno(client(&hosted).mkdir("x/y")), libc::ENOENT);
    client(&hosted).remove("d").unwrap();
    assert_eq!(errno(client(&hosted).remove("d")), libc::ENOENT);
    client(&hosted).remove("link").unwrap();
    assert!(Path::new("/etc/passwd").exists() && !workspace.join("link").exists());
}

#[test]
fn a_long_list_comes_whole() {
    let hosted = Hosted::start(&[]);
    assert!(hosted.shell("mkdir d; cd d; seq -f %0100.0f 3000 | xargs touch").status.success());
    assert_eq!(client(&hosted).list("d").unwrap().len(), 3000);
    assert_eq!(errno(client(&hosted).list("missing")), libc::ENOENT);
}

#[test]
fn changes_are_listed_committed_and_discarded() {
    crate::support::require!(crate::overlay::available(), "an overlay in memory");
    let mut hosted = Hosted::start(&["--overlay", "--with-parent"]);
    assert!(hosted.shell("echo x > x; echo y > y").status.success());
    let changes = client(&hosted).changes().unwrap();
    assert_eq!(
        changes.iter().map(|it| (it.path.to_str(), it.kind)).collect::<Vec<_>>(),
        [(Some("x"), ChangeKind::Added), (Some("y"), ChangeKind::Added)]
    );
    let committed = client(&hosted).commit(&["x".into()], Conflicts::Refuse).unwrap();
    assert_eq!((committed.applied.len(), committed.left.len(), committed.refused.len()), (1, 1, 0));
    assert!(hosted.workspace.path().join("x").exists() && !hosted.workspace.path().join("y").exists());
    client(&hosted).discard().unwrap();
    assert!(hosted.ended().success());
    assert!(!hosted.workspace.path().join("y").exists());
    let without = Hosted::start(&[]);
    for said in [client(&without).changes().map(drop), client(&without).discard()] {
        assert!(said.unwrap_err().to_string().contains("overlay"));
    }
    assert!(without.is_well());
}

#[test]
fn a_port_inside_is_reached_without_publishing() {
    let payload = crate::support::payload_path();
    let hosted = Hosted::start(&["--ro", &format!("{}:/payload", payload.display())]);
    let refused = client(&hosted).connect_port(8000).unwrap_err();
    assert!(refused.to_string().contains("refused"), "{refused}");
    let mut server = hosted.exec(&["/payload", "serve", "127.0.0.1:8000", "echo"]);
    let mut server = server.stdout(std::process::Stdio::piped()).spawn().unwrap();
    server.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let mut stream = client(&hosted).connect_port(8000).unwrap();
    stream.write_all(b"hello").unwrap();
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"hello");
    drop(stream);
    server.kill().unwrap();
    server.wait().unwrap();
    let host = Hosted::start(&["--net", "host"]);
    assert!(client(&host).connect_port(8000).is_err());
}

#[test]
fn a_shell_ends_when_a_client_asks() {
    let hosted = Hosted::start(&[]);
    let snippet = |text: &str| {
        let exec = hosted.kennel(&["exec", "--shell", "one", "s", "--", text]).output().unwrap();
        crate::support::stdout(&exec)
    };
    assert_eq!(snippet("x=1; echo $x"), "1");
    client(&hosted).end_shell("one").unwrap();
    assert_eq!(snippet("echo <$x>"), "");
    assert_eq!(snippet("echo \"<$x>\""), "<>");
    client(&hosted).end_shell("never started").unwrap();
}

#[test]
fn a_session_ends_with_the_process_that_started_it() {
    let runtime = super::runtime();
    let workspace = crate::support::workspace();
    // The shell starts the session, tells its socket, and waits to be killed.
    let mut start = super::at(runtime.path(), workspace.path());
    let kennel = crate::support::kennel_path();
    let script = format!("{} session start --name s --foreground --with-parent & wait", kennel.display());
    let mut parent = std::process::Command::new("sh");
    parent.env("XDG_RUNTIME_DIR", runtime.path()).current_dir(workspace.path()).args(["-c", &script]);
    let mut parent = parent.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    io::BufRead::read_line(&mut io::BufReader::new(parent.stdout.take().unwrap()), &mut line).unwrap();
    let socket = line.trim_end().to_owned();
    assert!(start.args(["exec", "s", "--", "true"]).status().unwrap().success());
    parent.kill().unwrap();
    parent.wait().unwrap();
    until("the session is gone", || !Path::new(&socket).exists());
}

/// The lines for people about a command whose output the session collects.
fn message(hosted: &Hosted, arguments: &[&std::ffi::CStr]) -> String {
    let raw = hostile::Raw::connect(hosted);
    raw.send(&hostile::inline(&hostile::call_with(arguments, COLLECTS)), &[]);
    let (bytes, _) = raw.answer_with_memfd();
    match Answer::take(&mut Cursor::new(&bytes)) {
        Some(Answer::Collected { message, .. }) => String::from_utf8_lossy(message).into_owned(),
        answer => panic!("{answer:?}"),
    }
}

/// Sends a call whose output the session collects, and returns status, signal, report, stdout, stderr and
/// message.
fn collected(
    hosted: &Hosted,
    arguments: &[&std::ffi::CStr],
    stdin: Option<&File>,
) -> (u32, u32, Value, Vec<u8>, Vec<u8>) {
    let raw = hostile::Raw::connect(hosted);
    let call = hostile::call_with(arguments, COLLECTS);
    let descriptors: Vec<_> = stdin.iter().map(|file| file.as_raw_fd()).collect();
    raw.send(&hostile::inline(&call), &descriptors);
    let (bytes, descriptor) = raw.answer_with_memfd();
    let mut cursor = Cursor::new(&bytes);
    let Some(Answer::Collected { code, signal, report, stdout, stderr, .. }) = Answer::take(&mut cursor)
    else {
        panic!("{bytes:?}");
    };
    let [report, stdout, stderr] = [report, stdout, stderr].map(|length| length as usize);
    let all = match descriptor {
        Some(mut file) => {
            assert!(cursor.is_empty());
            let mut all = Vec::new();
            file.read_to_end(&mut all).unwrap();
            all
        }
        None => cursor.remaining().to_vec(),
    };
    assert_eq!(all.len(), report + stdout + stderr);
    let (out, rest) = all.split_at(stdout);
    let (err, report) = rest.split_at(stderr);
    (code, signal, serde_json::from_slice(report).unwrap(), out.to_vec(), err.to_vec())
}

#[test]
fn the_session_collects_what_a_command_writes() {
    let hosted = Hosted::start(&[]);
    let (code, signal, report, stdout, stderr) =
        collected(&hosted, &[c"sh", c"-c", c"echo out; echo err >&2; exit 3"], None);
    assert_eq!((code, signal, &stdout[..], &stderr[..]), (3, 0, &b"out\n"[..], &b"err\n"[..]));
    assert_eq!((&report["exit_code"], &report["ended"]), (&3.into(), &"exited".into()));
    assert_eq!((&report["stdout_bytes"], &report["enforcement"]), (&4.into(), &Value::Null));
    // Longer than a packet, and with an input.
    let input = hostile::memfd(&vec![b'x'; 1 << 20]);
    io::Seek::rewind(&mut &input).unwrap();
    let (code, _, _, stdout, _) = collected(&hosted, &[c"cat"], Some(&input));
    assert!(code == 0 && stdout == vec![b'x'; 1 << 20]);
    // So much of both that this process does not keep it.
    let both = c"head -c 3M /dev/zero; head -c 5M /dev/zero | tr '\\0' e >&2; echo end";
    let (code, _, report, stdout, stderr) = collected(&hosted, &[c"sh", c"-c", both], None);
    assert_eq!((code, &report["stderr_bytes"]), (0, &(5 << 20).into()));
    assert!(stdout.len() == (3 << 20) + 4 && stdout.ends_with(b"\0end\n"));
    assert!(stderr == vec![b'e'; 5 << 20]);
    // The hint is about a path that only the message names.
    let (_, _, report, ..) = collected(&hosted, &[c"sh", c"-c", c"touch /opt$EMPTY/x"], None);
    assert_eq!(report["exit_code"], 1);
    let said = message(&hosted, &[c"sh", c"-c", c"touch /opt$EMPTY/x"]);
    let hint =
        "kennel: hint: /opt/x: the sandbox does not show it; a session started with --rw /opt would allow it";
    assert!(said.contains(hint), "{said}");
    // Without a cap of the policy, it keeps 64 MiB of each stream.
    let (code, _, report, stdout, _) = collected(&hosted, &[c"head", c"-c", c"80M", c"/dev/zero"], None);
    assert_eq!((code, &report["truncated"], &report["stdout_bytes"]), (0, &true.into(), &(80 << 20).into()));
    assert_eq!(stdout.len(), 64 << 20, "no byte more: Kennel's words are not in it");
    let (code, signal, report, ..) = collected(&hosted, &[c"sh", c"-c", c"kill -9 $$"], None);
    assert_eq!((code, signal, &report["signal"]), (137, 9, &9.into()));
    let (code, _, report, stdout, _) = collected(&hosted, &[c"/missing"], None);
    assert_eq!((code, &report["ended"], stdout.len()), (127, &"failed".into(), 0));
    let (code, .., stdout, _) = collected(&hosted, &[c"readlink", c"/proc/self/fd/0"], None);
    assert_eq!((code, &stdout[..]), (0, &b"/dev/null\n"[..]));
}

#[test]
fn a_client_that_leaves_ends_a_command_whose_output_is_collected() {
    let hosted = Hosted::start(&[]);
    let raw = hostile::Raw::connect(&hosted);
    raw.send(
        &hostile::inline(&hostile::call_with(&[c"sh", c"-c", c"echo > begun; sleep 600"], COLLECTS)),
        &[],
    );
    until("the command has begun", || hosted.workspace.path().join("begun").exists());
    drop(raw);
    until("the command is gone", || client(&hosted).stats().unwrap().running == 0);
    // A signal ends it too.
    let raw = hostile::Raw::connect(&hosted);
    raw.send(&hostile::inline(&hostile::call_with(&[c"sleep", c"600"], COLLECTS)), &[]);
    raw.send(&hostile::encoded(&Ask::Signal { number: 15 }), &[]);
    let (bytes, _) = raw.answer_with_memfd();
    let Some(Answer::Collected { signal: 15, .. }) = Answer::take(&mut Cursor::new(&bytes)) else {
        panic!("{bytes:?}");
    };
}

/// Valid messages with random changes: each is answered or refused, and the session goes on.
#[test]
fn random_messages_never_stop_the_session() {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    let hosted = Hosted::start(&["--timeout", "5s"]);
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let memfd = hostile::memfd(&hostile::call(&[c"true"]));
    let seeds: Vec<Vec<u8>> = vec![
        hostile::inline(&hostile::call(&[c"true"])),
        hostile::inline(&hostile::call_with(&[c"echo", c"x"], COLLECTS)),
        hostile::question(r#"{"do":"list","path":"."}"#),
        hostile::question(r#"{"do":"read","path":"/etc/passwd"}"#),
        hostile::question(r#"{"do":"write","path":"w","mode":420}"#),
        hostile::question(r#"{"do":"commit","paths":["a%20"],"overwrite":true}"#),
        hostile::question(r#"{"do":"publish","port":"0:8000"}"#),
        hostile::encoded(&Ask::Logs { id: 1, follow: 0, lines: 1 }),
        hostile::encoded(&Ask::Memfd { length: 40 }),
        hostile::encoded(&Ask::Detach { length: 40 }),
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let cases = (prop::sample::select(seeds), changes, 0..5usize, any::<bool>(), any::<bool>());
    let cases_to_run = crate::support::random_cases(200);
    let mut runner =
        TestRunner::new(Config { cases: cases_to_run, failure_persistence: None, ..Config::default() });
    let result = runner.run(&cases, |(mut bytes, changes, descriptors, has_memfd, waits)| {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // The message that ends a session is none of them.
        prop_assume!(bytes.first() != Some(&5));
        let mut given = vec![null.as_raw_fd(); descriptors];
        given.extend(has_memfd.then_some(memfd.as_raw_fd()));
        let raw = hostile::Raw::connect(&hosted);
        raw.send(&bytes, &given);
        if waits {
            raw.answer();
        }
        Ok(())
    });
    result.unwrap();
    assert!(hosted.is_well());
    until("no command is left", || client(&hosted).stats().unwrap().running == 0);
}
