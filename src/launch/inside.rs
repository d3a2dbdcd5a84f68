//! The handle on a running sandbox, zygote or worker: the control socket and the pidfd of its PID 1 (init).
//! Dropping it ends the sandbox: init sees the socket close, and is killed.
//!
//! Each stage of an init's life is a type: [`OrderedInit`], [`WaitingInit`], [`PlannedInit`] for a one-shot,
//! and [`CommandInit`]. All of them hold an [`Inside`], whose drop knows what is left to do.

pub(crate) mod end;

use std::io;
use std::ops::Deref;
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
use crate::protect::mount_snapshot::{MountChange, MountSnapshot};
use crate::protect::watch::Watch;
use crate::sys;
use crate::sys::birth::Birth;
use crate::sys::packet;
use crate::sys::reap::RuntimeHome;

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

/// What every stage of an init's life has.
#[derive(Debug)]
pub(crate) struct Inside {
    control: OwnedFd,
    /// Known from the start for a child of this process; a worker reports it.
    pidfd: Option<Arc<OwnedFd>>,
    /// The PID of init in its namespace; zero if it is not known.
    pid: u32,
    /// Whether init is a child of this process, which must then reap it.
    is_child: bool,
    /// Until init is known to have executed its image.
    birth: Option<Birth>,
    /// The runtime that waits for its end, if it is dropped before that.
    home: RuntimeHome,
    /// The paths to restore once everything inside has ended, however it ends.
    watches: Arc<[Watch]>,
    /// The mounts under its protections, if nothing else compares them at the end.
    mount_snapshot: MountSnapshot,
    /// Held until all processes have ended and protected paths are restored.
    hold: Option<CommandHold>,
    /// The cgroup of all its processes, if it has one.
    leaf: Option<Leaf>,
    /// The mark of all its processes, if it shares a pid namespace. The end of its init does not kill them.
    mark: Option<Mark>,
    /// Whether init reported that all of its processes have ended, and protected paths were restored.
    is_over: bool,
}

/// What is left of a killed sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// Nothing.
    #[default]
    None,
    /// A process that has got SIGKILL, and dies when a system call ends.
    Stuck,
    /// Nobody knows: its killer has not answered.
    Unknown,
}

