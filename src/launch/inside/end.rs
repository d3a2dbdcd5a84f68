//! The end of a sandbox: kill it, detect its end, wait for its end.

use std::future::pending;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use kennel_helper::control::LONGEST;
use nix::poll::PollTimeout;
use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::Interest;
use tokio::time::Instant as Deadline;

use crate::launch::control::Arrival;
use crate::launch::inside::{Inside, PATIENCE, Rest};
use crate::launch::shared::Mark;
use crate::sys;
use crate::sys::packet;
use crate::sys::reap::LAST_WAIT;

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
        self.gone_by(Deadline::now() + PATIENCE).await == Rest::None
    }

    /// Like [`gone`](Self::gone) with an explicit deadline, for a caller that may be cancelled and call
    /// again. The init of a session has ten seconds more: a storm of processes leaves it little of the
    /// processor. It tells what is left.
    pub(crate) async fn gone_by(&self, last: Deadline) -> Rest {
        let killed = self.kill_init();
        // Init may be gone already, while a command that killed it lives on.
        let marked = self.mark.as_ref().and_then(Mark::kill);
        let Some(pidfd) = &self.pidfd else { return Rest::None };
        let mut rest = if has_ended_by(pidfd, last).await { Rest::None } else { Rest::Stuck };
        if let Some(socket) = marked {
            match has_ended_by(&socket, last + STORM).await {
                false => rest = Rest::Unknown,
                true if packet::receive(&socket, LONGEST).is_ok_and(|answer| !answer.bytes.is_empty()) => {
                    rest = Rest::Stuck;
                }
                true => {}
            }
        }
        let is_gone = rest == Rest::None;
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
        rest
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

    /// The caller may be cancelled and return after the deadline.
    #[tokio::test]
    async fn what_has_ended_is_gone_however_late_it_is_asked_for() {
        let mut child = Command::new("true").spawn().expect("a program");
        let pidfd = sys::open_process(child.id()).expect("a pidfd");
        assert!(sys::has_ended(&pidfd, PollTimeout::from(10_000u16)));
        let control =
            crate::sys::packet::packet_socket(nix::sys::socket::SockFlag::empty()).expect("a socket");
        let mut inside = Inside::worker(control);
        inside.set_pidfd(pidfd, child.id());
        let rest = inside.gone_by(Deadline::now() - Duration::from_secs(1)).await;
        assert_eq!(rest, Rest::None);
        child.wait().expect("its zombie is ours");
    }
}
