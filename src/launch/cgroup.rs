//! Cgroups (cgroup v2) with the limits of commands: make, enter, read and remove them. `plan::cgroup` decides
//! about the limits.
//!
//! ```text
//! parent              delegated to this user; Kennel enables controllers in it
//! ├─ kennel-host      this program, if it was alone in `parent`, where controllers need an empty cgroup
//! └─ kennel-<random>  one session, or all one-shots of one sandbox; locked while its owner lives
//!    ├─ zygote        the zygote of a session
//!    └─ 1, 2, …       each worker with its command
//! ```
//!
//! No cgroup stays behind. A leaf is removed after its command; if it is still in use then, together with a
//! later one. The rest is removed at the end: by this program, by the reaper if this program dies, and by the
//! next program that makes a cgroup if the reaper dies too.

pub(crate) mod group;
pub(crate) mod leaf;
pub(crate) mod reaper;

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::host::cgroups::{CgroupSetting, Controller};
use crate::launch::cgroup::group::{LockedGroup, ParentCgroup};
use crate::launch::cgroup::leaf::{Leaf, LimitEvents};
use crate::launch::cgroup::reaper::Reaper;
use crate::launch::image::Images;
use crate::plan::cgroup::CgroupTree;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::remedy::{Remedy, SettingKey, remedy};
use crate::sys::locked;

/// The name of the leaf for the zygote.
const ZYGOTE: &str = "zygote";

/// The name of the leaf for all commands that share their processes.
const SHARED: &str = "shared";

/// How long to wait until a killed cgroup is empty.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often to try to remove a killed cgroup.
const PAUSE: Duration = Duration::from_millis(2);

/// The cgroups of one session or one sandbox. Dropping them kills their processes and removes them.
#[derive(Debug)]
pub(crate) struct Groups {
    plan: Arc<CgroupTree>,
    parent: ParentCgroup,
    group: LockedGroup,
    reaper: Mutex<Option<Reaper>>,
    next: AtomicU64,
    /// Leaves to remove later, because they were still in use.
    left: Mutex<Vec<String>>,
}

impl Groups {
    /// Makes the cgroup, and starts a reaper for it. Removes cgroups that other programs have left.
    ///
    /// # Errors
    /// What the kernel refuses, with the path.
    pub(crate) fn make(plan: &Arc<CgroupTree>, images: &Images) -> Result<Arc<Self>, Error> {
        let failed = |what: &str| {
            let step = format!("{what} {}", plan.parent.display());
            move |source| failed(step, plan.protection, source)
        };
        let parent = ParentCgroup::open(&plan.parent).map_err(failed("open the cgroup"))?;
        parent.sweep();
        if plan.leave {
            parent.move_self_to_child().map_err(failed("move this program to a child cgroup of"))?;
        }
        parent.enable_controllers(&plan.enable).map_err(failed("enable controllers in"))?;
        let (group, reaper) = loop {
            let name = group::random_name().map_err(failed("name a cgroup in"))?;
            // Start the reaper first: from here on the cgroup is removed whatever happens to this program.
            let reaper = Reaper::start(images, plan, &parent, &name)?;
            match parent.make(&name) {
                // Practically impossible for random names.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => break (made.map_err(failed("make a cgroup in"))?, reaper),
            }
        };
        let groups = Self {
            plan: Arc::clone(plan),
            parent,
            group,
            reaper: Mutex::new(Some(reaper)),
            next: AtomicU64::new(1),
            left: Mutex::default(),
        };
        let set = || {
            groups.group.enable_controllers(&plan.controllers)?;
            plan.shared.iter().try_for_each(|setting| groups.group.set(setting))
        };
        set().map_err(failed("set the limits of a cgroup in"))?;
        Ok(Arc::new(groups))
    }

