//! Workers of a session: one worker until it has its command, and the queue of waiting workers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use kennel_helper::control::{Report, ZygoteOrder};
use kennel_helper::wire::Field;
use nix::errno::Errno;

use crate::command::source::{ReadyWorker, Ticket};
use crate::launch::cgroup::Groups;
use crate::launch::control::{Arrival, socket_pair};
use crate::launch::inside::{CommandHold, Inside, OrderedInit, WaitingInit};
use crate::launch::prepared::{OwnSteps, Prepared};
use crate::plan::Section;
use crate::plan::network::SOCKETS_HANDED_OUT;
use crate::protect::watch::Watch;
use crate::report::error::Error;
use crate::session::live::Live;
use crate::session::mount_state::WorkerMounts;
use crate::session::stats::Counts;
use crate::session::zygote::common_init;

/// A worker without a command, with what it has reported so far.
#[derive(Debug)]
pub(crate) struct Worker {
    life: Life,
    own: Option<Arc<OwnSteps>>,
    /// Paths to check after its command. If it never gets one, nobody checks them.
    watches: Arc<[Watch]>,
    generation: u64,
    is_ready: bool,
    /// Reports of skipped steps.
    skipped: Vec<Report>,
    /// Why it did not get ready. If it was ordered for one command, that command gets the error.
    failed: Option<FailedStep>,
    /// Its root and its mount namespace, if its steps send them.
    root: Option<OwnedFd>,
    mounts: Option<OwnedFd>,
    /// Sockets of its network namespace, if its steps send them.
    sockets: Vec<OwnedFd>,
    /// The listener of its seccomp filter.
    seccomp_listener: Option<OwnedFd>,
}

/// Its init, as far as Kennel has hold of it.
#[derive(Debug)]
enum Life {
    Ordered(OrderedInit),
    Waiting(WaitingInit),
    /// It was given up: a descriptor was lost, because this program had no room for it.
    Lost,
}

/// The step that failed, as a worker reports it.
#[derive(Clone, Copy, Debug)]
struct FailedStep {
    section: u32,
    index: u32,
    errno: i32,
}

impl Worker {
    /// A worker that the zygote will fork, or the common init.
    pub(crate) fn ordered(init: OrderedInit, mounts: WorkerMounts) -> Self {
        Self::new(Life::Ordered(init), mounts)
    }

    /// A worker that has served a command, and will be ready for another one.
    pub(crate) fn returned(init: WaitingInit, mounts: WorkerMounts) -> Self {
        Self::new(Life::Waiting(init), mounts)
    }

    fn new(life: Life, mounts: WorkerMounts) -> Self {
        Self {
            life,
            own: mounts.own,
            watches: mounts.watches,
            generation: mounts.generation,
            is_ready: false,
            skipped: Vec::new(),
            failed: None,
            root: None,
            mounts: None,
            sockets: Vec::new(),
            seccomp_listener: None,
        }
    }

