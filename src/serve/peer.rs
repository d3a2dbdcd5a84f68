//! Who is at the other end of a connection: a process of our own user, in our own user namespace. What runs in a sandbox
//! is in another one, however it came by the path of the socket. Root's sandboxes may have none of their own, so root's
//! processes must be of our pid namespace as well, which no sandbox goes without. Sessions look at their clients, and
//! clients at who listens: he is about to get descriptors and environment.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{fmt, fs, io};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use nix::unistd::geteuid;

use crate::report::shortage::is_shortage;
use crate::sys::inode::Identity;

/// A user namespace, and root's pid namespace.
type Namespaces = [Option<Identity>; 2];

/// Whom a session serves.
#[derive(Debug)]
pub(crate) struct Welcome {
    user: u32,
    namespaces: Namespaces,
}

/// Why a connection is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    User,
    Namespace,
    Unknown,
    /// There is not enough of something to find out.
    Shortage(Errno),
}

impl Refused {
    /// Where it is no fault of the one who asks.
    pub(crate) fn shortage(self) -> Option<io::Error> {
        match self {
            Self::Shortage(errno) => Some(errno.into()),
            _ => None,
        }
    }

    fn unless_shortage(self, error: impl Into<io::Error>) -> Self {
        match error.into().raw_os_error() {
            Some(errno) if is_shortage(errno) => Self::Shortage(Errno::from_raw(errno)),
            _ => self,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "it serves its own user only",
            Self::Namespace => "it serves no process in a sandbox or another user namespace",
            Self::Unknown => "the asking process cannot be identified",
            Self::Shortage(_) => "there is no room to look who asks",
        })
    }
}

impl Welcome {
    /// Processes like this one.
    pub(crate) fn ours() -> io::Result<Self> {
        let user = geteuid().as_raw();
        Ok(Self { user, namespaces: namespaces("self", user)? })
    }

    /// Whether whoever connected is welcome.
    pub(crate) fn check(&self, connection: BorrowedFd<'_>) -> Result<(), Refused> {
        let credentials = getsockopt(&connection, PeerCredentials).map_err(|_| Refused::Unknown)?;
        if credentials.uid() != self.user {
            return Err(Refused::User);
        }
        // A process of a foreign pid namespace has no number here.
        let pid = u32::try_from(credentials.pid()).ok().filter(|&pid| pid > 0).ok_or(Refused::Unknown)?;
        let process = process(&connection, pid).map_err(|errno| Refused::Unknown.unless_shortage(errno))?;
        let there = namespaces(&pid.to_string(), self.user)
            .map_err(|error| Refused::Namespace.unless_shortage(error))?;
        // Only while it lives is the number its own, and what was read with it about it.
        if !is_alive(&process) {
            return Err(Refused::Unknown);
        }
        if there == self.namespaces { Ok(()) } else { Err(Refused::Namespace) }
    }
}

/// A hold on the process that connected. Before Linux 6.5 by its number.
fn process(connection: &BorrowedFd<'_>, pid: u32) -> nix::Result<OwnedFd> {
    match getsockopt(connection, PeerPidfd) {
        // Not EINVAL, which says that the process has ended: its number may be another's by now.
        Err(Errno::ENOPROTOOPT) => crate::sys::open_process(pid),
        process => process,
    }
}

fn is_alive(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut ended, PollTimeout::ZERO) == Ok(0)
}

fn namespaces(process: &str, user: u32) -> io::Result<Namespaces> {
    let of = |kind: &str| {
        let namespace = fs::metadata(format!("/proc/{process}/ns/{kind}"))?;
        io::Result::Ok(Identity::of_metadata(&namespace))
    };
    let pid = if user == 0 { Some(of("pid")?) } else { None };
    Ok([Some(of("user")?), pid])
}
