//! One connection to a client, under the runtime's watch.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kennel_helper::client_wire::{Answer, LONGEST_ANSWER, LONGEST_ASK};
use kennel_helper::wire::Field;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::report::error::Error;
use crate::report::escape::harmless;
use crate::report::failure::exit;
use crate::report::outcome::Outcome;
use crate::report::shortage::of_call;
use crate::report::{Report, failure};
use crate::sys;
use crate::sys::packet;
use crate::sys::packet::Packet;

/// Room for everything of an answer but its message, in bytes.
const HEAD: usize = 64;

#[derive(Debug)]
pub(crate) struct Connection {
    socket: AsyncFd<OwnedFd>,
}

impl Connection {
    /// `None` for who was told why he cannot be served.
    pub(crate) fn new(socket: OwnedFd) -> Option<Self> {
        match sys::watched_or_back(socket, Interest::READABLE) {
            Ok(socket) => Some(Self { socket }),
            Err(error) => {
                let (socket, error) = error.into_parts();
                tracing::warn!(%error, "a client could not be watched");
                turn_away_for_want(socket.as_fd(), "wait for the client", &error);
                None
            }
        }
    }

    /// The next packet; `None` when the client is gone, or sends what cannot be received.
    pub(crate) async fn next(&self) -> Option<Packet> {
        self.first().await.ok().filter(|packet| !packet.bytes.is_empty())
    }

    /// The same, which is empty when the client is gone.
    ///
    /// # Errors
    /// What cannot be received; `EMFILE` where this process has no room for what comes with it.
    pub(crate) async fn first(&self) -> io::Result<Packet> {
        let receive = |socket: &OwnedFd| packet::receive(socket, LONGEST_ASK);
        // Most often it is there already.
        match receive(self.socket.get_ref()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.socket.async_io(Interest::READABLE, receive).await
            }
            packet => packet,
        }
    }

    /// Answers. A client that does not take what it asked for is as good as gone.
    pub(crate) fn answer(&self, answer: &Answer<'_>, descriptor: Option<BorrowedFd<'_>>) {
        send(self.socket.get_ref().as_fd(), answer, descriptor);
    }

    /// Tells how the command went.
    pub(crate) fn ended(&self, result: &Result<Outcome, Error>, wants_report: bool) {
        // What is degraded was said when the session was prepared.
        let (code, lines) = match result {
            Ok(outcome) => (outcome.exit_code(), outcome.remarks()),
            Err(error) => (error.exit_code(), error.lines()),
        };
        let message = fitting(lines.into_iter().flat_map(|line| [line, "\n".to_owned()]).collect());
        let report = wants_report.then(|| report(result)).and_then(|report| {
            report.inspect_err(|error| tracing::warn!(%error, "no report could be written")).ok()
        });
        let length = report.as_ref().map_or(0, |(_, length)| *length);
        let answer = Answer::Ended { code: code.into(), report: length, message: message.as_bytes() };
        self.answer(&answer, report.as_ref().map(|(memfd, _)| memfd.as_fd()));
    }

    /// Waits until the client goes away. What it says meanwhile is thrown away.
    pub(crate) async fn gone(&self) {
        while self.next().await.is_some() {}
    }

    /// Tells why nothing is done.
    pub(crate) fn refuse(&self, reason: &str) {
        refuse(self.socket.get_ref().as_fd(), reason, None);
    }

    /// Tells that nothing is done because this process has not enough of something.
    pub(crate) fn want(&self, what: &str, error: &io::Error) {
        want(self.socket.get_ref().as_fd(), what, error);
    }
}

/// Tells who must not be served why; his socket is to be closed after that.
pub(crate) fn turn_away(socket: BorrowedFd<'_>, reason: &str) {
    // What it said and nobody read would make its end forget the answer.
    let _ = packet::receive(socket, LONGEST_ASK);
    refuse(socket, reason, None);
}

/// The same to whom there is not enough of something to be served with.
pub(crate) fn turn_away_for_want(socket: BorrowedFd<'_>, what: &str, error: &io::Error) {
    let _ = packet::receive(socket, LONGEST_ASK);
    want(socket, what, error);
}

/// Whose limit it is must be said: whoever reads it has limits of his own.
fn want(socket: BorrowedFd<'_>, what: &str, error: &io::Error) {
    let reason = format!("{what}, in the session's process: {}", failure::words(error));
    refuse(socket, &reason, of_call(error));
}

fn refuse(socket: BorrowedFd<'_>, reason: &str, remedy: Option<&str>) {
    let mut message = format!("kennel: the session refused the request: {}\n", harmless(reason));
    if let Some(remedy) = remedy {
        message.push_str(&format!("kennel: hint: where the session is started: {remedy}\n"));
    }
    send(socket, &Answer::Ended { code: exit::FAILED.into(), report: 0, message: message.as_bytes() }, None);
}

fn send(socket: BorrowedFd<'_>, answer: &Answer<'_>, descriptor: Option<BorrowedFd<'_>>) {
    let mut bytes = Vec::new();
    answer.put(&mut bytes);
    if let Err(error) = packet::send(socket, &bytes, descriptor.as_slice()) {
        tracing::debug!(%error, "a client did not take its answer");
    }
}

/// As much of the lines as an answer takes.
fn fitting(mut lines: String) -> String {
    let most = LONGEST_ANSWER - HEAD;
    if lines.len() > most {
        // A part of a character is a byte that terminals may obey.
        let end = (0..most).rev().find(|&at| lines.is_char_boundary(at));
        lines.truncate(end.unwrap_or(0));
        lines.push('\n');
    }
    lines
}

/// The report in a memfd, and its length.
fn report(result: &Result<Outcome, Error>) -> io::Result<(OwnedFd, u32)> {
    let text = serde_json::to_vec(&Report::of(result))?;
    Ok((packet::memory_file(&text)?, u32::try_from(text.len()).map_err(|_| io::ErrorKind::FileTooLarge)?))
}
