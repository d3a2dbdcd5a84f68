//! A worker that has no command yet, as far as it was heard of.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use kennel_helper::control::{Report, ZygoteOrder};
use kennel_helper::wire::Field;
use nix::errno::Errno;

use crate::command::source::ReadyWorker;
use crate::launch::cgroup::Groups;
use crate::launch::control::Arrival;
use crate::launch::control::socket_pair;
use crate::launch::inside::{CommandHold, Inside};
use crate::launch::prepared::{OwnSteps, Prepared};
use crate::plan::Section;
use crate::protect::watch::Watch;
use crate::report::error::Error;
use crate::session::live::Live;
use crate::session::mount_state::WorkerMounts;
use crate::session::stats::Counts;

#[derive(Debug)]
pub(crate) struct Worker {
    inside: Inside,
    own: Option<Arc<OwnSteps>>,
    /// To be looked at after its command, and not where it never gets one.
    watches: Arc<[Watch]>,
    generation: u64,
    is_born: bool,
    is_ready: bool,
    /// Steps that it went on without.
    skipped: Vec<Report>,
    /// What kept it from getting ready: told to the command that it was made for, if it was made for one.
    failed: Option<(u32, u32, i32)>,
    /// Whether its pidfd came when there was no room for it.
    is_out_of_hold: bool,
    /// Its root and its mount namespace, where its steps hand them out.
    root: Option<OwnedFd>,
    mounts: Option<OwnedFd>,
    /// What its filter of system calls tells its refusals by.
    listener: Option<OwnedFd>,
}

impl Worker {
    /// One that the zygote has yet to fork.
    pub(crate) fn ordered(inside: Inside, making: WorkerMounts) -> Self {
        Self {
            inside,
            own: making.own,
            watches: making.watches,
            generation: making.generation,
            is_born: false,
            is_ready: false,
            skipped: Vec::new(),
            failed: None,
            is_out_of_hold: false,
            root: None,
            mounts: None,
            listener: None,
        }
    }

    /// Whether it waits for its command, as far as was heard.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// How often something had changed outside when it was ordered.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// For a command, whose hold goes where the hold on its sandbox goes.
    pub(crate) fn taken(self, hold: CommandHold) -> ReadyWorker {
        let mut inside = self.inside;
        inside.hold(hold, &self.watches);
        ReadyWorker { inside, said: self.skipped, serving: None, listener: self.listener, own: self.own }
    }

    /// Takes in what it said; waits for its birth, unless in a hurry.
    pub(crate) async fn hear(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
        in_a_hurry: bool,
    ) -> Result<(), Error> {
        loop {
            self.listen(prepared, counts)?;
            if self.is_born || in_a_hurry {
                return Ok(());
            }
            let arrival = self.inside.next().await;
            self.heard(arrival.map_err(Error::io("read the socket of a worker"))?, prepared, counts)?;
        }
    }

    /// Waits until it has handed out its root and its mount namespace.
    pub(crate) async fn view(
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
            let arrival = self.inside.next().await;
            self.heard(arrival.map_err(Error::io("read the socket of a worker"))?, prepared, counts)?;
        }
    }

    /// Takes in what it said, and waits for nothing.
    pub(crate) fn listen(&mut self, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        loop {
            if let Some(failed) = self.failed {
                return Err(self.refused(prepared, failed));
            }
            if self.is_out_of_hold {
                return Err(Error::io("take hold of a worker")(Errno::EMFILE.into()));
            }
            match self.inside.receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                arrival => {
                    self.heard(arrival.map_err(Error::io("read the socket of a worker"))?, prepared, counts)?
                }
            }
        }
    }

    fn heard(&mut self, arrival: Arrival, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        match arrival {
            Arrival::Born(pidfd) => {
                self.inside.set_pidfd(pidfd);
                self.is_born = true;
            }
            Arrival::Report(Report::Ready { took_us }) => {
                self.is_ready = true;
                counts.refilled(took_us);
            }
            Arrival::Report(Report::Failed { section, index, errno }) => {
                // Told at once: it may be a moment before the worker is gone, and it takes no command any more.
                self.failed = Some((section, index, errno));
                return Err(self.refused(prepared, (section, index, errno)));
            }
            Arrival::Closed => return Err(Error::Lost),
            Arrival::Report(report @ Report::Skipped { .. }) => self.skipped.push(report),
            Arrival::Root(root) => self.root = Some(root),
            Arrival::Mounts(mounts) => self.mounts = Some(mounts),
            Arrival::Report(Report::Root {} | Report::Mounts {}) => return Err(Error::no_descriptor()),
            Arrival::Refusing(listener) => self.listener = Some(listener),
            // Nobody would answer what it refuses.
            Arrival::Report(Report::Born {} | Report::Refusing {}) => self.is_out_of_hold = true,
            Arrival::Report(_) | Arrival::Terminal(_) | Arrival::Listening(_) | Arrival::Upper(_) => {}
        }
        Ok(())
    }

    pub(crate) fn refused(&self, prepared: &Prepared, (section, index, errno): (u32, u32, i32)) -> Error {
        let own = self.own.as_ref().map(|own| &own.section);
        prepared.step_failed(own, (section, index), errno)
    }
}

