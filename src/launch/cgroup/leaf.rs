//! The cgroup of one command: its limits, its usage, and its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use crate::host::cgroups::{CgroupSetting, Controller};
use crate::launch::cgroup::{Groups, failed, group};
use crate::report::error::Error;
use crate::report::outcome::Usage;

/// The cgroup of one worker with its command, or of a zygote. Dropping it removes it, at once or when it is
/// no longer in use.
#[derive(Debug)]
pub(crate) struct Leaf {
    groups: Arc<Groups>,
    name: String,
    directory: OwnedFd,
    /// The events of the common limits at the start of this command. Empty if `begin` was not called.
    before: OnceLock<LimitEvents>,
}

impl Leaf {
    pub(crate) fn new(groups: Arc<Groups>, name: String, directory: OwnedFd) -> Self {
        Self { groups, name, directory, before: OnceLock::new() }
    }

    /// Writes one limit.
    pub(crate) fn set(&self, setting: &CgroupSetting) -> io::Result<()> {
        group::set(self.directory.as_fd(), setting)
    }

    /// Marks the start of the command: later events of the common limits may be its own.
    pub(crate) fn begin(&self) {
        let _ = self.before.set(self.groups.limit_events());
    }

    /// Writes limits for this command only.
    ///
    /// # Errors
    /// Those of writing to its files.
    pub(crate) fn tighten(&self, settings: &[CgroupSetting]) -> Result<(), Error> {
        settings.iter().try_for_each(|setting| {
            let step = || format!("set {} of the command's cgroup to {}", setting.file, setting.value);
            self.set(setting).map_err(|source| failed(step(), self.groups.plan.protection, source))
        })
    }

    /// Moves a process into the cgroup.
    pub(crate) fn add_process(&self, pid: i32) -> Result<(), Error> {
        group::write(self.directory.as_fd(), "cgroup.procs", &pid.to_string()).map_err(|source| {
            failed("move a process to its cgroup".to_owned(), self.groups.plan.protection, source)
        })
    }

    /// Kills everything in it: cgroup.kill, Linux 5.14.
    pub(crate) fn kill(&self) {
        let _ = group::write(self.directory.as_fd(), "cgroup.kill", "1");
    }

    /// The usage so far.
    pub(crate) fn used(&self) -> CgroupUsage {
        let has = |controller| self.groups.plan.controllers.contains(&controller);
        let read = |file: &str| group::read(self.directory.as_fd(), file).unwrap_or_default();
        let (before, refused) = (self.before.get().copied().unwrap_or_default(), self.groups.limit_events());
        let cpu = read("cpu.stat");
        let mut used = CgroupUsage {
            user_us: keyed(&cpu, "user_usec"),
            system_us: keyed(&cpu, "system_usec"),
            throttled_us: keyed(&cpu, "throttled_usec"),
            ..CgroupUsage::default()
        };
        if has(Controller::Memory) {
            let events = read("memory.events");
            used.peak_memory = number(&read("memory.peak"));
            used.oom_kills = keyed(&events, "oom_kill");
            used.over_own_limit =
                keyed(&events, "oom").is_some_and(|times| times > 0) || refused.memory > before.memory;
        }
        if has(Controller::Pids) {
            used.peak_pids = number(&read("pids.peak"));
            used.refused_pids = keyed(&read("pids.events"), "max").is_some_and(|times| times > 0)
                || refused.pids > before.pids;
        }
        if has(Controller::Io) {
            let io = read("io.stat");
            (used.read, used.written) = (Some(summed(&io, "rbytes")), Some(summed(&io, "wbytes")));
        }
        used
    }
}

impl AsFd for Leaf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        if !self.groups.group.remove_leaf(&self.name) {
            self.groups.left().push(std::mem::take(&mut self.name));
        }
    }
}

// Statistics of a cgroup, parsed from its files.

