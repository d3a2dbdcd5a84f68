//! The workers that wait: when one is ordered, and which one a command gets.

use std::{io, os::fd::AsFd, time::Duration};

use kennel_helper::{control::ZygoteOrder, wire::Field};

use super::Live;
use crate::{
    Error,
    cgroup::Groups,
    compile::Section,
    inside::Inside,
    session::worker::{Taken, Worker},
    start::socket_pair,
};

/// How long to leave a zygote alone that has more orders than its socket holds.
const FULL: Duration = Duration::from_millis(1);

/// How often a command comes back to look, where something is being replaced outside all the time.
pub(in crate::session) const MOST_TRIES: u32 = 5;

impl Live {
    /// A worker for a command: one that waits, or a new one. It is born, so that we have a hold on it. `narrow` are
    /// steps of it alone.
    pub(crate) async fn worker(&self, narrow: Option<&Section>, fail_fast: bool) -> Result<Taken, Error> {
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
            match self.unless_gone(worker.hear(&self.prepared, &self.counts, fail_fast)).await {
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
    pub(in crate::session) async fn order(&self, narrow: Option<&Section>) -> Result<Worker, Error> {
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
        worker.lies_in(leaf);
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
pub(in crate::session) fn is_in_motion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
}
