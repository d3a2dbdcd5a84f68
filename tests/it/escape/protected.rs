//! Paths in a writable workspace that programs outside trust: `.git/hooks`, `.git/config`, `--protect`.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{check, check_outside, command};
use crate::support::{payload_path, repository, run, workspace};

fn is_untouched(ws: &Path) {
    assert_eq!(fs::read_to_string(ws.join(".git/config")).unwrap(), "[core]\n");
    assert_eq!(fs::read_to_string(ws.join(".git/hooks/pre-commit")).unwrap(), "#!/bin/sh\n");
    assert_eq!(fs::read_dir(ws.join(".git/hooks")).unwrap().count(), 1);
    assert!(fs::symlink_metadata(ws.join(".git")).unwrap().is_dir());
}

/// Runs a shell script. Returns the denials of its report.
pub(super) fn denials(ws: &Path, flags: &[&str], script: &str) -> String {
    let report = tempfile::NamedTempFile::new().unwrap();
    let path = report.path().display().to_string();
    let flags = ["-q", "--json", &path].into_iter().chain(flags.iter().copied()).collect::<Vec<_>>();
    let output = run(ws, &flags, &["sh", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(report.path()).unwrap()).unwrap();
    json["denials"].to_string()
}

#[test]
fn hooks_and_config_are_not_written() {
    let ws = repository();
    check(
        ws.path(),
        &[],
        &[
            ("open s:.git/config 1", "EROFS"),
            ("open s:.git/config 0x242 0x1a4", "EROFS"),
            ("truncate s:.git/config 0", "EROFS"),
            ("chmod s:.git/config 0x1ff", "EROFS"),
            ("setxattr s:.git/config s:user.x s:y 1 0", "EROFS"),
            ("open s:.git/hooks/pre-commit 1", "EROFS"),
            ("chmod s:.git/hooks/pre-commit 0x1ed", "EROFS"),
            ("unlink s:.git/hooks/pre-commit", "EROFS"),
            ("creat s:.git/hooks/post-commit 0x1ed", "EROFS"),
            ("mkdir s:.git/hooks/d 0x1ed", "EROFS"),
            ("symlink s:/x s:.git/hooks/l", "EROFS"),
            ("open s:/proc/self/cwd/.git/config 1", "EROFS"),
            ("open s:/proc/self/root/proc/self/cwd/.git/hooks/pre-commit 1", "EROFS"),
            ("creat s:.git/index 0x1a4", "ok"),
        ],
    );
    is_untouched(ws.path());
    let config = ws.path().join(".git/config").display().to_string();
    check_outside(&[(&format!("open s:{config} 1"), "ok")]);
}

#[test]
fn hooks_and_config_are_not_exchanged() {
    let ws = repository();
    check(
        ws.path(),
        &[],
        &[
            ("mkdir s:evil 0x1ed", "ok"),
            ("creat s:evil/config 0x1a4", "ok"),
            ("rename s:evil/config s:.git/config", "EXDEV"),
            ("rename s:.git/config s:moved", "EXDEV"),
            ("rename s:.git/config s:.git/moved", "EBUSY"),
            ("unlink s:.git/config", "EBUSY"),
            ("rename s:evil s:.git/hooks", "EXDEV"),
            ("rename s:.git/hooks s:moved", "EXDEV"),
            ("rename s:.git/hooks s:.git/moved", "EBUSY"),
            ("rmdir s:.git/hooks", "EBUSY"),
            ("rename s:.git s:moved", "EBUSY"),
            ("rename s:evil s:.git", "EBUSY"),
            ("rmdir s:.git", "EBUSY"),
            ("renameat2 -100 s:evil -100 s:.git 2", "EBUSY"),
            ("renameat2 -100 s:.git -100 s:evil 2", "EBUSY"),
            ("renameat2 -100 s:evil -100 s:.git/hooks 2", "EXDEV"),
            ("link s:.git/config s:alias", "EXDEV"),
            ("link s:.git/hooks/pre-commit s:alias", "EXDEV"),
            ("linkat -100 s:.git/config -100 s:alias 0x400", "EXDEV"),
        ],
    );
    is_untouched(ws.path());
}

#[test]
fn a_second_grant_of_the_same_repository_is_protected_too() {
    let ws = repository();
    let grant = format!("{}:/again", ws.path().display());
    check(
        ws.path(),
        &["--rw", &grant],
        &[
            ("open s:/again/.git/config 1", "EROFS"),
            ("creat s:/again/.git/hooks/x 0x1ed", "EROFS"),
            ("rename s:/again/.git s:/again/moved", "EBUSY"),
            ("creat s:/again/x 0x1a4", "ok"),
        ],
    );
    is_untouched(ws.path());
}

#[test]
fn no_ancestor_of_a_protected_path_is_renamed() {
    let ws = workspace();
    fs::create_dir_all(ws.path().join("a/b/c")).unwrap();
    fs::write(ws.path().join("a/b/c/f"), "kept").unwrap();
    check(
        ws.path(),
        &["--protect", "a/b/c/f"],
        &[
            ("open s:a/b/c/f 1", "EROFS"),
            ("unlink s:a/b/c/f", "EBUSY"),
            ("rename s:a/b/c s:a/b/x", "EBUSY"),
            ("rename s:a/b s:a/x", "EBUSY"),
            ("rename s:a s:x", "EBUSY"),
            ("mkdir s:y 0x1ed", "ok"),
            ("renameat2 -100 s:a -100 s:y 2", "EBUSY"),
            ("creat s:a/b/c/g 0x1a4", "ok"),
        ],
    );
    assert_eq!(fs::read_to_string(ws.path().join("a/b/c/f")).unwrap(), "kept");
    check(ws.path(), &[], &[("rename s:a s:x", "ok")]);
}

#[test]
fn new_files_at_absent_protected_paths_are_removed_and_reported() {
    let ws = workspace();
    fs::create_dir(ws.path().join(".git")).unwrap();
    let (removed, renamed) = ("it was removed", "it was renamed to hooks.refused-by-kennel.");
    let tricks = [
        ("mkdir .git/hooks; echo x > .git/hooks/pre-commit; chmod 755 .git/hooks/pre-commit", renamed),
        ("echo x > .git/hooks", renamed),
        (
            "ln -s ../evil .git/hooks; mkdir -p evil; echo x > evil/pre-commit",
            "it was removed, a link to ../evil",
        ),
        ("mkfifo .git/hooks", removed),
        ("touch .git/hooks", removed),
        ("mkdir -p .git/hooks/a/b/c; ln -s /etc .git/hooks/a/b/c/l", renamed),
        ("mkdir elsewhere; mv elsewhere .git/hooks", removed),
    ];
    for (trick, how) in tricks {
        let told = denials(ws.path(), &[], trick);
        assert!(told.contains(".git/hooks") && told.contains(how), "{trick}: {told}");
        assert!(fs::symlink_metadata(ws.path().join(".git/hooks")).is_err(), "{trick}");
    }
    let told = denials(ws.path(), &[], "echo x > .git/config; (setsid sleep 60; echo y > .git/config) &");
    assert!(told.contains(".git/config"), "{told}");
    assert!(fs::symlink_metadata(ws.path().join(".git/config")).is_err());
    assert_eq!(denials(ws.path(), &[], "echo x > .git/index"), "[]");
}

#[test]
fn undoing_does_not_follow_links_out() {
    let (ws, other) = (workspace(), workspace());
    fs::create_dir_all(other.path().join("hooks")).unwrap();
    fs::write(other.path().join("hooks/theirs"), "kept").unwrap();
    let target = other.path().display();
    // The directory that holds the protected path, and the path itself, become links to somebody else's
    // directory.
    denials(ws.path(), &["--protect", "a/hooks"], &format!("ln -s {target} a"));
    denials(ws.path(), &[], &format!("mkdir .git; ln -s {target}/hooks .git/hooks"));
    denials(ws.path(), &[], &format!("mkdir -p .git/hooks; ln -s {target}/hooks .git/hooks/d"));
    fs::remove_dir_all(ws.path().join(".git")).unwrap();
    denials(ws.path(), &[], &format!("ln -s {target} .git"));
    assert_eq!(fs::read_to_string(other.path().join("hooks/theirs")).unwrap(), "kept");
}

#[test]
fn a_file_in_the_place_of_a_protected_link_is_removed() {
    let ws = workspace();
    fs::create_dir(ws.path().join(".git")).unwrap();
    symlink("/usr/share/hooks", ws.path().join(".git/hooks")).unwrap();
    let told = denials(ws.path(), &[], "rm .git/hooks; mkdir .git/hooks; echo x > .git/hooks/pre-commit");
    let led = "the link that was there led to /usr/share/hooks";
    assert!(told.contains(&format!("it was renamed to hooks.refused-by-kennel.0; {led}")), "{told}");
    symlink("/usr/share/hooks", ws.path().join(".git/hooks")).unwrap();
    let told = denials(ws.path(), &[], "ln -sfn evil .git/hooks");
    assert!(told.contains(&format!("it was removed, a link to evil; {led}")), "{told}");
    assert!(fs::symlink_metadata(ws.path().join(".git/hooks")).is_err());
}

#[test]
fn a_git_file_of_a_worktree_is_protected() {
    let ws = workspace();
    fs::write(ws.path().join(".git"), "gitdir: /somewhere\n").unwrap();
    check(
        ws.path(),
        &[],
        &[
            ("open s:.git 1", "EROFS"),
            ("unlink s:.git", "EBUSY"),
            ("creat s:new 0x1a4", "ok"),
            ("rename s:new s:.git", "EBUSY"),
        ],
    );
    assert_eq!(fs::read_to_string(ws.path().join(".git")).unwrap(), "gitdir: /somewhere\n");
}

/// A command of another sandbox swaps `hooks` for a link while sandboxes start. Whatever path they protect
/// then, nobody writes to the link's target.
#[test]
fn a_protected_path_swapped_for_a_link_gives_nothing_away() {
    let (ws, other) = (workspace(), workspace());
    fs::create_dir_all(ws.path().join(".git/hooks")).unwrap();
    symlink(other.path(), ws.path().join(".git/link")).unwrap();
    let names = ["hooks", "link"].map(|name| ws.path().join(".git").join(name).display().to_string());
    let mut flipper = Command::new(payload_path())
        .args(["flip", &names[0], &names[1], "2500"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_millis(2000);
    while Instant::now() < end {
        let calls = "call creat s:.git/hooks/written 0x1a4 + creat s:.git/link/written 0x1a4";
        let calls = calls.split_whitespace().collect::<Vec<_>>();
        command(ws.path(), &["-q"], &calls).output().unwrap();
    }
    flipper.wait().unwrap();
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
}
