//! A connection to a client: it receives packets and sends answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use kennel_helper::client_wire::{Answer, LONGEST_ANSWER, LONGEST_ASK};
use kennel_helper::wire::Field;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Linger;
use serde_json::Value;
use serde_json::ser::CompactFormatter;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::process::output::Kept;
use crate::report::enforcement::{Note, Scope};
use crate::report::error::Error;
use crate::report::escape::{self, harmless};
use crate::report::failure::exit;
use crate::report::outcome::Outcome;
use crate::report::remedy::{Remedy, Wording};
use crate::report::shortage::of_call;
use crate::report::{Report, failure};
use crate::serve::question::{Problem, Reply};
use crate::session::Session;
use crate::sys::closing::HeldFd;
use crate::sys::memory_file::MemoryFile;
use crate::sys::packet;
use crate::sys::packet::Packet;
use crate::sys::{self, closing};

/// How long a client may take to disconnect after the last answer.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// What the accept loop does after a client was served.
#[derive(Debug)]
pub(crate) enum NextStep {
    Nothing,
    /// The client has left, or has broken the protocol: it gets no answer.
    Gone,
    /// End the session; close the connection afterwards.
    Stop(Option<Connection>),
}

/// Room for an answer without its message, in bytes.
const HEAD: usize = 64;

/// In which form a client gets remedies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// In words of whoever made the session.
    Words(Wording),
    /// As data, which the client puts into words of its own.
    Data,
}

impl Default for Form {
    fn default() -> Self {
        Self::Words(Wording::default())
    }
}

impl Form {
    pub(crate) fn of(session: &Session, wants_data: bool) -> Self {
        if wants_data { Self::Data } else { Self::Words(session.prepared().compiled.commands.wording) }
    }

    /// One line for people.
    fn line(self, line: &Remedy) -> String {
        match self {
            Self::Words(wording) => line.in_words(wording) + "\n",
            // Plain data always serializes.
            Self::Data => serde_json::to_string(line).unwrap_or_default() + "\n",
        }
    }

    fn report(self, report: Report) -> Report {
        match self {
            Self::Words(wording) => report.worded(wording),
            Self::Data => report,
        }
    }
}

/// What a client wants to know about the end of its command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wishes<'n> {
    /// Notes that somebody was told before.
    pub(crate) told: &'n [Note],
    /// Errors, but no remarks.
    pub(crate) is_quiet: bool,
    pub(crate) wants_report: bool,
    pub(crate) form: Form,
}

impl Wishes<'_> {
    /// The lines for people.
    fn lines(&self, result: Result<&Outcome, &Error>) -> Vec<Remedy> {
        match result {
            Ok(outcome) if self.is_quiet => outcome.lost().collect(),
            Ok(outcome) => {
                let notes = outcome.enforcement.notes().iter().filter(|note| !self.told.contains(note));
                let notes = notes.map(|note| note.sentence("note", Scope::Command));
                notes.chain(outcome.sentences(Scope::Session)).collect()
            }
            Err(error) => error.sentences(),
        }
    }
}

/// The end of a command or a snippet.
#[derive(Debug, Default)]
pub(crate) struct EndMessage {
    pub(crate) code: u32,
    /// The signal that ended it, if `code` stands for one, or 0.
    pub(crate) signal: u32,
    /// Lines for people.
    pub(crate) lines: Vec<Remedy>,
    pub(crate) report: Option<Report>,
    /// Stdout and stderr, if the session has collected them.
    pub(crate) output: Option<[Kept; 2]>,
    pub(crate) form: Form,
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// Requests that nobody has read may bring descriptors.
    socket: AsyncFd<HeldFd>,
}

impl Connection {
    /// Registers the socket with the runtime. If that fails, it tells the client why and returns `None`.
    pub(crate) fn new(socket: HeldFd) -> Option<Self> {
        match sys::watched_or_back(socket, Interest::READABLE) {
            Ok(socket) => Some(Self { socket }),
            Err(error) => {
                let (socket, error) = error.into_parts();
                tracing::warn!(%error, "could not watch a client's connection");
                turn_away_for_shortage(socket, "wait for the client", error);
                None
            }
        }
    }

    /// The socket, to check who is at its other end.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }

    /// The next packet; `None` if the client has left or the packet cannot be received.
    pub(crate) async fn next(&self) -> Option<Packet> {
        self.first().await.ok().filter(|packet| !packet.bytes.is_empty())
    }

