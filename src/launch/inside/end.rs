//! The end of a sandbox: kill it, detect its end, wait for its end, and restore protected paths.

use std::future::pending;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use kennel_helper::control::LONGEST;
use nix::poll::PollTimeout;
use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::Interest;
use tokio::time::Instant as Deadline;

use crate::launch::cgroup::leaf::Leaf;
use crate::launch::control::Arrival;
use crate::launch::inside::{CommandHold, CommandInit, Inside, Leftover, PATIENCE};
use crate::launch::shared::Mark;
use crate::protect::mount_snapshot::MountSnapshot;
use crate::protect::recheck;
use crate::protect::recheck::Undone;
use crate::protect::watch::Watch;
use crate::sys;
use crate::sys::packet;
use crate::sys::reap::{LAST_WAIT, Unreaped};

/// How much longer the init of a session may take to kill the processes of a command.
const STORM: Duration = Duration::from_secs(10);

impl Inside {
    /// Kills init and waits up to a second for its end. The kernel ends init only after all other processes
    /// of its pid namespace, see pid_namespaces(7). Reaps init if it is a child of this process. Returns
    /// whether init has ended.
    ///
    /// It has not if SIGKILL is delayed: a process blocked in the kernel, on a directory lock or a disk, dies
    /// only after that call.
    pub(crate) async fn gone(&self) -> bool {
        self.gone_by(Deadline::now() + PATIENCE).await == Leftover::None
    }

    /// Like [`gone`](Self::gone) with an explicit deadline, for a caller that may be cancelled and call
    /// again. The init of a session has ten seconds more: a storm of processes leaves it little of the
    /// processor. It tells what is left.
    pub(crate) async fn gone_by(&self, last: Deadline) -> Leftover {
        let killed = self.kill_init();
        // Init may be gone already, while a command that killed it lives on.
        let marked = self.mark.as_ref().and_then(Mark::kill);
        let Some(pidfd) = &self.pidfd else { return Leftover::None };
        let mut left = if has_ended_by(pidfd, last).await { Leftover::None } else { Leftover::Stuck };
        if let Some(socket) = marked {
            match has_ended_by(&socket, last + STORM).await {
                false => left = Leftover::Unknown,
                true if packet::receive(&socket, LONGEST).is_ok_and(|answer| !answer.bytes.is_empty()) => {
                    left = Leftover::Stuck;
                }
                true => {}
            }
        }
        let is_gone = left == Leftover::None;
        match killed {
            _ if is_gone => {}
            Ok(()) => {
                tracing::warn!("a killed sandbox is not gone: a process in it is blocked in the kernel")
            }
            Err(error) => tracing::error!(%error, "a sandbox is not gone: this process may not kill it"),
        }
        if self.is_child {
            sys::reap(pidfd);
        }
        left
    }

    /// Whether init has ended. The control socket does not tell: a process forked from this program at the
    /// wrong moment holds a copy of the other end.
    pub(crate) fn has_ended(&self) -> bool {
        self.pidfd.as_ref().is_some_and(|pidfd| sys::has_ended(pidfd, PollTimeout::ZERO))
    }

    /// Waits for the end of init; for ever if it cannot be watched.
    pub(crate) async fn ended(&self) {
        if let Some(pidfd) = &self.pidfd
            && let Ok(pidfd) = pidfd.try_clone().and_then(|pidfd| sys::watched(pidfd, Interest::READABLE))
            && pidfd.readable().await.is_ok()
        {
            return;
        }
        pending().await
    }

    /// The next unread message after the end of init.
    pub(crate) fn last_message(&self) -> io::Result<Arrival> {
        match self.receive() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Arrival::Closed),
            arrival => arrival,
        }
    }

    /// Kills init, and with it all processes of the sandbox. It also shuts the control socket down. That ends
    /// init even if this process may not signal it, because the embedding program has changed its user or has
    /// a seccomp filter.
    ///
    /// # Errors
    /// `EPERM` if only the socket could be shut down.
    pub(crate) fn kill(&self) -> nix::Result<()> {
        let killed = self.kill_init();
        if let Some(mark) = &self.mark {
            // Nobody waits here.
            drop(mark.kill());
        }
        killed
    }

    /// The same, but for processes that share their pid namespace with others.
    fn kill_init(&self) -> nix::Result<()> {
        let killed = self.pidfd.as_ref().map_or(Ok(()), |pidfd| sys::kill(pidfd));
        // It fails only if the socket is already shut down.
        let _ = shutdown(self.control.as_raw_fd(), Shutdown::Both);
        if let Some(leaf) = &self.leaf {
            leaf.kill();
        }
        killed
    }
}

