//! The loop that lets clients in, and ends everything when one of them asks for it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, fs, io};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use nix::sys::socket::{SockFlag, accept4, getsockopt};
use nix::unistd::geteuid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::report::failure;
use crate::report::shortage::is_shortage;
use crate::serve::ClientEnvironment;
use crate::serve::connection::{Connection, turn_away, turn_away_for_want};
use crate::serve::install::install;
use crate::serve::place::SocketPlace;
use crate::serve::serving::{LAST, NextStep, serve};
use crate::session::Session;
use crate::sys;
use crate::sys::inode::Identity;
use crate::sys::packet;

/// Clients that may be connected and not have said yet what they want.
const EARLY: usize = 128;

/// How long to wait when no connection can be taken, for want of descriptors or memory.
const EXHAUSTED: Duration = Duration::from_millis(20);

/// How often to look whether the socket is still there.
const LOOKS: Duration = Duration::from_secs(1);

/// The place, given back when nobody keeps the door any more: also where the runtime has ended with the loop in it.
pub(crate) struct Leaving(pub(crate) Arc<SocketPlace>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// What the loop needs.
pub(crate) struct Acceptor {
    pub(crate) listener: AsyncFd<OwnedFd>,
    /// Given up for a moment where there is no descriptor left for another client.
    pub(crate) spare: Mutex<Option<OwnedFd>>,
    pub(crate) place: Leaving,
    pub(crate) session: Session,
    pub(crate) brings: ClientEnvironment,
    pub(crate) welcome: AllowedPeer,
    pub(crate) stopped: watch::Sender<bool>,
}

impl Acceptor {
    /// Lets clients in until one of them wants the session to end, or it has ended. Dropping the future kills what runs.
    pub(crate) async fn keep(mut self) {
        let early = Arc::new(Semaphore::new(EARLY));
        let mut clients = JoinSet::new();
        let mut looks = interval(LOOKS);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let last = {
            let session = self.session.clone();
            let mut closed = pin!(session.live().closed());
            loop {
                tokio::select! {
                    Some(wish) = clients.join_next() => if let Ok(NextStep::Stop(asker)) = wish { break asker },
                    () = &mut closed => break None,
                    client = self.next(&early) => if let Some((connection, permit)) = client {
                        clients.spawn(serve(connection, self.session.clone(), self.brings, permit));
                    },
                    // Nobody can come any more. Whose session it is else can go on with it.
                    _ = looks.tick() => if !self.is_found() && clients.is_empty() { return }
                }
            }
        };
        let Self { listener, place, session, stopped, .. } = self;
        drop(listener);
        if last.is_none() {
            // Nothing runs any more. Those who wait for a command are told so.
            let told = async { while clients.join_next().await.is_some() {} };
            let _ = timeout(LAST, told).await;
        }
        clients.shutdown().await;
        session.shutdown().await;
        drop(place);
        // The one who asked sees it by the end of the connection.
        drop(last);
        let _ = stopped.send(true);
    }

    /// The next client that is welcome; `None` where one was turned away.
    async fn next(&self, early: &Arc<Semaphore>) -> Option<(Connection, OwnedSemaphorePermit)> {
        let permit = Arc::clone(early).acquire_owned().await.ok()?;
        let socket = match self.listener.async_io(Interest::READABLE, accept).await {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%error, "no connection could be taken");
                self.tell_one(&error);
                tokio::time::sleep(EXHAUSTED).await;
                return None;
            }
        };
        if let Err(reason) = self.welcome.check(socket.as_fd()) {
            tracing::warn!(%reason, "a client was turned away");
            match reason.shortage() {
                Some(error) => turn_away_for_want(socket.as_fd(), "look at the client", &error),
                None => turn_away(socket.as_fd(), &reason.to_string()),
            }
            return None;
        }
        Some((Connection::new(socket)?, permit))
    }
}

