//! Processes that nobody waits for. In a container the front is process 1, and inherits what a killed host
//! leaves: the first process of each of its sandboxes. Each would stay in the table of processes for ever.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::time::sleep;

/// The pause between two looks.
const LOOK: Duration = Duration::from_secs(2);

/// Waits for them for ever, if this is process 1.
pub(crate) async fn reap() {
    if std::process::id() != 1 {
        return;
    }
    let mut before = HashSet::new();
    loop {
        sleep(LOOK).await;
        let ended = ended_children();
        // Whoever started a process waits for it at once. What is still there at the second look is nobody's.
        for orphan in ended.intersection(&before) {
            let _ = waitpid(*orphan, Some(WaitPidFlag::WNOHANG));
        }
        before = ended;
    }
}

/// The children that have ended and that nobody has waited for.
fn ended_children() -> HashSet<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let all: String = lists.collect();
    let pids = all.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| has_ended(*pid));
    pids.map(Pid::from_raw).collect()
}

fn has_ended(pid: i32) -> bool {
    // The name before the state may hold anything.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}
