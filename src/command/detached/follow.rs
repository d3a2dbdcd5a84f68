//! Starts and follows one command that stays.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{mpsc, watch};

use crate::command::child::Child;
use crate::command::detached::log_copy::{LogCopy, is_log_file};
use crate::command::detached::output_log::OutputLog;
use crate::command::detached::ring::{CAPACITY, Ring};
use crate::command::detached::{
    CommandRecord, Detached, DetachedCommands, DetachedState, End, EndGuard, Order,
};
use crate::command::{Command, CommandSource};
use crate::process::stdio::DefaultStdio;
use crate::report::enforcement::Note;
use crate::report::error::Error;
use crate::sys::closing::HeldFd;
use crate::sys::locked;

impl Command {
    /// Starts the command as one that stays, and returns once its program runs. A task of the runtime then
    /// follows it: it needs no [`Child`], lives on when the caller drops everything, and ends with the
    /// session at the latest. Timeouts and limits hold as for other commands, those of the policy too.
    ///
    /// stdin is `/dev/null` unless it was set. stdout and stderr go to the log of the [`Detached`] unless
    /// they were set. `kill_on_drop` has no meaning here.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn). [`Error::Command`] outside of a session, if the command has a terminal,
    /// or if the [log file](Self::log_file) is not a regular file that is open for writing.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn detach(&mut self) -> Result<Detached, Error> {
        let CommandSource::Session(session) = &self.source else {
            return Err(self.refused("detach", "only a command of a session can stay".to_owned()));
        };
        let commands = Arc::clone(session.detached());
        if self.streams.terminal.is_some() {
            return Err(
                self.refused("terminal", "a detached command has none: nobody is there to type".to_owned())
            );
        }
        let file = self.streams.log_file.take();
        if !file.as_ref().is_none_or(is_log_file) {
            let reason = "is not a regular file that is open for writing".to_owned();
            return Err(self.refused("log file", reason));
        }
        let copy = LogCopy::open(file).map_err(Error::io("start a thread"))?;
        let mut child = self.start(DefaultStdio::Collect).await?;
        child.started().await?;
        Ok(commands.add(self.program.clone(), child, copy))
    }

    /// Lets a [detached](Self::detach) command write all of its output to a regular file too. Kennel writes
    /// it: the command never has this descriptor. If the file takes no more, such as on a full disk, the
    /// command goes on, and [`Detached::unwritten`] and a note in its outcome say so. A file that is slow
    /// makes the command wait. A start takes the descriptor.
    pub fn log_file(&mut self, file: impl Into<OwnedFd>) -> &mut Self {
        self.held_log_file(file.into().into())
    }

    /// As [`log_file`](Self::log_file), for a descriptor that a stranger gave.
    pub(crate) fn held_log_file(&mut self, file: HeldFd) -> &mut Self {
        self.streams.log_file = Some(file);
        self
    }
}

impl DetachedCommands {
    /// Starts the task that follows a command.
    fn add(self: Arc<Self>, program: OsString, mut child: Child, copy: LogCopy) -> Detached {
        let record = CommandRecord { ring: Ring::new(CAPACITY), unwritten: None, end: None };
        let (orders, received) = mpsc::unbounded_channel();
        let key = child.claim_worker();
        let mut known = locked(&self.known);
        known.last = known.last.wrapping_add(1).max(1);
        let id = known.last;
        let record = watch::Sender::new(record);
        let started = SystemTime::now();
        let detached =
            Detached { state: Arc::new(DetachedState { id, program, started, record, orders, key }) };
        known.commands.insert(id, detached.clone());
        drop(known);
        let end = EndGuard { detached: detached.clone(), commands: Arc::downgrade(&self), end: None };
        tokio::spawn(follow(child, received, copy, end));
        detached
    }
}

/// Follows a command to its end, and the processes that it leaves as long as they can write to its log.
async fn follow(
    mut child: Child,
    mut orders: mpsc::UnboundedReceiver<Order>,
    copy: LogCopy,
    mut guard: EndGuard,
) {
    let record = guard.detached.state.record.clone();
    let mut log = OutputLog::new(record, child.stdout.take(), child.stderr.take(), copy);
    let mut result = loop {
        tokio::select! {
            ended = child.wait() => break ended,
            Some(order) = orders.recv() => obey(&mut child, &order),
            () = log.advance() => {}
        }
    };
    drop(child);
    log.drain();
    let is_over = !log.is_open();
    if is_over {
        log.finish().await;
    }
    if let Ok(outcome) = &mut result {
        log.count(outcome);
        let note = |why: String| Note::new("log file", &format!("it lacks output: {why}"), None);
        outcome.enforcement.add_notes(guard.detached.unwritten().map(note));
    }
    guard.end = Some(End::of(result));
    drop(guard);
    if !is_over {
        while log.is_open() {
            log.advance().await;
        }
        log.finish().await;
    }
}

fn obey(child: &mut Child, order: &Order) {
    let obeyed = match order {
        Order::Signal(signal) => child.signal(*signal),
        Order::Kill => child.start_kill(),
    };
    if let Err(error) = obeyed {
        tracing::debug!(%error, "could not send an order to a detached command");
    }
}
