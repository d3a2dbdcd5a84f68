//! What a client asks about commands that stay.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kennel_helper::client_wire::{ALL_LINES, Ask};
use nix::errno::Errno;

use crate::report::error::Error;
use crate::serve::client::call::Call;
use crate::serve::client::{Client, ignore_disconnect};
use crate::serve::question::{Question, SentDetached, SentState};
use crate::session::processes::SessionProcesses;
use crate::sys::packet;
use crate::sys::signal::Signal;

/// A command that stays in a served session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DetachedCommand {
    /// Its number in the session.
    pub id: u32,
    /// The program as the caller named it.
    pub program: OsString,
    /// When it started.
    pub started: SystemTime,
    /// Whether it runs, or how it ended.
    pub state: DetachedState,
}

/// Whether a detached command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DetachedState {
    /// It runs.
    Running,
    /// It has ended.
    Ended {
        /// Its exit status, as in [`Event::Ended`](crate::serve::client::Event).
        code: u8,
        /// The signal that ended it, if `code` stands for one.
        signal: Option<Signal>,
    },
    /// Its sandbox was killed from outside.
    Lost,
}

impl Client {
    /// Starts a command that stays: see [`Command::detach`](crate::command::Command::detach). `log` is a
    /// regular file that is open for writing. [`next`](Self::next) returns
    /// [`Event::Detached`](crate::serve::client::Event), or `Ended` if the command could not be started.
    /// Dropping the client before that kills the command. Call this once, instead of [`start`](Self::start).
    ///
    /// # Errors
    /// A string cannot be passed to a command, or the session ends.
    pub fn start_detached(&self, call: &Call, log: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let bytes = call.encode()?;
        let length = u32::try_from(bytes.len()).map_err(|_| self.failed(Errno::E2BIG))?;
        let memfd = packet::memory_file(&bytes).map_err(|error| self.failed(error))?;
        let descriptors: Vec<_> = [memfd.as_fd()].into_iter().chain(log).collect();
        ignore_disconnect(self.ask(&Ask::Detach { length }, &descriptors))
    }

    /// Requests what a detached command has written, or its last `lines` lines. [`next`](Self::next) returns
    /// it as [`Event::Output`](crate::serve::client::Event) and `Dropped`, and then `Ended` with status 0: at
    /// once, or if `follow` is set, when the command has ended. The session sends as fast as this client
    /// reads.
    ///
    /// # Errors
    /// Errors of send(2).
    pub fn logs(&self, id: u32, lines: Option<u64>, follow: bool) -> Result<(), Error> {
        let lines = lines.unwrap_or(ALL_LINES);
        ignore_disconnect(self.ask(&Ask::Logs { id, follow: follow.into(), lines }, &[]))
    }

    /// Sends a signal to a detached command. [`next`](Self::next) returns `Ended` with status 0, or with 125
    /// if there is no such command. It is no error that the command has ended; the message says so.
    ///
    /// # Errors
    /// Errors of send(2).
    pub fn kill(&self, id: u32, signal: Signal) -> Result<(), Error> {
        ignore_disconnect(self.ask(&Ask::Kill { id, signal: signal.unsigned() }, &[]))
    }

    /// Waits for a detached command: [`next`](Self::next) returns `Ended` when it has ended, as for a command
    /// of [`start`](Self::start). It may have ended before. With `report`, the event has its report.
    ///
    /// # Errors
    /// Errors of send(2).
    pub fn wait_for(&self, id: u32, report: bool) -> Result<(), Error> {
        ignore_disconnect(self.ask(&Ask::Wait { id, report: report.into() }, &[]))
    }

    /// The detached commands of the session, by their numbers: all that run, and the 64 that ended last.
    ///
    /// # Errors
    /// The session ends or does not answer, or it is of a version of Kennel that does not know the question.
    pub fn detached(self) -> Result<Vec<DetachedCommand>, Error> {
        let commands: Vec<SentDetached> = self.question(&Question::Detached)?;
        Ok(commands.into_iter().map(DetachedCommand::from).collect())
    }

    /// What runs in the session: see [`Session::processes`](crate::session::Session::processes).
    ///
    /// # Errors
    /// The session ends, does not answer, or cannot list them.
    pub fn processes(self) -> Result<SessionProcesses, Error> {
        self.question(&Question::Processes)
    }

    /// Ends a shell of the session, once the snippet that it runs has ended.
    ///
    /// # Errors
    /// The session ends or does not answer.
    pub fn end_shell(self, name: &str) -> Result<(), Error> {
        self.question(&Question::EndShell { shell: name.to_owned() })
    }
}

impl From<SentDetached> for DetachedCommand {
    fn from(sent: SentDetached) -> Self {
        let SentDetached { id, program, started_ms, state, code, signal } = sent;
        Self {
            id,
            program: program.0.into(),
            started: UNIX_EPOCH.checked_add(Duration::from_millis(started_ms)).unwrap_or(UNIX_EPOCH),
            state: match state {
                SentState::Running => DetachedState::Running,
                SentState::Ended => DetachedState::Ended {
                    code: u8::try_from(code).unwrap_or(255),
                    signal: Signal::received(signal),
                },
                SentState::Lost => DetachedState::Lost,
            },
        }
    }
}
