//! Namespaces that the kernel's limits refuse. A user namespace around everything sets the limits.

use std::{fs, process::Command};

use super::{Before, Degraded, Row, place, runtime_directory, script};
use crate::support::{kennel_path, stderr, stdout};

/// Root of a user namespace that allows no namespace of this kind, as in a rootless container.
fn without(kind: &str) -> Before {
    script(&["unshare", "-Ur"], &format!("echo 0 > /proc/sys/user/max_{kind}_namespaces"))
}

/// The same for a user without capabilities there.
fn user_without(kind: &str) -> Before {
    let mut before = script(
        &["unshare", "-U", "--map-user=1000", "--map-group=1000", "--keep-caps"],
        &format!("echo 0 > /proc/sys/user/max_{kind}_namespaces"),
    );
    before.extend(["setpriv", "--ambient-caps", "-all", "--inh-caps", "-all"].map(str::to_owned));
    before
}

/// The remedy for a limit of this kind.
fn raise(kind: &str) -> String {
    format!("raise the limit: sysctl -w user.max_{kind}_namespaces=15000 (it is 0)")
}

#[test]
fn no_user_namespaces_for_a_user() {
    Row {
        before: user_without("user"),
        protection: "user_namespace",
        says: "new user and pid namespace: No space left on device",
        remedy: &raise("user"),
        degraded: Degraded::Refused,
    }
    .holds();
}

#[test]
fn no_user_namespaces_for_root_of_one() {
    Row {
        before: without("user"),
        protection: "user_namespace",
        says: "new user and pid namespace: No space left on device",
        remedy: &format!(
            "{}; or let root's commands go without one: --on-unavailable degrade",
            raise("user")
        ),
        degraded: Degraded::Off(&["user_namespace"]),
    }
    .holds();
}

#[test]
fn no_pid_namespaces() {
    for before in [without("pid"), user_without("pid")] {
        Row {
            before,
            protection: "pid_namespace",
            says: "new pid namespace: No space left on device",
            remedy: &raise("pid"),
            degraded: Degraded::Refused,
        }
        .holds();
    }
}

#[test]
fn no_mount_namespaces() {
    for before in [without("mnt"), user_without("mnt")] {
        Row {
            before,
            protection: "mount_namespace",
            says: "new mount namespace: No space left on device",
            remedy: &raise("mnt"),
            degraded: Degraded::Refused,
        }
        .holds();
    }
}

#[test]
fn namespaces_that_may_be_missing() {
    for (kind, off) in [
        ("net", &["network_namespace"][..]),
        ("ipc", &["ipc_namespace"]),
        ("uts", &["uts_namespace"]),
        ("cgroup", &["cgroup_namespace"]),
    ] {
        let word = if kind == "net" { "network" } else { kind };
        Row {
            before: user_without(kind),
            protection: off[0],
            says: &format!("new {word} namespace: No space left on device"),
            remedy: &raise(kind),
            degraded: Degraded::Off(off),
        }
        .holds();
    }
}

/// The session itself needs none, but its workers do.
#[test]
fn a_session_without_ipc_namespaces_runs_no_command() {
    let (dir, kennel) = (place(), kennel_path());
    let steps =
        "k=$1; $k session start --name hosts; $k exec hosts -- echo ran; echo $?; $k session stop hosts";
    let mut words = user_without("ipc");
    words.extend(["sh", "-c", steps, "sh", kennel.to_str().unwrap()].map(str::to_owned));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(dir.path()).env("XDG_RUNTIME_DIR", runtime_directory(dir.path()));
    let output = command.output().unwrap();
    fs::remove_dir_all(runtime_directory(dir.path())).unwrap();
    let (said, complained) = (stdout(&output), stderr(&output));
    assert!(said.lines().any(|line| line == "125") && !said.contains("ran"), "{output:?}");
    assert!(complained.contains("kennel: new ipc namespace: No space left on device"), "{output:?}");
    assert!(complained.contains(&raise("ipc")) && output.status.success(), "{output:?}");
}
