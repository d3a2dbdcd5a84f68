//! Masked paths stay covered, whatever is granted around them.

use std::{fs, os::unix::fs::symlink, path::Path};

use super::{command, landlock_abi, lines};
use crate::support::{TempDir, attempt, only_as_root, require, stderr, workspace};

/// A home directory with secrets and one ordinary file.
pub(super) fn home() -> TempDir {
    let home = workspace();
    for (dir, file) in
        [(".ssh", "id_ed25519"), (".aws", "credentials"), (".config/gh", "hosts.yml"), (".gnupg", "k")]
    {
        fs::create_dir_all(home.path().join(dir)).unwrap();
        fs::write(home.path().join(dir).join(file), "secret").unwrap();
    }
    for file in [".netrc", ".npmrc", ".git-credentials", "plain"] {
        fs::write(home.path().join(file), "secret").unwrap();
    }
    home
}

/// The result of the attempt in a sandbox whose caller has this home directory as workspace.
pub(super) fn at_home(home: &Path, flags: &[&str], attempt: &[&str]) -> Vec<String> {
    let mut command = command(home, flags, attempt);
    lines(&command.env("HOME", home).output().unwrap())
}

#[test]
fn secrets_of_a_home_that_is_the_workspace_are_empty() {
    let home = home();
    let path = |name: &str| home.path().join(name).display().to_string();
    let dirs = [".ssh", ".aws", ".config/gh", ".gnupg"].map(path);
    let dirs: Vec<&str> = ["list"].into_iter().chain(dirs.iter().map(String::as_str)).collect();
    assert_eq!(at_home(home.path(), &[], &dirs), ["[]"; 4]);
    let files = [".netrc", ".npmrc", ".git-credentials", "plain"].map(path);
    let files: Vec<&str> = ["read"].into_iter().chain(files.iter().map(String::as_str)).collect();
    assert_eq!(at_home(home.path(), &[], &files), ["[]", "[]", "[]", "[secret]"]);
    assert_eq!(at_home(home.path(), &["--profile", "read-only"], &files), ["[]", "[]", "[]", "[secret]"]);
}

#[test]
fn masks_do_not_come_off() {
    let home = home();
    let calls = "call umount2 s:.ssh 2 + rename s:.ssh s:x + rmdir s:.ssh + creat s:.ssh/new 0x1a4 + \
                 unlink s:.netrc + rename s:.netrc s:x + link s:.netrc s:x + \
                 renameat2 -100 s:.ssh -100 s:.aws 2 + open s:.ssh/../.ssh/id_ed25519 0 + \
                 open s:/proc/self/cwd/.ssh/id_ed25519 0 + open s:.ssh 0x200000 + \
                 openat $ s:../.ssh/id_ed25519 0 + open s:.ssh/id_ed25519 0x41 0x1a4";
    let said = at_home(home.path(), &[], &calls.split_whitespace().collect::<Vec<_>>());
    let expected = [
        "EPERM", "EBUSY", "EBUSY", "EROFS", "EBUSY", "EBUSY", "EXDEV", "EBUSY", "ENOENT", "ENOENT", "ok",
        "ENOENT", "EROFS",
    ];
    assert_eq!(said, expected);
    assert_eq!(fs::read_to_string(home.path().join(".ssh/id_ed25519")).unwrap(), "secret");
    assert_eq!(fs::read_to_string(home.path().join(".netrc")).unwrap(), "secret");
}

#[test]
fn a_mask_of_the_policy_covers() {
    let ws = workspace();
    fs::create_dir(ws.path().join("dir")).unwrap();
    fs::write(ws.path().join("dir/f"), "secret").unwrap();
    fs::write(ws.path().join("file"), "secret").unwrap();
    let (dir, file) =
        (ws.path().join("dir").display().to_string(), ws.path().join("file").display().to_string());
    let flags = ["--mask", &dir, "--mask", &file];
    assert_eq!(attempt(ws.path(), &flags, "list", &[&dir]), "[]");
    assert_eq!(attempt(ws.path(), &flags, "read", &[&file]), "[]");
    assert_eq!(attempt(ws.path(), &[], "read", &[&file]), "[secret]");
    // Moving the directory around a mask moves the mask too.
    fs::create_dir(ws.path().join("outer")).unwrap();
    fs::rename(ws.path().join("dir"), ws.path().join("outer/dir")).unwrap();
    let inner = ws.path().join("outer/dir").display().to_string();
    let calls = "rename s:outer s:moved + open s:moved/dir/f 0";
    let calls = calls.split_whitespace().collect::<Vec<_>>();
    let said = attempt(ws.path(), &["--mask", &inner], "call", &calls);
    assert!(said.ends_with("ENOENT"), "{said}");
}

#[test]
fn a_secret_behind_a_link_is_covered() {
    let home = home();
    fs::rename(home.path().join(".ssh"), home.path().join("keys")).unwrap();
    symlink("keys", home.path().join(".ssh")).unwrap();
    let (link, target) =
        (home.path().join(".ssh").display().to_string(), home.path().join("keys").display().to_string());
    assert_eq!(at_home(home.path(), &[], &["list", &link, &target]), ["[]", "[]"]);
}

