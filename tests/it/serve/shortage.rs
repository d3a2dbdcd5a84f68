//! A client or the session's process lacks something: the error comes at once and says which of the two lacks
//! it.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Output},
    thread,
    time::Duration,
};

use super::Hosted;
use crate::support::{has, require, stderr, until};

/// Sets how many descriptors a process may have.
fn descriptors(process: u32, most: usize) {
    let (process, most) = (process.to_string(), format!("--nofile={most}:"));
    assert!(Command::new("prlimit").args(["--pid", &process, &most]).status().unwrap().success());
}

fn open(process: u32) -> BTreeSet<usize> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The limit that leaves a process with these descriptors room for `more`.
fn limit(open: &BTreeSet<usize>, room: usize) -> usize {
    (0..).filter(|number| !open.contains(number)).nth(room).unwrap()
}

/// Both clients. Neither may hang.
fn both(session: &Hosted) -> [Output; 2] {
    [session.shell("echo ran"), session.kennel(&["exec", "s", "--", "echo", "ran"]).output().unwrap()]
}

#[test]
fn a_session_without_descriptors_reports_it() {
    require!(has("prlimit"), "prlimit of util-linux");
    let session = Hosted::start(&[]);
    assert!(session.is_well());
    let host = session.host();
    // Without a client.
    let look = |_| {
        thread::sleep(Duration::from_millis(20));
        open(host).len()
    };
    let idle = (0..25).map(look).min().unwrap_or_default();
    let mut told = Vec::new();
    // From no descriptor at all to enough.
    let mut room = 0;
    loop {
        until("the last client is gone", || open(host).len() <= idle);
        let most = if room == 0 { 3 } else { limit(&open(host), room - 1) };
        descriptors(host, most);
        let outputs = both(&session);
        descriptors(host, 1024);
        room += 1;
        for output in &outputs {
            if output.status.success() {
                continue;
            }
            let said = stderr(output);
            assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{most}: {output:?}");
            assert!(said.contains("Too many open files") && said.contains("hint: "), "{most}: {output:?}");
            told.push(said);
        }
        if outputs.iter().all(|output| output.status.success()) {
            break;
        }
        assert!(room < 40, "{told:?}");
    }
    for words in [
        "accept a connection, in the session's process",
        "check the client, in the session's process",
        "receive what the client sends, in the session's process",
    ] {
        assert!(told.iter().any(|said| said.contains(words)), "{words}: {told:?}");
    }
    assert!(session.is_well());
}

#[test]
fn a_client_without_descriptors_reports_it() {
    require!(has("prlimit"), "prlimit of util-linux");
    let session = Hosted::start(&[]);
    let client = session.client();
    let socket = session.socket.to_str().unwrap();
    let limited = |most: usize, client: &str, arguments: &[&str]| {
        let mut prlimit = Command::new("prlimit");
        prlimit.env("XDG_RUNTIME_DIR", session.runtime.path()).env("LC_ALL", "C");
        prlimit.current_dir(session.workspace.path()).arg(format!("--nofile={most}:")).arg(client);
        prlimit.args(arguments).output().unwrap()
    };
    let kennel = crate::support::kennel_path();
    for (program, arguments, words) in [
        (client.to_str().unwrap(), &[socket, "--", "echo", "ran"][..], "too many open files\n"),
        (kennel.to_str().unwrap(), &["exec", "s", "--", "echo", "ran"], "Too many open files\n"),
    ] {
        let mut has_run = false;
        for most in 0..20 {
            let output = limited(most, program, arguments);
            if output.status.success() {
                has_run = true;
                continue;
            }
            assert!(output.status.code() == Some(125), "{most}: {output:?}");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains(words) && said.contains("hint: raise the limit"), "{most}: {said}");
        }
        assert!(has_run, "{program}");
    }
    assert!(session.is_well());
}
