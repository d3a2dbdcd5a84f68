//! The workers of a zygote: orders them, takes one for a command, and keeps others waiting. It has no task
//! and no thread: a command that takes a worker orders the next one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use kennel_helper::control::ZygoteOrder;
use kennel_helper::wire::Field;

use crate::command::source::{ReadyWorker, Ticket};
use crate::launch::cgroup::Groups;
use crate::launch::control::socket_pair;
use crate::launch::inside::{CommandInit, OrderedInit};
use crate::network::namespace::SOCKETS_HANDED_OUT;
use crate::plan::{Section, network};
use crate::report::error::Error;
use crate::session::files::view_fd::ViewFd;
use crate::session::zygote::Zygote;
use crate::session::zygote::common_init::no_restrictions;
use crate::session::zygote::worker::{MOST_TRIES, Worker, is_replaced};

/// How long to wait when the socket of the zygote is full of orders.
const FULL_SOCKET_PAUSE: Duration = Duration::from_millis(1);

impl Zygote {
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
                None if fail_fast && self.is_gone() => return Err(Error::SessionEnded),
                None if fail_fast => {
                    // None may have been ordered since they were ended.
                    self.refill();
                    return Err(Error::Busy);
                }
                None => self.order(own_steps).await?,
            };
            match self.unless_gone(worker.wait_until_born(&self.prepared, self.log.counts(), fail_fast)).await
            {
                Ok(()) if fail_fast && !worker.is_ready() => {
                    self.waiting().push_front(worker);
                    return Err(Error::Busy);
                }
                Ok(()) => {
                    if self.is_shared() {
                        worker.watch(self.mounts.watches());
                    }
                    return worker.into_ready(ticket.hold);
                }
                // A waiting worker was killed, or failed because of a shortage at that time. Try the next
                // one.
                Err(_) if !is_new && !self.is_closed() => {}
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
        if self.is_closed() {
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
    async fn order(&self, own_steps: Option<&Section>) -> Result<Worker, Error> {
        if self.common_init.is_some() && own_steps.is_some() {
            return Err(no_restrictions());
        }
        self.patiently(|| self.try_order(own_steps)).await
    }

    /// A new view for file calls.
    pub(crate) async fn new_view(&self) -> Result<ViewFd, Error> {
        let mut worker = self.order(Some(&self.prepared.compiled.steps.files)).await?;
        let handed_out = worker.wait_for_view(&self.prepared, self.log.counts());
        let (root, mounts) = self.unless_gone(handed_out).await?;
        Ok(ViewFd::new(root, mounts, worker.generation()))
    }

    /// Sockets of the session's network namespace, which make others. The worker that sends them runs no
    /// command, and has none of the commands' processes.
    pub(crate) async fn new_sockets(&self) -> Result<[OwnedFd; SOCKETS_HANDED_OUT], Error> {
        let steps = network::socket_steps();
        let mut worker = self.patiently(|| self.try_order_of_zygote(Some(&steps), false)).await?;
        let handed_out = worker.wait_for_sockets(&self.prepared, self.log.counts());
        self.unless_gone(handed_out).await.map_err(|error| match error {
            Error::Lost => self.lost(),
            error => error,
        })
    }

    /// Waits while the socket of the zygote is full.
    async fn patiently(&self, order: impl Fn() -> io::Result<Worker>) -> Result<Worker, Error> {
        loop {
            match order() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.init.has_ended() => {
                    tokio::time::sleep(FULL_SOCKET_PAUSE).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(self.lost()),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(self.lost()),
                worker => return worker.map_err(Error::io("order a worker of the session")),
            }
        }
    }

    fn try_order(&self, own_steps: Option<&Section>) -> io::Result<Worker> {
        match &self.common_init {
            Some(common_init) => common_init.try_order(),
            None => self.try_order_of_zygote(own_steps, false),
        }
    }

    /// Orders a process of a pid namespace of its own: a worker, or the init that the workers share.
    pub(super) fn try_order_of_zygote(
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
        self.init.send(&message, descriptors)?;
        Ok(Worker::ordered(OrderedInit::of_zygote(control, leaf), mounts))
    }

    /// Orders workers until enough wait. If an order fails, the next command tries again.
    pub(crate) fn refill(&self) {
        let mut target = self.ready_workers.target();
        if self.common_init.is_some() && target > 0 {
            // Those that work now come back.
            target = target.saturating_sub(self.log.counts().running()).max(1);
        }
        while self.waiting().len() < target {
            match self.try_order(None) {
                Ok(worker) => self.waiting().push_back(worker),
                Err(error) => {
                    tracing::warn!(parent: self.log.span(), %error, "no worker could be ordered");
                    return;
                }
            }
        }
    }

    /// Ends the workers that wait.
    pub(crate) fn end_ready_workers(&self) {
        let workers = std::mem::take(&mut *self.waiting());
        drop(workers);
    }

    /// Takes a worker back that waits for another command.
    pub(crate) fn give_back(&self, init: CommandInit) {
        let Some(common_init) = self.common_init.as_ref().filter(|_| !self.is_closed()) else { return };
        let mut waiting = self.waiting();
        if waiting.len() < self.ready_workers.target() {
            waiting.push_back(common_init.returned(init.free()));
        } else {
            // It ends by itself when its socket closes.
            init.over();
        }
    }

    /// Mounts what somebody outside has removed from the mounts that commands share, before a command that
    /// has this ticket.
    async fn mount_again(&self, ticket: &Ticket) -> Result<(), Error> {
        let Some(common_init) = &self.common_init else { return Ok(()) };
        let mut generation = common_init.generation().await;
        if *generation >= ticket.generation {
            return Ok(());
        }
        let mounts =
            self.mounts.for_worker(None).map_err(Error::io("write the steps of a worker to a memfd"))?;
        let now = mounts.generation;
        if let Some(own) = &mounts.own {
            let mut child = self.patiently(|| common_init.try_remount(&self.init, own)).await?;
            self.unless_gone(child.wait_until_ready(&self.prepared, self.log.counts())).await?;
        }
        *generation = now;
        Ok(())
    }
}
