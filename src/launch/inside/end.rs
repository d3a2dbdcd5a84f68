//! The end of a sandbox: to bring it about, to see it, to wait for it.

use std::future::pending;
use std::io;
use std::os::fd::AsRawFd;

use nix::poll::PollTimeout;
use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::Interest;
use tokio::time::Instant as Deadline;

use crate::launch::inside::{Arrival, Inside, PATIENCE};
use crate::sys;
use crate::sys::reap::LAST_WAIT;

impl Inside {
    /// Kills init and waits, a second at most, until it has ended: then every other process has. Takes its zombie away,
    /// if that is ours. Answers whether it has ended.
    ///
    /// It has not where SIGKILL has to wait: a call that waits for the lock of a directory, or for a disk, is carried out
    /// when its turn comes.
    pub(crate) async fn gone(&self) -> bool {
        self.gone_by(Deadline::now() + PATIENCE).await
    }

    /// As [`gone`](Self::gone), for who may be kept from waiting and come back: until then, and not longer.
    pub(crate) async fn gone_by(&self, last: Deadline) -> bool {
        let killed = self.kill();
        let Some(pidfd) = &self.pidfd else { return true };
        let ended = pidfd.try_clone().and_then(|pidfd| sys::watched(pidfd, Interest::READABLE));
        let last_wait = match &ended {
            Ok(ended) => {
                let _ = tokio::time::timeout_at(last, ended.readable()).await;
                // The runtime looks later than the process ends: who comes when the time is up is not told by it.
                PollTimeout::ZERO
            }
            // There is no room for another descriptor.
            Err(_) => PollTimeout::from(LAST_WAIT),
        };
        let is_gone = sys::has_ended(pidfd, last_wait);
        match killed {
            _ if is_gone => {}
            Ok(()) => {
                tracing::warn!("a sandbox was killed and is not gone: something in it is stuck in the kernel")
            }
            Err(error) => tracing::error!(%error, "a sandbox is not gone: it may not be killed"),
        }
        if self.is_child {
            sys::reap(pidfd);
        }
        is_gone
    }

    /// Whether its PID 1 has ended. Not by its socket: who was forked from this program has the other end of that too, where it
    /// was made at that moment.
    pub(crate) fn has_ended(&self) -> bool {
        self.pidfd.as_ref().is_some_and(|pidfd| sys::has_ended(pidfd, PollTimeout::ZERO))
    }

    /// Waits until it has; forever where that cannot be watched.
    pub(crate) async fn ended(&self) {
        if let Some(pidfd) = &self.pidfd
            && let Ok(pidfd) = pidfd.try_clone().and_then(|pidfd| sys::watched(pidfd, Interest::READABLE))
            && pidfd.readable().await.is_ok()
        {
            return;
        }
        pending().await
    }

    /// The next message of one that has ended.
    pub(crate) fn left(&self) -> io::Result<Arrival> {
        match self.receive() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Arrival::Closed),
            arrival => arrival,
        }
    }

    /// Kills init, and with it every process of the sandbox. Its socket ends too: that ends it where it may not be killed, because
    /// the embedding program has changed its ids, or has a filter of system calls.
    ///
    /// # Errors
    /// `EPERM` where only its socket was left.
    pub(crate) fn kill(&self) -> nix::Result<()> {
        let killed = self.pidfd.as_ref().map_or(Ok(()), |pidfd| sys::kill(pidfd));
        // Where it was closed there is nobody to tell.
        let _ = shutdown(self.control.as_raw_fd(), Shutdown::Both);
        if let Some(leaf) = &self.leaf {
            leaf.kill();
        }
        killed
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    /// Whoever waits may have been called away, and come back when the time was up.
    #[tokio::test]
    async fn what_has_ended_is_gone_however_late_it_is_asked_for() {
        let mut child = Command::new("true").spawn().expect("a program");
        let pidfd = sys::open_process(child.id()).expect("a pidfd");
        assert!(sys::has_ended(&pidfd, PollTimeout::from(10_000u16)));
        let control =
            crate::sys::packet::packet_socket(nix::sys::socket::SockFlag::empty()).expect("a socket");
        let mut inside = Inside::worker(control);
        inside.set_pidfd(pidfd);
        assert!(inside.gone_by(Deadline::now() - Duration::from_secs(1)).await);
        child.wait().expect("its zombie is ours");
    }
}
