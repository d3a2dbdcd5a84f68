//! `kennel op`: real programs with a manifest.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;

use super::{Home, write_script};
use crate::{
    serve::signal,
    support::{copy_program, ends, has, patient, require, stderr, stdout, until_full, write_program},
};

/// `me:hunter2`
const AUTHORIZATION: &str = "Basic bWU6aHVudGVyMg==";

/// A git repository behind a password, over the dumb HTTP protocol. The test receives each `Authorization`
/// header.
fn repository() -> (SocketAddr, Receiver<Option<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (tell, told) = channel();
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&connection).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let is_authorization = |line: &&String| line.to_lowercase().starts_with("authorization:");
            let authorization = head.iter().find(is_authorization).cloned();
            let is_known = authorization.as_ref().is_some_and(|line| line.ends_with(AUTHORIZATION));
            let (status, body) = match (is_known, request.contains("info/refs")) {
                (false, _) => ("401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"r\"", String::new()),
                (_, true) => ("200 OK", format!("{}\trefs/heads/main\n", "a".repeat(40))),
                (_, false) => ("200 OK", "ref: refs/heads/main\n".to_owned()),
            };
            let _ = tell.send(authorization);
            let length = body.len();
            let kind = "Content-Type: text/plain\r\nConnection: close";
            let _ =
                write!(&connection, "HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}");
        }
    });
    (at, told)
}

/// The manifest of git with a token. A program in its home directory hands the token to git.
fn git(home: &Home, host: SocketAddr) -> String {
    write_script(&home.at("in/askpass"), "echo \"$GIT_TOKEN\"");
    format!(
        "[capabilities.network]\nhosts = ['{host}']\n[capabilities.spawn]\n\
         programs = [{{ path = '/usr/bin/git' }}]\nenv_passthrough = ['no_proxy', 'NO_PROXY']\n\
         credential_env_keys = ['GIT_TOKEN']\nfs_read = ['~/in']\ncwd = '~/in'\n\
         limits.max_memory_bytes = 536870912\n[capabilities.spawn.operations]\n\
         list = 'git -c core.askPass={} ls-remote http://me@{{host}}/r.git [{{pattern}}]'\n",
        home.at("in/askpass").display()
    )
}

#[test]
fn git_reads_a_repository_with_its_credential() {
    require!(has("git"), "git");
    let home = Home::new("");
    let (at, told) = repository();
    let manifest = git(&home, at);
    let host = format!("host={at}");
    let mut op = home.op(&manifest, &["list", "--arg", &host, "-q"]);
    // git would ask for loopback without a proxy otherwise.
    let output = op.env("GIT_TOKEN", "hunter2").env("no_proxy", "x").env("NO_PROXY", "x").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("refs/heads/main"), "{output:?}");
    let authorizations: Vec<String> = told.try_iter().flatten().collect();
    assert!(authorizations.iter().any(|line| line.ends_with(AUTHORIZATION)), "{authorizations:?}");
}