/// The usage of a cgroup at the end of its command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CgroupUsage {
    pub(crate) user_us: Option<u64>,
    pub(crate) system_us: Option<u64>,
    pub(crate) throttled_us: Option<u64>,
    pub(crate) peak_memory: Option<u64>,
    pub(crate) peak_pids: Option<u64>,
    pub(crate) read: Option<u64>,
    pub(crate) written: Option<u64>,
    /// Processes that the OOM killer killed, under any limit.
    pub(crate) oom_kills: Option<u64>,
    /// Whether memory reached the limit of the command or the session. If so, that limit caused the kills.
    pub(crate) over_own_limit: bool,
    /// Whether fork(2) or clone(2) failed because of too many processes.
    pub(crate) refused_pids: bool,
}

impl CgroupUsage {
    /// Copies the known values into `usage`.
    pub(crate) fn enter(&self, usage: &mut Usage) {
        usage.user_us = self.user_us.unwrap_or(usage.user_us);
        usage.system_us = self.system_us.unwrap_or(usage.system_us);
        usage.peak_memory_bytes = self.peak_memory;
        usage.peak_pids = self.peak_pids;
        usage.io_read_bytes = self.read;
        usage.io_write_bytes = self.written;
        usage.throttled_us = self.throttled_us;
        usage.oom_kills = self.oom_kills;
    }

    /// Whether the OOM killer killed a process, under any limit.
    pub(crate) fn was_killed_for_memory(&self) -> bool {
        self.oom_kills.is_some_and(|kills| kills > 0)
    }

    /// Whether the memory limit of the policy or the command caused that.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        self.over_own_limit && self.was_killed_for_memory()
    }
}

/// How often the own limits of a cgroup took effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitEvents {
    pub(crate) memory: u64,
    pub(crate) pids: u64,
}

impl LimitEvents {
    /// From memory.events.local.
    pub(crate) fn memory(events: &str) -> u64 {
        keyed(events, "oom").unwrap_or_default()
    }

    /// From pids.events.local.
    pub(crate) fn pids(events: &str) -> u64 {
        keyed(events, "max").unwrap_or_default()
    }
}

/// The value of a key in a flat keyed file, with lines such as `oom_kill 3`.
pub(crate) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The value of a file with one number.
pub(crate) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The sum of a field of io.stat over all devices, with lines such as `8:0 rbytes=1 wbytes=2`.
pub(crate) fn summed(text: &str, key: &str) -> u64 {
    let fields = text.lines().flat_map(|line| line.split_whitespace().skip(1));
    let values = fields.filter_map(|field| field.strip_prefix(key)?.strip_prefix('=')?.parse::<u64>().ok());
    values.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        let events = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\n";
        assert_eq!((keyed(events, "oom"), keyed(events, "oom_kill")), (Some(2), Some(3)));
        assert_eq!((keyed(events, "oom_"), keyed("", "oom")), (None, None));
        assert_eq!(
            (LimitEvents::memory(events), LimitEvents::pids("max 7\n"), LimitEvents::pids("")),
            (2, 7, 0)
        );
        assert_eq!((number("4096\n"), number("max\n"), number("")), (Some(4096), None, None));
        let stat = "8:0 rbytes=10 wbytes=5 rios=1\n253:1 rbytes=1 wbytes=2\n8:16 \n";
        assert_eq!((summed(stat, "rbytes"), summed(stat, "wbytes"), summed("", "rbytes")), (11, 7, 0));
    }

    #[test]
    fn what_is_not_known_takes_nothing_away() {
        let mut usage = Usage { user_us: 5, system_us: 6, ..Usage::default() };
        CgroupUsage { user_us: Some(9), peak_pids: Some(3), ..CgroupUsage::default() }.enter(&mut usage);
        assert_eq!((usage.user_us, usage.system_us, usage.peak_pids, usage.oom_kills), (9, 6, Some(3), None));
    }

    #[test]
    fn somebody_else_s_shortage_is_no_limit() {
        let killed = CgroupUsage { oom_kills: Some(1), ..CgroupUsage::default() };
        assert!(!killed.ran_out_of_memory(), "the host was short, not the policy");
        assert!(CgroupUsage { over_own_limit: true, ..killed }.ran_out_of_memory());
        assert!(
            !CgroupUsage { over_own_limit: true, oom_kills: Some(0), ..CgroupUsage::default() }
                .ran_out_of_memory()
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_reading_panic(text in ".{0,60}", key in "[a-z_]{0,8}") {
            let _ = (keyed(&text, &key), number(&text), summed(&text, &key));
        }
    }
}
