//! Changes of a session that runs: `kennel diff` shows them, and the session itself commits them.

use std::process::{Child, Stdio};

use super::place::{Kept, require_kept};
use crate::support::{past_the_tick, stderr, stdout, until};

/// A session with an overlay. Dropping it stops it.
struct Running<'k> {
    kept: &'k Kept,
    name: String,
}

impl<'k> Running<'k> {
    fn start(kept: &'k Kept, flags: &[&str]) -> Self {
        let name = format!("running-{}", std::process::id());
        let start = ["session", "start", "--quiet", "--name", &name, "--overlay"];
        kept.succeeds(&[&start, flags].concat());
        Self { kept, name }
    }

    fn exec(&self, script: &str) {
        self.kept.succeeds(&["exec", &self.name, "--", "sh", "-c", script]);
    }

    /// A command that runs until its standard input ends.
    fn begin(&self) -> Child {
        let mut exec = self.kept.kennel(&["exec", &self.name, "--", "sh", "-c", "echo begun; read line"]);
        exec.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    fn stop(self) -> String {
        self.kept.succeeds(&["session", "stop", &self.name]);
        self.name.clone()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.kept.output(&["session", "stop", &self.name]);
    }
}

#[test]
fn what_is_printed_and_applied_is_that_of_a_stopped_session() {
    let pass = |kept: Kept, is_running: bool| {
        for name in ["old", "gone", "theirs"] {
            kept.write(name, "1\n");
        }
        let session = Running::start(&kept, &["--protect", ".env"]);
        session
            .exec("echo 2 > old; rm gone; echo 2 > theirs; mkdir d; echo x > d/x; echo y > y; echo z > .env");
        past_the_tick();
        kept.write("theirs", "user\n");
        let name = session.name.clone();
        let session = if is_running {
            Some(session)
        } else {
            drop(session.stop());
            None
        };
        let mut said = Vec::new();
        let commands: [&[&str]; 7] = [
            &["diff", &name],
            &["commit", &name, "d/x", "nothing"],
            &["diff", "--stat", &name],
            &["commit", &name],
            &["commit", "--force", &name],
            &["commit", "--force", &name, "theirs"],
            &["diff", &name],
        ];
        for command in commands {
            let output = kept.output(command);
            said.push(format!("{:?}\n{}\n{}", output.status.code(), stdout(&output), stderr(&output)));
        }
        let exists = ["gone", "d/x", "y", ".env"].map(|name| kept.exists(name));
        let read = [kept.read("old"), kept.read("theirs")];
        let stopped = session.map(Running::stop);
        assert_eq!(stopped.is_some(), is_running);
        assert!(said[3].contains(&format!("kennel commit --force {name} PATH")), "{said:#?}");
        (said.join("\n"), exists, read)
    };
    let running = pass(require_kept!(), true);
    assert_eq!(running, pass(require_kept!(), false));
    assert_eq!(running.1, [true, true, true, false], "{}", running.0);
    assert_eq!(running.2, ["2\n", "2\n"], "{}", running.0);
}

#[test]
fn a_session_goes_on_after_its_commit() {
    let kept = require_kept!();
    let session = Running::start(&kept, &[]);
    session.exec("echo 1 > f; mkdir d; echo 1 > d/f");
    let name = session.name.clone();
    assert_eq!(kept.succeeds(&["commit", &name]), "A d/\nA d/f\nA f\n3 changes committed");
    session.exec("echo 2 >> f; rm -r d");
    assert_eq!(kept.succeeds(&["commit", &name]), "D d/\nM f\n2 changes committed");
    assert_eq!(kept.read("f"), "1\n2\n");
    assert!(!kept.exists("d"));
    session.exec("echo 3 >> f");
    session.stop();
    // What is committed belongs to the user. The next session sees what the user makes of it.
    kept.succeeds(&["commit", &name]);
    kept.write("f", "user\n");
    let session = Running::start(&kept, &[]);
    session.exec("grep -q user f; echo 4 >> f");
    assert_eq!(kept.succeeds(&["commit", &name]), "M f\n1 change committed");
    assert_eq!(kept.read("f"), "user\n4\n");
    session.stop();
    until("nothing is kept", || stderr(&kept.output(&["diff"])).contains("nothing is kept"));
}

#[test]
fn nothing_is_committed_while_a_command_runs() {
    let kept = require_kept!();
    let session = Running::start(&kept, &[]);
    session.exec("echo x > x");
    let mut command = session.begin();
    let mut begun = [0; 6];
    std::io::Read::read_exact(command.stdout.as_mut().unwrap(), &mut begun).unwrap();
    let [done, said] = kept.fails(&["commit", &session.name]);
    assert_eq!(done, "");
    let hint = "kennel: hint: wait until the command has ended, or end it";
    assert_eq!(said, format!("kennel: changes are not taken while a command of the session runs\n{hint}"));
    assert!(!kept.exists("x"));
    assert!(kept.succeeds(&["diff", &session.name]).contains("+x"));
    // The hint helps.
    drop(command.stdin.take());
    command.wait().unwrap();
    assert_eq!(kept.succeeds(&["commit", &session.name]), "A x\n1 change committed");
}

#[test]
fn changes_are_dropped_once_the_session_is_stopped() {
    let kept = require_kept!();
    let session = Running::start(&kept, &[]);
    session.exec("echo x > x; echo y > y");
    for paths in [&[][..], &["x"]] {
        let [done, said] = kept.fails(&[&["discard", &session.name][..], paths].concat());
        assert_eq!(done, "");
        assert!(
            said.contains(&format!("changes of session {}: the session is running", session.name)),
            "{said}"
        );
        assert!(said.contains("hint: stop it first: kennel session stop"), "{said}");
    }
    let name = session.stop();
    until("the session is gone", || kept.output(&["discard", &name, "x"]).status.success());
    assert_eq!(kept.succeeds(&["commit", &name]), "A y\n1 change committed");
    assert!(!kept.exists("x"));
}

#[test]
fn a_running_session_commits_nothing_that_earlier_ones_must_not_or_that_is_protected_now() {
    let kept = require_kept!();
    let session = Running::start(&kept, &["--protect", ".env"]);
    session.exec(
        "echo x > .env; mkdir -p .git/modules/sub/hooks; echo x > .git/modules/sub/hooks/post-checkout",
    );
    session.stop();
    let session = Running::start(&kept, &[]);
    session.exec("echo more >> .env; echo y > y");
    // Only now does git obey the hook.
    for repository in [".git", ".git/modules/sub"] {
        crate::support::make_repository(&kept.dir.path().join(repository));
    }
    let [done, said] = kept.fails(&["commit", &session.name]);
    for path in [".env", ".git/modules/sub/hooks/post-checkout"] {
        assert!(said.contains(&format!("A {path}: it is protected")), "{said}");
    }
    assert!(done.contains("A y") && kept.exists("y") && !kept.exists(".env"), "{done}");
    assert!(!kept.exists(".git/modules/sub/hooks/post-checkout"));
}

#[test]
fn another_session_of_the_name_does_not_commit_for_it() {
    let kept = require_kept!();
    let session = Running::start(&kept, &[]);
    session.exec("echo x > x");
    let name = session.stop();
    // It has no overlay.
    kept.succeeds(&["session", "start", "--quiet", "--name", &name]);
    let session = Running { kept: &kept, name: name.clone() };
    until("the changes are free", || kept.output(&["commit", &name]).status.success());
    assert!(kept.exists("x"));
    session.stop();
}
