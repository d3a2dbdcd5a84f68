//! The init that commands of a session share, as orders reach it: it forks their workers, and ends what a
//! worker can no longer end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use kennel_helper::control::{SharedOrder, mark};
use kennel_helper::wire::Field;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::launch::control::{ignore_epipe, socket_pair};
use crate::launch::inside::WaitingInit;

/// How long to wait until the init reads its orders, in milliseconds. It is busy while it ends another
/// command.
const BUSY: u16 = 1_000;

/// The common init.
#[derive(Debug)]
pub(crate) struct SharedInit {
    init: WaitingInit,
    /// How many workers it was ordered to fork.
    ordered: AtomicU64,
}

impl SharedInit {
    pub(crate) fn new(init: WaitingInit) -> Self {
        Self { init, ordered: AtomicU64::new(0) }
    }

    /// Orders a worker, which has the other end of `socket`.
    ///
    /// # Errors
    /// `EAGAIN` if the init has too many orders; `EPIPE` if it is gone.
    pub(crate) fn order_worker(self: &Arc<Self>, socket: BorrowedFd<'_>) -> io::Result<Mark> {
        let mark = mark(self.ordered.fetch_add(1, Relaxed));
        self.init.send(&bytes(&SharedOrder::Worker { mark }), [socket])?;
        Ok(Mark { init: Arc::clone(self), mark })
    }
}

/// The mark of all processes of one command.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    init: Arc<SharedInit>,
    mark: u64,
}

impl Mark {
    pub(crate) fn number(&self) -> u64 {
        self.mark
    }

    /// Continues every process with this mark.
    pub(crate) fn go_on(&self) {
        // An init that takes no orders now gets another one.
        let number = libc::SIGCONT.cast_unsigned();
        let _ = self.init.init.send(&bytes(&SharedOrder::Signal { mark: self.mark, number }), []);
    }

    /// Orders the kill of every process with this mark but the worker with this PID, which sees their end.
    pub(crate) fn kill_all_but(&self, worker: u32) {
        drop(self.order_kill(worker));
    }

    /// Orders the kill of every process with this mark. The socket hangs up when none is left. Before that it
    /// brings a message if some are left, blocked in the kernel. `None` if nobody will tell.
    pub(crate) fn kill(&self) -> Option<OwnedFd> {
        self.order_kill(0)
    }

    fn order_kill(&self, spared: u32) -> Option<OwnedFd> {
        let order = bytes(&SharedOrder::Kill { mark: self.mark, spared });
        let (ours, theirs) = socket_pair().ok().unzip();
        let mut sent = self.init.init.send(&order, theirs.as_ref().map(AsFd::as_fd));
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            let mut socket = [PollFd::new(self.init.init.socket(), PollFlags::POLLOUT)];
            let _ = poll(&mut socket, PollTimeout::from(BUSY));
            sent = self.init.init.send(&order, theirs.as_ref().map(AsFd::as_fd));
        }
        // If the init is gone, so is every process of the session.
        let has_sent = sent.is_ok();
        if let Err(error) = ignore_epipe(sent) {
            tracing::error!(%error, "processes of a killed command may live on: their init takes no orders");
        }
        ours.filter(|_| has_sent)
    }
}

fn bytes(order: &SharedOrder) -> Vec<u8> {
    let mut bytes = Vec::new();
    order.put(&mut bytes);
    bytes
}