    /// Whether it waits for a command, and Kennel can kill it.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready && self.is_born()
    }

    /// Whether its pidfd has arrived.
    fn is_born(&self) -> bool {
        matches!(self.life, Life::Waiting(_))
    }

    /// # Errors
    /// It was given up.
    fn inside(&self) -> Result<&Inside, Error> {
        match &self.life {
            Life::Ordered(init) => Ok(init),
            Life::Waiting(init) => Ok(init),
            Life::Lost => Err(no_hold()),
        }
    }

    /// The generation of the mounts that it was ordered with.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Hands a worker that was born to a command. The worker keeps `hold` until it has ended and was undone.
    fn into_ready(self, hold: CommandHold) -> Result<ReadyWorker, Error> {
        let Life::Waiting(init) = self.life else { return Err(no_hold()) };
        Ok(ReadyWorker {
            init: init.begin(hold, &self.watches),
            reports: self.skipped,
            seccomp_listener: self.seccomp_listener,
            own: self.own,
        })
    }

    /// Processes its messages. Waits until it is born, unless `fail_fast`.
    async fn wait_until_born(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
        fail_fast: bool,
    ) -> Result<(), Error> {
        loop {
            self.process_pending(prepared, counts)?;
            if self.is_born() || fail_fast {
                return Ok(());
            }
            self.process_next(prepared, counts).await?;
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
            self.process_next(prepared, counts).await?;
        }
    }

    /// Waits until it has carried out its steps.
    pub(crate) async fn wait_until_ready(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
    ) -> Result<(), Error> {
        while !self.is_ready {
            self.process_next(prepared, counts).await?;
        }
        Ok(())
    }

    /// Makes it the common init of the commands. Returns what it reported about steps that it skipped, too.
    pub(crate) fn into_common_init(self) -> Result<(WaitingInit, Vec<Report>), Error> {
        match self.life {
            Life::Waiting(init) => Ok((init, self.skipped)),
            Life::Ordered(_) | Life::Lost => Err(no_hold()),
        }
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
            self.process_next(prepared, counts).await?;
        }
    }

    /// Waits for its next message, and processes it.
    async fn process_next(&mut self, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        let arrival = self.inside()?.next().await;
        self.process(arrival.map_err(Error::io("read the socket of a worker"))?, prepared, counts)
    }

    /// Processes the messages that have arrived, without waiting.
    pub(crate) fn process_pending(&mut self, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        loop {
            if let Some(failed) = self.failed {
                return Err(self.step_error(prepared, failed));
            }
            match self.inside()?.receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                arrival => self.process(
                    arrival.map_err(Error::io("read the socket of a worker"))?,
                    prepared,
                    counts,
                )?,
            }
        }
    }

    fn process(&mut self, arrival: Arrival, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        match arrival {
            Arrival::Born(pidfd, pid) => {
                self.life = match std::mem::replace(&mut self.life, Life::Lost) {
                    Life::Ordered(init) => Life::Waiting(init.born(pidfd, pid)),
                    life => life,
                }
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
            Arrival::Report(Report::Born { .. } | Report::Refusing {}) => self.life = Life::Lost,
            Arrival::Report(_) | Arrival::Started(_) | Arrival::Terminal(_) | Arrival::Upper(_) => {}
        }
        Ok(())
    }

    fn step_error(&self, prepared: &Prepared, step: FailedStep) -> Error {
        let own = self.own.as_ref().map(|own| &own.section);
        prepared.step_failed(own, (step.section, step.index), step.errno)
    }
}

/// The error of a worker that could not send a descriptor.
fn no_hold() -> Error {
    Error::io("take hold of a worker")(Errno::EMFILE.into())
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
        mut ticket: Ticket,
        own_steps: Option<&Section>,
        fail_fast: bool,
    ) -> Result<ReadyWorker, Error> {
        let mut tries = 0;
        loop {
            // A waiting worker has no steps of its own.
            let waiting = if own_steps.is_none() { self.take_waiting(ticket.generation) } else { None };
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
                    return worker.into_ready(ticket.hold);
                }
                // A waiting worker was killed, or failed because of a shortage at that time. Try the next
                // one.
                Err(_) if !is_new && !self.has_ended() => {}
                // Somebody outside is replacing a file right now.
                Err(Error::Step { source, .. }) if tries < MOST_TRIES && is_replaced(&source) => {
                    tries += 1;
                    drop(ticket);
                    ticket = self.enter().await?;
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
    pub(crate) async fn enter(&self) -> Result<Ticket, Error> {
        if self.has_ended() {
            return Err(Error::SessionEnded);
        }
        self.drop_ended_background();
        let ticket = self.mounts.enter()?;
        self.mount_again(&ticket).await?;
        Ok(ticket)
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
            return Err(common_init::no_restrictions());
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
            narrow: steps.map_or(0, |steps| steps.length),
            leaf: u32::from(leaf.is_some()),
            shared: is_shared.into(),
        }
        .put(&mut message);
        let descriptors = std::iter::once(worker_end.as_fd())
            .chain(steps.map(AsFd::as_fd))
            .chain(leaf.as_ref().map(AsFd::as_fd));
        self.zygote.send(&message, descriptors)?;
        Ok(Worker::ordered(OrderedInit::of_zygote(control, leaf), mounts))
    }

    /// Orders workers until enough wait. If an order fails, the next command tries again.
    pub(crate) fn refill(&self) {
        let mut target = self.ready_workers.target();
        if self.shared.is_some() && target > 0 {
            // Those that work now come back.
            target = target.saturating_sub(self.counts.running()).max(1);
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
