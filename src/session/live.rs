//! A running session: its zygote, its workers, its numbers and its end.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::{fmt, io};

use kennel_helper::control::ZygoteOrder;
use kennel_helper::wire::Field;
use procfs::{Current, MemoryPressure};

use crate::audit::record::Record;
use crate::audit::trail::Trail;
use crate::command::detached::DetachedCommands;
use crate::command::source::{Entered, Membership, ReadyWorker, Turn, WorkerSource, Workers};
use crate::launch::cgroup::Groups;
use crate::launch::control::Arrival;
use crate::launch::inside::{Inside, PATIENCE};
use crate::launch::prepared::Prepared;
use crate::launch::supervisor::Supervisor;
use crate::network::namespace_socket::NamespaceSockets;
use crate::network::publish::Publishing;
use crate::network::serving::{BoxFuture, Serving, Witness};
use crate::overlay::ledger::SharedLedger;
use crate::plan::Section;
use crate::protect::recheck;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::report::error::overlay::OverlayError;
use crate::report::published::PublishedPort;
use crate::session::mount_state::{SessionMounts, Settling};
use crate::session::processes;
use crate::session::shared::Shared;
use crate::session::stats::{Counts, Stats, Using};
use crate::session::view_fd::ViewFd;
use crate::session::worker::Worker;
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

/// A session that has a handle or a running command.
pub(crate) struct Live {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) zygote: Inside,
    /// The cgroups of the session and its workers, if the policy needs any.
    pub(crate) groups: Option<Arc<Groups>>,
    /// What the session enforces for all commands.
    pub(crate) enforcement: Enforcement,
    pub(crate) mounts: SessionMounts,
    /// Ordered workers that have no command yet, oldest first.
    pub(crate) waiting: Mutex<VecDeque<Worker>>,
    /// The init of all commands, if they share their processes.
    pub(crate) shared: Option<Shared>,
    /// The view for file calls, once the first call has made it.
    pub(crate) view: Mutex<Option<Arc<ViewFd>>>,
    /// What connects to servers of the commands, once the first connection has made it.
    pub(crate) sockets: tokio::sync::Mutex<Option<Arc<NamespaceSockets>>>,
    /// The published ports.
    pub(crate) published: Publishing,
    /// Sandboxes of ended commands that left background processes.
    pub(crate) background: Mutex<Vec<Inside>>,
    pub(crate) ready_workers: ReadyWorkers,
    pub(crate) ended: AtomicBool,
    /// Whether its processes were asked to end.
    pub(crate) terminated: AtomicBool,
    pub(crate) counts: Arc<Counts>,
    /// The changes of an overlay.
    pub(crate) ledger: Mutex<Option<SharedLedger>>,
    /// The proxy, if the policy needs one.
    pub(crate) proxy: Option<Serving>,
    pub(crate) trail: Arc<Trail>,
    pub(crate) span: tracing::Span,
    /// The commands that stay.
    pub(crate) detached: Arc<DetachedCommands>,
    /// Answers for the seccomp filter of all commands, unless each command has a filter with a listener.
    pub(crate) supervisor: Option<Supervisor>,
}

/// Shows numbers and names of variables only: the policy and the environment may hold secrets, and a plan is
/// long.
impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live")
            .field("zygote", &self.zygote)
            .field("counts", &self.counts)
            .field("variables", &self.prepared.compiled.environment)
            .finish_non_exhaustive()
    }
}

impl Live {
    /// The changes of the overlay.
    ///
    /// # Errors
    /// The session has no overlay, or its changes were discarded.
    pub(crate) fn ledger(&self) -> Result<SharedLedger, OverlayError> {
        locked(&self.ledger).clone().ok_or(OverlayError::None)
    }

