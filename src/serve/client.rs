//! The client of a session that listens, for programs that are not the small `kennel-exec`. Blocking, and without a
//! runtime: `kennel exec` is started once for every command.

pub(crate) mod call;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fs, io};

use kennel_helper::client_wire::{Answer, Ask, LONGEST_ANSWER, LONGEST_ASK};
use kennel_helper::wire::{Cursor, Field};
use nix::sys::socket::sockopt::{PeerCredentials, ReceiveTimeout, SendTimeout};
use nix::sys::socket::{SockFlag, connect, getsockopt, setsockopt};
use nix::sys::time::TimeVal;
use nix::unistd::geteuid;

use crate::command::stdio::check_standard;
use crate::report::error::{Error, STREAMS};
use crate::report::listen_error::ListenError;
use crate::serve::accept::{AllowedPeer, PeerRefused};
use crate::serve::client::call::Call;
use crate::serve::directory::{Directory, Name};
use crate::serve::place::is_held;
use crate::session::stats::Stats;
use crate::sys::packet;
use crate::sys::packet::{address, packet_socket};

/// How long a session may take to let us in, or to answer how it is, in seconds.
const PATIENCE: i64 = 5;

/// A connection to a session that listens, for one matter: a command, or a question.
///
/// ```no_run
/// use std::{io, os::fd::AsFd};
///
/// use kennel::{Call, Client, Event};
///
/// # fn example() -> Result<(), kennel::Error> {
/// let client = Client::connect("agent-1")?;
/// let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
/// client.start(Call::new("make").args(["test"]), [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
/// if let Event::Ended { code, .. } = client.next()? {
///     println!("exit status {code}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    name: String,
    path: PathBuf,
    process: i32,
}

/// What a session reports about a command.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The command's terminal, its master side, not blocking.
    Terminal(OwnedFd),
    /// The command has ended, or could not be started.
    Ended {
        /// The exit status that stands for it: the command's own, 128 + n after signal n, 124 after a timeout, 125 to
        /// 127 if nothing ran.
        code: u8,
        /// Lines for stderr.
        message: Vec<u8>,
        /// The report, if it was asked for: JSON.
        report: Option<Vec<u8>>,
    },
}

impl Client {
    /// Connects to the session of that name, where [`Session::listen`](crate::session::Session::listen) puts it.
    ///
    /// # Errors
    /// An invalid name, or one that no session of this user has; one whose socket was removed and is not put back, which
    /// is waited for; a directory that other users can write to; a socket that
    /// another user listens on.
    pub fn connect(name: &str) -> Result<Self, Error> {
        Self::connect_in(Directory::usual(), name)
    }

