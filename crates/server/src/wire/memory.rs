//! How much memory there is: that of the machine, or of the cgroup around the server.

use std::fs;

/// Bytes that the server and its sandboxes may use together.
pub(crate) fn total() -> u64 {
    let machine = line("/proc/meminfo", "MemTotal:");
    limit().map_or(machine, |limit| limit.min(machine))
}

/// Bytes in use, which cannot be given back at once.
pub(crate) fn used() -> u64 {
    match limit() {
        Some(_) => number("/sys/fs/cgroup/memory.current").unwrap_or(0).saturating_sub(inactive()),
        None => line("/proc/meminfo", "MemTotal:").saturating_sub(line("/proc/meminfo", "MemAvailable:")),
    }
}

/// Whether a container's limit holds.
pub(crate) fn is_limited() -> bool {
    limit().is_some()
}

/// The limit of the cgroup at the root of the view: that of a container.
fn limit() -> Option<u64> {
    number("/sys/fs/cgroup/memory.max")
}

fn inactive() -> u64 {
    let text = fs::read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix("inactive_file "));
    found.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A line of a file in kB.
fn line(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    let kib: Option<u64> = found.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok());
    kib.unwrap_or(0) << 10
}
