//! Paths that programs expect, and that are covered, missing, full or not executable.

use std::{
    fs,
    process::{Command, Output},
};

use super::{Degraded, Row, kennel, place, run, script};
use crate::support::{TempDir, copy_program, kennel_path, only_as_root, require, stderr, stdout};

/// Namespaces of a rootless container, with a /proc of its own.
const CONTAINER: [&str; 3] = ["unshare", "-Urmpf", "--mount-proc"];

fn ran(output: &Output) -> bool {
    output.status.success() && stdout(output) == "ran" && output.stderr.is_empty()
}

/// A fresh procfs would show the covered files. The kernel refuses one to anybody who does not own the
/// mounts.
#[test]
fn covered_parts_of_proc() {
    let engine = fs::exists("/.dockerenv").unwrap() || fs::exists("/run/.containerenv").unwrap();
    let remedy =
        if engine { "systempaths=unconfined" } else { "masked paths below /proc (findmnt -R /proc)" };
    for cover in [
        "mount -t tmpfs none /proc/irq",
        "mount --bind /dev/null /proc/cmdline",
        "mount --bind -o ro /proc/sys /proc/sys",
    ] {
        Row {
            before: script(&CONTAINER, cover),
            protection: "root",
            says: "mount proc at /proc: Operation not permitted",
            remedy,
            degraded: Degraded::Refused,
        }
        .holds();
    }
}

#[test]
fn memfds_that_are_not_executable() {
    // The setting belongs to a pid namespace, and only root can write its file.
    only_as_root!();
    require!(fs::exists("/proc/sys/vm/memfd_noexec").unwrap(), "vm.memfd_noexec, from Linux 6.3 on");
    let dir = place();
    let before = script(&CONTAINER, "echo 2 > /proc/sys/vm/memfd_noexec");
    assert!(ran(&run(&before, dir.path(), &["-q"])));
    let output = kennel(&before, dir.path(), &["probe"]).output().unwrap();
    let said = stdout(&output);
    let line = said.lines().find(|line| line.contains("memfd_exec")).unwrap();
    assert!(line.contains("degraded"), "{said}");
    assert!(said.contains("sysctl -w vm.memfd_noexec=0"), "{said}");
}

/// There is no place left to execute from: one clear error.
#[test]
fn memfds_and_directories_that_are_not_executable() {
    // The setting belongs to a pid namespace, and only root can write its file.
    only_as_root!();
    require!(fs::exists("/proc/sys/vm/memfd_noexec").unwrap(), "vm.memfd_noexec, from Linux 6.3 on");
    let steps = "echo 2 > /proc/sys/vm/memfd_noexec; mount -t tmpfs none /home; cp \"$1\" /home/kennel; mkdir /home/w; shift; \
                 for d in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o noexec none $d; done; cd /home/w; \
                 mkdir /tmp/run; XDG_RUNTIME_DIR=/tmp/run; export XDG_RUNTIME_DIR; exec /home/kennel \"$@\"";
    for flags in [&["-q"][..], &super::DEGRADE] {
        let output = Command::new(CONTAINER[0])
            .args(&CONTAINER[1..])
            .args(["sh", "-ec", steps, "sh"])
            .arg(kennel_path())
            .arg("run")
            .args(flags)
            .args(["--", "echo", "ran"])
            .env("LC_ALL", "C")
            .output()
            .unwrap();
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
        let said = stderr(&output);
        assert!(said.starts_with("kennel: execute the init program: Permission denied"), "{said}");
        let remedy = "kennel: hint: allow executing memfds (sysctl -w vm.memfd_noexec=0), or have XDG_RUNTIME_DIR or \
                      /tmp on a file system";
        assert!(said.contains(remedy), "{said}");
    }
}

