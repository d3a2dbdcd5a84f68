//! Commands that stay, as callers see them. A task of the runtime follows each and keeps what it writes,
//! whoever started it.

pub(crate) mod follow;
pub(crate) mod log_copy;
pub(crate) mod output_log;
pub(crate) mod ring;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use tokio::sync::{mpsc, watch};

use crate::command::detached::ring::{LogPiece, Ring};
use crate::launch::inside::CommandKey;
use crate::report::error::Error;
use crate::report::failure;
use crate::report::outcome::Outcome;
use crate::sys::locked;
use crate::sys::signal::Signal;

/// How many ended commands a session remembers.
const REMEMBERED: usize = 64;

/// A command of a session that stays: it needs no [`Child`](crate::command::child::Child), and ends by
/// itself, by a limit, by [`kill`](Self::kill), or with its session. A clone is the same command. Dropping it
/// changes nothing.
///
/// The session keeps the last MiB that the command wrote. The 64 commands that ended last stay known, with
/// their status and that output.
///
/// ```no_run
/// # async fn example(session: kennel::Session) -> Result<(), Box<dyn std::error::Error>> {
/// use kennel::{LogPiece, Signal};
///
/// let server = session.command("./server").detach().await?;
/// println!("command {}", server.id());
/// let mut log = server.follow();
/// while let Some(piece) = log.next().await {
///     match piece {
///         LogPiece::Stdout(bytes) if bytes.starts_with(b"listening") => break,
///         LogPiece::Dropped(count) => eprintln!("{count} bytes are gone"),
///         _ => {}
///     }
/// }
/// server.signal(Signal::TERM);
/// println!("{}", server.wait().await?.status);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Detached {
    state: Arc<DetachedState>,
}

struct DetachedState {
    id: u32,
    program: OsString,
    started: SystemTime,
    record: watch::Sender<CommandRecord>,
    orders: mpsc::UnboundedSender<Order>,
    /// What tells its processes from those of others.
    key: Option<CommandKey>,
}

/// What is known about a command by now.
#[derive(Debug)]
pub(crate) struct CommandRecord {
    pub(crate) ring: Ring,
    /// Why the log file lacks output.
    pub(crate) unwritten: Option<String>,
    end: Option<End>,
}

#[derive(Clone, Debug)]
enum End {
    Outcome(Box<Outcome>),
    SessionEnded,
    Lost,
}

enum Order {
    Signal(Signal),
    Kill,
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached")
            .field("id", &self.id())
            .field("program", &self.program())
            .finish_non_exhaustive()
    }
}

impl Detached {
    /// Its number in the session. The first one has 1. No two have the same.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.state.id
    }

    /// The program as the caller named it.
    #[must_use]
    pub fn program(&self) -> &OsStr {
        &self.state.program
    }

    /// When it started.
    #[must_use]
    pub fn started(&self) -> SystemTime {
        self.state.started
    }

    pub(crate) fn key(&self) -> Option<CommandKey> {
        self.state.key.clone()
    }

    /// How it ended; `None` as long as it runs. Does not wait.
    pub fn try_wait(&self) -> Option<Result<Outcome, Error>> {
        self.state.record.borrow().end.clone().map(End::result)
    }

    /// Waits for its end. As with [`Child::wait`](crate::command::child::Child::wait), no process of it can
    /// do anything any more then.
    ///
    /// # Errors
    /// [`Error::SessionEnded`] if it ended with the session or with the runtime that started it;
    /// [`Error::Lost`] if somebody outside killed its sandbox.
    pub async fn wait(&self) -> Result<Outcome, Error> {
        let mut record = self.state.record.subscribe();
        let ended = record.wait_for(|record| record.end.is_some()).await;
        let end = ended.ok().and_then(|record| record.end.clone());
        end.unwrap_or(End::Lost).result()
    }

    /// Sends a signal to its process group, as [`Child::signal`](crate::command::child::Child::signal) does.
    /// Once it has ended, this does nothing.
    pub fn signal(&self, signal: Signal) {
        // The other end is gone once the command has ended.
        let _ = self.state.orders.send(Order::Signal(signal));
    }

    /// Kills every process of it and waits until they are gone.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub async fn kill(&self) -> Result<Outcome, Error> {
        let _ = self.state.orders.send(Order::Kill);
        self.wait().await
    }

    /// What it has written and the session still has, in the order in which it arrived. Ends there.
    #[must_use]
    pub fn logs(&self) -> LogReader {
        self.reader(false)
    }

    /// What it has written, and then what it writes. Ends with the command, not with processes that it
    /// leaves. A reader that does not keep up gets [`LogPiece::Dropped`]; it keeps neither the command nor
    /// other readers waiting.
    #[must_use]
    pub fn follow(&self) -> LogReader {
        self.reader(true)
    }

    fn reader(&self, follows: bool) -> LogReader {
        let record = self.state.record.subscribe();
        let until = if follows { u64::MAX } else { record.borrow().ring.end() };
        LogReader { record, position: 0, until }
    }

    /// Why the log file lacks some of the output, if it does.
    #[must_use]
    pub fn unwritten(&self) -> Option<String> {
        self.state.record.borrow().unwritten.clone()
    }
}

