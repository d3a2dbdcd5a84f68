//! Where an overlay cannot be had, nothing runs, and the workspace is not there directly instead.

use std::{fs, path::Path};

use crate::support::{refused, stderr, workspace};

/// The promise of kernels before Linux 6.6.
pub(crate) fn is_refused_in_memory() {
    let dir = workspace();
    let said = refused(dir.path(), &["--overlay"]);
    assert!(said.contains("cannot keep the changes of an overlay in memory"), "{said}");
    assert!(said.contains("--overlay-upper"), "{said}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// An empty directory beside a workspace, on a file system that may do for changes.
fn upper() -> tempfile::TempDir {
    let dir = workspace();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    dir
}

fn flag(directory: &Path) -> [&str; 2] {
    ["--overlay-upper", directory.to_str().unwrap()]
}

#[test]
fn profile_read_only_has_nothing_to_keep_apart() {
    let dir = workspace();
    let said = refused(dir.path(), &["--profile", "read-only", "--overlay"]);
    assert!(said.contains("overlay `read-only`"), "{said}");
}

#[test]
fn a_grant_that_leads_past_it() {
    if !super::in_memory() {
        return is_refused_in_memory();
    }
    let dir = workspace();
    fs::create_dir_all(dir.path().join("w/sub")).unwrap();
    let workspace = dir.path().join("w");
    for (grant, target) in [("sub", ""), ("sub", ":/elsewhere"), ("", ":/elsewhere"), ("..", ":/elsewhere")] {
        let spec = format!("{}{target}", workspace.join(grant).display());
        let said = refused(&workspace, &["--overlay", "--rw", &spec]);
        assert!(said.contains("past the overlay") && said.contains("to mend it"), "{said}");
    }
    let spec = format!("{}:/elsewhere", workspace.join("sub").display());
    let output =
        crate::support::shell(&workspace, &["--quiet", "--overlay", "--ro", &spec], "! touch /elsewhere/x");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn directories_that_cannot_keep_changes() {
    let (dir, upper) = (workspace(), upper());
    fs::create_dir(dir.path().join("up")).unwrap();
    fs::write(upper.path().join("x"), "x").unwrap();
    let inside = dir.path().join("up");
    for (directory, words) in [
        (&*inside, "lies in the workspace"),
        (dir.path().parent().unwrap(), ""),
        (Path::new("/nowhere/at/all"), "No such file"),
        (&upper.path().join("x"), "not a directory"),
        (upper.path(), "not empty"),
    ] {
        let said = refused(dir.path(), &flag(directory));
        assert!(said.contains(words) && said.contains("to mend it"), "{said}");
    }
    assert_eq!(fs::read(upper.path().join("x")).unwrap(), b"x");
    let granted = upper.path().to_str().unwrap();
    let said = refused(dir.path(), &["--overlay-upper", granted, "--rw", granted]);
    assert!(said.contains("granted writable"), "{said}");
    let said = refused(dir.path(), &["--overlay-upper", granted, "--overlay-size", "1M"]);
    assert!(said.contains("one of both"), "{said}");
}

#[test]
fn a_session_by_name_has_nobody_who_commits() {
    let dir = workspace();
    let kennel = std::process::Command::new(crate::support::kennel_path())
        .current_dir(dir.path())
        .args(["session", "start", "--name", "overlaid", "--overlay"])
        .output()
        .unwrap();
    assert_eq!(kennel.status.code(), Some(125));
    assert!(stderr(&kennel).contains("nobody could commit"), "{}", stderr(&kennel));
}
