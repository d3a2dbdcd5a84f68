//! The zygote of a session, its workers, and their end.

pub(crate) mod common_init;
mod set_up;
pub(crate) mod worker;
mod workers;

pub(crate) use set_up::SetUp;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kennel_helper::control::ZygoteOrder;
use kennel_helper::wire::Field;

use crate::launch::cgroup::Groups;
use crate::launch::control::Arrival;
use crate::launch::inside::{CommandInit, PATIENCE, WaitingInit};
use crate::launch::prepared::Prepared;
use crate::launch::supervisor::Supervisor;
use crate::plan::compile::CompileInputs;
use crate::protect::recheck;
use crate::protect::watch::Watch;
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::report::error::Error;
use crate::session::files::view_fd::ViewFd;
use crate::session::log::SessionLog;
use crate::session::log::stats::Stats;
use crate::session::mount_state::{SessionMounts, Settling};
use crate::session::processes;
use crate::session::zygote::common_init::CommonInit;
use crate::session::zygote::worker::{ReadyWorkers, Worker};
use crate::sys::locked;

/// How often to check whether killed commands are gone.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The longest time between two looks at the processes of a session that ends.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// How long after SIGTERM the processes of a session get SIGHUP. Interactive shells ignore SIGTERM, and a
/// program that only handles SIGTERM has this time for it.
const BEFORE_HANGUP: Duration = Duration::from_millis(200);

/// How long the processes of a session may take to end after SIGTERM. Then they are killed.
const MOMENT: Duration = Duration::from_secs(1);

/// The zygote of a session, with the workers that it has forked.
pub(crate) struct Zygote {
    prepared: Arc<Prepared>,
    init: WaitingInit,
    /// The cgroups of the session and its workers, if the policy needs any.
    groups: Option<Arc<Groups>>,
    /// What the session enforces for all commands, as far as the zygote has set it up.
    enforcement: Enforcement,
    mounts: SessionMounts,
    /// Ordered workers that have no command yet, oldest first.
    waiting: Mutex<VecDeque<Worker>>,
    /// The init of all commands, if they share their processes.
    common_init: Option<CommonInit>,
    /// Ended commands that left background processes.
    background: Mutex<Vec<CommandInit>>,
    ready_workers: ReadyWorkers,
    /// Whether this program ended the session.
    is_closed: AtomicBool,
    /// Whether its processes were asked to end.
    is_terminated: AtomicBool,
    log: Arc<SessionLog>,
    /// Answers for the seccomp filter of all commands, unless each command has a filter with a listener.
    supervisor: Option<Supervisor>,
}

/// Shows names of variables only: the policy and the environment may hold secrets, and a plan is long.
impl fmt::Debug for Zygote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zygote")
            .field("init", &self.init)
            .field("variables", &self.prepared.compiled.commands.environment)
            .finish_non_exhaustive()
    }
}

impl Zygote {
    /// A zygote that has its plan, and no worker yet.
    pub(crate) fn new(
        init: WaitingInit,
        prepared: Arc<Prepared>,
        groups: Option<Arc<Groups>>,
        mounts: SessionMounts,
        ready_workers: usize,
        log: Arc<SessionLog>,
    ) -> Self {
        Self {
            // `mounts` has the notes of the plan, which change with the host's files.
            enforcement: prepared.compiled.enforcement.without_notes(),
            prepared,
            init,
            groups,
            mounts,
            waiting: Mutex::default(),
            common_init: None,
            background: Mutex::default(),
            ready_workers: ReadyWorkers::new(ready_workers),
            is_closed: AtomicBool::new(false),
            is_terminated: AtomicBool::new(false),
            log,
            supervisor: None,
        }
    }

    pub(crate) fn prepared(&self) -> &Arc<Prepared> {
        &self.prepared
    }

    /// What the plan was compiled from.
    pub(crate) fn inputs(&self) -> &CompileInputs {
        self.mounts.inputs()
    }

    /// Its pidfd.
    pub(crate) fn pidfd(&self) -> Option<&Arc<OwnedFd>> {
        self.init.pidfd()
    }

    /// What the session enforces for its next command.
    pub(crate) fn enforcement(&self) -> Enforcement {
        let mut enforcement = self.enforcement.clone();
        self.mounts.report(&mut enforcement);
        enforcement
    }

    /// Whether commands have a network of their own.
    pub(crate) fn has_network_namespace(&self) -> bool {
        let entry = self.enforcement.get(Protection::NetworkNamespace);
        entry.is_some_and(|entry| entry.state == State::Enforced)
    }

    /// Whether commands share their processes.
    pub(crate) fn is_shared(&self) -> bool {
        self.common_init.is_some()
    }

    /// The view of all commands, if they share their mounts.
    pub(crate) fn shared_view(&self) -> Option<&Arc<ViewFd>> {
        self.common_init.as_ref().map(CommonInit::view)
    }

    /// Paths that are protected now.
    pub(crate) fn watches(&self) -> Arc<[Watch]> {
        self.mounts.watches()
    }

