//! The outside's hold on a running sandbox: the control socket and the pidfd of its PID 1. Dropping it ends the
//! sandbox: init sees the socket close, and is killed besides.

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

use kennel_helper::{
    control::{LONGEST, Order, Report},
    wire::{Cursor, Field},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, send, sendmsg},
};
use tokio::{io::Interest, runtime::Handle};

use crate::{
    outcome::Denial,
    sys,
    watch::{self, Watch},
};

/// How long the last drop waits for init to be gone, in milliseconds; it was killed, so this is ample.
const LAST_WAIT: u16 = 200;

/// A running sandbox.
#[derive(Debug)]
pub(crate) struct Inside {
    control: OwnedFd,
    pidfd: Option<OwnedFd>,
    watches: Vec<Watch>,
}

/// What arrived on the control socket.
#[derive(Debug)]
pub(crate) enum Arrival {
    Report(Report),
    /// The master side of the command's terminal.
    Terminal(OwnedFd),
    /// Init is gone; nothing more will come.
    Closed,
}

impl Inside {
    /// `watches` are paths to look at when everything inside has ended, however it ends.
    pub(crate) fn new(control: OwnedFd, pidfd: OwnedFd, watches: Vec<Watch>) -> Self {
        Self { control, pidfd: Some(pidfd), watches }
    }

    /// Kills init and waits, a second at most, until it has ended: then every other process has.
    pub(crate) async fn gone(&self) {
        self.kill();
        let ended = self.pidfd.as_ref().and_then(|pidfd| pidfd.try_clone().ok());
        if let Some(Ok(ended)) = ended.map(|pidfd| sys::watched(pidfd, Interest::READABLE)) {
            let _ = tokio::time::timeout(Duration::from_secs(1), ended.readable()).await;
        }
    }

    /// Undoes what was done to watched paths. To be called after the end was reported.
    pub(crate) fn undo(&mut self) -> Vec<Denial> {
        watch::undo(&std::mem::take(&mut self.watches))
    }

    /// Hands over stdio and the plan: descriptors 0 to 3 of the inside.
    pub(crate) fn hand_over(
        &self,
        lengths: &[u8],
        stdio: [BorrowedFd<'_>; 3],
        plan: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let [input, output, error] = stdio.map(|fd| fd.as_raw_fd());
        let descriptors = [input, output, error, plan.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let bytes = [IoSlice::new(lengths)];
        sendmsg::<UnixAddr>(self.as_raw_fd(), &bytes, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// Receives one message without waiting.
    pub(crate) fn receive(&self) -> io::Result<Arrival> {
        let mut bytes = [0u8; LONGEST];
        let mut space = nix::cmsg_space!(RawFd);
        let (count, terminal) = {
            let mut vectors = [IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let message =
                match recvmsg::<UnixAddr>(self.control.as_raw_fd(), &mut vectors, Some(&mut space), flags) {
                    Err(Errno::ECONNRESET) => return Ok(Arrival::Closed),
                    message => message?,
                };
            (message.bytes, message.cmsgs()?.find_map(descriptor))
        };
        if count == 0 {
            return Ok(Arrival::Closed);
        }
        let report = Report::take(&mut Cursor::new(bytes.get(..count).unwrap_or_default()));
        match (report, terminal) {
            (Some(Report::Terminal {}), Some(master)) => Ok(Arrival::Terminal(master)),
            (Some(report), _) => Ok(Arrival::Report(report)),
            (None, _) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Sends an order. That nobody is left to receive it is no error: the end is on its way.
    pub(crate) fn order(&self, order: &Order) -> io::Result<()> {
        let mut bytes = Vec::new();
        order.put(&mut bytes);
        match send(self.control.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL) {
            Ok(_) | Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Kills init, and with it every process of the sandbox.
    pub(crate) fn kill(&self) {
        if let Some(pidfd) = &self.pidfd {
            sys::kill(pidfd);
        }
    }
}

impl AsRawFd for Inside {
    fn as_raw_fd(&self) -> RawFd {
        self.control.as_raw_fd()
    }
}

fn descriptor(message: ControlMessageOwned) -> Option<OwnedFd> {
    let ControlMessageOwned::ScmRights(numbers) = message else { return None };
    numbers.into_iter().map(sys::received).next()
}

impl Drop for Inside {
    /// Ends the sandbox. What is left of init is taken away in the background, where there is a runtime.
    fn drop(&mut self) {
        let Some(pidfd) = self.pidfd.take() else { return };
        sys::kill(&pidfd);
        let remains = Remains { pidfd, watches: std::mem::take(&mut self.watches) };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if let Ok(remains) = sys::watched(remains, Interest::READABLE) {
                    let _ = remains.readable().await;
                }
            });
        }
    }
}

/// An init that was killed. Dropping this waits for its end, takes its zombie away and undoes what it left.
struct Remains {
    pidfd: OwnedFd,
    watches: Vec<Watch>,
}

impl AsRawFd for Remains {
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        let mut ended = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        // Whatever poll says, there is either a zombie to take away now or nothing that could be done.
        let _ = poll(&mut ended, PollTimeout::from(LAST_WAIT));
        sys::reap(&self.pidfd);
        watch::log(&watch::undo(&self.watches));
    }
}