    /// The next packet; it is empty if the client has left.
    ///
    /// # Errors
    /// The packet cannot be received; `EMFILE` if this process has no free descriptors for those in the
    /// packet.
    pub(crate) async fn first(&self) -> io::Result<Packet> {
        let receive = |socket: &HeldFd| packet::receive(socket, LONGEST_ASK);
        // Usually it has arrived already.
        match receive(self.socket.get_ref()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.socket.async_io(Interest::READABLE, receive).await
            }
            packet => packet,
        }
    }

    /// Sends an answer. A client that does not receive it is treated as gone.
    pub(crate) fn answer(&self, answer: &Answer<'_>, descriptor: Option<BorrowedFd<'_>>) {
        send(self.socket.get_ref().as_fd(), &encoded(answer), descriptor);
    }

    /// Sends answers to a client that reads when it likes. It has a watch of its own: with the other one,
    /// each answer to any client would wake the runtime once more.
    ///
    /// # Errors
    /// This process has no free descriptor.
    pub(crate) fn patient(&self) -> io::Result<PatientSender> {
        let socket = HeldFd::strange(self.socket.get_ref().as_fd().try_clone_to_owned()?);
        Ok(PatientSender { socket: sys::watched(socket, Interest::WRITABLE)? })
    }

    /// Sends the end of a command or a snippet.
    pub(crate) fn end(&self, end: EndMessage) {
        let EndMessage { code, signal, lines, report, output, form } = end;
        let message = truncated(lines.iter().map(|line| form.line(line)).collect());
        let report = report
            .map(|report| escape::json(&form.report(report), CompactFormatter).unwrap_or_default())
            .unwrap_or_default();
        let length = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let (report_length, message) = (length(report.len() as u64), message.as_bytes());
        let Some([stdout, stderr]) = output else {
            let answer = Answer::Ended { code, signal, report: report_length, message };
            if report.is_empty() {
                return self.answer(&answer, None);
            }
            return match packet::memory_file(&report) {
                Ok(memfd) => self.answer(&answer, Some(memfd.as_fd())),
                Err(error) => self.refuse_for_shortage("send the report", &error),
            };
        };
        let answer = Answer::Collected {
            code,
            signal,
            stdout: length(stdout.length()),
            stderr: length(stderr.length()),
            report: report_length,
            message,
        };
        self.send_with(&answer, [stdout, stderr, report.into()], None);
    }

    /// Sends the result of a command.
    pub(crate) fn ended(&self, result: &Result<Outcome, Error>, wishes: &Wishes<'_>) {
        let (code, signal) = status(result);
        let report = wishes.wants_report.then(|| Report::of(result));
        self.end(EndMessage {
            code,
            signal,
            lines: wishes.lines(result.as_ref()),
            report,
            output: None,
            form: wishes.form,
        });
    }

    /// Sends the result of a command whose output was collected.
    pub(crate) fn collected(&self, result: Result<(Outcome, [Kept; 2]), Error>, wishes: &Wishes<'_>) {
        let (result, output) = match result {
            Ok((outcome, output)) => (Ok(outcome), output),
            Err(error) => (Err(error), Default::default()),
        };
        let (code, signal) = status(&result);
        let report = Some(Report::of(&result).with_weaker_enforcement());
        self.end(EndMessage {
            code,
            signal,
            lines: wishes.lines(result.as_ref()),
            report,
            output: Some(output),
            form: wishes.form,
        });
    }

    /// Answers a question.
    pub(crate) fn reply(&self, result: Result<Value, Error>, descriptor: Option<BorrowedFd<'_>>) {
        let reply = match result {
            Ok(value) => Reply::Ok(value),
            Err(error) => Reply::Error(Problem::new(&error)),
        };
        // Plain data always serializes.
        let json = serde_json::to_vec(&reply).unwrap_or_default();
        let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
        self.send_with(&Answer::Reply { length }, [json.into()], descriptor);
    }

    /// Sends an answer with bytes that follow it: in the packet if they fit, else in a memfd.
    fn send_with<const N: usize>(
        &self,
        answer: &Answer<'_>,
        parts: [Kept; N],
        descriptor: Option<BorrowedFd<'_>>,
    ) {
        let mut packet = Vec::new();
        answer.put(&mut packet);
        let socket = self.socket.get_ref().as_fd();
        let length = packet.len() as u64 + parts.iter().map(Kept::length).sum::<u64>();
        if parts.iter().all(|part| part.file.is_none()) && length <= LONGEST_ANSWER as u64 {
            parts.iter().for_each(|part| packet.extend_from_slice(&part.rest));
            return send(socket, &packet, descriptor);
        }
        match in_memfd(parts) {
            Ok(memfd) => send(socket, &packet, Some(memfd.as_fd())),
            Err(error) => self.refuse_for_shortage("send the answer", &error),
        }
    }

    /// Waits until the client leaves, and discards what it sends.
    pub(crate) async fn wait_until_gone(&self) {
        while self.next().await.is_some() {}
    }

    /// Closes the connection of a client that is gone. There is no hurry: nobody waits for the end of it.
    pub(crate) fn close_later(self) {
        let socket = self.socket.into_inner().into_own();
        closing::elsewhere_later(move || drop(socket));
    }

    /// Tells the client why the session refuses its request.
    pub(crate) fn refuse(&self, reason: &str) {
        refuse(self.socket.get_ref().as_fd(), reason, None);
    }

    /// Tells the client that this process lacks a resource.
    pub(crate) fn refuse_for_shortage(&self, what: &str, error: &io::Error) {
        refuse_for_shortage(self.socket.get_ref().as_fd(), what, error);
    }
}

