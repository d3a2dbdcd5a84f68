//! A running command, in the shape of `tokio::process::Child`: pipes, signals and the end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use kennel_helper::control::Report;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::command::running::Running;
use crate::command::terminal::Terminal;
use crate::launch::control::Arrival;
use crate::launch::inside::CommandKey;
use crate::process::cause::Cause;
use crate::process::output::{ChildOutput, collected};
use crate::process::stdio::ChildStdin;
use crate::report::error::Error;
use crate::report::outcome::{Outcome, Output, Usage};
use crate::report::published::PublishedPort;
use crate::sys::signal::Signal;

/// A running command. Dropping it kills the command and every process that it started, unless
/// [`kill_on_drop`](crate::command::Command::kill_on_drop) is off.
#[derive(Debug)]
pub struct Child {
    /// Standard input, if piped.
    pub stdin: Option<ChildStdin>,
    /// Standard output, if piped. It ends when no process has the pipe open any more. In a session, the
    /// command may have passed the pipe to another command or to a background process.
    pub stdout: Option<ChildOutput>,
    /// Standard error, if piped.
    pub stderr: Option<ChildOutput>,
    /// The terminal, if the caller asked for one and the command has started. It ends when no process has it
    /// open any more. Where commands share processes, another command may hold it.
    pub terminal: Option<Terminal>,
    /// The signals that stop the command, until somebody takes them.
    stops: Option<UnboundedReceiver<Signal>>,
    /// The other end of `stops`.
    stopped: UnboundedSender<Signal>,
    kill_on_drop: bool,
    running: Option<Running>,
    /// The outcome, once it is known.
    outcome: Option<Outcome>,
}

impl Child {
    /// `pipes` are the caller's ends of the standard streams.
    pub(crate) fn new(
        running: Running,
        pipes: [Option<OwnedFd>; 3],
        kill_on_drop: bool,
    ) -> Result<Self, Error> {
        let (stdin, stdout, stderr, terminal) = (None, None, None, None);
        let running = Some(running);
        let (stopped, stops) = unbounded_channel();
        let stops = Some(stops);
        let outcome = None;
        let mut child =
            Self { stdin, stdout, stderr, terminal, stops, stopped, kill_on_drop, running, outcome };
        child.open_pipes(pipes)?;
        Ok(child)
    }

    fn open_pipes(&mut self, [stdin, stdout, stderr]: [Option<OwnedFd>; 3]) -> Result<(), Error> {
        let Some(running) = &self.running else { return Ok(()) };
        let [stdout_cap, stderr_cap] = running.spec.output_caps;
        let reader = |fd: Option<OwnedFd>, cap| fd.map(|fd| ChildOutput::new(fd, cap)).transpose();
        let failed = || Error::io("open a pipe to the command");
        self.stdin = stdin.map(ChildStdin::new).transpose().map_err(failed())?;
        self.stdout = reader(stdout, stdout_cap).map_err(failed())?;
        self.stderr = reader(stderr, stderr_cap).map_err(failed())?;
        for stream in self.stdout.iter_mut().chain(&mut self.stderr) {
            if let Some(flood) = running.flood() {
                stream.end_at_cap(flood);
            }
        }
        if let (Some(stderr), Some(tail)) = (&mut self.stderr, running.tail()) {
            stderr.explain_errors(tail);
        }
        Ok(())
    }

    /// What runs; nothing after the end.
    pub(crate) fn running(&mut self) -> Option<&mut Running> {
        self.running.as_mut()
    }

    /// What runs, for somebody else to follow; `None` after the end.
    pub(crate) fn into_running(mut self) -> Option<Running> {
        self.running.take()
    }

    /// Lets its worker serve no other command, and returns what tells its processes from those of others.
    pub(crate) fn claim_worker(&mut self) -> Option<CommandKey> {
        self.running.as_mut().and_then(Running::claim_worker)
    }

