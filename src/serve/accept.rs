//! The accept loop: it checks and accepts clients, and ends the session when a client asks for that.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, fs, io};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use nix::unistd::geteuid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::report::failure;
use crate::report::shortage::is_shortage;
use crate::serve::call::ClientEnvironment;
use crate::serve::connection::{Connection, LINGER, NextStep, turn_away, turn_away_for_shortage};
use crate::serve::directory::install;
use crate::serve::place::SocketPlace;
use crate::serve::serving::serve;
use crate::session::Session;
use crate::sys::closing::HeldFd;
use crate::sys::inode::Identity;
use crate::sys::packet;
use crate::sys::{self, locked};

/// The most connected clients that have not sent their request yet.
const MOST_WAITING: usize = 128;

/// How long to wait after accept(2) fails for lack of descriptors or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(20);

/// How often to check that the socket file still exists.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Gives the session's name back on drop, also when the runtime ends and drops the accept loop.
pub(crate) struct NameGuard(pub(crate) Arc<SocketPlace>);

impl Drop for NameGuard {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The accept loop and its state.
pub(crate) struct Acceptor {
    pub(crate) listener: AsyncFd<OwnedFd>,
    /// A spare descriptor. The loop closes it when it runs out of descriptors, so that it can accept a client
    /// and tell it why.
    pub(crate) spare: Mutex<Option<OwnedFd>>,
    pub(crate) place: NameGuard,
    pub(crate) session: Session,
    pub(crate) environment: ClientEnvironment,
    pub(crate) allowed: Arc<AllowedPeer>,
    pub(crate) stopped: watch::Sender<bool>,
}

impl Acceptor {
    /// Accepts clients until one of them ends the session or the session ends. Dropping the future kills the
    /// commands that run.
    pub(crate) async fn run(mut self) {
        let waiting = Arc::new(WaitingClients::default());
        let mut clients = JoinSet::new();
        let mut checks = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let last = {
            let session = self.session.clone();
            let mut closed = pin!(session.closed());
            loop {
                tokio::select! {
                    Some(next_step) = clients.join_next() => if let Ok(NextStep::Stop(asker)) = next_step { break asker },
                    () = &mut closed => break None,
                    connection = self.next() => if let Some(connection) = connection {
                        let place = WaitingPlace::new(&waiting);
                        let (session, allowed) = (self.session.clone(), Arc::clone(&self.allowed));
                        clients.spawn(serve(connection, session, self.environment, allowed, place));
                    },
                    // New clients cannot connect any more and none is left. The owner can still use the
                    // session.
                    _ = checks.tick() => if !self.restore_socket() && clients.is_empty() { return }
                }
            }
        };
        let Self { listener, place, session, stopped, .. } = self;
        drop(listener);
        if last.is_none() {
            // The session ended and nothing runs any more. Give clients that wait for a command time to get
            // their answer.
            let answered = async { while clients.join_next().await.is_some() {} };
            let _ = timeout(LINGER, answered).await;
        }
        session.terminate().await;
        clients.shutdown().await;
        session.shutdown().await;
        drop(place);
        // The client that asked for the end sees its connection close.
        drop(last);
        let _ = stopped.send(true);
    }

    /// Accepts the next client and checks it; `None` if it was turned away.
    async fn next(&self) -> Option<Connection> {
        let socket = match self.listener.async_io(Interest::READABLE, accept).await {
            Ok(socket) => HeldFd::strange(socket),
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                self.refuse_one(error);
                tokio::time::sleep(SHORTAGE_PAUSE).await;
                return None;
            }
        };
        if let Err(reason) = self.allowed.check(socket.as_fd()) {
            tracing::warn!(%reason, "a client was turned away");
            match reason.shortage() {
                Some(error) => turn_away_for_shortage(socket, "check the client", error),
                None => turn_away(socket, reason.to_string()),
            }
            return None;
        }
        Connection::new(socket)
    }
}

impl Acceptor {
    /// Restores the socket and the client program if the socket was removed. Returns whether clients can find
    /// the session, or may be able to later.
    fn restore_socket(&mut self) -> bool {
        let listener = match self.place.0.open() {
            Ok(None) => return true,
            Ok(Some(listener)) => listener,
            Err(error) => {
                tracing::debug!(error = failure::chain(&error), "could not restore the socket");
                return !error.is_final();
            }
        };
        *self.spare.get_mut().unwrap_or_else(PoisonError::into_inner) = listener.get_ref().try_clone().ok();
        self.listener = listener;
        if let Err(error) = install(self.place.0.directory()) {
            tracing::debug!(error = failure::chain(&error), "could not restore the client program");
        }
        true
    }

    /// Accepts one client only to tell it that descriptors have run out; otherwise it would wait forever.
    fn refuse_one(&self, error: io::Error) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        drop(spare.take());
        // The soft limit may now be below the number of open descriptors.
        let taken = match accept(self.listener.get_ref()) {
            Err(again) if again.raw_os_error() == Some(libc::EMFILE) => {
                packet::with_hard_fd_limit(|| sys::accept(self.listener.get_ref().as_fd()))
                    .map_err(io::Error::from)
            }
            taken => taken,
        };
        if let Ok(socket) = taken {
            turn_away_for_shortage(HeldFd::strange(socket), "accept a connection", error);
        }
        *spare = self.listener.get_ref().try_clone().ok();
    }
}