    pub(crate) fn forget_changes(&self) {
        locked(&self.ledger).take();
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

    pub(crate) fn prepared(&self) -> &Arc<Prepared> {
        &self.prepared
    }

    pub(crate) fn enforcement(&self) -> Enforcement {
        let mut enforcement = self.enforcement.clone();
        self.mounts.report(&mut enforcement);
        enforcement
    }

    /// Takes no more commands.
    pub(crate) fn close(&self) {
        if !self.ended.swap(true, Relaxed) {
            tracing::info!(parent: &self.span, "ends");
            // The session ends even if this record cannot be written.
            let _ = self.trail.write(None, || Record::SessionEnd {});
        }
        self.published.end();
    }

    /// Asks everything that commands have started to end, and waits a moment until it has. Programs remove
    /// their locks then.
    pub(crate) async fn terminate(&self) {
        if self.terminated.swap(true, Relaxed) || !self.has_commands() {
            return;
        }
        let begun = Instant::now();
        for (signal, end) in [(libc::SIGTERM, BEFORE_HANGUP), (libc::SIGHUP, MOMENT)] {
            let mut order = Vec::new();
            ZygoteOrder::Signal { number: signal.cast_unsigned() }.put(&mut order);
            if self.zygote.send(&order, []).is_err() {
                return;
            }
            let mut pause = CHECK_INTERVAL;
            while begun.elapsed() < end {
                if !self.has_commands() || !processes::has_some(&self.zygote).await {
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
        self.counts.running.load(Relaxed) > 0 || !self.background().is_empty()
    }

    /// Kills the zygote and with it every process of the session.
    pub(crate) fn end(&self) {
        self.close();
        // If the kill fails, `gone` reports what is left.
        let _ = self.zygote.kill();
        if let Some(proxy) = &self.proxy {
            proxy.end();
        }
        self.waiting().clear();
        self.background().clear();
        self.view().take();
        self.forget_sockets();
        if let Some(groups) = &self.groups {
            groups.end();
        }
    }

    /// Waits until every process is gone, and a commit is done. Then undoes changes at protected paths that
    /// no command has undone yet, before the caller uses the files.
    pub(crate) async fn gone(&self) {
        self.zygote.gone().await;
        if let Some(groups) = &self.groups {
            groups.gone().await;
        }
        if let Some(proxy) = &self.proxy {
            proxy.gone().await;
        }
        while self.mounts.is_committing() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        // Without a hold, every command was undone at its end. What is there now belongs to the user.
        if self.mounts.is_held() {
            recheck::log(&recheck::undo(&self.mounts.watches()));
        }
    }

    /// Whether this program ended the session.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Whether no more workers will come: this program ended the session, or the zygote is gone. A ready
    /// zygote sends nothing, so any message is the end.
    pub(crate) fn is_gone(&self) -> bool {
        let is_silent = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.has_ended() || !self.zygote.receive().as_ref().is_err_and(is_silent) || self.zygote.has_ended()
    }

    /// Whether a command could run now. Takes only the first steps of one.
    pub(crate) fn takes_commands(&self) -> bool {
        !self.is_gone() && self.mounts.enter().is_ok()
    }

    /// Runs `act`, which waits for the zygote. If the zygote ends meanwhile, this fails.
    pub(crate) async fn unless_gone<T>(
        &self,
        act: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            done = act => done,
            () = self.zygote.ended() => Err(Error::SessionEnded),
        }
    }

    /// Waits until the zygote is gone, for whatever reason.
    pub(crate) async fn closed(&self) {
        loop {
            match self.zygote.next().await {
                Ok(Arrival::Closed) => return,
                Ok(_) => {}
                // This program has no free descriptor to watch it with.
                Err(_) => tokio::time::sleep(PATIENCE).await,
            }
        }
    }

    /// The error for a lost worker: the session has ended, or somebody killed the worker.
    pub(crate) fn lost(&self) -> Error {
        if self.is_gone() { Error::SessionEnded } else { Error::Lost }
    }

    /// Collects what the proxy refuses, if there is a proxy.
    pub(crate) fn witness(&self) -> Option<Witness> {
        let proxy = self.proxy.as_ref().filter(|_| !self.has_ended())?;
        proxy.renew();
        Some(proxy.witness())
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Takes a worker back that waits for another command.
    pub(crate) fn give_back(&self, mut inside: Inside) {
        let Some(shared) = self.shared.as_ref().filter(|_| !self.has_ended()) else { return };
        let mut waiting = self.waiting();
        if waiting.len() < self.ready_workers.target() {
            inside.set_free();
            waiting.push_back(shared.worker(inside));
        } else {
            // It ends by itself when its socket closes.
            inside.set_over();
        }
    }

    /// Keeps the background processes of a command until the session ends.
    pub(crate) fn keep(&self, inside: Inside) {
        self.drop_ended_background();
        if !self.zygote.has_ended() {
            self.background().push(inside);
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.drop_ended_background();
        let mut waiting = self.waiting();
        let is_ready = |worker: &mut Worker| {
            // The next command skips a failed worker.
            worker.is_ready() || {
                worker.take_in_pending(&self.prepared, &self.counts).is_ok() && worker.is_ready()
            }
        };
        let ready = waiting.iter_mut().map(|worker| usize::from(is_ready(worker))).sum();
        drop(waiting);
        self.counts.stats(ready, self.background().len())
    }

    pub(crate) fn mounts(&self) -> &SessionMounts {
        &self.mounts
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, Option<Arc<ViewFd>>> {
        locked(&self.view)
    }

    pub(crate) fn waiting(&self) -> MutexGuard<'_, VecDeque<Worker>> {
        locked(&self.waiting)
    }

    fn background(&self) -> MutexGuard<'_, Vec<Inside>> {
        locked(&self.background)
    }

    /// Drops background sandboxes that have ended. As long as one is kept, Kennel treats every change at a
    /// protected path as its doing.
    pub(crate) fn drop_ended_background(&self) {
        self.background().retain(|inside| !inside.has_ended());
    }
}

/// How long a reading of the memory pressure is valid, in milliseconds.
const PRESSURE_VALID_MS: u64 = 1000;

/// The memory pressure from which on memory is short: the percentage of the last ten seconds in which some
/// task waited for memory (`avg10` of `/proc/pressure/memory`).
const SHORT_MEMORY: f32 = 10.0;

/// How many workers to keep ready: as many as the caller asked for, but half as many while memory is short.
#[derive(Debug)]
pub(crate) struct ReadyWorkers {
    wanted: usize,
    begun: Instant,
    /// When to read the pressure again, in milliseconds since `begun`.
    due_ms: AtomicU64,
    is_short: AtomicBool,
}

impl ReadyWorkers {
    pub(crate) fn new(wanted: usize) -> Self {
        Self { wanted, begun: Instant::now(), due_ms: AtomicU64::new(0), is_short: AtomicBool::new(false) }
    }

    /// How many workers shall be ready now.
    pub(crate) fn target(&self) -> usize {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now >= self.due_ms.load(Relaxed) {
            self.due_ms.store(now.saturating_add(PRESSURE_VALID_MS), Relaxed);
            // Without pressure information (CONFIG_PSI), memory never counts as short.
            let pressure = MemoryPressure::current().map_or(0.0, |pressure| pressure.some.avg10);
            self.is_short.store(pressure >= SHORT_MEMORY, Relaxed);
        }
        reduced(self.wanted, self.is_short.load(Relaxed))
    }
}

fn reduced(wanted: usize, is_short: bool) -> usize {
    if is_short { wanted / 2 } else { wanted }
}

impl WorkerSource for Live {
    fn prepared(&self) -> Arc<Prepared> {
        Arc::clone(&self.prepared)
    }

    fn turn(self: Arc<Self>) -> BoxFuture<'static, Result<Turn, Error>> {
        Box::pin(async move {
            let (prepared, entered) = (Arc::clone(&self.prepared), Some(self.enter().await?));
            Ok(Turn { prepared, workers: self as Arc<dyn Workers>, entered })
        })
    }

    fn detached(&self) -> Option<&Arc<DetachedCommands>> {
        Some(&self.detached)
    }

    fn is_shared(&self) -> bool {
        self.shared.is_some()
    }
}

impl Workers for Live {
    fn trail(&self) -> Arc<Trail> {
        Arc::clone(&self.trail)
    }

    fn span(&self) -> Option<tracing::Id> {
        self.span.id()
    }

    fn worker<'s>(
        &'s self,
        _: &'s Prepared,
        _: &'s Arc<Trail>,
        entered: Option<Entered>,
        own_steps: Option<&'s Section>,
        fail_fast: bool,
    ) -> BoxFuture<'s, Result<ReadyWorker, Error>> {
        Box::pin(self.take_worker(entered, own_steps, fail_fast))
    }

    fn has_others(&self) -> Result<bool, Error> {
        if self.has_ended() { Err(Error::SessionEnded) } else { Ok(true) }
    }

    fn join(self: Arc<Self>, is_keeper: bool) -> Option<Box<dyn Membership>> {
        let guard = CountedCommand::new(Arc::clone(&self), is_keeper);
        self.refill();
        Some(Box::new(guard))
    }
}

/// Counts a command as running in its session for as long as it exists.
#[derive(Debug)]
pub(crate) struct CountedCommand {
    live: Arc<Live>,
    _using: Option<Using>,
}

impl CountedCommand {
    pub(crate) fn new(live: Arc<Live>, is_keeper: bool) -> Self {
        live.counts().running.fetch_add(1, Relaxed);
        let _using = (!is_keeper).then(|| Using::new(&live.counts));
        Self { live, _using }
    }
}

impl Membership for CountedCommand {
    fn enforcement(&self) -> Enforcement {
        self.live.enforcement()
    }

