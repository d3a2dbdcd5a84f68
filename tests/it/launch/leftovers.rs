//! Nothing is left of a run, however it ended: no mount, no file, no process.

use std::{fs, path::Path, time::Duration};

use crate::support::{HEARTBEAT, descendants, kennel, lives, patient, until, workspace};

/// Processes with a working directory in `directory`.
fn processes(directory: &Path) -> Vec<u32> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let here =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(directory));
    fs::read_dir("/proc").unwrap().flatten().filter_map(number).filter(here).collect()
}

fn mounts() -> usize {
    fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count()
}

/// The names in directories where programs leave files, apart from those of this test run.
fn left() -> Vec<String> {
    let own = |name: &String| {
        name.contains("kennel") && !name.contains("kennel-test-") && !name.contains("kennel-second")
    };
    ["/tmp", "/dev/shm", "/var/tmp", "/run"]
        .into_iter()
        .filter_map(|place| fs::read_dir(place).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path().display().to_string()))
        .filter(own)
        .collect()
}

/// A test beside this one may have a directory for a moment; what a run leaves stays.
fn nothing_is_new(before: &[String]) {
    until("nothing of Kennel is left", || left().iter().all(|name| before.contains(name)));
}

#[test]
fn nothing_is_left_of_thirty_runs() {
    let dir = workspace();
    let (mounts_before, left_before) = (mounts(), left());
    let endings: [(&[&str], &[&str], i32); 6] = [
        (&[], &["true"], 0),
        (&[], &["sh", "-c", "touch /tmp/x ~/x /dev/shm/x; sleep 60 & exit 3"], 3),
        (&[], &["sh", "-c", "kill -9 $$"], 137),
        (&["--timeout", "50ms"], &["sleep", "60"], 124),
        (&["--ro", "/absent"], &["true"], 125),
        (&[], &["absent-program"], 127),
    ];
    for (flags, command, status) in endings.iter().cycle().take(30) {
        let output = kennel(dir.path(), flags, command).output().unwrap();
        assert_eq!(crate::support::shown(output.status), Some(*status), "{output:?}");
    }
    assert_eq!(mounts(), mounts_before);
    nothing_is_new(&left_before);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left in the workspace");
    until("every process is gone", || processes(dir.path()).is_empty());
}

#[test]
fn nothing_is_left_when_kennel_is_killed() {
    let dir = workspace();
    let (mounts_before, left_before) = (mounts(), left());
    for delay in [0, 2, 5, 10, 20, 50] {
        let mut child = kennel(dir.path(), &[], &["sh", "-c", HEARTBEAT]).spawn().unwrap();
        std::thread::sleep(patient(Duration::from_millis(delay)));
        if delay == 50 {
            until("init and the command are there", || descendants(child.id()).len() >= 2);
        }
        let inside = descendants(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        until("init is gone", || !inside.iter().any(|&pid| lives(pid)));
    }
    until("every process is gone", || processes(dir.path()).is_empty());
    assert_eq!(mounts(), mounts_before);
    nothing_is_new(&left_before);
}

#[test]
fn failing_start_leaves_no_mount_point_on_the_host() {
    let (dir, data) = (workspace(), workspace());
    let own = dir.path().to_str().unwrap();
    for target in ["a", "a/b/c", ".git/hooks"] {
        let grant = format!("{}:{own}/{target}", data.path().display());
        let output = kennel(dir.path(), &["--ro", &grant], &["true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
