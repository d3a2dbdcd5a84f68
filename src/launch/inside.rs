//! The outside's hold on a running sandbox, zygote or worker: the control socket and the pidfd of its PID 1. Dropping
//! it ends it: init sees the socket close, and is killed besides.

pub(crate) mod end;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use kennel_helper::control::{LONGEST, Order, Report};
use kennel_helper::wire::{Cursor, Field};
use nix::errno::Errno;
use tokio::io::Interest;

use crate::launch::cgroup::leaf::Leaf;
use crate::network::proxy::ListeningSocket;
use crate::plan::mount_state::{MountChange, MountSnapshot};
use crate::protect::recheck;
use crate::protect::recheck::{Undone, Watch};
use crate::sys;
use crate::sys::packet;
use crate::sys::reap::{RuntimeHome, Unreaped};

/// How long what was killed may take to be gone.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// A running sandbox, zygote or worker: its PID 1.
#[derive(Debug)]
pub(crate) struct Inside {
    control: OwnedFd,
    /// Known from birth for a child of ours; a worker tells it.
    pidfd: Option<Arc<OwnedFd>>,
    watches: Arc<[Watch]>,
    /// What its walls stand on, where nobody else looks after that.
    footing: MountSnapshot,
    /// Whether it is a child of this process, so that its zombie is ours to take away.
    is_child: bool,
    home: RuntimeHome,
    /// Whether it said that everything of it has ended.
    over: bool,
    /// Kept until everything of it has ended and was undone.
    hold: Option<CommandHold>,
    /// The cgroup of everything of it, where there is one.
    leaf: Option<Leaf>,
}

impl Inside {
    /// A child of ours.
    pub(crate) fn child(control: OwnedFd, pidfd: OwnedFd) -> Self {
        let mut child = Self::worker(control);
        (child.pidfd, child.is_child) = (Some(Arc::new(pidfd)), true);
        child
    }

    /// `watches` are paths to look at when everything inside has ended, however it ends.
    pub(crate) fn watch(&mut self, watches: &Arc<[Watch]>) {
        self.watches = Arc::clone(watches);
    }

    /// What its walls are about to be put on; looked at once more when everything inside has ended.
    pub(crate) fn stands_on(&mut self, footing: MountSnapshot) {
        self.footing = footing;
    }

    /// What has changed of that.
    pub(crate) fn change(&self) -> MountChange {
        self.footing.change(true)
    }

    /// A worker that a zygote was ordered to fork.
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
        }
    }

    /// It is followed in this runtime from now on; it may have been started before there was one.
    pub(crate) fn set_home(&mut self) {
        self.home = RuntimeHome::here();
    }

    /// Its cgroup, where it has one; removed once everything of it has ended.
    pub(crate) fn lies_in(&mut self, leaf: Option<Leaf>) {
        self.leaf = leaf;
    }

    /// Its cgroup.
    pub(crate) fn leaf(&self) -> Option<&Leaf> {
        self.leaf.as_ref()
    }

    /// Lets go of a child that ends with its control socket, without ending it.
    pub(crate) fn into_parts(mut self) -> io::Result<(OwnedFd, OwnedFd)> {
        let control = self.control.try_clone()?;
        let pidfd = self.pidfd.take().and_then(Arc::into_inner);
        Ok((control, pidfd.ok_or(io::ErrorKind::NotFound)?))
    }

    /// It has a command of a session from now on, after which `watches` are looked at.
    pub(crate) fn hold(&mut self, hold: CommandHold, watches: &Arc<[Watch]>) {
        self.hold = Some(hold);
        self.watch(watches);
    }

    /// Its PID 1.
    pub(crate) fn pidfd(&self) -> Option<&Arc<OwnedFd>> {
        self.pidfd.as_ref()
    }

    /// Takes in who a worker is.
    pub(crate) fn set_pidfd(&mut self, pidfd: OwnedFd) {
        self.pidfd = Some(Arc::new(pidfd));
    }

    /// Everything inside has ended, it said so, and watched paths were looked at.
    pub(crate) fn set_over(&mut self) {
        self.over = true;
        self.watches = Arc::default();
        self.footing = MountSnapshot::default();
    }

    /// Undoes what was done to watched paths. To be called after the end was reported.
    pub(crate) fn undo(&self) -> Undone {
        undo(&self.watches, &self.footing)
    }

    /// Undoes what was done to watched paths by what was killed and is not gone. That it may not be all is told.
    pub(crate) fn undo_so_far(&self) -> Undone {
        let mut undone = self.undo();
        undone.may_be_more(&self.watches);
        undone
    }

    /// Sends a message and descriptors with it. `EPIPE` where nobody is left to receive it.
    pub(crate) fn send<'f>(
        &self,
        bytes: &[u8],
        descriptors: impl IntoIterator<Item = BorrowedFd<'f>>,
    ) -> io::Result<()> {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.into_iter().collect();
        match packet::send(&self.control, bytes, &descriptors) {
            // It went away with something unread. Whoever asks once more gets EPIPE.
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
        Arrival::of(bytes, received.descriptors.into_iter().next())
    }

    /// The next message; waits for it.
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
            () = self.ended() => self.left(),
        }
    }

    /// Sends an order. That nobody is left to receive it is no error: the end is on its way.
    pub(crate) fn order(&self, order: &Order) -> io::Result<()> {
        let mut bytes = Vec::new();
        order.put(&mut bytes);
        unless_gone(self.send(&bytes, []))
    }
}

