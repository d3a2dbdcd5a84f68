//! The client of a listening session, for programs other than the small `kennel-exec`.
//!
//! It is blocking and needs no runtime: `kennel exec` starts one process for each command.

pub(crate) mod call;
pub(crate) mod changes;
pub(crate) mod detached;
pub(crate) mod files;
pub(crate) mod ports;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fs, io};

use kennel_helper::client_wire::{Answer, Ask, LONGEST_ANSWER, LONGEST_ASK, VERSION};
use kennel_helper::wire::{Cursor, Field};
use nix::sys::socket::sockopt::{PeerCredentials, ReceiveTimeout, SendTimeout};
use nix::sys::socket::{SockFlag, connect, getsockopt, setsockopt};
use nix::sys::time::TimeVal;
use nix::unistd::geteuid;
use serde::de::DeserializeOwned;

use crate::caller::runtime::{Directory, SessionName};
use crate::process::stdio::check_standard;
use crate::report::error::listen::ListenError;
use crate::report::error::{Error, STREAMS};
use crate::serve::accept::{AllowedPeer, PeerRefused};
use crate::serve::client::call::Call;
use crate::serve::place::is_held;
use crate::serve::question::{Problem, Question, Reply, SentDescription};
use crate::session::log::stats::Stats;
use crate::sys::closing::HeldFd;
use crate::sys::packet;
use crate::sys::packet::{Packet, address, packet_socket};
use crate::sys::signal::Signal;

/// How long a session may take to accept a connection or to answer, in seconds.
const TIMEOUT: i64 = 5;

/// What a session was prepared with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Described {
    /// The profile of its policy, as [`Profile`](crate::policy::profile::Profile) writes it. The session may
    /// know other ones.
    pub profile: String,
    /// The absolute path of its workspace.
    pub workspace: PathBuf,
}

/// A connection to a listening session, for one request: a command, a question or the end of the session.
///
/// ```no_run
/// use std::{io, os::fd::AsFd};
///
/// use kennel::client::{Call, Client, Event};
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

/// An answer with the descriptor that came with it, or why there is none.
pub(crate) type Answered<T> = Result<(T, Option<OwnedFd>), Problem>;

/// What a session reports about a command.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The master side of the command's terminal, in non-blocking mode.
    Terminal(OwnedFd),
    /// This signal stopped the command, which has a terminal; see
    /// [`Child::stops`](crate::command::child::Child::stops).
    Stopped(Signal),
    /// The command stays, and has this number; see [`Client::start_detached`].
    Detached(u32),
    /// What a detached command wrote, with the number of the stream: 1 or 2.
    Output(i32, Vec<u8>),
    /// That many bytes of its output came here, and are not kept any more.
    Dropped(u64),
    /// The command has ended, or could not be started.
    Ended {
        /// The exit status: the command's own, 128 + n after signal n, 124 after a timeout, 125 to 127 if
        /// nothing ran.
        code: u8,
        /// The signal that ended the command, if `code` stands for one.
        signal: Option<Signal>,
        /// Lines to print on stderr.
        message: Vec<u8>,
        /// The report as JSON, if requested.
        report: Option<Vec<u8>>,
    },
}

impl Client {
    /// Connects to the session with this name, in the directory that
    /// [`Session::listen`](crate::session::Session::listen) uses. If its socket was removed, it waits a few
    /// seconds for the session to restore it.
    ///
    /// # Errors
    /// The name is invalid; no session of this user has it; the socket was removed and not restored; other
    /// users can write to the directory; or another user listens on the socket.
    pub fn connect(name: &str) -> Result<Self, Error> {
        Self::connect_in(Directory::default_path(), name)
    }

