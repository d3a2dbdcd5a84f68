//! The zygote of a session and the workers that wait. Decides when a worker is ordered, and which one a command gets.

use std::{
    collections::VecDeque,
    io,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use kennel_helper::{
    control::{Report, ZygoteOrder},
    wire::Field,
};

use super::{
    pressure::Depth,
    stats::{Counts, Guard, Stats},
    worker::Worker,
};
use crate::{
    Enforcement, Error, Host, Policy,
    caller::Caller,
    compile::{self, Shape},
    inside::{Arrival, Inside},
    prepared::{Bytes, Prepared},
    start::{self, Images, socket_pair},
    watch,
};

/// How long to leave a zygote alone that has more orders than its socket holds.
const FULL: Duration = Duration::from_millis(1);

/// A session that is not shared out yet.
#[derive(Debug)]
pub(crate) struct Live {
    prepared: Arc<Prepared>,
    zygote: Inside,
    /// Workers that were ordered and have no command yet, oldest first.
    waiting: Mutex<VecDeque<Worker>>,
    /// What commands left running behind them.
    background: Mutex<Vec<Inside>>,
    depth: Depth,
    ended: AtomicBool,
    counts: Arc<Counts>,
    span: tracing::Span,
}

impl Live {
    pub(crate) async fn prepare(policy: &Policy, depth: usize) -> Result<Self, Error> {
        let (host, caller, shape) = (Host::detect(), Caller::current(), Shape::Session);
        let first = compile::begin(policy, &host, &caller, shape, &mut Enforcement::default())?;
        let images = Images::new()?;
        // It makes its namespaces while the rest is compiled. An error from here on takes it away again.
        let mut zygote = start::start(&images, shape, &first)?;
        let prepared = Prepared::new(compile::compile(policy, &host, &caller, shape)?, images);
        start::hand_over(&mut zygote, &prepared, None)?;
        let live = Self {
            prepared: Arc::new(prepared),
            zygote,
            waiting: Mutex::default(),
            background: Mutex::default(),
            depth: Depth::of(depth),
            ended: AtomicBool::new(false),
            counts: Arc::default(),
            span: tracing::info_span!("session", workspace = %policy.workspace.display()),
        };
        // They lie in the zygote's socket until it has set up.
        live.refill();
        live.set_up().await?;
        tracing::info!(parent: &live.span, "ready");
        Ok(live)
    }

    /// Waits until the zygote has carried out the session's steps.
    async fn set_up(&self) -> Result<(), Error> {
        loop {
            match self.zygote.next().await.map_err(Error::io("read the control socket"))? {
                Arrival::Report(Report::Ready { .. }) => return Ok(()),
                Arrival::Report(Report::Failed { section, index, errno }) => {
                    return Err(self.prepared.step_failed(None, (section, index), errno));
                }
                Arrival::Closed => return Err(Error::SessionEnded),
                _ => {}
            }
        }
    }

    pub(crate) fn prepared(&self) -> &Arc<Prepared> {
        &self.prepared
    }

    /// What the session's commands are told under.
    pub(crate) fn span(&self) -> &tracing::Span {
        &self.span
    }

    /// A worker for a command: one that waits, or a new one. It is born, so that we have a hold on it.
    pub(crate) async fn worker(&self, narrow: Option<&Bytes>, fail_fast: bool) -> Result<Inside, Error> {
        loop {
            // Nobody keeps workers ready that are narrowed, and none of them may get into the row.
            let waiting = if narrow.is_none() { self.lock().pop_front() } else { None };
            let is_new = waiting.is_none();
            let mut worker = match waiting {
                Some(worker) => worker,
                None if fail_fast => return Err(if self.is_gone() { Error::SessionEnded } else { Error::Busy }),
                None => self.order(narrow).await?,
            };
            match worker.hear(&self.prepared, &self.counts, fail_fast).await {
                Ok(()) if fail_fast && !worker.is_ready() => {
                    self.lock().push_front(worker);
                    return Err(Error::Busy);
                }
                Ok(()) => return Ok(worker.into_inside()),
                // Killed while it waited, or made when something was short: that is not this command's affair.
                Err(_) if !is_new && !self.has_ended() => {}
                Err(Error::Lost) => return Err(self.lost()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Orders a worker; waits while the zygote has its hands full.
    async fn order(&self, narrow: Option<&Bytes>) -> Result<Worker, Error> {
        loop {
            match self.try_order(narrow) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(FULL).await,
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(self.lost()),
                worker => return worker.map_err(Error::io("order a worker of the session")),
            }
        }
    }

    fn try_order(&self, narrow: Option<&Bytes>) -> io::Result<Worker> {
        let (ours, theirs) = socket_pair()?;
        let mut message = Vec::new();
        ZygoteOrder::Worker { narrow: narrow.map_or(0, |narrow| narrow.length) }.put(&mut message);
        let descriptors = std::iter::once(theirs.as_fd()).chain(narrow.map(AsFd::as_fd));
        self.zygote.send(&message, descriptors)?;
        let mut worker = Inside::worker(ours);
        worker.watch(&self.prepared.compiled.watches);
        Ok(Worker::ordered(worker))
    }

    /// Orders workers until as many wait as shall. What cannot be ordered now is tried again with the next command.
    pub(crate) fn refill(&self) {
        let depth = self.depth.now();
        while self.lock().len() < depth {
            match self.try_order(None) {
                Ok(worker) => self.lock().push_back(worker),
                Err(error) => {
                    tracing::warn!(parent: &self.span, %error, "no worker could be ordered");
                    return;
                }
            }
        }
    }

    /// Kills the zygote, and with it everything inside.
    pub(crate) fn end(&self) {
        if !self.ended.swap(true, Relaxed) {
            tracing::info!(parent: &self.span, "ends");
        }
        self.zygote.kill();
        self.lock().clear();
        self.background().clear();
    }

    /// Waits until everything inside is gone, and looks at watched paths then: somebody may use the files next.
    pub(crate) async fn gone(&self) {
        self.zygote.gone().await;
        watch::log(&watch::undo(&self.prepared.compiled.watches));
    }

    /// Whether it was ended from this side.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Whether no more workers will come: it was ended, or the zygote is gone. A zygote that is ready says nothing more.
    pub(crate) fn is_gone(&self) -> bool {
        let is_silent = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.has_ended() || !self.zygote.receive().as_ref().is_err_and(is_silent)
    }

    /// The error for a worker that is gone: with its session, or because somebody killed it.
    fn lost(&self) -> Error {
        if self.is_gone() { Error::SessionEnded } else { Error::Lost }
    }

    /// Counts a command as running, until it is dropped.
    pub(crate) fn guard(self: &Arc<Self>) -> Guard {
        Guard::new(Arc::clone(self), Arc::clone(&self.counts))
    }

    /// Keeps what a command left behind, as long as the session lives. What has ended meanwhile is let go.
    pub(crate) fn keep(&self, inside: Inside) {
        let mut kept = self.background();
        kept.retain(|inside| !matches!(inside.receive(), Ok(Arrival::Closed)));
        if !self.has_ended() {
            kept.push(inside);
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut waiting = self.lock();
        let is_ready = |worker: &mut Worker| {
            // One that failed tells it to the command that gets it.
            worker.is_ready() || { worker.listen(&self.prepared, &self.counts).is_ok() && worker.is_ready() }
        };
        let ready = waiting.iter_mut().map(|worker| usize::from(is_ready(worker))).sum();
        drop(waiting);
        self.counts.stats(ready)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Worker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn background(&self) -> MutexGuard<'_, Vec<Inside>> {
        self.background.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
