//! Where groups are made, and what is said where they cannot be.

use std::{env, fs};

use super::{ground, has_groups, protection};
use crate::support::{kennel, refused, report, stderr, stdout, succeeds, workspace};

#[test]
fn without_groups_a_limit_is_weaker_and_says_why() {
    let dir = workspace();
    let (output, said) = report(dir.path(), &["--memory", "64M"], &["true"]);
    assert!(output.status.success(), "{output:?}");
    let (state, detail) = protection(&said, "memory");
    if env::var_os("KENNEL_CGROUPS").is_some() || has_groups() {
        assert_eq!(
            (state, detail),
            ("enforced", "memory.max 64M, swap none, with all that the command starts")
        );
        return;
    }
    assert_eq!(state, "degraded");
    assert!(
        detail.starts_with("RLIMIT_DATA: private writable memory of each process, not of all together; "),
        "{detail}"
    );
    // What was found, and what can be done.
    assert!(
        detail.contains("cgroup") && (detail.contains("Delegate=yes") || detail.contains("boot with")),
        "{detail}"
    );
    let line = format!("kennel: memory degraded: {detail}");
    assert!(stderr(&output).lines().any(|said| said == line), "{output:?}");
    let output =
        kennel(dir.path(), &["--profile", "ci-only", "--memory", "64M"], &["true"]).output().unwrap();
    assert!(output.status.code() == Some(125) && stderr(&output).contains("to mend it: "), "{output:?}");
}

#[test]
fn off_is_off() {
    let dir = workspace();
    let flags = ["--cgroup", "off", "--memory", "64M", "--cpus", "1"];
    let (_, said) = report(dir.path(), &flags, &["true"]);
    let weaker = "RLIMIT_DATA: private writable memory of each process, not of all together";
    assert_eq!(protection(&said, "memory"), ("degraded", weaker));
    assert_eq!(protection(&said, "cpus"), ("off", "needs a delegated cgroup v2"));
    assert!(said["usage"]["peak_pids"].is_null(), "{said}");
}

#[test]
fn a_policy_without_limits_has_no_group() {
    let dir = workspace();
    let (_, said) = report(dir.path(), &[], &["true"]);
    assert!(said["usage"]["peak_pids"].is_null() && said["usage"]["oom_kills"].is_null(), "{said}");
}

#[test]
fn a_place_that_is_no_cgroup_is_refused() {
    let dir = workspace();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, words) in [
        ("/tmp", "limits.cgroup /tmp: it is not on a cgroup v2 file system"),
        ("/nonexistent", "limits.cgroup /nonexistent: No such file or directory"),
        (file.to_str().unwrap(), "Not a directory"),
        ("/proc/self", "limits.cgroup /proc/self: it is not on a cgroup v2 file system"),
    ] {
        let said = refused(dir.path(), &["--cgroup", path]);
        assert!(said.contains(words) && said.contains("to mend it: "), "{path}: {said}");
    }
    let output = kennel(dir.path(), &["--cgroup", "somewhere"], &["true"]).output().unwrap();
    assert!(stderr(&output).contains("expected `auto`, `off` or an absolute path"), "{output:?}");
}

#[test]
fn a_named_group_is_used_whatever_limits_there_are() {
    let ground = ground!();
    let dir = workspace();
    let (output, said) = report(dir.path(), &ground.flags(), &["true"]);
    assert!(output.status.success(), "{output:?}");
    assert!(
        said["usage"]["user_us"].as_u64().unwrap() + said["usage"]["system_us"].as_u64().unwrap() > 0,
        "{said}"
    );
    if ground.has_controllers() {
        assert_eq!(said["usage"]["oom_kills"], 0, "{said}");
    }
    ground.is_empty();
}

#[test]
fn a_group_with_processes_in_it_says_so() {
    let ground = ground!();
    let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(ground.0.join("cgroup.procs"), other.id().to_string()).unwrap();
    let dir = workspace();
    let flags = [&ground.flags()[..], &["--memory", "64M"]].concat();
    let (output, said) = report(dir.path(), &flags, &["true"]);
    assert!(output.status.success(), "{output:?}");
    let (state, detail) = protection(&said, "memory");
    assert!(state == "degraded" && detail.contains("holds 1 other processes"), "{detail}");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn commands_see_no_cgroup_but_their_own_as_the_root() {
    let ground = ground!();
    let dir = workspace();
    let flags = [&ground.flags()[..], &["--memory", "64M", "--quiet"]].concat();
    let shown = succeeds(dir.path(), &flags, "cat /proc/self/cgroup");
    assert!(shown.lines().all(|line| line.ends_with(":/")), "{shown}");
    // Its limits are nowhere to be written, for real root neither.
    let script = "ls /sys/fs/cgroup 2>&1; mkdir -p /tmp/c; mount -t cgroup2 none /tmp/c 2>&1; ls /tmp/c; \
                  for f in memory.max cgroup.procs; do echo max > /sys/fs/cgroup/$f; done 2>&1; cat /proc/mounts";
    let said = stdout(&kennel(dir.path(), &flags, &["sh", "-c", script]).output().unwrap());
    assert!(!said.contains("cgroup2 ") && !said.contains("memory.max\n"), "{said}");
}