/// Who is gone before a message came has told why. It is read like everything that it tells.
pub(crate) fn unless_gone(sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent,
    }
}

impl AsRawFd for Inside {
    fn as_raw_fd(&self) -> RawFd {
        self.control.as_raw_fd()
    }
}

impl Drop for Inside {
    /// Ends the sandbox. What is left of init is taken away in the background, where there is a runtime.
    fn drop(&mut self) {
        let Some(pidfd) = self.pidfd.take() else { return };
        // A worker that has told its end is taken away by its zygote, and leaves nothing to undo.
        if self.over && !self.is_child {
            return;
        }
        // Its socket closes too.
        let _ = sys::kill(&pidfd);
        if let Some(leaf) = &self.leaf {
            leaf.kill();
        }
        // A hold is let go when nothing of it runs any more: what it wrote may be committed then.
        if self.watches.is_empty() && self.hold.is_none() && !self.is_child {
            return;
        }
        let (watches, footing) = (std::mem::take(&mut self.watches), std::mem::take(&mut self.footing));
        let (hold, leaf) = (self.hold.take(), self.leaf.take());
        let remains = KilledInit { watches, footing, _hold: hold, _leaf: leaf };
        Unreaped::of(pidfd, remains).drop_at_end(self.home);
    }
}

// What arrives on the control socket: a report, or one that a descriptor comes with.

/// What arrived on the control socket.
#[derive(Debug)]
pub(crate) enum Arrival {
    Report(Report),
    /// The master side of the command's terminal.
    Terminal(OwnedFd),
    /// The pidfd of a worker's init.
    Born(OwnedFd),
    /// A socket of the sandbox's, to be served outside.
    Listening(ListeningSocket),
    /// The root of a worker.
    Root(OwnedFd),
    /// The mount namespace of a worker.
    Mounts(OwnedFd),
    /// Where an overlay keeps what is written to it.
    Upper(OwnedFd),
    /// What the filter of system calls tells its refusals by.
    Refusing(OwnedFd),
    /// Init is gone; nothing more will come.
    Closed,
}

impl Arrival {
    /// A message. Where there was no room for its descriptor that is lost, but not the message.
    pub(crate) fn of(bytes: &[u8], descriptor: Option<OwnedFd>) -> io::Result<Self> {
        match (Report::take(&mut Cursor::new(bytes)), descriptor) {
            (Some(Report::Terminal {}), Some(master)) => Ok(Self::Terminal(master)),
            (Some(Report::Born {}), Some(pidfd)) => Ok(Self::Born(pidfd)),
            (Some(Report::Listening { kind, port }), Some(socket)) => {
                let port = u16::try_from(port).map_err(|_| io::ErrorKind::InvalidData)?;
                Ok(Self::Listening(ListeningSocket { kind: kind.cast_signed(), port, socket }))
            }
            (Some(Report::Root {}), Some(root)) => Ok(Self::Root(root)),
            (Some(Report::Mounts {}), Some(mounts)) => Ok(Self::Mounts(mounts)),
            (Some(Report::Upper {}), Some(upper)) => Ok(Self::Upper(upper)),
            (Some(Report::Refusing {}), Some(listener)) => Ok(Self::Refusing(listener)),
            (Some(report), _) => Ok(Self::Report(report)),
            (None, _) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

// What is left when a sandbox was killed and nobody waits for its end.

/// What an init that was killed leaves. Dropping this, after its end, undoes it.
pub(crate) struct KilledInit {
    pub(crate) watches: Arc<[Watch]>,
    pub(crate) footing: MountSnapshot,
    /// Let go after the rest.
    pub(crate) _hold: Option<CommandHold>,
    /// Removed after the rest, when nobody is in it any more.
    pub(crate) _leaf: Option<Leaf>,
}

impl Drop for KilledInit {
    fn drop(&mut self) {
        recheck::log(&undo(&self.watches, &self.footing));
    }
}

/// Undoes what was done to watched paths, and tells of walls that somebody took away.
pub(crate) fn undo(watches: &[Watch], footing: &MountSnapshot) -> Undone {
    let mut undone = recheck::undo(watches);
    undone.denials.extend(footing.denials());
    undone
}

/// Somebody who may have a command running: until it is dropped, what appears in the place of a protected path is the
/// command's.
#[derive(Debug)]
pub(crate) struct CommandHold(Arc<AtomicUsize>);

impl CommandHold {
    /// Counts one more holder, until it is dropped.
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