impl Inside {
    fn new(control: OwnedFd) -> Self {
        Self {
            control,
            pidfd: None,
            pid: 0,
            is_child: false,
            birth: None,
            home: RuntimeHome::here(),
            watches: Arc::default(),
            mount_snapshot: MountSnapshot::default(),
            hold: None,
            leaf: None,
            mark: None,
            is_over: false,
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

    /// The pidfd of init, if known.
    pub(crate) fn pidfd(&self) -> Option<&Arc<OwnedFd>> {
        self.pidfd.as_ref()
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
}

// The life of an init.

/// The init of a worker that was ordered, and has not told of its birth.
#[derive(Debug)]
pub(crate) struct OrderedInit(Inside);

impl OrderedInit {
    /// For an init that a zygote forks into this cgroup. Dropping removes the cgroup once it is empty.
    pub(crate) fn of_zygote(control: OwnedFd, leaf: Option<Leaf>) -> Self {
        let mut inside = Inside::new(control);
        inside.leaf = leaf;
        Self(inside)
    }

    /// For the worker of a common init. All processes of its commands have this mark.
    pub(crate) fn of_common_init(control: OwnedFd, mark: Mark) -> Self {
        let mut inside = Inside::new(control);
        inside.mark = Some(mark);
        Self(inside)
    }

    /// It told of its birth, with its pidfd and its PID inside. From now on Kennel can kill it.
    pub(crate) fn born(mut self, pidfd: OwnedFd, pid: u32) -> WaitingInit {
        (self.0.pidfd, self.0.pid) = (Some(Arc::new(pidfd)), pid);
        WaitingInit(self.0)
    }
}

/// An init without a command: that of a zygote, a bridge, a worker or a new one-shot.
#[derive(Debug)]
pub(crate) struct WaitingInit(Inside);

impl WaitingInit {
    /// For a child of this process, in this cgroup.
    pub(crate) fn child(control: OwnedFd, pidfd: OwnedFd, leaf: Option<Leaf>, birth: Birth) -> Self {
        let mut inside = Inside::new(control);
        (inside.pidfd, inside.is_child, inside.leaf) = (Some(Arc::new(pidfd)), true, leaf);
        inside.birth = Some(birth);
        Self(inside)
    }

    /// Takes what tells whether it has executed its image.
    pub(crate) fn take_birth(&mut self) -> Option<Birth> {
        self.0.birth.take()
    }

    /// Takes its cgroup, for another init.
    pub(crate) fn take_leaf(&mut self) -> Option<Leaf> {
        self.0.leaf.take()
    }

    /// Makes it the init of a one-shot, whose plan fits these mounts.
    pub(crate) fn planned(mut self, mounts: MountSnapshot) -> PlannedInit {
        self.0.mount_snapshot = mounts;
        PlannedInit(self.0)
    }

    /// Gives it to a command of a session. It keeps `hold` until everything inside has ended and `watches`
    /// are restored.
    pub(crate) fn begin(mut self, hold: CommandHold, watches: &Arc<[Watch]>) -> CommandInit {
        self.0.hold = Some(hold);
        CommandInit::new(self.0, watches)
    }
}

/// The init of a one-shot that has its plan, and no command yet.
#[derive(Debug)]
pub(crate) struct PlannedInit(Inside);

impl PlannedInit {
    /// What has changed about the mounts that its plan fits.
    pub(crate) fn mount_change(&self) -> MountChange {
        self.0.mount_snapshot.change(true, true)
    }

    /// Gives it to its command. `watches` are restored once everything inside has ended.
    pub(crate) fn begin(self, watches: &Arc<[Watch]>) -> CommandInit {
        CommandInit::new(self.0, watches)
    }
}

/// An init that has a command, or what its command has left. If it is dropped before [`over`](Self::over) or
/// [`free`](Self::free), everything inside is killed, and then the watched paths are restored.
#[derive(Debug)]
pub(crate) struct CommandInit(Inside);

impl CommandInit {
    fn new(mut inside: Inside, watches: &Arc<[Watch]>) -> Self {
        inside.watches = Arc::clone(watches);
        // It may have been started before there was a runtime.
        inside.home = RuntimeHome::here();
        Self(inside)
    }

    /// Lets go of a command that has ended and was undone, so that it can run another one.
    pub(crate) fn free(mut self) -> WaitingInit {
        self.0.hold = None;
        self.0.watches = Arc::default();
        self.0.mount_snapshot = MountSnapshot::default();
        WaitingInit(self.0)
    }

    /// Drops it after init has reported the end of all processes and protected paths have been restored.
    pub(crate) fn over(mut self) {
        self.0.is_over = true;
        self.0.watches = Arc::default();
        self.0.mount_snapshot = MountSnapshot::default();
    }

    /// Whether other commands can signal its processes.
    pub(crate) fn is_marked(&self) -> bool {
        self.0.mark.is_some()
    }

    /// Continues its processes, which another command may have stopped.
    pub(crate) fn go_on(&self) {
        // It may not have set its mark yet.
        if let Some(pidfd) = &self.0.pidfd {
            let _ = sys::signal(pidfd, libc::SIGCONT);
        }
        if let Some(mark) = &self.0.mark {
            mark.go_on();
        }
    }

    /// What tells its processes from those of other commands.
    pub(crate) fn key(&self) -> Option<CommandKey> {
        match &self.0.mark {
            Some(mark) => Some(CommandKey::Mark(mark.number())),
            None => self.0.pidfd.as_ref().map(|pidfd| CommandKey::Init(Arc::downgrade(pidfd))),
        }
    }

    /// Orders the kill of every process. Init reports when all have ended.
    ///
    /// # Errors
    /// `EAGAIN` if it does not read its orders.
    pub(crate) fn order_kill(&self) -> io::Result<()> {
        // First: what init reads before it sees the end of the command.
        self.order(&Order::Kill {})?;
        if let Some(mark) = &self.0.mark {
            mark.kill_all_but(self.0.pid);
        }
        Ok(())
    }

    /// Sends an order. A peer that is gone is no error, because the next read reports its end.
    pub(crate) fn order(&self, order: &Order) -> io::Result<()> {
        let mut bytes = Vec::new();
        order.put(&mut bytes);
        ignore_epipe(self.send(&bytes, []))
    }
}

/// Each stage can send and receive, be killed and be waited for.
macro_rules! derefs_to_inside {
    ($($stage:ident)*) => {
        $(impl Deref for $stage {
            type Target = Inside;

            fn deref(&self) -> &Inside {
                &self.0
            }
        })*
    };
}

derefs_to_inside! { OrderedInit WaitingInit PlannedInit CommandInit }

impl AsRawFd for CommandInit {
    fn as_raw_fd(&self) -> RawFd {
        self.0.control.as_raw_fd()
    }
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