    /// Like [`connect`](Self::connect), in another directory.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_in(directory: impl AsRef<Path>, name: &str) -> Result<Self, Error> {
        let name = SessionName::new(name)?;
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
            return Err(ListenError::io("identify the listener on", &path)(source).into());
        }
        if checked.is_err() {
            let message = format!(
                "session {name}: this process or the session's process is in a sandbox, or the session has ended"
            );
            return Err(ListenError::Refused { message, hint: None }.into());
        }
        Ok(Self { socket, name: name.to_string(), path, process: peer.pid() })
    }

    /// The names of this user's sessions, sorted. Some may have ended without removing their files.
    ///
    /// # Errors
    /// The socket directory cannot be read, or other users can write to it.
    pub fn sessions() -> Result<Vec<String>, Error> {
        let Some(directory) = Directory::open(&Directory::default_path())? else { return Ok(Vec::new()) };
        let names = names(&directory).map_err(ListenError::io("list", directory.path()))?;
        Ok(names.iter().map(SessionName::to_string).collect())
    }

    /// The PID of the session's process.
    #[must_use]
    pub fn process(&self) -> i32 {
        self.process
    }

    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks the session for its statistics.
    ///
    /// # Errors
    /// The session ends or does not answer.
    pub fn stats(self) -> Result<Stats, Error> {
        self.question(&Question::Stats)
    }

    /// Asks what the session was prepared with.
    ///
    /// # Errors
    /// The session ends or does not answer, or it is of another version of Kennel.
    pub fn describe(self) -> Result<Described, Error> {
        let SentDescription { profile, workspace } = self.question(&Question::Describe)?;
        Ok(Described { profile, workspace: workspace.0 })
    }

    /// Asks a question, and waits for the answer as long as the session needs.
    pub(crate) fn question<T: DeserializeOwned>(&self, question: &Question) -> Result<T, Error> {
        self.reply_to(question)?.map(|(answer, _)| answer).map_err(Error::from)
    }

    /// Asks a question. The answer may come with a descriptor.
    pub(crate) fn reply_to<T: DeserializeOwned>(&self, question: &Question) -> Result<Answered<T>, Error> {
        self.limit_waits()?;
        let json = serde_json::to_vec(question).map_err(|error| self.failed(error))?;
        let length =
            u32::try_from(json.len()).map_err(|_| self.failed(io::ErrorKind::ArgumentListTooLong))?;
        let mut packet = Vec::new();
        Ask::Question { version: VERSION, length }.put(&mut packet);
        let sent = if packet.len() + json.len() <= LONGEST_ASK {
            packet.extend_from_slice(&json);
            packet::send(&self.socket, &packet, &[])
        } else {
            let memfd = packet::memory_file(&json).map_err(|error| self.failed(error))?;
            packet::send(&self.socket, &packet, &[memfd.as_fd()])
        };
        ignore_disconnect(sent.map_err(|error| self.failed(error)))?;
        self.reply()
    }

    /// The answer to a question.
    pub(crate) fn reply<T: DeserializeOwned>(&self) -> Result<Answered<T>, Error> {
        let Packet { bytes, descriptors } = self.patient_answer()?;
        let mut cursor = Cursor::new(&bytes);
        let length = match Answer::take(&mut cursor) {
            Some(Answer::Reply { length }) => length,
            Some(Answer::Ended { message, .. }) => return Err(refused(message)),
            _ => return Err(self.gone()),
        };
        let mut descriptor = descriptors.into_iter().next().map(HeldFd::into_own);
        let memfd = if cursor.is_empty() { descriptor.take() } else { None };
        let json = match memfd {
            Some(memfd) => packet::content(&memfd.into(), length).map_err(|error| self.failed(error))?,
            None => cursor.remaining().to_vec(),
        };
        match serde_json::from_slice(&json).map_err(|error| self.failed(error))? {
            Reply::Ok(answer) => Ok(Ok((answer, descriptor))),
            Reply::Error(problem) => Ok(Err(problem)),
        }
    }

    /// The answer, however long it takes, unless the session does not read what it was asked.
    fn patient_answer(&self) -> Result<Packet, Error> {
        loop {
            match packet::receive(&self.socket, LONGEST_ANSWER) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.is_unheard() => {}
                packet => return packet.map_err(|error| self.failed(error)),
            }
        }
    }

    /// Ends the session and every command in it, and waits until it is gone.
    ///
    /// # Errors
    /// The connection breaks, or the session has not read the request after five seconds because its program
    /// is stopped or busy.
    pub fn stop(self) -> Result<(), Error> {
        self.limit_waits()?;
        self.ask(&Ask::Stop {}, &[])?;
        let packet = self.patient_answer()?;
        match Answer::take(&mut Cursor::new(&packet.bytes)) {
            _ if packet.bytes.is_empty() => Ok(()),
            Some(Answer::Ended { message, .. }) => Err(refused(message)),
            _ => Err(self.gone()),
        }
    }

    /// Limits the wait for each answer to [`TIMEOUT`] from now on.
    fn limit_waits(&self) -> Result<(), Error> {
        let timeout = TimeVal::new(TIMEOUT, 0);
        setsockopt(&self.socket, ReceiveTimeout, &timeout).map_err(|errno| self.failed(errno))
    }

    /// Starts a command with these standard descriptors; [`next`](Self::next) returns its events. Dropping
    /// the client kills the command. Call this once.
    ///
    /// # Errors
    /// A string cannot be passed to a command, or the session ends. `EBADF` if a standard descriptor is
    /// closed, or if another close-on-exec descriptor has its number.
    pub fn start(&self, call: &Call, stdio: [BorrowedFd<'_>; 3]) -> Result<(), Error> {
        for (stream, fd) in STREAMS.into_iter().zip(stdio) {
            check_standard(fd).map_err(Error::io(stream))?;
        }
        let has_terminal = (0..3).any(|number| call.is_own_terminal(number));
        let null = has_terminal.then(|| File::options().read(true).write(true).open("/dev/null")).transpose();
        let null = null.map_err(Error::io("open /dev/null"))?;
        // What the command's own terminal replaces stays here.
        let mut numbers = 0..;
        let stdio = stdio.map(|fd| match (numbers.next(), &null) {
            (Some(number), Some(null)) if call.is_own_terminal(number) => null.as_fd(),
            _ => fd,
        });
        let bytes = call.encode()?;
        let length =
            u32::try_from(bytes.len()).map_err(|_| self.failed(io::ErrorKind::ArgumentListTooLong))?;
        let mut packet = Vec::with_capacity(bytes.len() + 8);
        call.ask(length, true).put(&mut packet);
        packet.extend_from_slice(&bytes);
        let sent = if packet.len() <= LONGEST_ASK {
            packet::send(&self.socket, &packet, &stdio).map_err(|error| self.failed(error))
        } else {
            let memfd = packet::memory_file(&bytes).map_err(|error| self.failed(error))?;
            let [input, output, error] = stdio;
            self.ask(&call.ask(length, false), &[input, output, error, memfd.as_fd()])
        };
        ignore_disconnect(sent)
    }

    /// Whether the session has not yet read everything that was sent, because its program is stopped or busy.
    /// A requested command has not started then.
    #[must_use]
    pub fn is_unheard(&self) -> bool {
        crate::sys::peer_has_unread(self.as_fd())
    }

    /// Sends a signal to the command. If the session has ended, [`next`](Self::next) reports it, not this.
    ///
    /// # Errors
    /// Errors of send(2).
    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        ignore_disconnect(self.ask(&Ask::Signal { number: signal.unsigned() }, &[]))
    }

    /// Gives the terminal to the command, or takes it away; see
    /// [`Child::foreground`](crate::command::child::Child::foreground).
    ///
    /// # Errors
    /// Errors of send(2).
    pub fn foreground(&self, has: bool) -> Result<(), Error> {
        ignore_disconnect(self.ask(&Ask::Foreground { has: has.into() }, &[]))
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// The session ends before it has reported the command's end.
    pub fn next(&self) -> Result<Event, Error> {
        let packet = loop {
            match packet::receive(&self.socket, LONGEST_ANSWER) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                packet => break packet.map_err(|error| self.failed(error))?,
            }
        };
        let descriptor = packet.descriptors.into_iter().next().map(HeldFd::into_own);
        match (Answer::take(&mut Cursor::new(&packet.bytes)), descriptor) {
            (Some(Answer::Terminal {}), Some(master)) => Ok(Event::Terminal(master)),
            (Some(Answer::Stopped { signal }), _) => {
                let signal =
                    Signal::received(signal).ok_or_else(|| self.failed(io::ErrorKind::InvalidData))?;
                Ok(Event::Stopped(signal))
            }
            (Some(Answer::Detached { id }), _) => Ok(Event::Detached(id)),
            (Some(Answer::Output { stream, bytes }), _) => {
                Ok(Event::Output(if stream == 2 { 2 } else { 1 }, bytes.to_owned()))
            }
            (Some(Answer::Dropped { count }), _) => Ok(Event::Dropped(count)),
            (Some(Answer::Ended { code, signal, report, message }), memfd) => {
                let report = memfd
                    .filter(|_| report > 0)
                    .map(|memfd| packet::content(&memfd.into(), report))
                    .transpose();
                Ok(Event::Ended {
                    code: u8::try_from(code).unwrap_or(255),
                    signal: Signal::received(signal),
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

// Answers of a session that refuses a request.

/// Ignores a send to a closed connection: the session's last answer is still to be read, and tells why it
/// closed.
pub(crate) fn ignore_disconnect(sent: Result<(), Error>) -> Result<(), Error> {
    match sent {
        Err(Error::Listen(ListenError::Io { source, .. })) if is_end(&source) => Ok(()),
        sent => sent,
    }
}

/// The error for a refusal: the first line of the session's message, and its hint.
pub(crate) fn refused(message: &[u8]) -> Error {
    let text = String::from_utf8_lossy(message);
    let line = text.lines().next().unwrap_or_default();
    let message = line.strip_prefix("kennel: ").unwrap_or(line).to_owned();
    let hint = text
        .lines()
        .nth(1)
        .and_then(|line| line.strip_prefix("kennel: hint: "))
        .map(|hint| hint.to_owned().into());
    ListenError::Refused { message, hint }.into()
}

/// Whether the peer has closed the connection.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

// Finding and connecting to sockets.

/// How long to wait for a session to restore its removed socket. The session checks each second.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(3);

/// The pause between two attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Connects to a session. If its socket was removed, waits until the session has restored it.
///
/// A single check of the lock decides between "not running" and "unreachable": a session that is just
/// starting could take its lock between two checks.
fn connected(directory: &Directory, name: &SessionName, path: &Path) -> Result<OwnedFd, ListenError> {
    let begun = Instant::now();
    loop {
        let error = match connect_once(directory, name) {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        match error.raw_os_error() {
            // Removed, or bound again and nobody listens yet.
            Some(libc::ENOENT | libc::ECONNREFUSED) if is_held(directory, name) => {
                if begun.elapsed() >= RESTORE_TIMEOUT {
                    return Err(ListenError::Unreachable { name: name.to_string() });
                }
                sleep(RETRY_PAUSE);
            }
            Some(libc::ENOENT | libc::ECONNREFUSED) => {
                return Err(ListenError::NotRunning { name: name.to_string() });
            }
            _ => return Err(ListenError::io("connect to", path)(error)),
        }
    }
}

fn connect_once(directory: &Directory, name: &SessionName) -> io::Result<OwnedFd> {
    let socket = packet_socket(SockFlag::empty())?;
    // SO_SNDTIMEO also limits how long connect(2) waits for room in the backlog.
    setsockopt(&socket, SendTimeout, &TimeVal::new(TIMEOUT, 0))?;
    connect(socket.as_raw_fd(), &address(&directory.own_path(name.socket()))?)?;
    Ok(socket)
}

/// The names of sessions, from their sockets and locks. A removed socket leaves the lock.
pub(crate) fn names(directory: &Directory) -> io::Result<BTreeSet<SessionName>> {
    let name = |file: &OsStr| {
        SessionName::from_socket(file.to_str()?).or_else(|| SessionName::from_lock(file.to_str()?))
    };
    let files = fs::read_dir(directory.own_path(""))?;
    files.map(|entry| Ok(name(&entry?.file_name()))).filter_map(io::Result::transpose).collect()
}
