//! Limits → what files of a group are to say. Pure.

use super::Means;
use crate::{
    cgroup::{CPUS, Controller, Setting},
    policy::Limits,
};

/// cpu.max counts in periods of that many microseconds, and in quotas of this at least.
const PERIOD: u64 = 100_000;
const LONGEST_PERIOD: u64 = 1_000_000;
pub(super) const SHORTEST_QUOTA: u64 = 1_000;

/// The files that hold processes to `limits`, of those that there are `means` for. `own` are processes of ours.
pub(super) fn settings(limits: &Limits, means: Means<'_>, own: u64) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(memory) = limits.memory.filter(|_| means.hold(Controller::Memory)) {
        // First, or the limit could be met by swapping.
        let swap = limits.swap.map_or(0, |size| size.bytes());
        settings.push(Setting::where_there("memory.swap.max", swap));
        settings.push(Setting::new("memory.max", memory.bytes()));
    }
    if let Some(pids) = limits.pids.filter(|_| means.hold(Controller::Pids)) {
        settings.push(Setting::new("pids.max", pids.saturating_add(own).min(u64::from(u32::MAX >> 1))));
    }
    if let Some(cpus) = limits.cpus.filter(|_| means.hold(Controller::Cpu)) {
        let (quota, period) = quota(cpus);
        settings.push(Setting::new("cpu.max", format!("{quota} {period}")));
    }
    if let Some(list) = limits.cpuset.as_ref().filter(|_| means.hold(Controller::Cpuset)) {
        settings.push(Setting::new(CPUS, list));
    }
    if let Some(io) = limits.io.filter(|_| means.hold(Controller::Io)) {
        let parts = [
            io.read.map(|size| format!(" rbps={}", size.bytes())),
            io.write.map(|size| format!(" wbps={}", size.bytes())),
            io.read_ops.map(|count| format!(" riops={count}")),
            io.write_ops.map(|count| format!(" wiops={count}")),
        ];
        let parts: String = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            let of_disk = |(major, minor)| Setting::new("io.max", format!("{major}:{minor}{parts}"));
            settings.extend(means.disks.iter().copied().map(of_disk));
        }
    }
    settings
}

/// Quota and period of cpu.max, in microseconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a policy has 4096 processors at most, and more than none"
)]
pub(super) fn quota(cpus: f64) -> (u64, u64) {
    let of = |period: u64| (cpus * period as f64).round() as u64;
    let period = if of(PERIOD) < SHORTEST_QUOTA { LONGEST_PERIOD } else { PERIOD };
    (of(period).max(SHORTEST_QUOTA), period)
}