    fn refilled(&self, took_us: u64) {
        self.live.counts().refilled(took_us);
    }

    fn keep(&self, inside: Inside) {
        self.live.keep(inside);
    }

    fn published(&self) -> Vec<PublishedPort> {
        self.live.published.ports()
    }

    fn give_back(&self, inside: Inside) {
        self.live.give_back(inside);
    }

    fn witness(&self) -> Option<Witness> {
        self.live.witness()
    }

    fn session_has_ended(&self) -> bool {
        self.live.has_ended()
    }
}

impl Drop for CountedCommand {
    fn drop(&mut self) {
        let counts = self.live.counts();
        counts.running.fetch_sub(1, Relaxed);
        counts.served.fetch_add(1, Relaxed);
        // Its worker may not have come back.
        if self.live.shared.is_some() && !self.live.has_ended() {
            self.live.refill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_workers_are_kept_while_memory_is_short() {
        assert_eq!([reduced(4, false), reduced(4, true), reduced(1, true), reduced(0, false)], [4, 2, 0, 0]);
    }

    #[test]
    fn the_pressure_is_not_read_for_every_command() {
        let workers = ReadyWorkers::new(3);
        workers.target();
        workers.is_short.store(true, Relaxed);
        assert_eq!(workers.target(), 1, "the reading of less than a second ago is still valid");
    }
}