/// Sends answers as fast as a client reads them.
#[derive(Debug)]
pub(crate) struct PatientSender {
    socket: AsyncFd<HeldFd>,
}

impl PatientSender {
    /// Sends an answer once there is room for it.
    ///
    /// # Errors
    /// The client has left.
    pub(crate) async fn send(&self, answer: &Answer<'_>) -> io::Result<()> {
        let bytes = encoded(answer);
        self.socket.async_io(Interest::WRITABLE, |socket| packet::send(socket, &bytes, &[])).await
    }
}

/// Tells a client that must not be served why, and closes the socket. It does so elsewhere: the client may be
/// a hostile one in a sandbox, and what it sends can block who receives it.
pub(crate) fn turn_away(socket: HeldFd, reason: String) {
    turn_away_after_request(socket, move |socket| refuse(socket, &reason, None));
}

/// Like [`turn_away`], for a lack of resources in this process.
pub(crate) fn turn_away_for_shortage(socket: HeldFd, what: &'static str, error: io::Error) {
    turn_away_after_request(socket, move |socket| refuse_for_shortage(socket, what, &error));
}

fn turn_away_after_request(socket: HeldFd, tell: impl FnOnce(BorrowedFd<'_>) + Send + 'static) {
    closing::elsewhere(move || {
        let socket = socket.into_own();
        // Read the request first: closing a socket with unread data makes the kernel discard the answer.
        let request = packet::receive(&socket, LONGEST_ASK);
        // Closing what it sent takes one of the few threads that close, so a socket must not linger.
        for descriptor in request.iter().flat_map(|packet| &packet.descriptors) {
            let _ = setsockopt(descriptor, Linger, &libc::linger { l_onoff: 0, l_linger: 0 });
        }
        tell(socket.as_fd());
        drop((socket, request));
    });
}

/// The message must say that the limit is that of the session's process, because the client has limits too.
fn refuse_for_shortage(socket: BorrowedFd<'_>, what: &str, error: &io::Error) {
    let reason = format!("{what}, in the session's process: {}", failure::words(error));
    refuse(socket, &reason, of_call(error));
}

fn refuse(socket: BorrowedFd<'_>, reason: &str, remedy: Option<&str>) {
    let mut message = format!("kennel: the session refused the request: {}\n", harmless(reason));
    if let Some(remedy) = remedy {
        message.push_str(&format!("kennel: hint: where the session is started: {remedy}\n"));
    }
    let code = exit::FAILED.into();
    let answer = Answer::Ended { code, signal: 0, report: 0, message: message.as_bytes() };
    send(socket, &encoded(&answer), None);
}

/// All of it, one after the other. What is in a memfd already stays there if it is the first.
fn in_memfd<const N: usize>(mut parts: [Kept; N]) -> io::Result<OwnedFd> {
    let first = parts.first_mut().and_then(|first| first.file.take());
    let mut all = first.map_or_else(MemoryFile::new, Ok)?;
    for Kept { file, rest } in parts {
        if let Some(file) = file {
            all.append_file(&file)?;
        }
        all.append(&rest)?;
    }
    Ok(all.into_fd())
}

fn encoded(answer: &Answer<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    answer.put(&mut bytes);
    bytes
}

fn send(socket: BorrowedFd<'_>, packet: &[u8], descriptor: Option<BorrowedFd<'_>>) {
    if let Err(error) = packet::send(socket, packet, descriptor.as_slice()) {
        tracing::debug!(%error, "a client did not receive its answer");
    }
}

/// The exit status of a command and the signal that it stands for, or 0.
pub(crate) fn status(result: &Result<Outcome, Error>) -> (u32, u32) {
    match result {
        Ok(outcome) => {
            let code = outcome.exit_code();
            let is_meant = |number: &i32| 128 + number == i32::from(code);
            (code.into(), outcome.status.signal().filter(is_meant).unwrap_or(0).unsigned_abs())
        }
        Err(error) => (error.exit_code().into(), 0),
    }
}

/// Truncates the lines to what an answer can hold.
fn truncated(mut lines: String) -> String {
    let most = LONGEST_ANSWER - HEAD;
    if lines.len() > most {
        // Cut at a character boundary: a terminal may interpret a stray byte as a control code.
        let end = (0..most).rev().find(|&at| lines.is_char_boundary(at));
        lines.truncate(end.unwrap_or(0));
        lines.push('\n');
    }
    lines
}
