//! Programs that `kennel op` runs cannot change or redirect the files that it reads and writes.

use std::{
    fs,
    os::unix::fs::symlink,
    process::{Command, Output},
};

use super::{Home, tool, write_script};
use crate::support::{has, kennel_path, may_mount, mount, only_as_root, require, stderr, stdout};

/// A home directory whose program writes to its first argument and prints the credential. `out` is in
/// `fs_write`.
fn home() -> (Home, String) {
    let home = Home::new("echo \"token $TOK\"; echo evil > \"$1\" || exit 9");
    let spawn = "fs_write = ['~/out']\ncredential_env_keys = ['TOK']\noperations.x = 'tool {at}'";
    let manifest = home.manifest(spawn);
    fs::create_dir(home.at("out/sub")).unwrap();
    fs::write(home.at("secret"), "of the user's").unwrap();
    (home, manifest)
}

/// `kennel op` with this manifest file. The program writes `out/made`.
fn op(home: &Home, manifest: &str, at: &str, flags: &[&str]) -> Output {
    let mut command = Command::new(kennel_path());
    command.current_dir(home.at("")).env("HOME", home.at("")).env("LC_ALL", "C").env("TOK", "by variable");
    command.args(["op", manifest, "x", "-q", "--arg", &format!("at={}", home.at(at).display())]).args(flags);
    command.output().unwrap()
}

/// `kennel op` refuses because of `fs_write`, and no program runs.
fn is_refused(home: &Home, flags: &[&str], what: &str) {
    let output = op(home, "manifest.toml", "out/made", flags);
    assert_eq!(output.status.code(), Some(125), "{flags:?}: {output:?}");
    assert!(stdout(&output).is_empty() && !home.at("out/made").exists(), "{flags:?}: {output:?}");
    let said = stderr(&output);
    assert!(said.contains(what) && said.contains("fs_write") && said.contains("hint: "), "{flags:?}: {said}");
}

#[test]
fn a_manifest_in_fs_write_stays() {
    let (home, manifest) = home();
    fs::write(home.at("out/sub/m.toml"), &manifest).unwrap();
    symlink("sub/m.toml", home.at("out/l.toml")).unwrap();
    for file in ["out/sub/m.toml", "out/l.toml"] {
        let refused = op(&home, file, "out/sub/m.toml", &[]);
        assert_eq!(refused.status.code(), Some(9), "{refused:?}");
        assert!(stderr(&refused).contains("Read-only file system"), "{refused:?}");
        assert_eq!(fs::read_to_string(home.at("out/sub/m.toml")).unwrap(), manifest);
        let other = op(&home, file, "out/sub/made", &[]);
        assert!(other.status.success(), "{other:?}");
    }
}

#[test]
fn a_manifest_that_makes_itself_writable_is_refused() {
    let (home, manifest) = home();
    fs::write(home.at("m.toml"), manifest.replace("/out'", "/m.toml'")).unwrap();
    let output = op(&home, "m.toml", "m.toml", &[]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("manifest") && stderr(&output).contains("writable grant"), "{output:?}");
}

#[test]
fn a_credential_is_not_read_through_links_of_programs() {
    let (home, manifest) = home();
    fs::write(home.at("manifest.toml"), manifest).unwrap();
    symlink(home.at("secret"), home.at("out/tok")).unwrap();
    symlink(home.at(""), home.at("out/sub/up")).unwrap();
    symlink("out/tok", home.at("led")).unwrap();
    fs::write(home.at("out/file"), "planted").unwrap();
    // A link in the place of `out/sub` would lead up from another directory.
    symlink("out/sub/../../secret", home.at("up")).unwrap();
    let ways = ["out/tok", "out/sub/up/secret", "led", "out/file", "out/sub/../tok", "./out/../out/tok"];
    for path in ways.into_iter().chain(["out/sub/../../secret", "up"]) {
        is_refused(&home, &["--credential", &format!("TOK={path}")], "credential file");
    }
    // The same through a link of the user.
    symlink("secret", home.at("own")).unwrap();
    for path in ["secret", "own", "out/../secret"] {
        let output = op(&home, "manifest.toml", "out/made", &["--credential", &format!("TOK={path}")]);
        assert_eq!(stdout(&output), "token of the user's", "{path}: {output:?}");
    }
}

