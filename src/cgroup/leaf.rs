//! The group of one command: its own limits, what was used in it, and its end.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, OnceLock},
};

use super::{
    Controller, Groups, Setting, Used, failed, group,
    usage::{Refused, keyed, number, summed},
};
use crate::Error;

/// The group of one worker and its command, or of a zygote. Dropping it removes it as soon as nothing is in it any more.
#[derive(Debug)]
pub(crate) struct Leaf {
    groups: Arc<Groups>,
    name: String,
    directory: OwnedFd,
    /// What all commands together had been refused when this one began; nothing where that was not said.
    before: OnceLock<Refused>,
}

impl Leaf {
    pub(super) fn new(groups: Arc<Groups>, name: String, directory: OwnedFd) -> Self {
        Self { groups, name, directory, before: OnceLock::new() }
    }

    /// Sets one of its limits.
    pub(crate) fn set(&self, setting: &Setting) -> io::Result<()> {
        group::set(self.directory.as_fd(), setting)
    }

    /// Its command begins: of what is refused to all together from here on it may be told.
    pub(crate) fn begin(&self) {
        let _ = self.before.set(self.groups.refused());
    }

    /// Sets limits of its command alone.
    ///
    /// # Errors
    /// Those of its files.
    pub(crate) fn tighten(&self, settings: &[Setting]) -> Result<(), Error> {
        settings.iter().try_for_each(|setting| {
            let step = || format!("set {} of the command's cgroup to {}", setting.file, setting.value);
            self.set(setting).map_err(|source| failed(step(), self.groups.plan.protection, source))
        })
    }

    /// Moves a process into it.
    pub(crate) fn take_in(&self, pid: i32) -> Result<(), Error> {
        group::write(self.directory.as_fd(), "cgroup.procs", &pid.to_string()).map_err(|source| {
            failed("move a process to its cgroup".to_owned(), self.groups.plan.protection, source)
        })
    }

    /// Kills everything in it. Linux 5.14.
    pub(crate) fn kill(&self) {
        let _ = group::write(self.directory.as_fd(), "cgroup.kill", "1");
    }

    /// What was used in it so far.
    pub(crate) fn used(&self) -> Used {
        let has = |controller| self.groups.plan.controllers.contains(&controller);
        let read = |file: &str| group::read(self.directory.as_fd(), file).unwrap_or_default();
        let (before, refused) = (self.before.get().copied().unwrap_or_default(), self.groups.refused());
        let cpu = read("cpu.stat");
        let mut used = Used {
            user_us: keyed(&cpu, "user_usec"),
            system_us: keyed(&cpu, "system_usec"),
            throttled_us: keyed(&cpu, "throttled_usec"),
            ..Used::default()
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