#[test]
fn git_reaches_no_other_host() {
    require!(has("git"), "git");
    let home = Home::new("");
    let ((at, _listed), (other, told)) = (repository(), repository());
    let host = format!("host={other}");
    let mut op = home.op(&git(&home, at), &["list", "--arg", &host]);
    let output = op.env("GIT_TOKEN", "hunter2").env("no_proxy", "x").env("NO_PROXY", "x").output().unwrap();
    assert_eq!(output.status.code(), Some(128), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let add = "; add it to capabilities.network.hosts of the manifest";
    assert!(said.contains(&format!("kennel: denied: {other}: ")) && said.contains(add), "{said}");
    assert!(!said.contains("--allow"), "a flag would not help: {said}");
    assert!(told.try_recv().is_err(), "nobody came");
}

const OPERATIONS: &str = "[capabilities.spawn.operations]\nsay = 'tool {word} [--twice {other}]'\n\
                          dash = { argv = 'tool {word}', allow_dash = ['word'] }\n";

#[test]
fn an_operation_gets_its_values_and_its_status_comes_back() {
    let home = Home::new("printf '%s|' \"$@\"; echo \"$0\"; echo err >&2; exit 7");
    let output = home.run_op(&home.manifest(OPERATIONS), &["say", "--arg", "word=a b; $(x) *", "-q"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(stdout(&output), format!("a b; $(x) *|{}", home.at("bin/tool").display()));
    assert_eq!(stderr(&output), "err");
    let output =
        home.run_op(&home.manifest(OPERATIONS), &["say", "--arg", "word=a", "--arg", "other=b=c", "-q"]);
    assert!(stdout(&output).starts_with("a|--twice|b=c|"), "{output:?}");
    let output = home.run_op(&home.manifest(OPERATIONS), &["dash", "--arg", "word=-a", "-q"]);
    assert!(stdout(&output).starts_with("-a|"), "{output:?}");
}

#[test]
fn an_unknown_operation_is_125_and_nothing_runs() {
    let home = Home::new("echo ran > \"$HOME/out/ran\"; echo ran");
    let manifest = home.manifest(&format!("fs_write = ['~/out']\n{OPERATIONS}"));
    for (operation, words) in [
        (&["other"][..], "operation other: is not in the manifest"),
        (&["say"], "`word` is missing"),
        (&["say", "--arg", "word=-x"], "`word` begins with `-`"),
        (&["say", "--arg", "word=a", "--arg", "x=y"], "there is no placeholder `x`"),
        (&["say", "--arg", "word=a", "--arg", "word=b"], "`word` is given twice"),
        (&["say", "--arg", "word"], "write NAME=VALUE"),
        (&["say", "--credential", "TOKEN"], "write KEY=FILE"),
    ] {
        let output = home.run_op(&manifest, operation);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(stderr(&output).contains(words) && output.stdout.is_empty(), "{operation:?}: {output:?}");
    }
    for (text, words) in [
        ("", "kennel: manifest: manifest.toml:1:1: the manifest is empty"),
        (
            "[capabilities.spawn]\nprograms = 1",
            "kennel: manifest: manifest.toml:2:12: invalid type: integer `1`, expected a list",
        ),
    ] {
        let output = home.run_op(text, &["say"]);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(stderr(&output).starts_with(words), "{output:?}");
        let mut absent = home.op("", &["say"]);
        std::fs::remove_file(home.at("manifest.toml")).unwrap();
        let output = absent.output().unwrap();
        assert!(
            stderr(&output).starts_with("kennel: manifest: read manifest.toml: No such file")
                && stderr(&output).contains("hint: name a file that is there"),
            "{output:?}"
        );
    }
    assert!(!home.at("out/ran").exists());
    let output = home.run_op(&manifest, &["say", "--arg", "word=a", "-q"]);
    assert_eq!(stdout(&output), "ran", "{output:?}");
    assert!(home.at("out/ran").exists(), "what is granted works");
}

#[test]
fn a_key_that_kennel_does_not_know_is_ignored_with_a_note() {
    let home = Home::new("echo ran");
    let manifest = home.manifest(&format!("forwarder = 'ssh'\n{OPERATIONS}"));
    let noted = "kennel: note: manifest.toml:3:1: Kennel does not know the key `forwarder` and ignores it\n";
    for (quiet, note) in [(&[][..], noted), (&["-q"], "")] {
        let output = home.run_op(&manifest, &[&["say", "--arg", "word=a"], quiet].concat());
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(0), "ran"), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let notes: String = text.split_inclusive('\n').filter(|line| line.contains("forwarder")).collect();
        assert_eq!(notes, note, "{text}");
    }
}

#[test]
fn failures_come_as_json_with_their_class() {
    let home = Home::new("sleep 60");
    let class = |manifest: &str, operation: &[&str], code: i32| {
        let operation = [operation, &["--json", "report.json", "-q"]].concat();
        let output = home.run_op(manifest, &operation);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let report = std::fs::read_to_string(home.at("report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        report["failure"]["class"].as_str().unwrap().to_owned()
    };
    let run = "limits.max_wall_seconds = 1\noperations.x = 'tool'";
    assert_eq!(class(&home.manifest(run), &["x"], 124), "timeout");
    assert_eq!(class(&home.manifest(run), &["y"], 125), "capability_denied");
    let key = home.manifest(&format!("credential_env_keys = ['KENNEL_NO_SUCH']\n{run}"));
    assert_eq!(class(&key, &["x"], 125), "binding_required");
    assert_eq!(class(&key, &["x", "--credential", "KENNEL_NO_SUCH=/absent"], 125), "binding_failed");
    let hash = format!("tool', hash = 'sha256:{}'", "0".repeat(64));
    assert_eq!(
        class(&home.manifest(run).replace("tool' }", &format!("{hash} }}")), &["x"], 125),
        "hash_mismatch"
    );
    std::fs::remove_file(home.at("bin/tool")).unwrap();
    assert_eq!(class(&home.manifest(run), &["x"], 127), "load_failed");
}

#[test]
fn credentials_come_from_variables_and_files() {
    let home = Home::new("echo \"$A+$B+${C-unset}\"");
    let manifest = home.manifest("credential_env_keys = ['A', 'B']\noperations.x = 'tool'");
    std::fs::write(home.at("b"), "of the file\n").unwrap();
    let mut op = home.op(&manifest, &["x", "--credential", "B=b", "-q"]);
    let output = op.env("A", "of the variable").env("B", "not this").env("C", "not listed").output().unwrap();
    assert_eq!(stdout(&output), "of the variable+of the file+unset", "{output:?}");
    let output = home.run_op(&manifest, &["x", "--credential", "BB=b"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("takes no credential of that name"), "{output:?}");
    let output = home.run_op(&manifest, &["x", "--credential", "B=b", "--credential", "B=b"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("is given twice"), "{output:?}");
    let output = home.run_op(&manifest, &["x", "--credential", "B=absent"]);
    assert!(stderr(&output).contains("absent: No such file"), "{output:?}");
}

#[test]
fn a_missing_interpreter_is_named_in_words_of_the_manifest() {
    let home = Home::new("");
    let script = format!("#!{}\n", home.at("in/interpreter").display());
    write_program(home.at("bin/tool"), script);
    copy_program("/bin/cat", home.at("in/interpreter"));
    let output = home.run_op(&home.manifest("operations.x = 'tool'"), &["x", "-q"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(stderr(&output).contains("fs_read") && !stderr(&output).contains("--ro"), "{output:?}");
    let shown = home.manifest("fs_read = ['~/in']\noperations.x = 'tool'");
    let output = home.run_op(&shown, &["x", "-q"]);
    assert!(output.status.success() && stdout(&output).starts_with("#!"), "{output:?}");
}

/// The writer of this pipe may never write.
#[test]
fn signals_end_the_wait_for_a_credential() {
    let home = Home::new("echo \"$A\"");
    let manifest = home.manifest("credential_env_keys = ['A']\noperations.x = 'tool'");
    nix::unistd::mkfifo(&home.at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut child = home.op(&manifest, &["x", "--credential", "A=pipe", "-q"]).spawn().unwrap();
    thread::sleep(patient(Duration::from_millis(300)));
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    signal(&child, Signal::SIGTERM);
    assert!(!ends("it was told to", &mut child).success());
}

#[test]
fn a_failed_write_of_output_is_reported_with_the_rest() {
    let home = Home::new("echo out");
    let manifest = home.manifest("operations.x = 'tool'");
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = home.op(&manifest, &["x", "--json", "report.json", "-q"]).stdout(full()).output().unwrap();
    let line = "write the program's output: No space left on device";
    assert_eq!((output.status.code(), stderr(&output).contains(line)), (Some(125), true), "{output:?}");
    let report = std::fs::read_to_string(home.at("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["exit_code"], &report["truncated"]), (&125.into(), &true.into()), "{report}");
    assert_eq!((&report["ended"], &report["failure"]["message"]), (&"exited".into(), &line.into()));
    let lost = home.op(&manifest, &["x", "--json", "/dev/full"]).stdout(full()).output().unwrap();
    assert!(lost.status.code() == Some(125) && stderr(&lost).contains(line), "{lost:?}");
}

#[test]
fn each_stream_is_written_even_if_the_other_fails() {
    let home = Home::new("echo out; echo err >&2");
    let manifest = home.manifest("operations.x = 'tool'");
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = home.op(&manifest, &["x", "-q"]).stdout(full()).output().unwrap();
    assert!(output.status.code() == Some(125) && stderr(&output).starts_with("err\n"), "{output:?}");
    let output = home.op(&manifest, &["x", "--json", "report.json", "-q"]).stderr(full()).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "out".to_owned()), "{output:?}");
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(home.at("report.json")).unwrap()).unwrap();
    assert_eq!((&report["truncated"], &report["failure"]), (&true.into(), &serde_json::Value::Null));
}

#[test]
fn a_signal_ends_the_wait_for_a_reader() {
    let home = Home::new("head -c 100000 /dev/zero");
    let manifest = home.manifest("operations.x = 'tool'");
    let (_reader, writer) = std::io::pipe().unwrap();
    let mut child = home.op(&manifest, &["x", "-q"]).stdout(writer.try_clone().unwrap()).spawn().unwrap();
    until_full(&writer);
    signal(&child, Signal::SIGTERM);
    assert_eq!(ends("it was told to", &mut child).code(), Some(125));
}
