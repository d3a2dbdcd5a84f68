//! Processes of the host, according to /proc.

use std::fs;

use nix::sys::signal::Signal;

/// Children of a process, including dead ones.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|pids| pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The number of children of this process, including dead ones.
pub fn own_children() -> usize {
    children(std::process::id()).len()
}

/// Everything below a process.
pub fn descendants(pid: u32) -> Vec<u32> {
    let children = children(pid);
    let below = children.iter().flat_map(|&child| descendants(child)).collect::<Vec<_>>();
    children.into_iter().chain(below).collect()
}

/// The state letter of a process in /proc/PID/stat.
pub fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}

/// Whether a process exists and is no zombie.
pub fn lives(pid: u32) -> bool {
    process_state(pid).is_some_and(|state| state != 'Z')
}

/// Signals that end a process by default and that a shell can trap, with their names.
pub const SIGNALS: [(Signal, &str); 10] = [
    (Signal::SIGINT, "INT"),
    (Signal::SIGTERM, "TERM"),
    (Signal::SIGHUP, "HUP"),
    (Signal::SIGQUIT, "QUIT"),
    (Signal::SIGUSR1, "USR1"),
    (Signal::SIGUSR2, "USR2"),
    (Signal::SIGALRM, "ALRM"),
    (Signal::SIGVTALRM, "VTALRM"),
    (Signal::SIGPROF, "PROF"),
    (Signal::SIGXCPU, "XCPU"),
];
