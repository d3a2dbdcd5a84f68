//! Commands that share their processes, mounts and IPC (`isolation = "session"`): one worker of the zygote
//! stays as their common init, and forks a worker for each command.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use kennel_helper::control::{Report, ZygoteOrder};
use kennel_helper::wire::Field;
use tokio::sync::MutexGuard;

use crate::launch::control::socket_pair;
use crate::launch::inside::{OrderedInit, WaitingInit};
use crate::launch::prepared::OwnSteps;
use crate::launch::shared::SharedInit;
use crate::report::error::Error;
use crate::session::files::view_fd::ViewFd;
use crate::session::mount_state::WorkerMounts;
use crate::session::zygote::worker::Worker;

/// The common init of a session.
#[derive(Debug)]
pub(crate) struct CommonInit {
    init: Arc<SharedInit>,
    view: Arc<ViewFd>,
    /// Reports of steps that it skipped, which hold for each command.
    skipped: Vec<Report>,
    generation: tokio::sync::Mutex<u64>,
}

impl CommonInit {
    /// Of a worker that has carried out its steps, and handed out its root and its mount namespace.
    pub(crate) fn new(worker: Worker, root: OwnedFd, mounts: OwnedFd) -> Result<Self, Error> {
        let generation = worker.generation();
        let (init, skipped) = worker.into_common_init()?;
        Ok(Self {
            init: Arc::new(SharedInit::new(init)),
            view: Arc::new(ViewFd::new(root, mounts, generation)),
            skipped,
            generation: tokio::sync::Mutex::new(generation),
        })
    }

    /// Its view, for file calls too.
    pub(crate) fn view(&self) -> &Arc<ViewFd> {
        &self.view
    }

    /// The generation of its mounts. Hold it while they are mounted again.
    pub(crate) async fn generation(&self) -> MutexGuard<'_, u64> {
        self.generation.lock().await
    }

    /// Orders a child of the zygote that mounts, and ends.
    pub(crate) fn try_remount(&self, zygote: &WaitingInit, own: &Arc<OwnSteps>) -> io::Result<Worker> {
        let (control, child_end) = socket_pair()?;
        let mut message = Vec::new();
        ZygoteOrder::Remount { steps: own.bytes.length }.put(&mut message);
        let descriptors = [child_end.as_fd(), own.bytes.as_fd(), self.view.mounts()];
        zygote.send(&message, descriptors)?;
        Ok(Worker::ordered(OrderedInit::of_zygote(control, None), no_mounts(Some(Arc::clone(own)))))
    }

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
