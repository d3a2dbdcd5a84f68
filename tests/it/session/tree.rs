//! The processes below this one, according to /proc.

use std::fs;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Children of a process, including dead ones.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|pids| pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Everything below a process.
pub fn descendants(pid: u32) -> Vec<u32> {
    let children = children(pid);
    let below = children.iter().flat_map(|&child| descendants(child)).collect::<Vec<_>>();
    children.into_iter().chain(below).collect()
}

/// Whether a process exists and is no zombie.
pub fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// The zygote of the only session of this process.
pub fn zygote() -> u32 {
    let children: Vec<u32> = children(std::process::id()).into_iter().filter(|&pid| lives(pid)).collect();
    assert_eq!(children.len(), 1, "one zygote");
    children[0]
}

/// Each worker's init, oldest first.
pub fn workers() -> Vec<u32> {
    let mut workers: Vec<u32> = children(zygote()).into_iter().filter(|&pid| lives(pid)).collect();
    workers.sort_unstable();
    workers
}

pub fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.try_into().expect("a pid")), signal).expect("it was there");
}
