//! The handle on a running sandbox, zygote or worker: the control socket and the pidfd of its PID 1 (init).
//! Dropping it ends the sandbox: init sees the socket close, and is killed.

pub(crate) mod end;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kennel_helper::control::{LONGEST, Order};
use kennel_helper::wire::Field;
use nix::errno::Errno;
use tokio::io::Interest;

use crate::launch::cgroup::leaf::Leaf;
use crate::launch::control::{Arrival, ignore_epipe};
use crate::launch::shared::Mark;
use crate::mount_snapshot::{MountChange, MountSnapshot};
use crate::protect::recheck;
use crate::protect::recheck::Undone;
use crate::protect::watch::Watch;
use crate::sys;
use crate::sys::packet;
use crate::sys::reap::{RuntimeHome, Unreaped};

/// How long to wait for killed processes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// What tells the processes of one command from those of others.
#[derive(Clone, Debug)]
pub(crate) enum CommandKey {
    /// They have this mark: [`mark`](kennel_helper::control::mark).
    Mark(u64),
    /// They descend from this init, as long as it lives.
    Init(Weak<OwnedFd>),
}

/// A running sandbox, zygote or worker, by its init.
#[derive(Debug)]
pub(crate) struct Inside {
    control: OwnedFd,
    /// Known from the start for a child of this process; a worker reports it.
    pidfd: Option<Arc<OwnedFd>>,
    watches: Arc<[Watch]>,
    /// The mounts under its protections, if nothing else compares them at the end.
    footing: MountSnapshot,
    /// Whether init is a child of this process, which must then reap it.
    is_child: bool,
    home: RuntimeHome,
    /// Whether init reported that all of its processes have ended.
    over: bool,
    /// Held until all processes have ended and protected paths are restored.
    hold: Option<CommandHold>,
    /// The cgroup of all its processes, if it has one.
    leaf: Option<Leaf>,
    /// The mark of all its processes, if it shares a pid namespace.
    mark: Option<Mark>,
    /// The PID of init in that namespace; zero if it is not known.
    pid: u32,
}

/// What is left of a killed sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Nothing.
    #[default]
    None,
    /// A process that has got SIGKILL, and dies when a system call ends.
    Stuck,
    /// Nobody knows: its killer has not answered.
    Unknown,
}

impl Inside {
    /// For a child of this process.
    pub(crate) fn child(control: OwnedFd, pidfd: OwnedFd) -> Self {
        let mut child = Self::worker(control);
        (child.pidfd, child.is_child) = (Some(Arc::new(pidfd)), true);
        child
    }

    /// Sets the paths to restore once everything inside has ended, however it ends.
    pub(crate) fn watch(&mut self, watches: &Arc<[Watch]>) {
        self.watches = Arc::clone(watches);
    }

    /// Sets the mounts to compare once everything inside has ended.
    pub(crate) fn set_footing(&mut self, footing: MountSnapshot) {
        self.footing = footing;
    }

    /// What has changed about those mounts.
    pub(crate) fn footing_change(&self) -> MountChange {
        self.footing.change(true, true)
    }

    /// For a worker that a zygote will fork.
    pub(crate) fn worker(control: OwnedFd) -> Self {
        Self {
            control,
            pidfd: None,
            watches: Arc::default(),
            footing: MountSnapshot::default(),
            is_child: false,
            home: RuntimeHome::here(),
            over: false,
            hold: None,
            leaf: None,
            mark: None,
            pid: 0,
        }
    }

    /// Ties it to the current runtime. It may have been started before there was one.
    pub(crate) fn set_home(&mut self) {
        self.home = RuntimeHome::here();
    }

    /// Sets its cgroup, which is removed once everything in it has ended.
    pub(crate) fn set_leaf(&mut self, leaf: Option<Leaf>) {
        self.leaf = leaf;
    }

    /// Sets the mark of its processes, which the end of its init does not kill.
    pub(crate) fn set_mark(&mut self, mark: Mark) {
        self.mark = Some(mark);
    }

    /// Whether other commands can signal its processes.
    pub(crate) fn is_marked(&self) -> bool {
        self.mark.is_some()
    }

    /// Continues its processes, which another command may have stopped.
    pub(crate) fn go_on(&self) {
        // It may not have set its mark yet.
        if let Some(pidfd) = &self.pidfd {
            let _ = sys::signal(pidfd, libc::SIGCONT);
        }
        if let Some(mark) = &self.mark {
            mark.go_on();
        }
    }

    /// The control socket, for poll(2).
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Its cgroup, if it has one.
    pub(crate) fn leaf(&self) -> Option<&Leaf> {
        self.leaf.as_ref()
    }

    /// Marks it as running a command of a session. `watches` are restored afterwards.
    pub(crate) fn hold(&mut self, hold: CommandHold, watches: &Arc<[Watch]>) {
        self.hold = Some(hold);
        self.watch(watches);
    }

    /// The pidfd of init, if known.
    pub(crate) fn pidfd(&self) -> Option<&Arc<OwnedFd>> {
        self.pidfd.as_ref()
    }

    /// What tells its processes from those of other commands, once its init is known.
    pub(crate) fn key(&self) -> Option<CommandKey> {
        match &self.mark {
            Some(mark) => Some(CommandKey::Mark(mark.number())),
            None => self.pidfd.as_ref().map(|pidfd| CommandKey::Init(Arc::downgrade(pidfd))),
        }
    }

    /// Sets the pidfd that a worker reported, and its PID inside.
    pub(crate) fn set_pidfd(&mut self, pidfd: OwnedFd, pid: u32) {
        (self.pidfd, self.pid) = (Some(Arc::new(pidfd)), pid);
    }

