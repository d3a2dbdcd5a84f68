//! The zygote of a session, from its first step to its end, and what the session knows of itself.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::{fmt, io};

use procfs::{Current, MemoryPressure};

use crate::audit::record::Record;
use crate::audit::trail::Trail;
use crate::command::source::{Membership, ReadyWorker, WorkerSource};
use crate::launch::cgroup::Groups;
use crate::launch::control::Arrival;
use crate::launch::inside::{Inside, PATIENCE};
use crate::launch::prepared::Prepared;
use crate::network::serving::{BoxFuture, Serving, Witness};
use crate::plan::Section;
use crate::protect::recheck;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::report::overlay_error::OverlayError;
use crate::session::changes;
use crate::session::mount_state::{SessionMounts, Settling};
use crate::session::stats::{CountedCommand, Counts, Stats};
use crate::session::view_fd::ViewFd;
use crate::session::worker::Worker;
use crate::sys::locked;

/// How often to look whether what was killed is gone.
const OFTEN: Duration = Duration::from_millis(1);

/// A session, as long as somebody has hold of it.
pub(crate) struct Live {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) zygote: Inside,
    /// The cgroups of it and its workers, where there are some.
    pub(crate) groups: Option<Arc<Groups>>,
    /// What is in force, as far as all commands share it.
    pub(crate) enforcement: Enforcement,
    pub(crate) ground: SessionMounts,
    /// Workers that were ordered and have no command yet, oldest first.
    pub(crate) waiting: Mutex<VecDeque<Worker>>,
    /// What calls for files see, since one was made.
    pub(crate) tree: Mutex<Option<Arc<ViewFd>>>,
    /// What commands left running behind them.
    pub(crate) background: Mutex<Vec<Inside>>,
    pub(crate) depth: ReadyWorkers,
    pub(crate) ended: AtomicBool,
    pub(crate) counts: Counts,
    /// Changes of the workspace, where they are kept apart from it.
    pub(crate) ledger: Mutex<Option<changes::Shared>>,
    /// The proxy, where the policy has one.
    pub(crate) serving: Option<Serving>,
    pub(crate) trail: Arc<Trail>,
    pub(crate) span: tracing::Span,
}

/// Numbers, and names of variables: a policy and the environment of whoever prepared it may hold secrets, and a plan is
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
    /// The changes of the workspace.
    ///
    /// # Errors
    /// Where they are not kept apart, or any more.
    pub(crate) fn ledger(&self) -> Result<changes::Shared, OverlayError> {
        locked(&self.ledger).clone().ok_or(OverlayError::None)
    }

    pub(crate) fn forget_changes(&self) {
        locked(&self.ledger).take();
    }

    /// Keeps commands away. One that has just been killed may take a moment to be gone.
    ///
    /// # Errors
    /// Where one runs.
    pub(crate) async fn settle(&self) -> Result<Settling, OverlayError> {
        let begun = Instant::now();
        loop {
            self.let_go_of_ended();
            match self.ground.settle() {
                Some(settling) => return Ok(settling),
                None if begun.elapsed() > PATIENCE => return Err(OverlayError::Running),
                None => tokio::time::sleep(OFTEN).await,
            }
        }
    }

    pub(crate) fn prepared(&self) -> &Arc<Prepared> {
        &self.prepared
    }

    pub(crate) fn enforcement(&self) -> Enforcement {
        let mut enforcement = self.enforcement.clone();
        self.ground.report(&mut enforcement);
        enforcement
    }

    /// Kills the zygote, and with it everything inside.
    pub(crate) fn end(&self) {
        if !self.ended.swap(true, Relaxed) {
            tracing::info!(parent: &self.span, "ends");
            // It ends, whether that is written down or not.
            let _ = self.trail.write(None, || Record::SessionEnd {});
        }
        // What keeps it is told once it should be gone.
        let _ = self.zygote.kill();
        if let Some(serving) = &self.serving {
            serving.end();
        }
        self.waiting().clear();
        self.background().clear();
        self.tree().take();
        if let Some(groups) = &self.groups {
            groups.end();
        }
    }

    /// Waits until everything inside is gone, and undoes what commands did that nobody has looked after yet: somebody
    /// may use the files next.
    pub(crate) async fn gone(&self) {
        self.zygote.gone().await;
        if let Some(groups) = &self.groups {
            groups.gone().await;
        }
        if let Some(serving) = &self.serving {
            serving.gone().await;
        }
        // Where nobody may have a command any more, it was looked after; what is there now is the user's.
        if self.ground.is_held() {
            recheck::log(&recheck::undo(&self.ground.watches()));
        }
    }

    /// Whether it was ended from this side.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Whether no more workers will come: it was ended, or the zygote is gone. A zygote that is ready says nothing more.
    pub(crate) fn is_gone(&self) -> bool {
        let is_silent = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.has_ended() || !self.zygote.receive().as_ref().is_err_and(is_silent) || self.zygote.has_ended()
    }

    /// Whether a command could be run now: no more than its first steps are taken for one.
    pub(crate) fn takes_commands(&self) -> bool {
        !self.is_gone() && self.ground.enter().is_ok()
    }

    /// Does what waits for something of the zygote's, which may be killed meanwhile.
    pub(crate) async fn ignore_epipe<T>(
        &self,
        act: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            done = act => done,
            () = self.zygote.ended() => Err(Error::SessionEnded),
        }
    }

    /// Waits until the zygote is gone, whoever ended it.
    pub(crate) async fn closed(&self) {
        loop {
            match self.zygote.next().await {
                Ok(Arrival::Closed) => return,
                Ok(_) => {}
                // For want of descriptors it cannot be watched now.
                Err(_) => tokio::time::sleep(PATIENCE).await,
            }
        }
    }

    /// The error for a worker that is gone: with its session, or because somebody killed it.
    pub(crate) fn lost(&self) -> Error {
        if self.is_gone() { Error::SessionEnded } else { Error::Lost }
    }

    /// Follows what the proxy refuses, where there is one.
    pub(crate) fn witness(&self) -> Option<Witness> {
        let serving = self.serving.as_ref().filter(|_| !self.has_ended())?;
        serving.renew();
        Some(serving.witness())
    }

    /// Counts a command as running, until it is dropped.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Keeps what a command left behind, as long as the session lives. What has ended meanwhile is let go.
    pub(crate) fn keep(&self, inside: Inside) {
        self.let_go_of_ended();
        if !self.has_ended() {
            self.background().push(inside);
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.let_go_of_ended();
        let mut waiting = self.waiting();
        let is_ready = |worker: &mut Worker| {
            // One that failed is passed over by the command that comes to it.
            worker.is_ready() || { worker.listen(&self.prepared, &self.counts).is_ok() && worker.is_ready() }
        };
        let ready = waiting.iter_mut().map(|worker| usize::from(is_ready(worker))).sum();
        drop(waiting);
        self.counts.stats(ready)
    }

    pub(crate) fn ground(&self) -> &SessionMounts {
        &self.ground
    }

    pub(crate) fn tree(&self) -> MutexGuard<'_, Option<Arc<ViewFd>>> {
        locked(&self.tree)
    }

    pub(crate) fn waiting(&self) -> MutexGuard<'_, VecDeque<Worker>> {
        locked(&self.waiting)
    }

    fn background(&self) -> MutexGuard<'_, Vec<Inside>> {
        locked(&self.background)
    }

    /// Lets go of what has ended in the background. Until then all that appears is taken for its doing.
    pub(crate) fn let_go_of_ended(&self) {
        self.background().retain(|inside| !inside.has_ended());
    }
}