impl Drop for Inside {
    /// Ends the sandbox. A background task reaps init, if there is a runtime.
    fn drop(&mut self) {
        let Some(pidfd) = self.pidfd.take() else { return };
        // The zygote reaps a worker that has reported its end, and there is nothing left to restore.
        if self.is_over && !self.is_child {
            return;
        }
        // The control socket closes too.
        let _ = sys::kill(&pidfd);
        if let Some(leaf) = &self.leaf {
            leaf.kill();
        }
        let marked = self.mark.as_ref().and_then(Mark::kill);
        // The hold ends only after the last process: its changes may be committed from then on.
        if self.watches.is_empty() && self.hold.is_none() && !self.is_child {
            return;
        }
        let mount_snapshot = std::mem::take(&mut self.mount_snapshot);
        let watches = std::mem::take(&mut self.watches);
        let (hold, leaf) = (self.hold.take(), self.leaf.take());
        let remains = KilledInit { watches, mount_snapshot, _hold: hold, _leaf: leaf };
        Unreaped::of(marked.map_or(pidfd, Arc::new), remains).drop_at_end(self.home);
    }
}

/// What a killed init leaves. Dropping it after the end of init restores the protected paths.
struct KilledInit {
    watches: Arc<[Watch]>,
    mount_snapshot: MountSnapshot,
    /// Dropped after `watches` and `mount_snapshot` have been used.
    _hold: Option<CommandHold>,
    /// Removed after everything else, once it is empty.
    _leaf: Option<Leaf>,
}

impl Drop for KilledInit {
    fn drop(&mut self) {
        recheck::log(&undo(&self.watches, &self.mount_snapshot));
    }
}

impl CommandInit {
    /// Restores protected paths. Call it after the end was reported.
    pub(crate) fn undo(&self) -> Undone {
        undo(&self.watches, &self.mount_snapshot)
    }

    /// Restores protected paths although killed processes are not gone yet. The result says that it may be
    /// incomplete.
    pub(crate) fn undo_so_far(&self) -> Undone {
        let mut undone = self.undo();
        undone.add_stuck_process(&self.watches);
        undone
    }
}

/// Restores protected paths, and reports mounts that were removed from under the sandbox.
fn undo(watches: &[Watch], mount_snapshot: &MountSnapshot) -> Undone {
    let mut undone = recheck::undo(watches);
    undone.denials.extend(mount_snapshot.denials());
    undone
}

/// Waits until a pidfd or a socket tells of an end.
async fn has_ended_by(end: &OwnedFd, last: Deadline) -> bool {
    let last_wait = match end.try_clone().and_then(|end| sys::watched(end, Interest::READABLE)) {
        Ok(ended) => {
            let _ = tokio::time::timeout_at(last, ended.readable()).await;
            // The runtime may learn of the end later than the kernel: look once more after the deadline.
            PollTimeout::ZERO
        }
        // No free descriptor: wait in poll(2) instead.
        Err(_) => PollTimeout::from(LAST_WAIT),
    };
    sys::has_ended(end, last_wait)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::launch::inside::OrderedInit;

    /// The caller may be cancelled and return after the deadline.
    #[tokio::test]
    async fn what_has_ended_is_gone_however_late_it_is_asked_for() {
        let mut child = Command::new("true").spawn().expect("a program");
        let pidfd = sys::open_process(child.id()).expect("a pidfd");
        assert!(sys::has_ended(&pidfd, PollTimeout::from(10_000u16)));
        let control =
            crate::sys::packet::packet_socket(nix::sys::socket::SockFlag::empty()).expect("a socket");
        let init = OrderedInit::of_zygote(control, None).born(pidfd, child.id());
        let left = init.gone_by(Deadline::now() - Duration::from_secs(1)).await;
        assert_eq!(left, Leftover::None);
        child.wait().expect("its zombie is ours");
    }
}