    /// Keeps commands from starting until the result is dropped. Waits a moment for killed commands to be
    /// gone; `None` if a command still runs then.
    pub(crate) async fn settle(&self, patience: Duration) -> Option<Settling> {
        let begun = Instant::now();
        loop {
            self.drop_ended_background();
            match self.mounts.settle() {
                Some(settling) => return Some(settling),
                None if begun.elapsed() > patience => return None,
                None => tokio::time::sleep(CHECK_INTERVAL).await,
            }
        }
    }

    /// Takes no more commands. Returns whether it did until now.
    pub(crate) fn close(&self) -> bool {
        !self.is_closed.swap(true, Relaxed)
    }

    /// Whether this program ended the session.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Whether no more workers will come: this program ended the session, or the zygote is gone. A ready
    /// zygote sends nothing, so any message is the end.
    pub(crate) fn is_gone(&self) -> bool {
        let is_silent = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.is_closed() || !self.init.receive().as_ref().is_err_and(is_silent) || self.init.has_ended()
    }

    /// Whether a command could run now. Takes only the first steps of one.
    pub(crate) fn takes_commands(&self) -> bool {
        !self.is_gone() && self.mounts.enter().is_ok()
    }

    /// The error for a lost worker: the session has ended, or somebody killed the worker.
    pub(crate) fn lost(&self) -> Error {
        if self.is_gone() { Error::SessionEnded } else { Error::Lost }
    }

    /// Runs `act`, which waits for the zygote. If the zygote ends meanwhile, this fails.
    async fn unless_gone<T>(&self, act: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            biased;
            done = act => done,
            () = self.init.ended() => Err(Error::SessionEnded),
        }
    }

    /// Waits until the zygote is gone, for whatever reason.
    pub(crate) async fn closed(&self) {
        loop {
            match self.init.next().await {
                Ok(Arrival::Closed) => return,
                Ok(_) => {}
                // This program has no free descriptor to watch it with.
                Err(_) => tokio::time::sleep(PATIENCE).await,
            }
        }
    }

    /// Asks everything that commands have started to end, and waits a moment until it has. Programs remove
    /// their locks then.
    pub(crate) async fn terminate(&self) {
        if self.is_terminated.swap(true, Relaxed) || !self.has_commands() {
            return;
        }
        let begun = Instant::now();
        for (signal, end) in [(libc::SIGTERM, BEFORE_HANGUP), (libc::SIGHUP, MOMENT)] {
            let mut order = Vec::new();
            ZygoteOrder::Signal { number: signal.cast_unsigned() }.put(&mut order);
            if self.init.send(&order, []).is_err() {
                return;
            }
            let mut pause = CHECK_INTERVAL;
            while begun.elapsed() < end {
                if !self.has_commands() || !processes::is_any_left(&self.init).await {
                    return;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Whether commands run, or have left processes.
    fn has_commands(&self) -> bool {
        self.drop_ended_background();
        self.log.counts().running() > 0 || !self.background().is_empty()
    }

    /// Kills the zygote and with it every process of the session.
    pub(crate) fn end(&self) {
        // If the kill fails, `gone` reports what is left.
        let _ = self.init.kill();
        self.waiting().clear();
        self.background().clear();
        if let Some(groups) = &self.groups {
            groups.end();
        }
    }

    /// Waits until every process is gone.
    pub(crate) async fn gone(&self) {
        self.init.gone().await;
        if let Some(groups) = &self.groups {
            groups.gone().await;
        }
    }

    /// Waits until a commit is done. Then undoes changes at protected paths that no command has undone yet.
    /// Call it when every process is gone.
    pub(crate) async fn undo(&self) {
        while self.mounts.is_committing() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        // Without a hold, every command was undone at its end. What is there now belongs to the user.
        if self.mounts.is_held() {
            recheck::log(&recheck::undo(&self.mounts.watches()));
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.drop_ended_background();
        let mut waiting = self.waiting();
        let counts = self.log.counts();
        let is_ready = |worker: &mut Worker| {
            // The next command skips a failed worker.
            worker.is_ready() || (worker.process_pending(&self.prepared, counts).is_ok() && worker.is_ready())
        };
        let ready = waiting.iter_mut().map(|worker| usize::from(is_ready(worker))).sum();
        drop(waiting);
        counts.stats(ready, self.background().len())
    }

    /// Keeps the background processes of a command until the session ends.
    pub(crate) fn keep(&self, init: CommandInit) {
        self.drop_ended_background();
        if !self.init.has_ended() {
            self.background().push(init);
        }
    }

    /// Drops background sandboxes that have ended. As long as one is kept, Kennel treats every change at a
    /// protected path as its doing.
    fn drop_ended_background(&self) {
        self.background().retain(|init| !init.has_ended());
    }

    fn background(&self) -> MutexGuard<'_, Vec<CommandInit>> {
        locked(&self.background)
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Worker>> {
        locked(&self.waiting)
    }
}
