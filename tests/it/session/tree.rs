//! The processes below this one, according to /proc.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

pub use crate::support::{children, descendants, lives};

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
