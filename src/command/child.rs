//! A running command, shaped like `tokio::process::Child`: its pipes, its signals, its end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::ExitStatus;

use kennel_helper::control::Report;
use nix::errno::Errno;
use tokio::runtime::Handle;

use crate::command::ending::Cause;
use crate::command::output::{ChildOutput, Collected};
use crate::command::running::Running;
use crate::command::stdio::ChildStdin;
use crate::command::terminal::Terminal;
use crate::launch::control::Arrival;
use crate::report::error::Error;
use crate::report::outcome::{Outcome, Output, Usage};

/// A command that runs. Dropping it ends it, with every process that it started,
/// unless [`kill_on_drop`](crate::command::Command::kill_on_drop) was turned off.
#[derive(Debug)]
pub struct Child {
    /// Its standard input, if piped.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, if piped. It ends when no process has the pipe open any more: in a session, it may have been
    /// passed to another command or to a process in the background.
    pub stdout: Option<ChildOutput>,
    /// Its standard error, if piped.
    pub stderr: Option<ChildOutput>,
    /// Its terminal, if one was asked for and the command has started.
    pub terminal: Option<Terminal>,
    kill_on_drop: bool,
    running: Option<Running>,
    /// The end, once it was told.
    ended: Option<Outcome>,
}

impl Child {
    pub(crate) fn new(running: Running, kill_on_drop: bool) -> Self {
        let (stdin, stdout, stderr, terminal) = (None, None, None, None);
        Self { stdin, stdout, stderr, terminal, kill_on_drop, running: Some(running), ended: None }
    }

    /// Takes our ends of the pipes.
    pub(crate) fn connect(&mut self, [input, output, error]: [Option<OwnedFd>; 3]) -> Result<(), Error> {
        let Some(running) = &self.running else { return Ok(()) };
        let [of_output, of_error] = running.output_caps();
        let reader = |fd: Option<OwnedFd>, cap| fd.map(|fd| ChildOutput::new(fd, cap)).transpose();
        let failed = || Error::io("open a pipe to the command");
        self.stdin = input.map(ChildStdin::new).transpose().map_err(failed())?;
        self.stdout = reader(output, of_output).map_err(failed())?;
        self.stderr = reader(error, of_error).map_err(failed())?;
        for stream in self.stdout.iter_mut().chain(&mut self.stderr) {
            if let Some(flood) = running.flood() {
                stream.ends_by(flood);
            }
        }
        if let (Some(stderr), Some(judge)) = (&mut self.stderr, running.judge()) {
            stderr.explain_by(judge.clone(), running.late());
        }
        Ok(())
    }

    /// Waits until the program runs.
    pub(crate) async fn started(&mut self) -> Result<(), Error> {
        while let Some(running) = self.running.as_mut().filter(|running| !running.has_started()) {
            let arrival = running.next().await?;
            self.ended = self.arrived(arrival)?;
        }
        Ok(())
    }