#[test]
fn secrets_of_the_home_are_not_there_when_something_else_is_the_workspace() {
    let (home, ws) = (home(), workspace());
    let key = home.path().join(".ssh/id_ed25519").display().to_string();
    let own = home.path().display().to_string();
    let mut run = command(ws.path(), &[], &["read", &key]);
    assert_eq!(lines(&run.env("HOME", home.path()).output().unwrap()), ["ENOENT"]);
    let mut run = command(ws.path(), &["--ro", &own], &["read", &key]);
    assert_eq!(lines(&run.env("HOME", home.path()).output().unwrap()), ["ENOENT"]);
    // If the policy names it, it is granted.
    let keys = home.path().join(".ssh").display().to_string();
    let mut run = command(ws.path(), &["--ro", &keys], &["read", &key]);
    assert_eq!(lines(&run.env("HOME", home.path()).output().unwrap()), ["[secret]"]);
}

#[test]
fn a_toolchain_variable_does_not_show_secrets() {
    let (home, ws) = (home(), workspace());
    let key = home.path().join(".ssh/id_ed25519").display().to_string();
    for value in [home.path().join(".ssh"), home.path().to_owned(), home.path().join(".ssh/.")] {
        let mut run = command(ws.path(), &[], &["read", &key]);
        run.env("HOME", home.path())
            .env("JAVA_HOME", &value)
            .env("PATH", format!("/usr/bin:{}", value.display()));
        assert_eq!(lines(&run.output().unwrap()), ["ENOENT"], "{}", value.display());
    }
}

#[test]
fn secrets_of_the_system_are_not_in_the_whole_tree() {
    only_as_root!();
    let ws = workspace();
    let files = ["/etc/shadow", "/etc/gshadow"];
    let outside = fs::read_to_string("/etc/shadow").unwrap();
    assert!(!outside.is_empty());
    assert_eq!(attempt(ws.path(), &["--profile", "full-dev"], "read", &files), "ENOENT\nENOENT");
    assert_eq!(fs::read_to_string("/etc/shadow").unwrap(), outside);
    require!(landlock_abi() >= 1, "Landlock");
    let calls = "open s:/etc/shadow 1 + open s:/dev/mem 0 + open s:/dev/kmsg 0 + open s:/sys/kernel/debug 0";
    let calls = calls.split_whitespace().collect::<Vec<_>>();
    let said = attempt(ws.path(), &["--profile", "full-dev"], "call", &calls);
    assert_eq!(said, "ENOENT\nENOENT\nENOENT\nENOENT");
}

/// A command that could write there could take the place of a session, or of the client that talks to it.
#[test]
fn the_runtime_directory_of_sessions_is_covered() {
    let (runtime, ws) = (workspace(), workspace());
    fs::create_dir(runtime.path().join("kennel")).unwrap();
    fs::write(runtime.path().join("kennel/kennel-exec"), "").unwrap();
    let own = runtime.path().display().to_string();
    let script = format!("ls {own}/kennel; touch {own}/kennel/x; mv {own}/kennel {own}/gone; touch {own}/x");
    let mut run = crate::support::kennel(ws.path(), &["--rw", &own], &["sh", "-c", &script]);
    let output = run.env("XDG_RUNTIME_DIR", &own).output().unwrap();
    let (said, errors) = (crate::support::stdout(&output), crate::support::stderr(&output));
    assert_eq!(said, "", "{errors}");
    assert!(errors.contains("Read-only file system") && errors.contains("busy"), "{errors}");
    assert!(output.status.success(), "the rest of it is granted: {errors}");
    assert!(runtime.path().join("kennel/kennel-exec").exists() && runtime.path().join("x").exists());
}

/// A command of another sandbox may have made the link.
#[test]
fn a_link_that_leads_to_a_secret_does_not_name_it() {
    let (home, ws) = (home(), workspace());
    fs::create_dir(home.path().join("other")).unwrap();
    for (name, target) in [("dir", "../.ssh"), ("file", "../.netrc"), ("up", "..")] {
        symlink(target, home.path().join("other").join(name)).unwrap();
    }
    let key = home.path().join(".ssh/id_ed25519").display().to_string();
    let read = |flag: &str, granted: &str| {
        let granted = home.path().join(granted).display().to_string();
        let mut command = command(ws.path(), &[flag, &granted], &["read", &key]);
        command.env("HOME", home.path()).output().unwrap()
    };
    for granted in ["other/dir", "other/dir/id_ed25519", "other/file", "other/up/.ssh"] {
        for flag in ["--ro", "--rw"] {
            let output = read(flag, granted);
            let said = stderr(&output);
            assert!(
                output.stdout.is_empty() && said.contains("a link leads from there"),
                "{granted}: {output:?}"
            );
        }
    }
    assert_eq!(lines(&read("--ro", ".ssh")), ["[secret]"]);
    // A home with a link: the secret is at its end, and may be named by either path.
    fs::rename(home.path().join(".ssh"), home.path().join("keys")).unwrap();
    symlink("keys", home.path().join(".ssh")).unwrap();
    assert_eq!(lines(&read("--ro", ".ssh")), ["[secret]"]);
}
