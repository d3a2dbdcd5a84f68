//! /etc: a command finds what every user of the host may read, with the sandbox's own files among it, and
//! nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{
    fails, is_root, kennel, kennel_path, only_as_root, shell, stderr, stdout, succeeds, workspace,
};

/// A user and group without any file.
const NOBODY: u32 = 65533;

/// Names below /etc that the sandbox has for itself, or leaves out.
const OWN: &[&str] = &[
    "group",
    "group-",
    "hostname",
    "hosts",
    "ld.so.preload",
    "machine-id",
    "mtab",
    "nsswitch.conf",
    "passwd",
    "passwd-",
    "resolv.conf",
    "subgid",
    "subgid-",
    "subuid",
    "subuid-",
];

/// Files of /etc with their contents' checksums, as a user without privileges reads them.
const FILES: &str = "cd /etc && find . -path ./opt -prune -o -type f -print 2>/dev/null | sort | xargs -d '\\n' cksum \
                     2>/dev/null; true";

fn entries(listing: &str) -> BTreeSet<String> {
    let is_own = |line: &&str| OWN.iter().any(|name| line.ends_with(&format!(" ./{name}")));
    listing.lines().filter(|line| !is_own(line)).map(str::to_owned).collect()
}

/// A directory below /etc for files of a test, and its path in the sandbox, which is the same.
pub fn made() -> Option<tempfile::TempDir> {
    let made = tempfile::Builder::new().prefix("kennel-test").tempdir_in("/etc/opt").ok()?;
    fs::set_permissions(made.path(), fs::Permissions::from_mode(0o755)).unwrap();
    Some(made)
}