/// Nobody can lay a link there, but anybody can change the contents.
#[test]
fn files_that_fs_write_names_are_refused_too() {
    let (home, manifest) = home();
    fs::write(home.at("manifest.toml"), manifest.replace("/out'", "/secret'")).unwrap();
    symlink("secret", home.at("led")).unwrap();
    for path in ["secret", "led", "out/../secret"] {
        is_refused(&home, &["--credential", &format!("TOK={path}")], "credential file");
    }
    let policy = home.spawn_policy("fs_write = ['~/bin/tool']");
    let error = policy.check(&tool(&[])).unwrap_err();
    assert!(error.chain().contains("is in fs_write"), "{error:?}");
    let policy = home.spawn_policy("fs_write = ['~/bin/other']");
    write_script(&home.at("bin/other"), "");
    policy.check(&tool(&[])).unwrap();
}

#[test]
fn no_audit_log_is_made_through_links_of_programs() {
    let (home, manifest) = home();
    fs::write(home.at("manifest.toml"), manifest).unwrap();
    symlink(home.at("in"), home.at("out/logs")).unwrap();
    symlink(home.at("secret"), home.at("out/log")).unwrap();
    for path in ["out/log", "out/logs/log", "out/new"] {
        is_refused(&home, &["--audit", path], "audit log");
    }
    assert_eq!(fs::read_dir(home.at("in")).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(home.at("secret")).unwrap(), "of the user's");
    assert!(!home.at("out/new").exists());
    let output = op(&home, "manifest.toml", "out/made", &["--audit", "in/log"]);
    assert!(output.status.success() && home.at("in/log").exists(), "{output:?}");
}

#[test]
fn programs_cannot_redirect_the_report() {
    let (home, manifest) = home();
    fs::write(home.at("manifest.toml"), manifest).unwrap();
    fs::write(home.at("in/report"), "kept").unwrap();
    symlink(home.at("in"), home.at("out/reports")).unwrap();
    for path in ["out/reports/report", "out/sub/report"] {
        is_refused(&home, &["--json", path], "directory of the report");
    }
    assert_eq!(fs::read_to_string(home.at("in/report")).unwrap(), "kept");
    // Directly in fs_write Kennel follows no link.
    for path in ["out/report", "in/report"] {
        let output = op(&home, "manifest.toml", "out/made", &["--json", path]);
        assert!(output.status.success(), "{output:?}");
        assert!(fs::read_to_string(home.at(path)).unwrap().contains("\"exit_code\""));
    }
}

/// A directory that is mounted in two places has two names.
#[test]
fn programs_cannot_redirect_through_a_second_name_of_fs_write() {
    only_as_root!();
    require!(has("unshare"), "unshare");
    let test = "broker::reach::programs_cannot_redirect_through_a_second_name_of_fs_write";
    if !may_mount(test) {
        return;
    }
    let (home, manifest) = home();
    fs::write(home.at("manifest.toml"), &manifest).unwrap();
    symlink(home.at("secret"), home.at("out/tok")).unwrap();
    symlink(home.at("in"), home.at("out/reports")).unwrap();
    fs::create_dir(home.at("other")).unwrap();
    mount(&["--bind", home.at("out").to_str().unwrap()], &home.at("other"));
    is_refused(&home, &["--credential", "TOK=other/tok"], "credential file");
    is_refused(&home, &["--json", "other/reports/report"], "directory of the report");
    is_refused(&home, &["--audit", "other/log"], "audit log");
    let manifest = manifest.replace("fs_write", "fs_read = ['~/other/reports']\nfs_write");
    fs::write(home.at("m.toml"), manifest).unwrap();
    let output = op(&home, "m.toml", "out/made", &[]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("is reached through fs_write"), "{output:?}");
}