#[test]
fn a_home_that_is_not_a_directory() {
    let dir = place();
    for home in ["/nonexistent", "/", "relative", "", "/etc/passwd", "/root"] {
        let mut command =
            kennel(&Vec::new(), dir.path(), &["run", "-q", "--", "sh", "-c", "cd \"$HOME\"; echo ran"]);
        assert!(ran(&command.env("HOME", home).output().unwrap()), "{home}");
        let mut probe = kennel(&Vec::new(), dir.path(), &["probe"]);
        assert_ne!(probe.env("HOME", home).output().unwrap().status.code(), Some(125), "{home}");
    }
    let mut command =
        kennel(&Vec::new(), dir.path(), &["run", "-q", "--", "sh", "-c", "cd \"$HOME\"; echo ran"]);
    assert!(ran(&command.env_remove("HOME").output().unwrap()), "unset");
    assert!(!fs::exists("/nonexistent").unwrap() && !fs::exists(dir.path().join("relative")).unwrap());
}

#[test]
fn no_account() {
    only_as_root!();
    let dir = place();
    std::os::unix::fs::chown(dir.path(), Some(4242), Some(4242)).unwrap();
    let someone = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups", "env", "-u", "HOME"];
    require!(crate::support::has("setpriv"), "setpriv of util-linux");
    let someone = someone.map(str::to_owned).to_vec();
    let copy = TempDir::new("kennel-hosts-", "/tmp");
    fs::set_permissions(copy.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let kennel = copy.path().join("kennel");
    copy_program(kennel_path(), &kennel);
    let output = Command::new(&someone[0])
        .args(&someone[1..])
        .arg(&kennel)
        .args(["run", "-q", "--", "sh", "-c", "id -u; echo $HOME; whoami"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "4242\n/\nuser", "{output:?}");
}

#[test]
fn no_null_device() {
    Row {
        before: script(&["unshare", "-Urm"], "mount -t tmpfs none /dev"),
        protection: "root",
        says: "root: the host has no device /dev/null, which files are covered with",
        remedy: "mount a devtmpfs at /dev, or: mknod -m 666 /dev/null c 1 3",
        degraded: Degraded::Refused,
    }
    .holds();
}

/// Kennel alone in a directory: no /proc, no /dev, no program.
#[test]
fn an_empty_root() {
    let dir = place();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("work")).unwrap();
    // A process of its own writes it: a child that another test forks meanwhile would keep our descriptor
    // open for writing.
    assert!(Command::new("cp").arg(kennel_path()).arg(root.join("kennel")).status().unwrap().success());
    for arguments in [&["run", "--workspace", "/work", "--", "/true"][..], &["probe"]] {
        let mut command = Command::new("unshare");
        command.args(["-Ur", "--root"]).arg(&root).arg("/kennel").args(arguments).env("LC_ALL", "C");
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        if arguments[0] == "run" {
            assert!(said.starts_with("kennel: ") && said.contains("kennel: hint: "), "{output:?}");
        }
    }
    assert_eq!(fs::read_dir(root.join("work")).unwrap().count(), 0);
}

#[test]
fn a_root_that_is_read_only() {
    let dir = place();
    let before = script(&CONTAINER, "mount -o remount,bind,ro /");
    assert!(ran(&run(&before, dir.path(), &["-q"])));
}

#[test]
fn no_sysfs_and_no_cgroups() {
    let dir = place();
    for cover in ["mount -t tmpfs none /sys", "mount -t tmpfs -o ro none /sys/fs/cgroup"] {
        let output = run(&script(&["unshare", "-Urm"], cover), dir.path(), &["-q"]);
        assert!(ran(&output), "{cover}: {output:?}");
    }
}

#[test]
fn no_file_of_any_size() {
    let dir = place();
    let output = run(&script(&[], "ulimit -f 0"), dir.path(), &["-q"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("File too large") && said.contains("ulimit -f"), "{said}");
}

#[test]
fn temporary_directories_that_are_full() {
    let dir = place();
    let steps = "mount -t tmpfs -o size=4k,mode=1777 none /var/tmp; cat /dev/zero > /var/tmp/full 2>/dev/null || :; \
                 mount --bind /var/tmp /dev/shm";
    let mut before = script(&["unshare", "-Urm"], steps);
    before.extend(["env", "TMPDIR=/var/tmp", "XDG_RUNTIME_DIR=/var/tmp"].map(str::to_owned));
    assert!(ran(&run(&before, dir.path(), &["-q"])));
}
