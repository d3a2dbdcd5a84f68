//! The control socket between this program and an init: the pair of sockets, and the messages that arrive.

use std::io;
use std::os::fd::OwnedFd;

use kennel_helper::control::Report;
use kennel_helper::wire::{Cursor, Field};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::network::serving::ListeningSocket;

/// A control socket: two connected sockets that keep message boundaries, the first one nonblocking. See
/// socketpair(2).
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours, theirs))
}

/// Ignores `EPIPE` and `ECONNRESET`. A peer that is gone has already sent the reason, and the next read
/// returns it.
pub(crate) fn ignore_epipe(sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(())
        }
        sent => sent,
    }
}

/// A message on the control socket.
#[derive(Debug)]
pub(crate) enum Arrival {
    Report(Report),
    /// The master side of the terminal of the command.
    Terminal(OwnedFd),
    /// The pidfd of the init of a worker, and its PID inside.
    Born(OwnedFd, u32),
    /// A listening socket of the sandbox, for the proxy.
    Listening(ListeningSocket),
    /// The root directory of a worker.
    Root(OwnedFd),
    /// The mount namespace of a worker.
    Mounts(OwnedFd),
    /// The upper directory of the overlay that is the workspace.
    Upper(OwnedFd),
    /// That of the overlay that is the root.
    RootUpper(OwnedFd),
    /// The notification descriptor of the seccomp filter.
    Refusing(OwnedFd),
    /// The program runs, and this is the notification descriptor of its seccomp filter.
    Started(OwnedFd),
    /// The peer has closed its end; no message follows.
    Closed,
}

impl Arrival {
    /// Parses a message. If its descriptor was lost because no descriptor number was free, the plain report
    /// remains.
    pub(crate) fn parse(bytes: &[u8], descriptor: Option<OwnedFd>) -> io::Result<Self> {
        match (Report::take(&mut Cursor::new(bytes)), descriptor) {
            (Some(Report::Terminal {}), Some(master)) => Ok(Self::Terminal(master)),
            (Some(Report::Born { pid }), Some(pidfd)) => Ok(Self::Born(pidfd, pid)),
            (Some(Report::Listening { kind, port }), Some(socket)) => {
                let port = u16::try_from(port).map_err(|_| io::ErrorKind::InvalidData)?;
                Ok(Self::Listening(ListeningSocket { kind: kind.cast_signed(), port, socket }))
            }
            (Some(Report::Root {}), Some(root)) => Ok(Self::Root(root)),
            (Some(Report::Mounts {}), Some(mounts)) => Ok(Self::Mounts(mounts)),
            (Some(Report::Upper { is_root: 0 }), Some(upper)) => Ok(Self::Upper(upper)),
            (Some(Report::Upper { .. }), Some(upper)) => Ok(Self::RootUpper(upper)),
            (Some(Report::Refusing {}), Some(listener)) => Ok(Self::Refusing(listener)),
            (Some(Report::Started { .. }), Some(listener)) => Ok(Self::Started(listener)),
            (Some(report), _) => Ok(Self::Report(report)),
            (None, _) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