// How many workers to keep ready: as many as asked for, and fewer while the machine is short of memory.

/// How long one look at the pressure holds, in milliseconds.
const HOLDS_MS: u64 = 1000;

/// Share of the last ten seconds in which some task waited for memory, in percent, from which on it is short.
const SHORT: f32 = 10.0;

#[derive(Debug)]
pub(crate) struct ReadyWorkers {
    wanted: usize,
    begun: Instant,
    /// When the next look is due, in milliseconds since `begun`.
    due_ms: AtomicU64,
    is_short: AtomicBool,
}

impl ReadyWorkers {
    pub(crate) fn of(wanted: usize) -> Self {
        Self { wanted, begun: Instant::now(), due_ms: AtomicU64::new(0), is_short: AtomicBool::new(false) }
    }

    /// How many shall be ready now.
    pub(crate) fn now(&self) -> usize {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now >= self.due_ms.load(Relaxed) {
            self.due_ms.store(now.saturating_add(HOLDS_MS), Relaxed);
            // Kernels without pressure information never say that memory is short.
            let pressure = MemoryPressure::current().map_or(0.0, |pressure| pressure.some.avg10);
            self.is_short.store(pressure >= SHORT, Relaxed);
        }
        under(self.wanted, self.is_short.load(Relaxed))
    }
}

fn under(wanted: usize, is_short: bool) -> usize {
    if is_short { wanted / 2 } else { wanted }
}

impl WorkerSource for Live {
    fn prepared(&self) -> Arc<Prepared> {
        Arc::clone(&self.prepared)
    }

    /// A session looks to its workers itself, when it gives one away.
    fn renewed(&self) -> Result<Arc<Prepared>, Error> {
        Ok(Arc::clone(&self.prepared))
    }

    fn trail(&self) -> Arc<Trail> {
        Arc::clone(&self.trail)
    }

    fn span(&self) -> Option<tracing::Id> {
        self.span.id()
    }

    fn keeps_background(&self) -> bool {
        true
    }

    fn worker<'s>(
        &'s self,
        _: &'s Prepared,
        _: &'s Arc<Trail>,
        narrow: Option<&'s Section>,
        fail_fast: bool,
    ) -> BoxFuture<'s, Result<ReadyWorker, Error>> {
        Box::pin(self.take_worker(narrow, fail_fast))
    }

    fn has_others(&self) -> Result<bool, Error> {
        if self.has_ended() { Err(Error::SessionEnded) } else { Ok(true) }
    }

    fn join(self: Arc<Self>) -> Option<Box<dyn Membership>> {
        let guard = CountedCommand::new(Arc::clone(&self));
        self.refill();
        Some(Box::new(guard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_are_kept_while_memory_is_short() {
        assert_eq!([under(4, false), under(4, true), under(1, true), under(0, false)], [4, 2, 0, 0]);
    }

    #[test]
    fn the_pressure_is_not_read_for_every_command() {
        let depth = ReadyWorkers::of(3);
        depth.now();
        depth.is_short.store(true, Relaxed);
        assert_eq!(depth.now(), 1, "the answer of less than a second ago still holds");
    }
}
