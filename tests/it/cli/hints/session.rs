//! Hints for commands of a session: their flags are those that the session was started with.

use std::{fs, path::Path, process::Command};

use super::{OF_SESSION, Places, all_help, flags_of, with_advice, with_own_terminal, with_terminal, words};
use crate::{
    serve::Hosted,
    support::{has, make_repository, require, stderr, workspace},
};

/// A session with this workspace.
fn session_in(workspace: &Path, flags: &[String]) -> Hosted {
    let workspace = format!("--workspace={}", workspace.display());
    Hosted::start(&[&[workspace.as_str()], &words(flags)[..]].concat())
}

/// `kennel exec`, not yet started.
fn exec(session: &Hosted, flags: &[&str], script: &str) -> Command {
    session.kennel(&[&["exec"], flags, &["s", "sh", "-c", script]].concat())
}

#[test]
fn doing_what_a_hint_in_a_session_says_helps() {
    // A terminal of the command's own is not counted.
    let is_meant = |flags: &[&str]| !flags.contains(&"--output-ends");
    all_help(is_meant, |places, flags, script| {
        let session = session_in(places.workspace.path(), flags);
        let (code, lines) = with_terminal(exec(&session, &[], script));
        for hint in lines.iter().filter(|line| line.contains("; ")) {
            let remedy = hint.rsplit_once("; ").unwrap().1;
            assert!(remedy.starts_with(OF_SESSION), "a policy is of the session: {hint}");
        }
        (code, lines)
    });
}

#[test]
fn every_client_on_a_terminal_gets_hints_and_a_pipe_gets_none() {
    require!(has("setsid"), "setsid of util-linux");
    let places = Places::new();
    let session = session_in(places.workspace.path(), &[]);
    let script = places.fill("cat {hid}/f");
    let path = places.fill("{hid}/f");
    let expected = format!(
        "kennel: hint: {path}: /tmp is the sandbox's own, and empty at the start; {OF_SESSION}--ro {path} shows it"
    );
    let expected = (Some(1), vec![expected]);
    assert_eq!(with_terminal(exec(&session, &[], &script)), expected);
    assert_eq!(with_own_terminal(&exec(&session, &["--tty"], &script)), expected);
    let mut small = session.exec(&["sh", "-c", &script]);
    small.current_dir(&places.workspace);
    assert_eq!(with_terminal(small), expected);
    let output = exec(&session, &[], &script).output().unwrap();
    assert!(!stderr(&output).contains("kennel: "), "{output:?}");
    for script in ["cat {hid}/f || true", "false", "cat missing", "sleep 60 & kill $$"] {
        let (_, lines) = with_terminal(exec(&session, &[], &places.fill(script)));
        assert_eq!(lines, Vec::<String>::new(), "{script}");
    }
    // Three lines at most.
    for name in ["a", "b", "c"] {
        fs::write(places.hidden.path().join(name), "").unwrap();
    }
    let (_, lines) = with_terminal(exec(&session, &[], &places.fill("cat {hid}/a {hid}/b {hid}/c {hid}/f")));
    assert_eq!(lines.len(), 3, "{lines:?}");
}

/// A session that explains gives hints to a pipe too. What is explained comes first, and once.
#[test]
fn a_session_that_explains_names_flags_of_sessions() {
    let places = Places::new();
    let session = session_in(places.workspace.path(), &["--explain".to_owned()]);
    let path = places.fill("{hid}/f");
    let output = exec(&session, &[], &format!("cat {path}")).output().unwrap();
    let said = stderr(&output);
    let expected = format!(
        "kennel: possibly denied: {path}: /tmp is the sandbox's own, and empty at the start; {OF_SESSION}--ro \
         {path} would show it, if there is such a path outside"
    );
    assert_eq!(said.lines().filter(|line| line.starts_with("kennel: ")).collect::<Vec<_>>(), [expected]);
    let output = exec(&session, &[], &format!("cat {path} 2> /dev/null")).output().unwrap();
    assert!(stderr(&output).contains(&format!("kennel: possibly denied: {path}: ")), "{output:?}");
}

#[test]
fn the_timeout_of_a_call_is_not_the_session_s() {
    let session = Hosted::start(&["--timeout=20s"]);
    let (code, lines) = with_terminal(exec(&session, &["--timeout=200ms"], "sleep 60"));
    assert_eq!((code, lines), (Some(124), vec!["kennel: command timed out after 200ms".to_owned()]));
}

#[test]
fn hints_about_git_are_followed_in_a_new_session() {
    require!(has("git"), "git");
    let dir = workspace();
    make_repository(&dir.path().join(".git"));
    let run = |flags: &[String]| {
        let session = session_in(dir.path(), flags);
        with_terminal(exec(&session, &[], "git config core.pager less"))
    };
    let (code, lines) = run(&[]);
    assert!(code != Some(0) && lines.len() == 1, "{lines:?}");
    assert!(lines[0].ends_with(&format!("; {OF_SESSION}--git trust allows it")), "{lines:?}");
    assert_eq!(run(&with_advice(&[], &flags_of(&lines[0]))), (Some(0), vec![]));
}