    /// The leaf of a zygote, without limits of its own.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub(crate) fn zygote(self: &Arc<Self>) -> Result<Leaf, Error> {
        self.make_leaf(ZYGOTE.to_owned(), &[]).map_err(self.leaf_error())
    }

    /// The leaf of commands that share their processes, without limits of its own.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub(crate) fn shared(self: &Arc<Self>) -> io::Result<Leaf> {
        self.make_leaf(SHARED.to_owned(), &[])
    }

    /// A leaf for a command, with the limits for each command.
    ///
    /// # Errors
    /// Those of mkdir(2) and of writing the limits.
    pub(crate) fn leaf(self: &Arc<Self>) -> io::Result<Leaf> {
        self.sweep();
        let name = self.next.fetch_add(1, Relaxed).to_string();
        self.make_leaf(name, &self.plan.leaf)
    }

    /// Like [`leaf`](Self::leaf), with an error for the caller.
    pub(crate) fn only_leaf(self: &Arc<Self>) -> Result<Leaf, Error> {
        self.leaf().map_err(self.leaf_error())
    }

    fn leaf_error(&self) -> impl FnOnce(io::Error) -> Error {
        let step = format!("make a cgroup for a command in {}", self.plan.parent.display());
        let protection = self.plan.protection;
        move |source| failed(step, protection, source)
    }

    fn make_leaf(self: &Arc<Self>, name: String, settings: &[CgroupSetting]) -> io::Result<Leaf> {
        let directory = self.group.make_leaf(&name)?;
        let leaf = Leaf::new(Arc::clone(self), name, directory);
        settings.iter().try_for_each(|setting| leaf.set(setting))?;
        Ok(leaf)
    }

    /// Removes leaves that were still in use.
    fn sweep(&self) {
        self.left().retain(|name| !self.group.remove_leaf(name));
    }

    fn left(&self) -> MutexGuard<'_, Vec<String>> {
        locked(&self.left)
    }

    /// How often the limits for all commands together took effect so far.
    pub(crate) fn limit_events(&self) -> LimitEvents {
        let read = |file: &str| group::read(self.group.as_fd(), file);
        let has = |controller| self.plan.controllers.contains(&controller);
        let mut events = LimitEvents::default();
        if has(Controller::Memory) {
            events.memory = LimitEvents::memory(&read("memory.events.local").unwrap_or_default());
        }
        if has(Controller::Pids) {
            // Linux before 6.11 has only this file. It counts events at the cgroup of the forking process.
            let text = read("pids.events.local").or_else(|_| read("pids.events"));
            events.pids = LimitEvents::pids(&text.unwrap_or_default());
        }
        events
    }

    /// Kills everything in the cgroup: cgroup.kill of cgroups(7).
    pub(crate) fn kill(&self) {
        // Linux before 5.14 has no such file; there the end of each init suffices.
        let _ = group::write(self.group.as_fd(), "cgroup.kill", "1");
    }

    /// Kills everything in the cgroup and lets the reaper remove it, even while others use this value.
    pub(crate) fn end(&self) {
        self.kill();
        self.leave_to_reaper();
    }

    /// Leaves the removal to the reaper, which waits for the lock.
    fn leave_to_reaper(&self) {
        self.group.unlock();
        drop(self.take_reaper());
    }

    fn take_reaper(&self) -> Option<Reaper> {
        locked(&self.reaper).take()
    }

    /// Kills everything in the cgroup and waits up to a second until it is removed. After that the reaper
    /// continues.
    pub(crate) async fn gone(&self) {
        self.kill();
        let removed = async {
            while !self.parent.remove(&self.group) {
                tokio::time::sleep(PAUSE).await;
            }
        };
        if tokio::time::timeout(PATIENCE, removed).await.is_err() {
            tracing::warn!("a killed cgroup is not empty: a process in it is blocked in the kernel");
        }
        self.group.unlock();
        if let Some(reaper) = self.take_reaper() {
            reaper.gone().await;
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.kill();
        self.parent.remove(&self.group);
        // If it is still in use, the reaper continues.
        self.leave_to_reaper();
    }
}

/// The error for a failed operation on a cgroup.
fn failed(step: String, protection: Protection, source: io::Error) -> Error {
    let remedy: Remedy = match source.raw_os_error() {
        None if source.kind() == io::ErrorKind::ResourceBusy => {
            "stop other programs of this user from locking cgroups there".into()
        }
        Some(libc::EBUSY) => "move all processes of the cgroup to cgroups below it".into(),
        Some(libc::EAGAIN) => {
            "raise cgroup.max.descendants and cgroup.max.depth of the cgroups above it".into()
        }
        _ => remedy![
            "name another cgroup with ",
            SettingKey::Cgroup,
            ", or use none: ",
            SettingKey::Cgroup.to("off"),
        ],
    };
    Error::Step { step, protection, source, remedy: Some(remedy) }
}
