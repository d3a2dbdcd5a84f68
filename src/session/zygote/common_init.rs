//! Commands that share their processes, mounts and IPC (`isolation = "session"`): one worker of the zygote
//! stays as their common init, and forks a worker for each command.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use kennel_helper::control::{Report, ZygoteOrder};
use kennel_helper::wire::Field;

use crate::command::source::Ticket;
use crate::launch::control::socket_pair;
use crate::launch::inside::{OrderedInit, WaitingInit};
use crate::launch::prepared::OwnSteps;
use crate::launch::shared::SharedInit;
use crate::report::error::Error;
use crate::session::live::Live;
use crate::session::mount_state::WorkerMounts;
use crate::session::view_fd::ViewFd;
use crate::session::zygote::worker::Worker;

/// The common init of a session.
#[derive(Debug)]
pub(crate) struct Shared {
    init: Arc<SharedInit>,
    /// Its view, for file calls too.
    pub(crate) view: Arc<ViewFd>,
    /// Reports of steps that it skipped, which hold for each command.
    skipped: Vec<Report>,
    /// The generation of its mounts. Held while they are mounted again.
    generation: tokio::sync::Mutex<u64>,
}

impl Shared {
    /// Orders a worker for one command.
    pub(crate) fn try_order(&self) -> io::Result<Worker> {
        let (control, worker_end) = socket_pair()?;
        let mark = self.init.order_worker(worker_end.as_fd())?;
        let init = OrderedInit::of_common_init(control, mark);
        Ok(self.with_skipped(Worker::ordered(init, no_mounts(None))))
    }

    /// A worker whose command has ended.
    pub(crate) fn returned(&self, init: WaitingInit) -> Worker {
        self.with_skipped(Worker::returned(init, no_mounts(None)))
    }

    fn with_skipped(&self, mut worker: Worker) -> Worker {
        worker.add_skipped(&self.skipped);
        worker
    }
}

impl Live {
    /// Orders the common init of a session.
    pub(crate) fn order_common_init(&self) -> Result<Worker, Error> {
        let files = &self.prepared.compiled.steps.files;
        self.try_order_of_zygote(Some(files), true).map_err(Error::io("order the common init of the session"))
    }

    /// Waits for the common init of a session that has been set up.
    pub(crate) async fn share(&mut self, mut worker: Worker) -> Result<(), Error> {
        let counts = Arc::default();
        let (root, mounts) = self.unless_gone(worker.wait_for_view(&self.prepared, &counts)).await?;
        self.unless_gone(worker.wait_until_ready(&self.prepared, &counts)).await?;
        let generation = worker.generation();
        let (init, skipped) = worker.into_common_init()?;
        self.shared = Some(Shared {
            init: Arc::new(SharedInit::new(init)),
            view: Arc::new(ViewFd::new(root, mounts, generation)),
            skipped,
            generation: tokio::sync::Mutex::new(generation),
        });
        Ok(())
    }

    /// Mounts what somebody outside has removed from the mounts that commands share, before a command that
    /// has this ticket.
    pub(crate) async fn mount_again(&self, ticket: &Ticket) -> Result<(), Error> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let mut generation = shared.generation.lock().await;
        if *generation >= ticket.generation {
            return Ok(());
        }
        let mounts =
            self.mounts.for_worker(None).map_err(Error::io("write the steps of a worker to a memfd"))?;
        let now = mounts.generation;
        if let Some(own) = &mounts.own {
            let mut child = self.patiently(|| self.try_remount(shared, own)).await?;
            self.unless_gone(child.wait_until_ready(&self.prepared, &self.counts)).await?;
        }
        *generation = now;
        Ok(())
    }

    /// Orders a child of the zygote that mounts, and ends.
    fn try_remount(&self, shared: &Shared, own: &Arc<OwnSteps>) -> io::Result<Worker> {
        let (control, child_end) = socket_pair()?;
        let mut message = Vec::new();
        ZygoteOrder::Remount { steps: own.bytes.length }.put(&mut message);
        let descriptors = [child_end.as_fd(), own.bytes.as_fd(), shared.view.mounts()];
        self.zygote.send(&message, descriptors)?;
        Ok(Worker::ordered(OrderedInit::of_zygote(control, None), no_mounts(Some(Arc::clone(own)))))
    }
}

/// For a process without mounts of its own, which are never out of date. Its command brings the paths to
/// check.
fn no_mounts(own: Option<Arc<OwnSteps>>) -> WorkerMounts {
    WorkerMounts { own, watches: Arc::default(), generation: u64::MAX }
}

/// The error of a command that asks for less than the policy grants, where its mounts are those of the
/// others.
pub(crate) fn no_restrictions() -> Error {
    Error::Command {
        what: "restrictions",
        value: "a narrower view".to_owned(),
        reason: "commands of this session share their mounts: use isolation = \"command\"".to_owned(),
    }
}
