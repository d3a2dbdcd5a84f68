//! Measures the memory of an idle session: the proportional set size of all its processes.

use std::{fs, process, thread, time::Duration};

use crate::Bench;

pub(crate) fn print(bench: &Bench) {
    let before = children(process::id());
    let session = bench.prepare(2);
    // Wait until the workers have prepared for a command.
    while session.stats().ready < 2 {
        thread::sleep(Duration::from_millis(1));
    }
    let zygotes = children(process::id()).into_iter().filter(|pid| !before.contains(pid));
    let processes: Vec<u32> = zygotes.flat_map(family).collect();
    let sizes: Option<Vec<u64>> = processes.iter().map(|pid| pss_kib(*pid)).collect();
    match sizes {
        Some(sizes) => {
            let (count, sum) = (sizes.len(), sizes.iter().sum::<u64>());
            println!("\nidle session, 2 workers ready: PSS {sum} KiB in {count} processes: {sizes:?}");
        }
        None => println!("\nidle session: the memory of undumpable processes is for root to see"),
    }
}

/// A process and all its descendants.
fn family(pid: u32) -> Vec<u32> {
    let below = children(pid).into_iter().flat_map(family);
    std::iter::once(pid).chain(below).collect()
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<String> = lists.collect();
    pids.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

fn pss_kib(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse().ok()
}
