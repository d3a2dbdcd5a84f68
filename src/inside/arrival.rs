//! What arrives on the control socket: a report, or one that a descriptor comes with.

use std::{io, os::fd::OwnedFd};

use kennel_helper::{
    control::Report,
    wire::{Cursor, Field},
};

/// What arrived on the control socket.
#[derive(Debug)]
pub(crate) enum Arrival {
    Report(Report),
    /// The master side of the command's terminal.
    Terminal(OwnedFd),
    /// The pidfd of a worker's init.
    Born(OwnedFd),
    /// A socket of the sandbox's, to be served outside.
    Listening(Listening),
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

/// A socket in the network namespace of a sandbox.
#[derive(Debug)]
pub(crate) struct Listening {
    /// As socket(2) has it.
    pub(crate) kind: i32,
    pub(crate) port: u16,
    pub(crate) socket: OwnedFd,
}

impl Arrival {
    /// A message. Where there was no room for its descriptor that is lost, but not the message.
    pub(super) fn of(bytes: &[u8], descriptor: Option<OwnedFd>) -> io::Result<Self> {
        match (Report::take(&mut Cursor::new(bytes)), descriptor) {
            (Some(Report::Terminal {}), Some(master)) => Ok(Self::Terminal(master)),
            (Some(Report::Born {}), Some(pidfd)) => Ok(Self::Born(pidfd)),
            (Some(Report::Listening { kind, port }), Some(socket)) => {
                let port = u16::try_from(port).map_err(|_| io::ErrorKind::InvalidData)?;
                Ok(Self::Listening(Listening { kind: kind.cast_signed(), port, socket }))
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
