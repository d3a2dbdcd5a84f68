//! A command that uses up all processes of its user: Kennel still undoes and reports its changes and passes
//! its output on.

use std::{
    fs,
    io::{self, Read},
    process::{Command, Stdio},
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde_json::Value;

use crate::{
    serve::Hosted,
    support::{has, kennel, only_as_user, require, stderr, until, until_full, workspace},
};

/// Acts as if the user of process `pid` had used up all processes: `pid` gets no new thread.
fn let_it_have_no_thread(pid: u32) {
    let status = Command::new("prlimit").args(["--pid", &pid.to_string(), "--nproc=1"]).status().unwrap();
    assert!(status.success());
}

/// Waits for the test, then creates a protected path and writes a lot.
const WAITS: &str = "touch ready; while ! test -e go; do sleep 0.02; done; \
                     mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; yes | head -c 300000";

#[test]
fn a_command_that_uses_up_all_processes_ends_normally() {
    only_as_user!();
    require!(has("prlimit"), "prlimit of util-linux");
    for blocks in [true, false] {
        let dir = workspace();
        let file = dir.path().join("report.json");
        let (mut reader, writer) = io::pipe().unwrap();
        if !blocks {
            fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        }
        let mut command = kennel(dir.path(), &["--json", file.to_str().unwrap()], &["sh", "-c", WAITS]);
        let child = command.stdout(writer.try_clone().unwrap()).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        until("the command runs", || dir.path().join("ready").exists());
        let_it_have_no_thread(child.id());
        fs::write(dir.path().join("go"), "").unwrap();
        until_full(&writer);
        drop(writer);
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        let output = child.wait_with_output().unwrap();
        let report: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!((output.status.code(), all.len()), (Some(0), 300_000), "{blocks}: {output:?}");
        assert_eq!((&report["ended"], &report["stdout_bytes"]), (&"exited".into(), &300_000.into()));
        assert!(stderr(&output).contains("a protected path"), "{blocks}: {output:?}");
        assert!(!dir.path().join(".git/hooks/pre-commit").exists());
    }
}

#[test]
fn a_session_that_gets_no_thread_reports_it_and_lives_on() {
    only_as_user!();
    require!(has("prlimit"), "prlimit of util-linux");
    let session = Hosted::start(&[]);
    let mut first =
        session.kennel(&["exec", "s", "--", "sh", "-c", WAITS]).stdout(Stdio::null()).spawn().unwrap();
    until("the command runs", || session.workspace.path().join("ready").exists());
    let_it_have_no_thread(session.host());
    let report = session.runtime.path().join("report.json");
    let exec = ["exec", "s", "--json", report.to_str().unwrap(), "--", "touch", "ran"];
    let output = session.kennel(&exec).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).starts_with("kennel: start a thread: "), "{output:?}");
    assert!(!session.workspace.path().join("ran").exists(), "it is told before the command starts");
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!((&report["ended"], &report["exit_code"]), (&"failed".into(), &125.into()), "{report}");
    fs::write(session.workspace.path().join("go"), "").unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(0));
    assert!(!session.workspace.path().join(".git/hooks/pre-commit").exists() && session.is_well());
}
