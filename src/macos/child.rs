//! A running command on macOS.

use std::io;
use std::sync::Arc;

use crate::audit::trail::Exec;
use crate::macos::cell::Cell;
use crate::macos::temporary::TemporaryDirectory;
use crate::network::serving::DenialCursor;
use crate::policy::limits::Limits;
use crate::process::cause::{Cause, Flood};
use crate::process::group::Group;
use crate::process::output::{ChildOutput, collected};
use crate::process::stdio::{ChildStdin, Ends};
use crate::report::error::Error;
use crate::report::outcome::{Outcome, Output};
use crate::sys::signal::Signal;

/// A running command. Dropping it kills the process group of the command. A process that has left the group,
/// as a daemon does, stays: macOS has nothing that holds it.
#[derive(Debug)]
pub struct Child {
    /// The writing end of its standard input, if that is a pipe.
    pub stdin: Option<ChildStdin>,
    /// The reading end of its standard output, if that is a pipe.
    pub stdout: Option<ChildOutput>,
    /// The reading end of its standard error, if that is a pipe.
    pub stderr: Option<ChildOutput>,
    group: Group,
    limits: Limits,
    flood: Arc<Flood>,
    outcome: Option<Outcome>,
    exec: Exec,
    cursor: Option<DenialCursor>,
    cell: Arc<Cell>,
    /// Removed after the command.
    _temporary: Arc<TemporaryDirectory>,
}

impl Child {
    pub(crate) fn new(
        cell: &Arc<Cell>,
        group: Group,
        ends: Ends,
        limits: Limits,
        exec: Exec,
        cursor: Option<DenialCursor>,
        temporary: Arc<TemporaryDirectory>,
    ) -> Result<Self, Error> {
        let (stdin, [mut stdout, mut stderr]) = ends.streams(&limits)?;
        let flood = Arc::new(Flood::default());
        if limits.output_ends {
            [&mut stdout, &mut stderr].into_iter().flatten().for_each(|stream| stream.end_at_cap(&flood));
        }
        Ok(Self {
            stdin,
            stdout,
            stderr,
            group,
            limits,
            flood,
            outcome: None,
            exec,
            cursor,
            cell: Arc::clone(cell),
            _temporary: temporary,
        })
    }

    /// Waits for the end of the command, and kills what it left in its process group. A later call returns
    /// the same.
    ///
    /// # Errors
    /// The kernel does not tell how it ended.
    pub async fn wait(&mut self) -> Result<Outcome, Error> {
        self.stdin = None;
        if let Some(outcome) = &self.outcome {
            return Ok(outcome.clone());
        }
        let ended = self.group.outcome(&self.limits, self.flood.wait()).await?;
        let mut outcome = Outcome {
            enforcement: self.cell.enforcement.clone(),
            denials: self.cursor.as_ref().map(DenialCursor::denials).unwrap_or_default(),
            network_failures: self.cursor.as_ref().map(DenialCursor::failures).unwrap_or_default(),
            explains: self.cell.policy.explain,
            audit_id: self.exec.id().map(str::to_owned),
            ..ended
        };
        self.exec.record_outcome(&mut outcome);
        self.outcome = Some(outcome.clone());
        Ok(outcome)
    }

    /// Waits for the end of the command and collects what it writes to pipes.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn wait_with_output(mut self) -> Result<Output, Error> {
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        collected(stdout, stderr, self.wait()).await
    }

    /// Sends a signal to the process group of the command. It is no error if it has ended.
    ///
    /// # Errors
    /// Those of killpg(2).
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let number = nix::sys::signal::Signal::try_from(signal.number())?;
        self.group.signal(number)
    }

    /// Kills the process group of the command. [`wait`](Self::wait) then tells how it ended.
    ///
    /// # Errors
    /// Those of killpg(2).
    pub fn start_kill(&mut self) -> io::Result<()> {
        self.group.kill(Cause::Killed)
    }

    /// Kills the command and waits for its end.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn kill(&mut self) -> Result<Outcome, Error> {
        self.start_kill().map_err(Error::io("kill the command"))?;
        self.wait().await
    }
}