    /// As [`connect`](Self::connect), in another directory.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_in(directory: impl AsRef<Path>, name: &str) -> Result<Self, Error> {
        let name = Name::new(name)?;
        let missing = || ListenError::NotRunning { name: name.to_string() };
        let directory = Directory::open(directory.as_ref())?.ok_or_else(missing)?;
        let path = directory.socket(&name)?;
        let socket = connected(&directory, &name, &path)?;
        let peer = getsockopt(&socket, PeerCredentials);
        let peer = peer.map_err(|errno| ListenError::io("identify the listener on", &path)(errno.into()))?;
        if peer.uid() != geteuid().as_raw() {
            return Err(ListenError::Stranger { name: name.to_string(), user: peer.uid() }.into());
        }
        let ours = AllowedPeer::ours().map_err(ListenError::io("look at", "/proc/self/ns/user"))?;
        let checked = ours.check(socket.as_fd());
        if let Some(source) = checked.err().and_then(PeerRefused::shortage) {
            return Err(ListenError::io("look who listens on", &path)(source).into());
        }
        if checked.is_err() {
            let message = format!(
                "session {name}: this process or the one that listens on its socket is in a sandbox, or that one is gone"
            );
            return Err(ListenError::Refused { message }.into());
        }
        Ok(Self { socket, name: name.to_string(), path, process: peer.pid() })
    }

    /// The names of this user's sessions, in order. Some of them may have ended without cleaning up.
    ///
    /// # Errors
    /// A directory for sockets that other users can write to, or that cannot be read.
    pub fn sessions() -> Result<Vec<String>, Error> {
        let Some(directory) = Directory::open(&Directory::usual())? else { return Ok(Vec::new()) };
        let names = names(&directory).map_err(ListenError::io("list", directory.path()))?;
        Ok(names.iter().map(Name::to_string).collect())
    }

    /// The process that the session belongs to, by its number.
    #[must_use]
    pub fn process(&self) -> i32 {
        self.process
    }

    /// The socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the session is doing.
    ///
    /// # Errors
    /// A session that goes away or does not answer.
    pub fn stats(self) -> Result<Stats, Error> {
        self.be_patient()?;
        self.ask(&Ask::Stats {}, &[])?;
        let packet = packet::receive(&self.socket, LONGEST_ANSWER).map_err(|error| self.failed(error))?;
        match Answer::take(&mut Cursor::new(&packet.bytes)) {
            Some(Answer::Stats { ready, running, served, refill_us }) => Ok(Stats {
                ready: ready as usize,
                running: running as usize,
                served,
                refill: Duration::from_micros(refill_us),
            }),
            Some(Answer::Ended { message, .. }) => Err(refused(message)),
            _ => Err(self.gone()),
        }
    }

    /// Ends the session, whatever runs in it, and waits until it is gone.
    ///
    /// # Errors
    /// A connection that breaks; a session that has not read this after five seconds: its program is stopped, or busy.
    pub fn stop(self) -> Result<(), Error> {
        self.be_patient()?;
        self.ask(&Ask::Stop {}, &[])?;
        loop {
            match packet::receive(&self.socket, LONGEST_ANSWER) {
                Ok(packet) if packet.bytes.is_empty() => return Ok(()),
                Ok(packet) => {
                    return Err(match Answer::take(&mut Cursor::new(&packet.bytes)) {
                        Some(Answer::Ended { message, .. }) => refused(message),
                        _ => self.gone(),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.is_unheard() => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Waits no longer than [`PATIENCE`] for each answer from now on.
    fn be_patient(&self) -> Result<(), Error> {
        let patience = TimeVal::new(PATIENCE, 0);
        setsockopt(&self.socket, ReceiveTimeout, &patience).map_err(|errno| self.failed(errno))
    }

    /// Starts a command with these standard descriptors; [`next`](Self::next) returns what happens. Dropping the client
    /// kills it. Call this once.
    ///
    /// # Errors
    /// A string that cannot be passed to a command; a session that goes away. `EBADF` for a standard stream that is closed,
    /// or something else that is closed on execve(2) with its number.
    pub fn start(&self, call: &Call, stdio: [BorrowedFd<'_>; 3]) -> Result<(), Error> {
        for (stream, fd) in STREAMS.into_iter().zip(stdio) {
            check_standard(fd).map_err(Error::io(stream))?;
        }
        let bytes = call.encode()?;
        let length =
            u32::try_from(bytes.len()).map_err(|_| self.failed(io::ErrorKind::ArgumentListTooLong))?;
        let mut packet = Vec::with_capacity(bytes.len() + 8);
        Ask::Inline { length }.put(&mut packet);
        packet.extend_from_slice(&bytes);
        let sent = if packet.len() <= LONGEST_ASK {
            packet::send(&self.socket, &packet, &stdio).map_err(|error| self.failed(error))
        } else {
            let memfd = packet::memory_file(&bytes).map_err(|error| self.failed(error))?;
            let [input, output, error] = stdio;
            self.ask(&Ask::Memfd { length }, &[input, output, error, memfd.as_fd()])
        };
        heard(sent)
    }

    /// Whether the session has not read everything that was sent: its program is stopped or busy. A command that was asked
    /// for has not started then.
    #[must_use]
    pub fn is_unheard(&self) -> bool {
        crate::sys::peer_has_unread(self.as_fd())
    }

    /// Passes a signal on to the command. A session that has gone away is not an error here, but in [`next`](Self::next).
    ///
    /// # Errors
    /// Those of send(2).
    pub fn signal(&self, number: i32) -> Result<(), Error> {
        heard(self.ask(&Ask::Signal { number: number.unsigned_abs() }, &[]))
    }

    /// Waits for the session's next report.
    ///
    /// # Errors
    /// A session that goes away before it has reported the command's end.
    pub fn next(&self) -> Result<Event, Error> {
        let packet = loop {
            match packet::receive(&self.socket, LONGEST_ANSWER) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                packet => break packet.map_err(|error| self.failed(error))?,
            }
        };
        let descriptor = packet.descriptors.into_iter().next();
        match (Answer::take(&mut Cursor::new(&packet.bytes)), descriptor) {
            (Some(Answer::Terminal {}), Some(master)) => Ok(Event::Terminal(master)),
            (Some(Answer::Ended { code, report, message }), memfd) => {
                let report = memfd
                    .filter(|_| report > 0)
                    .map(|memfd| packet::content(&memfd.into(), report))
                    .transpose();
                Ok(Event::Ended {
                    code: u8::try_from(code).unwrap_or(255),
                    message: message.to_owned(),
                    report: report.map_err(|error| self.failed(error))?,
                })
            }
            _ => Err(self.gone()),
        }
    }

    fn ask(&self, ask: &Ask, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let mut bytes = Vec::new();
        ask.put(&mut bytes);
        packet::send(&self.socket, &bytes, descriptors).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: impl Into<io::Error>) -> Error {
        ListenError::io("talk to the session at", &self.path)(error.into()).into()
    }

    fn gone(&self) -> Error {
        ListenError::Gone { name: self.name.clone() }.into()
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

// What a session that does not do what it is asked has said instead.

/// Where nobody is left to receive it, what it said last is still to be read, and says why.
pub(crate) fn heard(sent: Result<(), Error>) -> Result<(), Error> {
    match sent {
        Err(Error::Listen(ListenError::Io { source, .. })) if is_end(&source) => Ok(()),
        sent => sent,
    }
}

/// The error for what a session says instead of an answer: the first line of it.
pub(crate) fn refused(message: &[u8]) -> Error {
    let text = String::from_utf8_lossy(message);
    let line = text.lines().next().unwrap_or_default();
    let message = line.strip_prefix("kennel: ").unwrap_or(line).to_owned();
    ListenError::Refused { message }.into()
}

/// Whether the other side is gone.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

// The way to a session's socket, and which there are.

/// How long a session may take to put its socket back that somebody has removed. It looks each second.
const PUT_BACK: Duration = Duration::from_secs(3);

/// When to look again whether it has.
const AGAIN: Duration = Duration::from_millis(20);

/// Connects to a session. If somebody has removed its socket, waits until the session has put it back.
///
/// One look at the lock decides between "not running" and "unreachable": a session that starts at this moment takes its
/// lock between two looks.
fn connected(directory: &Directory, name: &Name, path: &Path) -> Result<OwnedFd, ListenError> {
    let begun = Instant::now();
    loop {
        let error = match connect_once(directory, name) {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::ENOENT) if is_held(directory, name) => {
                if begun.elapsed() >= PUT_BACK {
                    return Err(ListenError::Unreachable { name: name.to_string() });
                }
                sleep(AGAIN);
            }
            Some(libc::ENOENT | libc::ECONNREFUSED) => {
                return Err(ListenError::NotRunning { name: name.to_string() });
            }
            _ => return Err(ListenError::io("connect to", path)(error)),
        }
    }
}

fn connect_once(directory: &Directory, name: &Name) -> io::Result<OwnedFd> {
    let socket = packet_socket(SockFlag::empty())?;
    // This limits how long connect(2) waits for a full queue, too.
    setsockopt(&socket, SendTimeout, &TimeVal::new(PATIENCE, 0))?;
    connect(socket.as_raw_fd(), &address(&directory.own_path(name.socket()))?)?;
    Ok(socket)
}

/// The names that sessions have, or had: by its lock alone where somebody has removed a session's socket.
pub(crate) fn names(directory: &Directory) -> io::Result<BTreeSet<Name>> {
    let name = |file: &OsStr| Name::of_socket(file.to_str()?).or_else(|| Name::of_lock(file.to_str()?));
    let files = fs::read_dir(directory.own_path(""))?;
    files.map(|entry| Ok(name(&entry?.file_name()))).filter_map(io::Result::transpose).collect()
}
