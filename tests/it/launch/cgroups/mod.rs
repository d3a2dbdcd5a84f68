//! Cgroups: limits of all processes together, the usage, and that no group is left.
//!
//! | module | promise |
//! | --- | --- |
//! | `attacks` | a command that takes more than its share gets no more, and others do not notice |
//! | `disk` | io.max on a disk, and swap |
//! | `left` | no group is left, whatever ends and however |
//! | `limits` | each limit, of one-shots and of sessions, and the outcome of a command that it ended |
//! | `places` | where groups are made, and what the report says if they cannot be |
//!
//! If a host has no groups with controllers, the report must say that limits are weaker. Tests of groups
//! alone run wherever a group can be made. `KENNEL_CGROUPS` says that this host has everything.

mod attacks;
mod disk;
mod left;
mod limits;
mod places;

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use kennel::{Cgroup, Limits, Policy, Size};
use serde_json::Value;

use crate::support::{
    kennel, payload, payload_path, policy_at, protection, report, stderr, until, workspace,
};

/// Whether cgroups hold limits here.
pub(crate) fn has_groups() -> bool {
    let dir = workspace();
    let (output, said) = report(dir.path(), &["--memory", "1G"], &["true"]);
    assert!(output.status.success(), "{output:?}");
    let enforced = protection(&said, "memory").0 == "enforced";
    assert!(enforced || env::var_os("KENNEL_CGROUPS").is_none(), "there must be groups here: {said}");
    enforced
}

/// What must hold if there are no groups to test: the report says so, and why.
fn says_weaker() {
    assert!(env::var_os("KENNEL_CGROUPS").is_none(), "there must be groups here");
    let dir = workspace();
    let limits = ["--memory", "64M", "--cpus", "1", "--cpuset", "0", "--io", "read=1M"];
    let refused = kennel(dir.path(), &limits, &["true"]).output().unwrap();
    assert!(
        refused.status.code() == Some(125) && stderr(&refused).contains("cpus: cannot be kept here"),
        "{refused:?}"
    );
    let flags = [&limits[..], &["--on-unavailable", "degrade"]].concat();
    let (output, said) = report(dir.path(), &flags, &["true"]);
    assert!(output.status.success(), "{output:?}");
    for (name, state) in [("memory", "degraded"), ("cpus", "off"), ("cpuset", "off"), ("io", "off")] {
        let (found, detail) = protection(&said, name);
        let (cause, remedy) = why(&said, name);
        let helps = remedy.contains("Delegate=") || remedy.contains("boot with");
        assert!(found == state && cause.contains("cgroup") && helps, "{name} is {found}: {detail}: {cause}");
        assert!(!detail.contains(cause) && !detail.contains(remedy), "{name}: {detail}");
    }
    // They have the same cause, which is reported once.
    let (cause, remedy) = why(&said, "memory");
    let lines = [format!("kennel: cgroups: {cause}"), format!("kennel: hint: {remedy}")];
    let told = stderr(&output);
    assert!(told.ends_with(&lines.join("\n")) && told.matches(cause).count() == 1, "{output:?}");
    assert_eq!(
        (&said["enforcement"]["level"], &said["usage"]["oom_kills"]),
        (&"partial".into(), &Value::Null)
    );
}

/// If cgroups do not hold limits, the test asserts that the report says so.
macro_rules! require_groups {
    () => {
        if !crate::launch::cgroups::has_groups() {
            return crate::launch::cgroups::says_weaker();
        }
    };
}
use require_groups;

/// Why no cgroup holds a limit, and what would help.
fn why<'r>(report: &'r Value, name: &str) -> (&'r str, &'r str) {
    let entries = report["enforcement"]["protections"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["name"] == name).unwrap();
    (entry["cause"].as_str().unwrap(), entry["remedy"].as_str().unwrap())
}

/// Whether a report says that input and output are not limited because there is no disk or no controller.
fn says_no_disk(report: &Value) -> bool {
    let (cause, _) = why(report, "io");
    cause.contains("block device") || cause.contains("controller")
}

/// A cgroup of one test, so that its contents are known. A group that is left in it fails the test.
struct Ground(PathBuf);

impl Ground {
    /// One that can be made here, if any can.
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let top = PathBuf::from(mount.split(' ').nth(4)?);
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let above = top.join(own).parent().filter(|above| above.starts_with(&top)).map(Path::to_owned);
        let name = format!("kennel-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let mut places = [Some(top), above].into_iter().flatten();
        places.find_map(|place| {
            let _ = fs::write(place.join("cgroup.subtree_control"), "+memory +pids +cpu");
            let ground = place.join(&name);
            fs::create_dir(&ground).ok()?;
            Some(Self(ground))
        })
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// The group as a flag names it.
    fn flags(&self) -> [&str; 2] {
        ["--cgroup", self.path()]
    }

    fn limits(&self) -> Limits {
        Limits { cgroup: Cgroup::At(self.0.clone()), ..Limits::default() }
    }

    /// Whether its groups can hold limits.
    fn has_controllers(&self) -> bool {
        let said = fs::read_to_string(self.0.join("cgroup.controllers")).unwrap();
        ["memory", "pids", "cpu"].iter().all(|name| said.split_whitespace().any(|other| other == *name))
    }

    /// All groups in it.
    fn groups(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut places = vec![self.0.clone()];
        while let Some(place) = places.pop() {
            let entries = fs::read_dir(&place).into_iter().flatten().flatten();
            let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            let groups: Vec<PathBuf> = groups.map(|entry| entry.path()).collect();
            places.extend(groups.iter().cloned());
            found.extend(groups);
        }
        found
    }

    /// Waits until none is left.
    fn is_empty(&self) {
        until("no group is left", || self.groups().is_empty());
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.is_empty();
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// A cgroup to make groups in. If none can be made, the test asserts that the report says so.
macro_rules! ground {
    () => {
        match crate::launch::cgroups::Ground::new() {
            Some(ground) => ground,
            None => return crate::launch::cgroups::says_weaker(),
        }
    };
}
use ground;

/// The same, whose groups can hold limits.
macro_rules! ground_with_controllers {
    () => {{
        let ground = crate::launch::cgroups::ground!();
        if !ground.has_controllers() {
            return crate::launch::cgroups::says_weaker();
        }
        ground
    }};
}
use ground_with_controllers;

/// A policy with these limits, and the payload at `/payload`.
fn with_limits(workspace: &Path, limits: Limits) -> Policy {
    policy_at(workspace).mount(payload()).limits(limits)
}

/// Runs an attempt of the payload under `flags`. Returns the status, its output and the report.
fn attempt(flags: &[&str], words: &str) -> (Option<i32>, String, Value) {
    let dir = workspace();
    let grant = format!("{}:/payload", payload_path().display());
    let flags = [&["--ro", &grant][..], flags].concat();
    let command: Vec<&str> = ["/payload"].into_iter().chain(words.split_whitespace()).collect();
    let (output, said) = report(dir.path(), &flags, &command);
    (
        crate::support::shown(output.status),
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned(),
        said,
    )
}

fn mebibytes(count: u64) -> Option<Size> {
    Some(Size::from_bytes(count << 20))
}

/// `kennel run` of a shell script, as a process.
fn running(workspace: &Path, flags: &[&str], script: &str) -> std::process::Child {
    let mut command = kennel(workspace, flags, &["sh", "-c", script]);
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    command.stderr(std::process::Stdio::null()).spawn().unwrap()
}
