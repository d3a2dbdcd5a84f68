//! Grants within grants: the innermost counts, and Kennel never makes a mount point on the host.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::support::{TempDir, fails, refused, succeeds, workspace};

/// `outer/inner/file` beside an empty workspace.
fn nested() -> (TempDir, PathBuf, PathBuf) {
    let dir = workspace();
    let outer = dir.path().join("outer");
    let inner = outer.join("inner");
    fs::create_dir_all(&inner).unwrap();
    fs::write(inner.join("file"), "text").unwrap();
    (dir, outer, inner)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn writable_in_read_only() {
    let (dir, outer, inner) = nested();
    let ws = workspace();
    // The order of flags does not matter.
    for flags in [["--ro", text(&outer), "--rw", text(&inner)], ["--rw", text(&inner), "--ro", text(&outer)]]
    {
        succeeds(ws.path(), &flags, &format!("echo x > {}/new", inner.display()));
        let said = fails(ws.path(), &flags, &format!("touch {}/new", outer.display()));
        assert!(said.contains("Read-only file system"), "{said}");
    }
    assert!(inner.join("new").exists() && !outer.join("new").exists());
    drop(dir);
}

#[test]
fn read_only_in_writable() {
    let (_dir, outer, inner) = nested();
    let ws = workspace();
    for flags in [["--rw", text(&outer), "--ro", text(&inner)], ["--ro", text(&inner), "--rw", text(&outer)]]
    {
        succeeds(ws.path(), &flags, &format!("touch {}/new; cat {}/file", outer.display(), inner.display()));
        for attempt in ["touch I/new", "echo x > I/file", "rm -f I/file"] {
            let said = fails(ws.path(), &flags, &attempt.replace('I', text(&inner)));
            assert!(said.contains("Read-only file system"), "{attempt}: {said}");
        }
        let said = fails(ws.path(), &flags, &format!("mv {} {}/moved", inner.display(), outer.display()));
        assert!(said.contains("Device or resource busy"), "it cannot be moved away either: {said}");
    }
    assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "text");
}

#[test]
fn part_of_the_workspace_can_be_read_only() {
    let dir = workspace();
    fs::create_dir(dir.path().join("vendor")).unwrap();
    let flags = ["--ro", "vendor"];
    succeeds(dir.path(), &flags, "touch beside");
    assert!(fails(dir.path(), &flags, "touch vendor/x").contains("Read-only file system"));
}

#[test]
fn part_of_a_read_only_workspace_can_be_writable() {
    let dir = workspace();
    fs::create_dir(dir.path().join("out")).unwrap();
    let flags = ["--profile", "read-only", "--rw", "out"];
    succeeds(dir.path(), &flags, "touch out/x");
    assert!(fails(dir.path(), &flags, "touch beside").contains("Read-only file system"));
    assert!(dir.path().join("out/x").exists());
}

#[test]
fn mount_point_in_a_granted_directory_must_be_there_and_is_never_made() {
    let (_dir, outer, _) = nested();
    let ws = workspace();
    fs::create_dir(ws.path().join("present")).unwrap();
    fs::write(ws.path().join("file"), "").unwrap();
    symlink("present", ws.path().join("link")).unwrap();
    let own = text(ws.path());
    let here = |name: &str| format!("{}:{own}/{name}", outer.display());
    succeeds(ws.path(), &["--ro", &here("present")], "ls present/inner/file");
    for (target, reason) in [
        ("absent", "there is no such path in the granted directory, and none is made on the host"),
        ("present/absent", "there is no such path in the granted directory"),
        ("file", "a file is in its place on the host"),
        ("file/below", "there is no such path in the granted directory"),
        ("link", "the way to it passes a symbolic link"),
        ("link/below", "there is no such path in the granted directory"),
    ] {
        let said = refused(ws.path(), &["--ro", &here(target)]);
        assert!(said.contains(&format!("{own}/{target}: {reason}")), "{said}");
        assert!(said.contains("hint: "), "{said}");
    }
    let said = refused(ws.path(), &["--ro", &format!("/usr/bin/env:{own}/present")]);
    assert!(said.contains("a directory is in its place on the host"), "{said}");
    let said = refused(ws.path(), &["--tmpfs", &format!("{own}/absent")]);
    assert!(said.contains("there is no such path in the granted directory"), "{said}");
    let mut left: Vec<_> = fs::read_dir(ws.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["file", "link", "present"], "nothing was made on the host");
    assert!(fs::read_dir(ws.path().join("present")).unwrap().next().is_none());
}

#[test]
fn mount_point_in_the_system_must_be_there_too() {
    let (_dir, outer, _) = nested();
    let ws = workspace();
    let said = refused(ws.path(), &["--ro", &format!("{}:/usr/absent-kennel", outer.display())]);
    assert!(said.contains("/usr/absent-kennel: there is no such path in the granted directory"), "{said}");
    assert!(!Path::new("/usr/absent-kennel").exists());
    let flags = ["--ro", &format!("{}:/usr/share", outer.display())];
    assert_eq!(succeeds(ws.path(), &flags, "cat /usr/share/inner/file"), "text");
}

#[test]
fn target_below_a_file_or_a_link_of_the_sandbox_is_refused() {
    let ws = workspace();
    for (target, cause) in [
        ("/etc/passwd/x", "/etc/passwd is not a directory in the sandbox"),
        ("/var/run/x", "/var/run is not a directory in the sandbox"),
        ("/dev/null/x", "/dev/null/x: "),
        ("/dev/pts/x", "lies in a file system of the kernel's"),
    ] {
        let said = refused(ws.path(), &["--ro", &format!("/usr:{target}")]);
        assert!(said.contains(cause) && said.contains("hint: "), "{target}: {said}");
    }
}

#[test]
fn many_nested_grants_work_at_once() {
    let dir = workspace();
    let ws = workspace();
    let mut flags = Vec::new();
    for index in 0..100 {
        let path = dir.path().join(format!("d{index}"));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "x").unwrap();
        flags.extend(["--ro".to_owned(), format!("{}:/many/level/{index}", path.display())]);
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    assert_eq!(succeeds(ws.path(), &flags, "cat /many/level/*/file | wc -c"), "100");
}