// The workers that wait: when one is ordered, and which one a command gets.

/// How long to leave a zygote alone that has more orders than its socket holds.
const FULL: Duration = Duration::from_millis(1);

/// How often a command comes back to look, where something is being replaced outside all the time.
pub(crate) const MOST_TRIES: u32 = 5;

impl Live {
    /// A worker for a command: one that waits, or a new one. It is born, so that we have a hold on it. `narrow` are
    /// steps of it alone.
    pub(crate) async fn take_worker(
        &self,
        narrow: Option<&Section>,
        fail_fast: bool,
    ) -> Result<ReadyWorker, Error> {
        self.let_go_of_ended();
        let mut tries = 0;
        let mut entered = self.ground.enter()?;
        loop {
            // Nobody keeps workers ready that are narrowed, and none of them may get into the row.
            let waiting = if narrow.is_none() { self.take_waiting(entered.generation) } else { None };
            let is_new = waiting.is_none();
            let mut worker = match waiting {
                Some(worker) => worker,
                None if fail_fast => {
                    return Err(if self.is_gone() { Error::SessionEnded } else { Error::Busy });
                }
                None => self.order(narrow).await?,
            };
            match self.ignore_epipe(worker.hear(&self.prepared, &self.counts, fail_fast)).await {
                Ok(()) if fail_fast && !worker.is_ready() => {
                    self.waiting().push_front(worker);
                    return Err(Error::Busy);
                }
                Ok(()) => return Ok(worker.taken(entered.hold)),
                // Killed while it waited, or made when something was short: that is not this command's affair.
                Err(_) if !is_new && !self.has_ended() => {}
                // Something is being replaced outside at this very moment.
                Err(Error::Step { source, .. }) if tries < MOST_TRIES && is_in_motion(&source) => {
                    tries += 1;
                    drop(entered);
                    entered = self.ground.enter()?;
                }
                Err(Error::Lost) => return Err(self.lost()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The oldest worker that waits, of those that are not out of date.
    fn take_waiting(&self, generation: u64) -> Option<Worker> {
        let mut waiting = self.waiting();
        waiting.retain(|worker| worker.generation() >= generation);
        waiting.pop_front()
    }

    /// Orders a worker; waits while the zygote has its hands full.
    pub(crate) async fn order(&self, narrow: Option<&Section>) -> Result<Worker, Error> {
        loop {
            match self.try_order(narrow) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.zygote.has_ended() => {
                    tokio::time::sleep(FULL).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(self.lost()),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(self.lost()),
                worker => return worker.map_err(Error::io("order a worker of the session")),
            }
        }
    }

    fn try_order(&self, narrow: Option<&Section>) -> io::Result<Worker> {
        let making = self.ground.making(narrow)?;
        let (ours, theirs) = socket_pair()?;
        let mut message = Vec::new();
        let steps = making.own.as_ref().map(|own| &own.bytes);
        let leaf = self.groups.as_ref().map(Groups::leaf).transpose()?;
        ZygoteOrder::Worker {
            narrow: steps.map_or(0, |steps| steps.length),
            leaf: u32::from(leaf.is_some()),
        }
        .put(&mut message);
        let descriptors = std::iter::once(theirs.as_fd())
            .chain(steps.map(AsFd::as_fd))
            .chain(leaf.as_ref().map(AsFd::as_fd));
        self.zygote.send(&message, descriptors)?;
        let mut worker = Inside::worker(ours);
        worker.set_leaf(leaf);
        Ok(Worker::ordered(worker, making))
    }

    /// Orders workers until as many wait as shall. What cannot be ordered now is tried again with the next command.
    pub(crate) fn refill(&self) {
        let depth = self.depth.now();
        while self.waiting().len() < depth {
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

/// Whether a step failed because what it is about was just being replaced.
pub(crate) fn is_in_motion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
}
