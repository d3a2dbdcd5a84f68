//! Workers of a session: one worker until it has its command, and the queue of waiting workers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kennel_helper::control::{Report, ZygoteOrder};
use kennel_helper::wire::Field;
use nix::errno::Errno;

use crate::command::source::{Entered, ReadyWorker};
use crate::launch::cgroup::Groups;
use crate::launch::control::{Arrival, socket_pair};
use crate::launch::inside::{CommandHold, Inside};
use crate::launch::prepared::{OwnSteps, Prepared};
use crate::plan::Section;
use crate::plan::network::SOCKETS_HANDED_OUT;
use crate::protect::watch::Watch;
use crate::report::error::Error;
use crate::session::live::Live;
use crate::session::mount_state::WorkerMounts;
use crate::session::shared;
use crate::session::stats::Counts;

/// A worker without a command, with what it has reported so far.
#[derive(Debug)]
pub(crate) struct Worker {
    inside: Inside,
    own: Option<Arc<OwnSteps>>,
    /// Paths to check after its command. If it never gets one, nobody checks them.
    watches: Arc<[Watch]>,
    generation: u64,
    /// Whether its pidfd has arrived.
    is_born: bool,
    is_ready: bool,
    /// Reports of skipped steps.
    skipped: Vec<Report>,
    /// Why it did not get ready. If it was ordered for one command, that command gets the error.
    failed: Option<FailedStep>,
    /// Whether a descriptor was lost because this program had no room for it.
    lost_descriptor: bool,
    /// Its root and its mount namespace, if its steps send them.
    root: Option<OwnedFd>,
    mounts: Option<OwnedFd>,
    /// Sockets of its network namespace, if its steps send them.
    sockets: Vec<OwnedFd>,
    /// The listener of its seccomp filter.
    seccomp_listener: Option<OwnedFd>,
}

/// The step that failed, as a worker reports it.
#[derive(Clone, Copy, Debug)]
struct FailedStep {
    section: u32,
    index: u32,
    errno: i32,
}

impl Worker {
    /// A worker that the zygote will fork.
    pub(crate) fn ordered(inside: Inside, mounts: WorkerMounts) -> Self {
        Self {
            is_born: inside.pidfd().is_some(),
            inside,
            own: mounts.own,
            watches: mounts.watches,
            generation: mounts.generation,
            is_ready: false,
            skipped: Vec::new(),
            failed: None,
            lost_descriptor: false,
            root: None,
            mounts: None,
            sockets: Vec::new(),
            seccomp_listener: None,
        }
    }