impl End {
    fn of(result: Result<Outcome, Error>) -> Self {
        match result {
            Ok(outcome) => Self::Outcome(Box::new(outcome)),
            Err(Error::SessionEnded) => Self::SessionEnded,
            Err(error) => {
                tracing::debug!(error = failure::chain(&error), "lost a detached command");
                Self::Lost
            }
        }
    }

    fn result(self) -> Result<Outcome, Error> {
        match self {
            Self::Outcome(outcome) => Ok(*outcome),
            Self::SessionEnded => Err(Error::SessionEnded),
            Self::Lost => Err(Error::Lost),
        }
    }
}

/// Reads what a detached command wrote. It copies nothing in advance.
#[derive(Debug)]
pub struct LogReader {
    record: watch::Receiver<CommandRecord>,
    position: u64,
    /// Where a reader that does not follow ends.
    until: u64,
}

impl LogReader {
    /// Begins with the last `lines` lines, of both streams together.
    #[must_use]
    pub fn tail(mut self, lines: u64) -> Self {
        self.position = self.record.borrow().ring.tail(lines);
        self
    }

    /// The next piece, of 8 KiB at most; `None` at the end. If the caller drops the future, nothing is lost.
    pub async fn next(&mut self) -> Option<LogPiece> {
        loop {
            if self.position >= self.until {
                return None;
            }
            {
                let record = self.record.borrow_and_update();
                if let Some((piece, next)) = record.ring.read(self.position) {
                    self.position = next;
                    return Some(piece);
                }
                if record.end.is_some() {
                    return None;
                }
            }
            self.record.changed().await.ok()?;
        }
    }
}

// The commands of one session.

/// The detached commands of a session: all that run, and those that ended last.
#[derive(Debug, Default)]
pub(crate) struct DetachedCommands {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    last: u32,
    commands: BTreeMap<u32, Detached>,
    /// In the order of their ends.
    ended: VecDeque<u32>,
}

impl DetachedCommands {
    /// By their numbers.
    pub(crate) fn all(&self) -> Vec<Detached> {
        locked(&self.known).commands.values().cloned().collect()
    }

    pub(crate) fn get(&self, id: u32) -> Option<Detached> {
        locked(&self.known).commands.get(&id).cloned()
    }

    fn ended(&self, id: u32) {
        let mut known = locked(&self.known);
        known.ended.push_back(id);
        while known.ended.len() > REMEMBERED {
            if let Some(oldest) = known.ended.pop_front() {
                known.commands.remove(&oldest);
            }
        }
    }
}

/// Records the end of a command, also if its runtime ends and drops the task.
struct EndGuard {
    detached: Detached,
    commands: Weak<DetachedCommands>,
    end: Option<End>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        let end = self.end.take().unwrap_or(End::SessionEnded);
        self.detached.state.record.send_modify(|record| {
            record.ring.close();
            record.end = Some(end);
        });
        if let Some(commands) = self.commands.upgrade() {
            commands.ended(self.detached.id());
        }
    }
}