pub fn write(path: PathBuf, contents: &str, mode: u32, group: u32) -> PathBuf {
    fs::write(&path, contents).unwrap();
    chown(&path, Some(0), Some(group)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn etc_is_what_every_user_may_read() {
    let dir = workspace();
    let inside = entries(&succeeds(dir.path(), &[], FILES));
    let mut outside = Command::new("setpriv");
    outside.args(["--reuid=65533", "--regid=65533", "--clear-groups", "sh", "-c", FILES]);
    let outside = if is_root() { outside.output() } else { Command::new("sh").args(["-c", FILES]).output() };
    let outside = entries(&stdout(&outside.unwrap()));
    assert!(outside.len() > 20, "{outside:?}");
    assert_eq!(inside, outside);
}

#[test]
fn root_reads_only_what_every_user_may_read() {
    only_as_root!();
    let (Some(made), dir) = (made(), workspace()) else { return };
    let at = |name: &str| made.path().join(name);
    fs::create_dir(at("closed")).unwrap();
    fs::set_permissions(at("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::create_dir(at("open")).unwrap();
    write(at("open/public"), "public", 0o644, 0);
    let private = [
        write(at("open/of-root"), "kept", 0o600, 0),
        write(at("open/of-group"), "kept", 0o640, 4),
        write(at("closed/inside"), "kept", 0o644, 0),
        write(at("open/of-others"), "kept", 0o660, NOBODY - 1),
    ];
    fs::hard_link(&private[0], at("open/second-name")).unwrap();
    for profile in ["repo-write", "full-dev", "read-only"] {
        let flags = ["--profile", profile];
        assert_eq!(
            succeeds(dir.path(), &flags, &format!("cat {}/open/public", made.path().display())),
            "public"
        );
        let second = [at("open/second-name")];
        let ways = ["", "/proc/self/root", "/proc/1/root", "/usr/..", "/etc/opt/../.."];
        let reads = ways.into_iter().flat_map(|way| {
            let paths = private.iter().chain(&second);
            paths.map(move |path| (format!("cat {way}{}", path.display()), "Permission denied"))
        });
        // Root may not change that either.
        let changes = ["chmod 644", "chown 0", "rm -f", "touch"]
            .into_iter()
            .map(|change| (format!("{change} {}", private[0].display()), "Read-only file system"));
        let attempts: Vec<(String, &str)> = reads.chain(changes).collect();
        let script: String =
            attempts.iter().map(|(attempt, _)| format!("{attempt} 2>&1 && echo done\n")).collect();
        let said = stdout(&shell(dir.path(), &flags, &format!("{script}:")));
        assert_eq!(said.lines().count(), attempts.len(), "{said}");
        for ((attempt, expected), said) in attempts.iter().zip(said.lines()) {
            assert!(said.contains(expected), "{profile} {attempt}: {said}");
        }
    }
    let flag = private[0].to_str().unwrap();
    assert_eq!(succeeds(dir.path(), &["--ro", flag], &format!("cat {flag}")), "kept", "granted, it is there");
    let flags = ["--mask", made.path().to_str().unwrap()];
    assert_eq!(succeeds(dir.path(), &flags, &format!("ls -A {}", made.path().display())), "");
}

/// Whether init could get its groups back or not, see `sys::Groups` of the inside.
#[test]
fn groups_of_root_open_no_file_of_etc_and_stay_as_they_are() {
    only_as_root!();
    let (Some(made), dir) = (made(), workspace()) else { return };
    let closed = [0, 4].map(|group| write(made.path().join(group.to_string()), "kept", 0o640, group));
    let [own, other] = closed.map(|path| path.display().to_string());
    let script = format!("cat {own} {other}; id -G; grep CapEff /proc/self/status");
    for (groups, inside) in [("--clear-groups", "0"), ("--groups=0", "0"), ("--groups=0,4", "0 4")] {
        let mut command = Command::new("setpriv");
        command.arg(groups).arg(kennel_path()).args(["run", "--", "sh", "-c", &script]);
        let output = command.current_dir(dir.path()).output().unwrap();
        let said = stderr(&output);
        assert_eq!(said.matches("Permission denied").count(), 2, "{groups}: {said}");
        // In a user namespace, a group of the host has no id.
        let told = stdout(&output).replace("65534", "4");
        assert_eq!(told, format!("{inside}\nCapEff:\t0000000000000000"), "{groups}: {said}");
    }
}

#[test]
fn secrets_and_lists_of_users_are_left_out_of_etc() {
    let dir = workspace();
    for name in ["shadow", "gshadow", "sudoers", "passwd-", "group-", "subuid", "ssh/ssh_host_ed25519_key"] {
        for profile in ["repo-write", "ci-only"] {
            let flags = ["--profile", profile];
            let said = fails(dir.path(), &flags, &format!("ls /etc/{name}"));
            assert!(said.contains("No such file or directory"), "{profile} {name}: {said}");
        }
    }
    let users = succeeds(dir.path(), &[], "cut -d: -f1 /etc/passwd | sort");
    assert!(users.lines().count() <= 3, "{users}");
}

#[test]
fn the_machine_id_is_that_of_every_sandbox() {
    let dir = workspace();
    let id = succeeds(dir.path(), &[], "cat /etc/machine-id");
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    assert_ne!(Some(id), fs::read_to_string("/etc/machine-id").ok().map(|id| id.trim().to_owned()));
}

#[test]
fn ci_only_shows_a_few_files_of_etc() {
    let dir = workspace();
    let count = |flags: &[&str]| succeeds(dir.path(), flags, "ls -A /etc").lines().count();
    assert!(count(&["--profile", "ci-only"]) < 30 && count(&[]) > 30);
}

#[test]
fn mounts_of_a_policy_need_no_place_in_the_host_s_etc() {
    let (dir, other) = (workspace(), workspace());
    fs::write(other.path().join("file"), "granted").unwrap();
    let (file, place) = (other.path().join("file"), "/etc/kennel-test/deep");
    assert!(!Path::new(place).exists());
    let flag = format!("{}:{place}/file", file.display());
    assert_eq!(
        succeeds(dir.path(), &["--ro", &flag], &format!("cat {place}/file; ls {place}")),
        "grantedfile"
    );
    let flag = format!("{}:{place}", other.path().display());
    assert_eq!(
        succeeds(dir.path(), &["--rw", &flag], &format!("echo x > {place}/new; ls {place}")),
        "file\nnew"
    );
    assert!(!Path::new(place).exists(), "nothing is made on the host");
}

#[test]
fn without_the_rights_for_it_root_gets_a_few_files_and_a_note() {
    only_as_root!();
    let dir = workspace();
    let own = kennel(dir.path(), &[], &["ls", "/etc"]);
    let mut less = Command::new("setpriv");
    less.arg("--bounding-set=-setuid").arg(own.get_program()).args(own.get_args()).current_dir(dir.path());
    let output = less.output().unwrap();
    assert!(output.status.success() && stdout(&output).lines().count() < 30, "{output:?}");
    assert!(stderr(&output).contains("kennel: note: /etc: shows only a few files"), "{output:?}");
}