    /// Waits for the end of the command; when this returns, no process of the sandbox can do anything any more. If a
    /// killed process is stuck in a system call, this returns two seconds later anyway, and that call may still be carried
    /// out ([`Outcome::is_left`]). Standard input is closed first. Called again it answers the same, as with
    /// `tokio::process`.
    ///
    /// # Errors
    /// Those of [`Command::spawn`](crate::command::Command::spawn), if the start was not waited for; [`Error::Lost`] if the sandbox
    /// was killed from outside, and where another error was answered before.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn wait(&mut self) -> Result<Outcome, Error> {
        self.end().await?;
        self.ended.clone().ok_or(Error::Lost)
    }

    /// The same for who asks once.
    pub(crate) async fn outcome(mut self) -> Result<Outcome, Error> {
        self.end().await?;
        self.ended.take().ok_or(Error::Lost)
    }

    /// Waits until the end is known and everything is let go.
    async fn end(&mut self) -> Result<(), Error> {
        drop(self.stdin.take());
        while self.ended.is_none() {
            let running = self.running.as_mut().ok_or(Error::Lost)?;
            let arrival = running.next().await?;
            self.ended = self.arrived(arrival)?;
        }
        self.let_go().await;
        Ok(())
    }

    /// Lets go of a sandbox that has told its end. Whoever gives up waiting for it can come back.
    async fn let_go(&mut self) {
        if let Some(running) = &mut self.running {
            running.drain().await;
        }
        if let Some(running) = self.running.take() {
            running.release();
        }
    }

    /// Waits for the end and collects what the command writes to its pipes until then.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    pub async fn wait_with_output(mut self) -> Result<Output, Error> {
        let mut stdout = Collected::of(self.stdout.take());
        let mut stderr = Collected::of(self.stderr.take());
        {
            let mut end = pin!(self.end());
            loop {
                tokio::select! {
                    ended = &mut end => break ended?,
                    read = stdout.read(), if stdout.is_open() => read?,
                    read = stderr.read(), if stderr.is_open() => read?,
                }
            }
        }
        let mut outcome = self.ended.take().ok_or(Error::Lost)?;
        // Somebody may hold the pipes still: what lives on in the background, or another command of the session that
        // was given them. What comes after the end is not the command's.
        let (stdout, kept_out) = stdout.rest()?;
        let (stderr, kept_err) = stderr.rest()?;
        outcome.count(stdout.as_ref(), stderr.as_ref());
        Ok(Output { outcome, stdout: kept_out, stderr: kept_err })
    }

    /// Sends a signal to the command's process group. SIGSTOP and SIGCONT reach every process of the sandbox.
    ///
    /// # Errors
    /// `EINVAL` for a number that is no signal, and those of send(2). A command that has ended is not an error.
    pub fn signal(&self, number: i32) -> io::Result<()> {
        let is_signal = |number: &u32| *number <= libc::SIGRTMAX().cast_unsigned();
        let number = u32::try_from(number).ok().filter(is_signal).ok_or(Errno::EINVAL)?;
        self.running.as_ref().map_or(Ok(()), |running| running.signal(number))
    }

    /// Asks for every process of the sandbox to be killed; [`wait`](Self::wait) returns when that is done.
    ///
    /// # Errors
    /// Those of send(2).
    pub fn start_kill(&mut self) -> io::Result<()> {
        self.running.as_mut().map_or(Ok(()), |running| running.kill(Cause::Killed))
    }

    /// Kills every process of the sandbox and waits until that is done.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    pub async fn kill(&mut self) -> Result<Outcome, Error> {
        self.start_kill().map_err(Error::io("order the end of the sandbox"))?;
        self.wait().await
    }

    /// Takes in what came from init; answers the outcome when it is the end.
    fn arrived(&mut self, arrival: Arrival) -> Result<Option<Outcome>, Error> {
        let Some(running) = self.running.as_mut() else { return Err(Error::Lost) };
        let result = match arrival {
            Arrival::Terminal(master) => {
                let terminal = Terminal::new(master).map_err(Error::io("take the command's terminal"));
                self.terminal = Some(terminal?);
                return Ok(None);
            }
            Arrival::Report(Report::Ended { status, user_us, system_us, max_rss_kib, killed, full }) => {
                let max_rss_bytes = max_rss_kib * 1024;
                let usage = Usage { user_us, system_us, max_rss_bytes, killed, ..Usage::default() };
                return Ok(Some(running.outcome(ExitStatus::from_raw(status), usage, running.full(full))));
            }
            Arrival::Report(Report::Failed { section, index, errno }) => {
                Err(running.failure(section, index, errno))
            }
            // Its descriptor was lost for want of room for one.
            Arrival::Report(Report::Terminal {} | Report::Refusing {}) => Err(Error::no_descriptor()),
            Arrival::Refusing(listener) => {
                running.follow(listener)?;
                return Ok(None);
            }
            Arrival::Born(_)
            | Arrival::Listening(_)
            | Arrival::Root(_)
            | Arrival::Mounts(_)
            | Arrival::Upper(_) => {
                return Ok(None);
            }
            Arrival::Report(report) => {
                running.note(&report);
                return Ok(None);
            }
            // Init was killed: by the last resort of ours, or with its command for want of memory.
            Arrival::Closed if running.was_killed() || running.was_killed_for_memory() => {
                Ok(Some(running.outcome(ExitStatus::from_raw(libc::SIGKILL), Usage::default(), None)))
            }
            Arrival::Closed => {
                running.undo_unheard();
                Err(running.lost())
            }
        };
        self.running = None;
        result
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.kill_on_drop {
            return;
        }
        if let (Some(mut running), Ok(runtime)) = (self.running.take(), Handle::try_current()) {
            runtime.spawn(async move {
                while let Ok(Arrival::Report(_) | Arrival::Terminal(_)) = running.next().await {}
            });
        }
    }
}
