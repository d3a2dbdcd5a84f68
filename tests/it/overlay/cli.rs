//! `kennel run --overlay`.

use std::fs;

use serde_json::{Value, json};

use super::in_memory;
use crate::support::{quiet, refused, report, shell, stderr, stdout, workspace};

/// The flags, and those that leave remarks out.
fn flags<'f>(flags: &[&'f str]) -> Vec<&'f str> {
    quiet().iter().copied().chain(flags.iter().copied()).collect()
}

#[test]
fn changes_are_listed_on_stderr_and_dropped() {
    if !in_memory() {
        return super::refused::is_refused_in_memory();
    }
    for choice in [&["--overlay"][..], &["--overlay", "--diff"], &["--overlay-size", "64M"]] {
        let dir = workspace();
        fs::write(dir.path().join("gone"), "").unwrap();
        let output = shell(dir.path(), &flags(choice), "echo out; echo x > new; rm gone; exit 3");
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((stdout(&output), stderr(&output)), ("out".into(), "D gone\nA new".into()));
        assert!(dir.path().join("gone").exists() && !dir.path().join("new").exists());
    }
    let dir = workspace();
    let output = shell(dir.path(), &flags(&["--overlay", "--discard"]), "echo x > new");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    assert!(!dir.path().join("new").exists());
}

#[test]
fn changes_are_committed_if_the_command_succeeds() {
    if !in_memory() {
        return super::refused::is_refused_in_memory();
    }
    let dir = workspace();
    let output = shell(dir.path(), &flags(&["--overlay", "--commit"]), "echo x > new");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"x\n");
    let output = shell(dir.path(), &flags(&["--overlay", "--commit"]), "echo y > new; exit 7");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(stderr(&output), "M new\nkennel: nothing was committed, because the command failed");
    assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"x\n");
}

#[test]
fn what_cannot_be_committed_is_told_and_the_status_is_125() {
    if !in_memory() {
        return super::refused::is_refused_in_memory();
    }
    let dir = workspace();
    let (output, report) = report(
        dir.path(),
        &flags(&["--overlay", "--commit", "--protect", ".env"]),
        &["sh", "-c", "echo x > .env; echo x > new; mkdir d"],
    );
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(stderr(&output), "kennel: not committed: A .env: it is protected");
    let new = json!([
        { "path": "d", "kind": "added", "file": "directory" },
        { "path": "new", "kind": "added", "file": "file" },
    ]);
    assert_eq!(report["changes"], new);
    let refused = json!([{ "path": ".env", "kind": "added", "file": "file", "reason": "it is protected" }]);
    assert_eq!(report["refused_changes"], refused);
    assert!(dir.path().join("new").exists() && !dir.path().join(".env").exists());
}

#[test]
fn a_report_has_changes_only_with_an_overlay() {
    let dir = workspace();
    let (_, plain) = report(dir.path(), &[], &["touch", "x"]);
    assert_eq!((plain.get("changes"), plain.get("refused_changes")), (None, None));
    if in_memory() {
        let (_, overlaid) = report(dir.path(), &["--overlay", "--discard"], &["rm", "x"]);
        assert_eq!(overlaid["changes"], json!([{ "path": "x", "kind": "deleted", "file": "file" }]));
        assert_eq!(overlaid.get("refused_changes"), None::<&Value>);
    }
}

#[test]
fn choices_need_an_overlay_and_exclude_each_other() {
    let dir = workspace();
    for choice in ["--diff", "--commit", "--discard"] {
        let said = refused(dir.path(), &[choice]);
        assert!(said.contains("say --overlay"), "{said}");
    }
    let output = shell(dir.path(), &["--overlay", "--diff", "--commit"], "touch ran");
    assert_eq!(output.status.code(), Some(125));
    assert!(!dir.path().join("ran").exists());
}

#[test]
fn a_policy_file_says_it_too() {
    if !in_memory() {
        return super::refused::is_refused_in_memory();
    }
    let (dir, policy) = (workspace(), workspace());
    let file = policy.path().join("p.toml");
    fs::write(&file, "overlay.size = '64M'").unwrap();
    let path = (file.to_str().unwrap(), dir.path().to_str().unwrap());
    let output = shell(dir.path(), &flags(&["--policy", path.0, "--workspace", path.1, "--diff"]), "touch x");
    assert_eq!(stderr(&output), "A x");
    assert!(!dir.path().join("x").exists());
}
