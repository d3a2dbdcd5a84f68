//! Kennel removes files where the command made them, even if another directory has that path by then.

use std::fs;

use super::{
    protected::denials,
    undone::{bare, is_there, meanwhile, meanwhile_with},
};
use crate::support::{has, may_mount, mount, only_as_root, require, stderr, unmount, workspace};

/// The last action of a command, and how the command ends.
fn at_last(script: &str, status: i32) -> String {
    format!("trap '{script}; exit {status}' EXIT")
}

const EVIL: &str = "mkdir -p .git/hooks; echo evil >.git/hooks/pre-commit; echo ../evil >.git/commondir";

#[test]
fn a_moved_workspace_is_cleaned_where_it_is_now() {
    let place = workspace();
    let (ws, moved) = (place.path().join("w"), place.path().join("old"));
    for status in [0, 3] {
        fs::create_dir(&ws).unwrap();
        let output = meanwhile(&ws, &at_last(EVIL, status), || {
            fs::rename(&ws, &moved).unwrap();
            fs::create_dir_all(ws.join(".git/hooks")).unwrap();
            fs::write(ws.join(".git/hooks/pre-push"), "").unwrap();
            fs::write(ws.join(".git/commondir"), "").unwrap();
            fs::write(moved.join("done"), "").unwrap();
        });
        let left = |name: &str| is_there(&moved.join(name));
        assert!(!left(".git/hooks/pre-commit") && !left(".git/commondir"), "{output:?}");
        assert!(is_there(&ws.join(".git/hooks/pre-push")), "it belongs to somebody else: {output:?}");
        assert!(is_there(&ws.join(".git/commondir")), "it belongs to somebody else: {output:?}");
        let said = format!(
            "it was renamed to commondir.refused-by-kennel.0; {} was moved to {} meanwhile",
            ws.display(),
            moved.display()
        );
        assert!(stderr(&output).contains(&said), "{output:?}");
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        fs::remove_dir_all(&ws).unwrap();
        fs::remove_dir_all(&moved).unwrap();
    }
}

#[test]
fn a_mount_on_the_way_to_a_protected_path_is_kept() {
    only_as_root!();
    require!(has("unshare"), "unshare");
    if !may_mount("escape::moved::a_mount_on_the_way_to_a_protected_path_is_kept") {
        return;
    }
    let (ws, other) = (bare(), workspace());
    fs::create_dir(other.path().join("hooks")).unwrap();
    let output = meanwhile(ws.path(), "echo ../evil >.git/commondir", || {
        fs::write(other.path().join("hooks/pre-commit"), "theirs").unwrap();
        mount(&["--bind", other.path().to_str().unwrap()], &ws.path().join(".git"));
        fs::write(ws.path().join("done"), "").unwrap();
    });
    assert!(other.path().join("hooks/pre-commit").exists(), "{output:?}");
    assert_eq!(output.status.code(), Some(125), "the file under the mount stays: {output:?}");
    assert!(stderr(&output).contains("something was mounted on the way to it"), "{output:?}");
    // A mount that was there at the start is part of the workspace.
    fs::remove_file(ws.path().join("done")).unwrap();
    let told = denials(ws.path(), &[], "echo ../evil >.git/commondir");
    assert!(told.contains("it was renamed") && !is_there(&other.path().join("commondir")), "{told}");
    unmount(&ws.path().join(".git"));
}

#[test]
fn a_mount_on_a_mount_is_kept() {
    only_as_root!();
    require!(has("unshare"), "unshare");
    if !may_mount("escape::moved::a_mount_on_a_mount_is_kept") {
        return;
    }
    let (ws, other) = (workspace(), workspace());
    let (outer, inner) = (ws.path().join("outer"), ws.path().join("outer/x"));
    fs::create_dir(&outer).unwrap();
    fs::create_dir(other.path().join("x")).unwrap();
    mount(&["--bind", other.path().to_str().unwrap()], &outer);
    for (at, status) in [(&inner, 125), (&outer, 0)] {
        let flags = ["--protect", "outer/x/y"];
        let output = meanwhile_with(ws.path(), &flags, "echo evil >outer/x/y", || {
            mount(&["-t", "tmpfs", "none"], at);
            fs::create_dir_all(&inner).unwrap();
            fs::write(inner.join("y"), "the user's").unwrap();
            fs::write(ws.path().join("done"), "").unwrap();
        });
        assert!(is_there(&inner.join("y")), "{output:?}");
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        unmount(at);
        let is_left = is_there(&inner.join("y"));
        assert_eq!(is_left, status != 0, "on the mount itself nothing lies on the way: {output:?}");
        let _ = fs::remove_file(inner.join("y"));
        fs::remove_file(ws.path().join("done")).unwrap();
        fs::remove_file(ws.path().join("runs")).unwrap();
    }
    unmount(&outer);
}

#[test]
fn a_mount_over_the_workspace_is_kept() {
    only_as_root!();
    require!(has("unshare"), "unshare");
    if !may_mount("escape::moved::a_mount_over_the_workspace_is_kept") {
        return;
    }
    let (ws, same) = (bare(), workspace());
    mount(&["--bind", ws.path().to_str().unwrap()], same.path());
    let output = meanwhile(ws.path(), &at_last(EVIL, 0), || {
        mount(&["-t", "tmpfs", "none"], ws.path());
        fs::create_dir(ws.path().join(".git")).unwrap();
        fs::write(ws.path().join(".git/commondir"), "the user's").unwrap();
        fs::write(same.path().join("done"), "").unwrap();
    });
    assert!(is_there(&ws.path().join(".git/commondir")), "{output:?}");
    unmount(ws.path());
    let entries = fs::read_dir(ws.path().join(".git")).unwrap();
    let mut left: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["commondir.refused-by-kennel.0", "hooks.refused-by-kennel.0"], "{output:?}");
    assert!(stderr(&output).contains("it was renamed"), "{output:?}");
}
