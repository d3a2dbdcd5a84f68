//! Where groups are made, and what the report says if they cannot be.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use super::{Ground, ground, has_groups, protection, require_groups, why};
use crate::support::{
    kennel, kennel_path, only_as_root, only_as_user, refused, report, stderr, stdout, succeeds, until,
    workspace,
};

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
    // The finding, and what the user can do.
    let (cause, remedy) = why(&said, "memory");
    assert!(
        cause.contains("cgroup") && (remedy.contains("Delegate=yes") || remedy.contains("boot with")),
        "{cause}: {remedy}"
    );
    let line = format!("kennel: memory degraded: {detail}");
    assert!(stderr(&output).lines().any(|said| said == line), "{output:?}");
    let output =
        kennel(dir.path(), &["--profile", "ci-only", "--memory", "64M"], &["true"]).output().unwrap();
    assert!(output.status.code() == Some(125) && stderr(&output).contains("hint: "), "{output:?}");
}

#[test]
fn off_is_off() {
    let dir = workspace();
    let flags = ["--cgroup", "off", "--memory", "64M", "--cpus", "1", "--on-unavailable", "degrade"];
    let (_, said) = report(dir.path(), &flags, &["true"]);
    let (state, detail) = protection(&said, "memory");
    assert!(
        state == "degraded" && detail.starts_with("RLIMIT_DATA: ") && !detail.contains("cgroup"),
        "{said}"
    );
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
fn a_path_that_is_no_cgroup_is_refused() {
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
        assert!(said.contains(words) && said.contains("hint: "), "{path}: {said}");
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
    let (cause, _) = why(&said, "memory");
    assert_eq!(protection(&said, "memory").0, "degraded");
    assert!(cause.contains("holds 1 other processes"), "{cause}");
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
    // Its limits cannot be written anywhere, by real root neither.
    let script = "ls /sys/fs/cgroup 2>&1; mkdir -p /tmp/c; mount -t cgroup2 none /tmp/c 2>&1; ls /tmp/c; \
                  for f in memory.max cgroup.procs; do echo max > /sys/fs/cgroup/$f; done 2>&1; cat /proc/mounts";
    let said = stdout(&kennel(dir.path(), &flags, &["sh", "-c", script]).output().unwrap());
    assert!(!said.contains("cgroup2 ") && !said.contains("memory.max\n"), "{said}");
}

/// `kennel run` with these words after it, alone in a group, as under `systemd-run --scope -p Delegate=yes`.
fn alone_in(ground: &Ground, dir: &Path, words: &str) -> Output {
    let enter = format!("echo $$ > {}/cgroup.procs", ground.path());
    let script = format!("{enter} && exec {} run {words}", kennel_path().display());
    Command::new("sh").args(["-c", &script]).current_dir(dir).output().unwrap()
}

/// The program cannot remove its own last group. The service manager does that.
fn has_only_the_program_s_own(ground: &Ground) {
    let host = ground.0.join("kennel-host");
    until("only the program's own is left", || ground.groups() == [host.clone()]);
    until("nobody is in it", || fs::remove_dir(&host).is_ok());
    // A group with controllers holds no process. The next round finds it as a service manager makes it.
    let _ = fs::write(ground.0.join("cgroup.subtree_control"), "-memory -pids -cpu -io");
}

#[test]
fn a_program_alone_in_its_group_makes_room() {
    let ground = ground!();
    let dir = workspace();
    for _ in 0..2 {
        let output = alone_in(&ground, dir.path(), &format!("--cgroup {} -- sh -c 'exit 4'", ground.path()));
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        has_only_the_program_s_own(&ground);
    }
}

#[test]
fn an_ordinary_user_finds_the_scope_that_is_its_own() {
    only_as_user!();
    require_groups!();
    let ground = ground!();
    let dir = workspace();
    let report = dir.path().join("report");
    let output = alone_in(&ground, dir.path(), &format!("--memory 64M --json {} -- true", report.display()));
    assert!(output.status.success(), "{output:?}");
    let said: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!(protection(&said, "memory").0, "enforced");
    has_only_the_program_s_own(&ground);
}

/// systemd sets these marks for scopes and services with `Delegate=yes`. Root owns every group, so a mark
/// must say which one it may use.
#[test]
fn root_finds_the_scope_that_the_service_manager_marked() {
    only_as_root!();
    require_groups!();
    let ground = ground!();
    let dir = workspace();
    let runs = |mark: &str| {
        let output = alone_in(&ground, dir.path(), "--memory 64M -- true");
        assert!(output.status.success() && output.stderr.is_empty(), "{mark}: {output:?}");
    };
    runs("none");
    // Its groups were in that part of the hierarchy.
    ground.is_empty();
    for mark in ["trusted.delegate", "user.delegate"] {
        xattr::set(&ground.0, mark, b"1").unwrap();
        runs(mark);
        has_only_the_program_s_own(&ground);
        xattr::remove(&ground.0, mark).unwrap();
    }
}

/// Seccomp filters of container engines answer clone3 with ENOSYS.
#[test]
fn without_clone3_groups_are_entered_otherwise() {
    let ground = ground!();
    let dir = workspace();
    let policy = super::with_limits(dir.path(), ground.limits());
    let flags: Vec<String> = ground.flags().iter().map(|flag| (*flag).to_owned()).collect();
    let path = dir.path().to_owned();
    // A thread in a group of its own, and the processes that it starts.
    std::thread::spawn(move || {
        let rules = [(nix::libc::SYS_clone3, Vec::new())].into_iter().collect();
        let (refused, allowed) =
            (SeccompAction::Errno(nix::libc::ENOSYS.cast_unsigned()), SeccompAction::Allow);
        let filter = SeccompFilter::new(rules, allowed, refused, TargetArch::x86_64).unwrap();
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let shown = succeeds(&path, &flags, "cat /proc/self/cgroup");
        assert!(shown.lines().any(|line| line == "0::/"), "it lies in its own: {shown}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let session = kennel::Session::prepare(&policy).await.unwrap();
            for _ in 0..4 {
                let out = session.command("cat").arg("/proc/self/cgroup").output().await.unwrap();
                let shown = String::from_utf8_lossy(&out.stdout).into_owned();
                assert!(out.outcome.status.success() && shown.lines().any(|line| line == "0::/"), "{out:?}");
                assert!(out.outcome.usage.user_us + out.outcome.usage.system_us > 0, "{out:?}");
            }
            session.shutdown().await;
        });
    })
    .join()
    .unwrap();
    ground.is_empty();
}