/// Clients that have no request here, by the order in which they came. Clients that never send one keep
/// nobody waiting: where too many wait, the oldest loses its place.
#[derive(Debug, Default)]
struct WaitingClients {
    places: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    count: AtomicU64,
}

/// The place of one client.
#[derive(Debug)]
pub(crate) struct WaitingPlace {
    clients: Arc<WaitingClients>,
    number: u64,
    /// Closed when the place is lost.
    held: oneshot::Receiver<()>,
}

impl WaitingPlace {
    fn new(clients: &Arc<WaitingClients>) -> Self {
        let mut place = Self { clients: Arc::clone(clients), number: 0, held: oneshot::channel().1 };
        place.take();
        place
    }

    /// Takes the newest place.
    pub(crate) fn take(&mut self) {
        let (holder, held) = oneshot::channel();
        self.number = self.clients.count.fetch_add(1, Relaxed);
        self.held = held;
        let mut places = locked(&self.clients.places);
        places.insert(self.number, holder);
        if places.len() > MOST_WAITING {
            places.pop_first();
        }
    }

    /// Leaves the place, because a request has arrived.
    pub(crate) fn leave(&self) {
        locked(&self.clients.places).remove(&self.number);
    }

    /// Waits until a newer client has taken the place.
    pub(crate) async fn lost(&mut self) {
        let _ = (&mut self.held).await;
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.leave();
    }
}

fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    loop {
        match sys::accept(listener.as_fd()) {
            // The client left before accept(2).
            Err(Errno::ECONNABORTED | Errno::EINTR) => {}
            socket => return Ok(socket?),
        }
    }
}

// Checks the peer of a connection: it must run as the same user, in the same user namespace. A command in a
// sandbox is in another user namespace, however it got the path of the socket.
//
// Root's sandboxes may have no user namespace of their own, so for root the pid namespace must be the same
// too: every sandbox has its own. Sessions check their clients, and clients check the session before they
// send descriptors and environment.

/// The user namespace and, for root only, the pid namespace.
type Namespaces = [Option<Identity>; 2];

/// The peers that a session serves.
#[derive(Debug)]
pub(crate) struct AllowedPeer {
    user: u32,
    namespaces: Namespaces,
}

/// Why a peer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerRefused {
    User,
    Namespace,
    Unknown,
    /// This process lacks a resource to check the peer.
    Shortage(Errno),
}

impl PeerRefused {
    /// The error, if the refusal is not the peer's fault.
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
            Self::Shortage(_) => "it lacks resources to check the client",
        })
    }
}

impl AllowedPeer {
    /// Allows processes of this user and these namespaces.
    pub(crate) fn ours() -> io::Result<Self> {
        let user = geteuid().as_raw();
        Ok(Self { user, namespaces: namespaces("self", user)? })
    }

    /// Checks the peer of a connection.
    pub(crate) fn check(&self, connection: BorrowedFd<'_>) -> Result<(), PeerRefused> {
        let credentials = getsockopt(&connection, PeerCredentials).map_err(|_| PeerRefused::Unknown)?;
        if credentials.uid() != self.user {
            return Err(PeerRefused::User);
        }
        // The PID is 0 for a process that this pid namespace cannot see.
        let pid = u32::try_from(credentials.pid()).ok().filter(|&pid| pid > 0).ok_or(PeerRefused::Unknown)?;
        let process =
            process(&connection, pid).map_err(|errno| PeerRefused::Unknown.unless_shortage(errno))?;
        let there = namespaces(&pid.to_string(), self.user)
            .map_err(|error| PeerRefused::Namespace.unless_shortage(error))?;
        // If the process has ended, its PID may have been reused, and /proc told about another process.
        if !is_alive(&process) {
            return Err(PeerRefused::Unknown);
        }
        if there == self.namespaces { Ok(()) } else { Err(PeerRefused::Namespace) }
    }

    /// Checks the peer once more. Its credentials are those with which it connected, so this looks at its
    /// user, too.
    pub(crate) fn check_again(&self, connection: BorrowedFd<'_>) -> Result<(), PeerRefused> {
        let pid = getsockopt(&connection, PeerCredentials).map_err(|_| PeerRefused::Unknown)?.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))
            .map_err(|error| PeerRefused::Unknown.unless_shortage(error))?;
        // Real, effective, saved and of files.
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        let mut users = users.split_whitespace().map(str::parse::<u32>).peekable();
        if users.peek().is_none() || users.any(|user| user != Ok(self.user)) {
            return Err(PeerRefused::User);
        }
        // It still lives after that: then the file told about it.
        self.check(connection)
    }
}

/// A pidfd of the process that connected. Linux before 6.5 has no SO_PEERPIDFD: there it opens the PID.
fn process(connection: &BorrowedFd<'_>, pid: u32) -> nix::Result<OwnedFd> {
    match getsockopt(connection, PeerPidfd) {
        // Not on EINVAL: the process has ended, and its PID may be reused.
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