    /// Orders the kill of every process. Init reports when all have ended.
    ///
    /// # Errors
    /// `EAGAIN` if it does not read its orders.
    pub(crate) fn order_kill(&self) -> io::Result<()> {
        // First: what init reads before it sees the end of the command.
        self.order(&Order::Kill {})?;
        if let Some(mark) = &self.mark {
            mark.kill_all_but(self.pid);
        }
        Ok(())
    }

    /// Lets go of a command that has ended, so that it can run another one.
    pub(crate) fn set_free(&mut self) {
        self.hold = None;
        self.watches = Arc::default();
        self.footing = MountSnapshot::default();
    }

    /// Call this when init has reported the end of all processes and protected paths have been restored.
    pub(crate) fn set_over(&mut self) {
        self.over = true;
        self.watches = Arc::default();
        self.footing = MountSnapshot::default();
    }

    /// Restores protected paths. Call it after the end was reported.
    pub(crate) fn undo(&self) -> Undone {
        undo(&self.watches, &self.footing)
    }

    /// Restores protected paths although killed processes are not gone yet. The result says that it may be
    /// incomplete.
    pub(crate) fn undo_so_far(&self) -> Undone {
        let mut undone = self.undo();
        undone.add_stuck_process(&self.watches);
        undone
    }

    /// Sends a message with descriptors. `EPIPE` if the peer has closed its end.
    pub(crate) fn send<'f>(
        &self,
        bytes: &[u8],
        descriptors: impl IntoIterator<Item = BorrowedFd<'f>>,
    ) -> io::Result<()> {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.into_iter().collect();
        match packet::send(&self.control, bytes, &descriptors) {
            // The peer closed its end with unread data. The next send returns EPIPE.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(Errno::EPIPE.into()),
            sent => sent,
        }
    }

    /// Receives one message without waiting.
    pub(crate) fn receive(&self) -> io::Result<Arrival> {
        let mut bytes = [0u8; LONGEST];
        let received = packet::receive_message(self.control.as_fd(), &mut bytes)?;
        if received.count == 0 {
            return Ok(Arrival::Closed);
        }
        let bytes = bytes.get(..received.count).unwrap_or_default();
        Arrival::parse(bytes, received.descriptors.into_iter().next())
    }

    /// Waits for the next message.
    pub(crate) async fn next(&self) -> io::Result<Arrival> {
        match self.receive() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            arrival => return arrival,
        }
        let readable = sys::watched(self.control.try_clone()?, Interest::READABLE)?;
        let spoken = async {
            loop {
                readable.readable().await?.clear_ready();
                match self.receive() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    arrival => return arrival,
                }
            }
        };
        tokio::select! {
            biased;
            arrival = spoken => arrival,
            () = self.ended() => self.last_message(),
        }
    }

    /// Sends an order. A peer that is gone is no error, because the next read reports its end.
    pub(crate) fn order(&self, order: &Order) -> io::Result<()> {
        let mut bytes = Vec::new();
        order.put(&mut bytes);
        ignore_epipe(self.send(&bytes, []))
    }
}

impl AsRawFd for Inside {
    fn as_raw_fd(&self) -> RawFd {
        self.control.as_raw_fd()
    }
}

impl Drop for Inside {
    /// Ends the sandbox. A background task reaps init, if there is a runtime.
    fn drop(&mut self) {
        let Some(pidfd) = self.pidfd.take() else { return };
        // The zygote reaps a worker that has reported its end, and there is nothing left to restore.
        if self.over && !self.is_child {
            return;
        }
        // The control socket closes too.
        let _ = sys::kill(&pidfd);
        if let Some(leaf) = &self.leaf {
            leaf.kill();
        }
        let rest = self.mark.as_ref().and_then(Mark::kill);
        // The hold ends only after the last process: its changes may be committed from then on.
        if self.watches.is_empty() && self.hold.is_none() && !self.is_child {
            return;
        }
        let (watches, footing) = (std::mem::take(&mut self.watches), std::mem::take(&mut self.footing));
        let (hold, leaf) = (self.hold.take(), self.leaf.take());
        let remains = KilledInit { watches, footing, _hold: hold, _leaf: leaf };
        Unreaped::of(rest.map_or(pidfd, Arc::new), remains).drop_at_end(self.home);
    }
}

// The rest of a killed sandbox that no caller waits for.

/// What a killed init leaves. Dropping it after the end of init restores the protected paths.
pub(crate) struct KilledInit {
    pub(crate) watches: Arc<[Watch]>,
    pub(crate) footing: MountSnapshot,
    /// Dropped after `watches` and `footing` have been used.
    pub(crate) _hold: Option<CommandHold>,
    /// Removed after everything else, once it is empty.
    pub(crate) _leaf: Option<Leaf>,
}

impl Drop for KilledInit {
    fn drop(&mut self) {
        recheck::log(&undo(&self.watches, &self.footing));
    }
}

/// Restores protected paths, and reports mounts that were removed from under the sandbox.
pub(crate) fn undo(watches: &[Watch], footing: &MountSnapshot) -> Undone {
    let mut undone = recheck::undo(watches);
    undone.denials.extend(footing.denials());
    undone
}

/// Marks a running command. While one exists, anything new at a protected path counts as made by the command.
#[derive(Debug)]
pub(crate) struct CommandHold(Arc<AtomicUsize>);

impl CommandHold {
    /// Increments the counter until the drop.
    pub(crate) fn new(holds: &Arc<AtomicUsize>) -> Self {
        holds.fetch_add(1, SeqCst);
        Self(Arc::clone(holds))
    }
}

impl Drop for CommandHold {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