    /// Whether it waits for a command, and Kennel can kill it.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready && self.is_born
    }

    /// The generation of the mounts that it was ordered with.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Hands the worker to a command. The worker keeps `hold` until it has ended and was undone.
    fn into_ready(self, hold: CommandHold) -> ReadyWorker {
        let mut inside = self.inside;
        inside.hold(hold, &self.watches);
        ReadyWorker {
            inside,
            reports: self.skipped,
            proxy: None,
            published: None,
            seccomp_listener: self.seccomp_listener,
            own: self.own,
        }
    }

    /// Processes its messages. Waits until it is born, unless `fail_fast`.
    async fn wait_until_born(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
        fail_fast: bool,
    ) -> Result<(), Error> {
        loop {
            self.take_in_pending(prepared, counts)?;
            if self.is_born || fail_fast {
                return Ok(());
            }
            self.take_in_next(prepared, counts).await?;
        }
    }

    /// Waits until it has sent its root and its mount namespace.
    pub(crate) async fn wait_for_view(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
    ) -> Result<(OwnedFd, OwnedFd), Error> {
        loop {
            if let Some(root) = self.root.take_if(|_| self.mounts.is_some())
                && let Some(mounts) = self.mounts.take()
            {
                return Ok((root, mounts));
            }
            self.take_in_next(prepared, counts).await?;
        }
    }

    /// Waits until it has carried out its steps.
    pub(crate) async fn wait_until_ready(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
    ) -> Result<(), Error> {
        while !self.is_ready {
            self.take_in_next(prepared, counts).await?;
        }
        Ok(())
    }

    /// Its socket, and what it reported about steps that it skipped.
    pub(crate) fn into_parts(self) -> (Inside, Vec<Report>) {
        (self.inside, self.skipped)
    }

    /// Adds reports of steps that its common init skipped.
    pub(crate) fn add_skipped(&mut self, skipped: &[Report]) {
        self.skipped.extend_from_slice(skipped);
    }

    /// Waits until it has sent the sockets that make others.
    pub(crate) async fn wait_for_sockets(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
    ) -> Result<[OwnedFd; SOCKETS_HANDED_OUT], Error> {
        loop {
            match std::mem::take(&mut self.sockets).try_into() {
                Ok(sockets) => return Ok(sockets),
                Err(sockets) => self.sockets = sockets,
            }
            self.take_in_next(prepared, counts).await?;
        }
    }

    /// Waits for its next message, and processes it.
    async fn take_in_next(&mut self, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        let arrival = self.inside.next().await;
        self.take_in(arrival.map_err(Error::io("read the socket of a worker"))?, prepared, counts)
    }

    /// Processes the messages that have arrived, without waiting.
    pub(crate) fn take_in_pending(&mut self, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        loop {
            if let Some(failed) = self.failed {
                return Err(self.step_error(prepared, failed));
            }
            if self.lost_descriptor {
                return Err(Error::io("take hold of a worker")(Errno::EMFILE.into()));
            }
            match self.inside.receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                arrival => self.take_in(
                    arrival.map_err(Error::io("read the socket of a worker"))?,
                    prepared,
                    counts,
                )?,
            }
        }
    }

    fn take_in(&mut self, arrival: Arrival, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        match arrival {
            Arrival::Born(pidfd, pid) => {
                self.inside.set_pidfd(pidfd, pid);
                self.is_born = true;
            }
            Arrival::Report(Report::Ready { took_us }) => {
                self.is_ready = true;
                counts.refilled(took_us);
            }
            Arrival::Report(Report::Failed { section, index, errno }) => {
                // The worker takes no command any more. It may still be there for a moment.
                let failed = FailedStep { section, index, errno };
                self.failed = Some(failed);
                return Err(self.step_error(prepared, failed));
            }
            Arrival::Closed => return Err(Error::Lost),
            Arrival::Report(report @ Report::Skipped { .. }) => self.skipped.push(report),
            Arrival::Root(root) => self.root = Some(root),
            Arrival::Mounts(mounts) => self.mounts = Some(mounts),
            Arrival::Listening(listening) => self.sockets.push(listening.socket),
            Arrival::Report(Report::Root {} | Report::Mounts {} | Report::Listening { .. }) => {
                return Err(Error::no_descriptor());
            }
            Arrival::Refusing(listener) => self.seccomp_listener = Some(listener),
            // Without the pidfd nobody could kill it. Without the listener nobody would answer its filter.
            Arrival::Report(Report::Born { .. } | Report::Refusing {}) => self.lost_descriptor = true,
            Arrival::Report(_) | Arrival::Started(_) | Arrival::Terminal(_) | Arrival::Upper(_) => {}
        }
        Ok(())
    }

    fn step_error(&self, prepared: &Prepared, step: FailedStep) -> Error {
        let own = self.own.as_ref().map(|own| &own.section);
        prepared.step_failed(own, (step.section, step.index), step.errno)
    }
}

/// How long to wait when the socket of the zygote is full of orders.
const FULL_SOCKET_PAUSE: Duration = Duration::from_millis(1);

/// How often a command tries again while somebody outside replaces files.
pub(crate) const MOST_TRIES: u32 = 5;