    /// Waits until the program runs.
    pub(crate) async fn started(&mut self) -> Result<(), Error> {
        while let Some(running) = self.running.as_mut().filter(|running| !running.has_started()) {
            let arrival = running.next().await?;
            self.outcome = self.process(arrival)?;
        }
        Ok(())
    }

    /// Closes standard input and waits for the end of the command. What it leaves running gets SIGTERM, and a
    /// second later SIGKILL, unless it may [live on](crate::command::Command::background). When this returns,
    /// no process of the sandbox can do anything any more. One exception: if a killed process is stuck in a
    /// system call, this returns after two seconds, a note says so, and the kernel may still finish that call
    /// ([`Outcome::is_left`]). A second call returns the same outcome, as with `tokio::process`.
    ///
    /// # Errors
    /// As for [`Command::spawn`](crate::command::Command::spawn), if nobody waited for the start;
    /// [`Error::Lost`] if somebody outside killed the sandbox, or if an earlier call failed;
    /// [`Error::StillRuns`] if then a process of it is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn wait(&mut self) -> Result<Outcome, Error> {
        self.end().await?;
        self.outcome.clone().ok_or(Error::Lost)
    }

    /// Like [`wait`](Self::wait), without the copy.
    pub(crate) async fn outcome(mut self) -> Result<Outcome, Error> {
        self.end().await?;
        self.outcome.take().ok_or(Error::Lost)
    }

    /// Waits for the outcome and releases the sandbox.
    async fn end(&mut self) -> Result<(), Error> {
        drop(self.stdin.take());
        while self.outcome.is_none() {
            let running = self.running.as_mut().ok_or(Error::Lost)?;
            let arrival = running.next().await?;
            self.outcome = self.process(arrival)?;
        }
        self.release().await;
        Ok(())
    }

    /// Releases a sandbox whose end is known. If the caller drops this future, another call continues.
    async fn release(&mut self) {
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
    /// As for [`wait`](Self::wait).
    ///
    /// # Panics
    /// As for [`wait`](Self::wait).
    pub async fn wait_with_output(mut self) -> Result<Output, Error> {
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        collected(stdout, stderr, self.outcome()).await
    }

    /// The [published](crate::policy::network::Network::publish) ports of its sandbox or session, with the
    /// ports that the kernel chose. They are open until the command, or the session, has ended. Empty once
    /// the end is known.
    #[must_use]
    pub fn published(&self) -> Vec<PublishedPort> {
        self.running.as_ref().map(Running::published).unwrap_or_default()
    }

    /// The signals that stop the command, if it has a terminal: SIGTTIN or SIGTTOU if it needs the terminal
    /// and does not [have it](Self::foreground), SIGTSTP after ^Z. They arrive while [`wait`](Self::wait)
    /// waits. The next one comes only after a call of [`signal`](Self::signal) or `foreground`.
    ///
    /// The first call takes them. Those of later calls have ended.
    pub fn stops(&mut self) -> Stops {
        Stops { signals: self.stops.take() }
    }

    /// Sends a signal to the process group of the command. SIGSTOP and SIGCONT reach every process of the
    /// sandbox.
    ///
    /// # Errors
    /// Errors of send(2). It is not an error that the command has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.running.as_ref().map_or(Ok(()), |running| running.signal(signal.unsigned()))
    }

    /// Gives the terminal to the command, or takes it away: tcsetpgrp(3). A command without the terminal can
    /// write to it, but is stopped when it reads from it. It does not go on by itself when it gets the
    /// terminal: send SIGCONT.
    ///
    /// # Errors
    /// Errors of send(2). It is not an error that the command has ended or has no terminal.
    pub fn foreground(&self, has: bool) -> io::Result<()> {
        self.running.as_ref().map_or(Ok(()), |running| running.foreground(has))
    }

    /// Orders the kill of every process of the sandbox. [`wait`](Self::wait) returns when they are gone.
    ///
    /// # Errors
    /// Errors of send(2).
    pub fn start_kill(&mut self) -> io::Result<()> {
        self.running.as_mut().map_or(Ok(()), |running| running.kill(Cause::Killed))
    }

    /// Kills every process of the sandbox and waits until they are gone.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    ///
    /// # Panics
    /// As for [`wait`](Self::wait).
    pub async fn kill(&mut self) -> Result<Outcome, Error> {
        self.start_kill().map_err(Error::io("order the end of the sandbox"))?;
        self.wait().await
    }

    /// Processes a message of init. Returns the outcome if it reports the end.
    fn process(&mut self, arrival: Arrival) -> Result<Option<Outcome>, Error> {
        let Some(running) = self.running.as_mut() else { return Err(Error::Lost) };
        let result = match arrival {
            Arrival::Terminal(master) => {
                running.note_terminal();
                let terminal = Terminal::new(master).map_err(Error::io("take the command's terminal"));
                let mut terminal = terminal?;
                if let Some(tail) = running.tail() {
                    terminal.explain_errors(tail);
                }
                self.terminal = Some(terminal);
                return Ok(None);
            }
            Arrival::Report(Report::Stopped { signal }) => {
                // The caller may have dropped the other end.
                if let Some(signal) = Signal::new(signal.cast_signed()) {
                    let _ = self.stopped.send(signal);
                }
                return Ok(None);
            }
            Arrival::Report(Report::Ended {
                status,
                user_us,
                system_us,
                max_rss_kib,
                killed,
                left,
                full,
            }) => {
                running.let_init_end();
                let status = ExitStatus::from_raw(status);
                running.leaves(left != 0);
                if running.ended_with_session(status) {
                    // What it has left has the rest of its second.
                    self.running.take().into_iter().for_each(Running::release);
                    return Err(Error::SessionEnded);
                }
                let max_rss_bytes = max_rss_kib * 1024;
                let usage = Usage { user_us, system_us, max_rss_bytes, killed, ..Usage::default() };
                return Ok(Some(running.outcome(status, usage, running.full(full))));
            }
            Arrival::Report(Report::Failed { section, index, errno }) => {
                Err(running.failure(section, index, errno))
            }
            // The message lost its descriptor: this program has no room for another one.
            Arrival::Report(Report::Terminal {} | Report::Refusing {} | Report::Started { asks: 1 }) => {
                Err(Error::no_descriptor())
            }
            Arrival::Refusing(listener) => {
                running.follow_seccomp(listener)?;
                return Ok(None);
            }
            Arrival::Started(listener) => {
                running.follow_seccomp(listener)?;
                running.note(&Report::Started { asks: 0 });
                return Ok(None);
            }
            Arrival::Born(..)
            | Arrival::Listening(_)
            | Arrival::Root(_)
            | Arrival::Mounts(_)
            | Arrival::Upper(_)
            | Arrival::RootUpper(_) => {
                return Ok(None);
            }
            Arrival::Report(report) => {
                running.note(&report);
                return Ok(None);
            }
            // Init was killed: by Kennel because it did not obey, or by the kernel because the memory limit
            // was hit.
            Arrival::Closed if running.was_killed() || running.was_killed_for_memory() => {
                Ok(Some(running.outcome(ExitStatus::from_raw(libc::SIGKILL), Usage::default(), None)))
            }
            Arrival::Closed => {
                running.undo_and_log();
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
                loop {
                    match running.next().await {
                        Ok(Arrival::Started(listener) | Arrival::Refusing(listener)) => {
                            let _ = running.follow_seccomp(listener);
                        }
                        Ok(Arrival::Report(_) | Arrival::Terminal(_)) => {}
                        _ => break,
                    }
                }
            });
        }
    }
}

/// The signals that stop a command with a terminal: [`Child::stops`].
#[derive(Debug)]
pub struct Stops {
    signals: Option<UnboundedReceiver<Signal>>,
}

impl Stops {
    /// Waits for the next one; `None` if none can come any more. Dropping the future loses none.
    pub async fn next(&mut self) -> Option<Signal> {
        self.signals.as_mut()?.recv().await
    }
}