impl Acceptor {
    /// Puts the socket back where somebody has removed it, and the client with it; whether the session can be found, or
    /// may be again.
    fn is_found(&mut self) -> bool {
        let listener = match self.place.0.open() {
            Ok(None) => return true,
            Ok(Some(listener)) => listener,
            Err(error) => {
                tracing::debug!(error = failure::chain(&error), "the socket is gone");
                return !error.is_final();
            }
        };
        *self.spare.get_mut().unwrap_or_else(PoisonError::into_inner) = listener.get_ref().try_clone().ok();
        self.listener = listener;
        if let Err(error) = install(self.place.0.directory()) {
            tracing::debug!(error = failure::chain(&error), "the client was not put back");
        }
        true
    }

    /// Lets one client in to hear that there is no descriptor for it: it would wait for good otherwise.
    fn tell_one(&self, error: &io::Error) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        drop(spare.take());
        // The soft limit may have been lowered below what is open.
        let taken = match accept(self.listener.get_ref()) {
            Err(again) if again.raw_os_error() == Some(libc::EMFILE) => {
                packet::with_hard_fd_limit(|| accept_once(self.listener.get_ref())).map_err(io::Error::from)
            }
            taken => taken,
        };
        if let Ok(socket) = taken {
            turn_away_for_want(socket.as_fd(), "take a connection", error);
        }
        *spare = self.listener.get_ref().try_clone().ok();
    }
}

fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    loop {
        match accept_once(listener) {
            // Gone before it was taken.
            Err(Errno::ECONNABORTED | Errno::EINTR) => {}
            socket => return Ok(socket?),
        }
    }
}

fn accept_once(listener: &OwnedFd) -> nix::Result<OwnedFd> {
    accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK).map(sys::received)
}

// Who is at the other end of a connection: a process of our own user, in our own user namespace. What runs in a sandbox
// is in another one, however it came by the path of the socket. Root's sandboxes may have none of their own, so root's
// processes must be of our pid namespace as well, which no sandbox goes without. Sessions look at their clients, and
// clients at who listens: he is about to get descriptors and environment.

/// A user namespace, and root's pid namespace.
type Namespaces = [Option<Identity>; 2];

/// Whom a session serves.
#[derive(Debug)]
pub(crate) struct AllowedPeer {
    user: u32,
    namespaces: Namespaces,
}

/// Why a connection is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerRefused {
    User,
    Namespace,
    Unknown,
    /// There is not enough of something to find out.
    Shortage(Errno),
}

impl PeerRefused {
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

impl fmt::Display for PeerRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "it serves its own user only",
            Self::Namespace => "it serves no process in a sandbox or another user namespace",
            Self::Unknown => "the asking process cannot be identified",
            Self::Shortage(_) => "there is no room to look who asks",
        })
    }
}

impl AllowedPeer {
    /// Processes like this one.
    pub(crate) fn ours() -> io::Result<Self> {
        let user = geteuid().as_raw();
        Ok(Self { user, namespaces: namespaces("self", user)? })
    }

    /// Whether whoever connected is welcome.
    pub(crate) fn check(&self, connection: BorrowedFd<'_>) -> Result<(), PeerRefused> {
        let credentials = getsockopt(&connection, PeerCredentials).map_err(|_| PeerRefused::Unknown)?;
        if credentials.uid() != self.user {
            return Err(PeerRefused::User);
        }
        // A process of a foreign pid namespace has no number here.
        let pid = u32::try_from(credentials.pid()).ok().filter(|&pid| pid > 0).ok_or(PeerRefused::Unknown)?;
        let process =
            process(&connection, pid).map_err(|errno| PeerRefused::Unknown.unless_shortage(errno))?;
        let there = namespaces(&pid.to_string(), self.user)
            .map_err(|error| PeerRefused::Namespace.unless_shortage(error))?;
        // Only while it lives is the number its own, and what was read with it about it.
        if !is_alive(&process) {
            return Err(PeerRefused::Unknown);
        }
        if there == self.namespaces { Ok(()) } else { Err(PeerRefused::Namespace) }
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