impl Live {
    /// A worker for a command: the oldest waiting one, or a new one. Its pidfd is known, so Kennel can kill
    /// it. `own_steps` are steps of this worker alone.
    pub(crate) async fn take_worker(
        &self,
        entered: Option<Entered>,
        own_steps: Option<&Section>,
        fail_fast: bool,
    ) -> Result<ReadyWorker, Error> {
        let mut tries = 0;
        let mut entered = match entered {
            Some(entered) => entered,
            None => self.enter().await?,
        };
        loop {
            // A waiting worker has no steps of its own.
            let waiting = if own_steps.is_none() { self.take_waiting(entered.generation) } else { None };
            let is_new = waiting.is_none();
            let mut worker = match waiting {
                Some(worker) => worker,
                None if fail_fast => {
                    return Err(if self.is_gone() { Error::SessionEnded } else { Error::Busy });
                }
                None => self.order(own_steps).await?,
            };
            match self.unless_gone(worker.wait_until_born(&self.prepared, &self.counts, fail_fast)).await {
                Ok(()) if fail_fast && !worker.is_ready() => {
                    self.waiting().push_front(worker);
                    return Err(Error::Busy);
                }
                Ok(()) => {
                    if self.shared.is_some() {
                        // It may have waited while others ran.
                        worker.watches = self.mounts.watches();
                    }
                    return Ok(worker.into_ready(entered.hold));
                }
                // A waiting worker was killed, or failed because of a shortage at that time. Try the next
                // one.
                Err(_) if !is_new && !self.has_ended() => {}
                // Somebody outside is replacing a file right now.
                Err(Error::Step { source, .. }) if tries < MOST_TRIES && is_replaced(&source) => {
                    tries += 1;
                    drop(entered);
                    entered = self.enter().await?;
                }
                Err(Error::Lost) => return Err(self.lost()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Checks the host's files before a command or a file call.
    ///
    /// # Errors
    /// [`Error::SessionEnded`], and those of
    /// [`SessionMounts::enter`](crate::session::mount_state::SessionMounts::enter).
    pub(crate) async fn enter(&self) -> Result<Entered, Error> {
        if self.has_ended() {
            return Err(Error::SessionEnded);
        }
        self.drop_ended_background();
        let entered = self.mounts.enter()?;
        self.mount_again(&entered).await?;
        Ok(entered)
    }

    /// The oldest waiting worker. Drops workers that are out of date.
    fn take_waiting(&self, generation: u64) -> Option<Worker> {
        let mut waiting = self.waiting();
        waiting.retain(|worker| worker.generation() >= generation);
        waiting.pop_front()
    }

    /// Orders a worker.
    pub(crate) async fn order(&self, own_steps: Option<&Section>) -> Result<Worker, Error> {
        if self.shared.is_some() && own_steps.is_some() {
            return Err(shared::no_restrictions());
        }
        self.patiently(|| self.try_order(own_steps)).await
    }

    /// Orders a worker that runs no command: it carries out these steps, with none of the commands'
    /// processes.
    pub(crate) async fn order_apart(&self, own_steps: &Section) -> Result<Worker, Error> {
        self.patiently(|| self.try_order_of_zygote(Some(own_steps), false)).await
    }

    /// Waits while the socket of the zygote is full.
    pub(crate) async fn patiently(&self, order: impl Fn() -> io::Result<Worker>) -> Result<Worker, Error> {
        loop {
            match order() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.zygote.has_ended() => {
                    tokio::time::sleep(FULL_SOCKET_PAUSE).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(self.lost()),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(self.lost()),
                worker => return worker.map_err(Error::io("order a worker of the session")),
            }
        }
    }

    fn try_order(&self, own_steps: Option<&Section>) -> io::Result<Worker> {
        match &self.shared {
            Some(shared) => shared.try_order(),
            None => self.try_order_of_zygote(own_steps, false),
        }
    }

    /// Orders a process of a pid namespace of its own: a worker, or the init that the workers share.
    pub(crate) fn try_order_of_zygote(
        &self,
        own_steps: Option<&Section>,
        is_shared: bool,
    ) -> io::Result<Worker> {
        let mounts = self.mounts.for_worker(own_steps)?;
        let (control, worker_end) = socket_pair()?;
        let mut message = Vec::new();
        let steps = mounts.own.as_ref().map(|own| &own.bytes);
        let leaf = |groups: &Arc<Groups>| if is_shared { groups.shared() } else { groups.leaf() };
        let leaf = self.groups.as_ref().map(leaf).transpose()?;
        ZygoteOrder::Worker {
            own: steps.map_or(0, |steps| steps.length),
            leaf: u32::from(leaf.is_some()),
            shared: is_shared.into(),
        }
        .put(&mut message);
        let descriptors = std::iter::once(worker_end.as_fd())
            .chain(steps.map(AsFd::as_fd))
            .chain(leaf.as_ref().map(AsFd::as_fd));
        self.zygote.send(&message, descriptors)?;
        let mut inside = Inside::worker(control);
        inside.set_leaf(leaf);
        Ok(Worker::ordered(inside, mounts))
    }

    /// Orders workers until enough wait. If an order fails, the next command tries again.
    pub(crate) fn refill(&self) {
        let mut target = self.ready_workers.target();
        if self.shared.is_some() && target > 0 {
            // Those that work now come back.
            target = target.saturating_sub(self.counts.running.load(Relaxed)).max(1);
        }
        while self.waiting().len() < target {
            match self.try_order(None) {
                Ok(worker) => self.waiting().push_back(worker),
                Err(error) => {
                    tracing::warn!(parent: &self.span, %error, "no worker could be ordered");
                    return;
                }
            }
        }
    }
}

/// Whether a step failed because somebody was just replacing its file.
pub(crate) fn is_replaced(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
}
