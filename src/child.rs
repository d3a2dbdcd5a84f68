//! A running command: its pipes, its signals, its end.

use std::{
    ffi::OsString,
    future::pending,
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::PathBuf,
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};

use kennel_helper::control::{Order, Report, request, section};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
    time::{Instant as Deadline, sleep_until},
};

use crate::{
    ChildOutput, ChildStdin, Ended, Enforcement, Error, Limit, Outcome, Output, State, Terminal, Usage,
    command::{Prepared, collect},
    describe::describe,
    host::remedy::remedy,
    inside::{Arrival, Inside},
    sys,
};

/// How long init may take to end everything after an order, before it is killed itself.
const GRACE: Duration = Duration::from_secs(1);

/// A command that runs in a sandbox of its own. Dropping it ends the sandbox, every process of it included,
/// unless [`kill_on_drop`](crate::Command::kill_on_drop) was turned off.
#[derive(Debug)]
pub struct Child {
    /// Its standard input, if piped.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, if piped.
    pub stdout: Option<ChildOutput>,
    /// Its standard error, if piped.
    pub stderr: Option<ChildOutput>,
    /// Its terminal, if one was asked for and the command has started.
    pub terminal: Option<Terminal>,
    pub(crate) kill_on_drop: bool,
    running: Option<Running>,
    /// The end, if it came while something else was waited for.
    ended: Option<Outcome>,
}

/// What is needed to follow a command to its end.
#[derive(Debug)]
struct Running {
    inside: AsyncFd<Inside>,
    prepared: Arc<Prepared>,
    program: OsString,
    directory: PathBuf,
    enforcement: Enforcement,
    born: Instant,
    timeout: Option<Duration>,
    has_started: bool,
    killed: Option<Ended>,
    /// When init itself is killed because it did not end in time.
    last: Option<Deadline>,
}

impl Child {
    pub(crate) fn new(
        inside: Inside,
        prepared: Arc<Prepared>,
        (program, directory): (OsString, PathBuf),
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let inside =
            sys::watched(inside, Interest::READABLE).map_err(Error::io("watch the control socket"))?;
        let running = Running {
            inside,
            program,
            directory,
            enforcement: prepared.compiled.enforcement.clone(),
            prepared,
            born: Instant::now(),
            timeout,
            has_started: false,
            killed: None,
            last: None,
        };
        let (stdin, stdout, stderr, terminal) = (None, None, None, None);
        Ok(Self { stdin, stdout, stderr, terminal, kill_on_drop: true, running: Some(running), ended: None })
    }

    /// Takes our ends of the pipes.
    pub(crate) fn connect(&mut self, [input, output, error]: [Option<OwnedFd>; 3]) -> Result<(), Error> {
        let Some(running) = &self.running else { return Ok(()) };
        let cap = running.prepared.compiled.limits.output.map(|size| size.bytes());
        let reader = |fd: Option<OwnedFd>| fd.map(|fd| ChildOutput::new(fd, cap)).transpose();
        let failed = || Error::io("open a pipe to the command");
        self.stdin = input.map(ChildStdin::new).transpose().map_err(failed())?;
        self.stdout = reader(output).map_err(failed())?;
        self.stderr = reader(error).map_err(failed())?;
        Ok(())
    }

    /// Waits until the program runs.
    pub(crate) async fn started(&mut self) -> Result<(), Error> {
        while let Some(running) = self.running.as_mut().filter(|running| !running.has_started) {
            let arrival = running.next().await?;
            self.ended = self.arrived(arrival)?;
        }
        Ok(())
    }

    /// Waits for the end of the command; when this returns, no process of the sandbox can do anything any more.
    /// Standard input is closed first, as with `tokio::process`.
    ///
    /// # Errors
    /// Those of [`Command::spawn`](crate::Command::spawn), where the start was not waited for;
    /// [`Error::Lost`] where the sandbox was killed from outside.
    pub async fn wait(&mut self) -> Result<Outcome, Error> {
        drop(self.stdin.take());
        loop {
            if let Some(outcome) = self.ended.take() {
                return Ok(outcome);
            }
            let running = self.running.as_mut().ok_or(Error::Lost)?;
            let arrival = running.next().await?;
            self.ended = self.arrived(arrival)?;
        }
    }

    /// Waits for the end and collects what the command writes to its pipes.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    pub async fn wait_with_output(mut self) -> Result<Output, Error> {
        let (mut stdout, mut stderr) = (self.stdout.take(), self.stderr.take());
        let (outcome, kept_out, kept_err) =
            tokio::join!(self.wait(), collect(stdout.as_mut()), collect(stderr.as_mut()));
        let mut outcome = outcome?;
        outcome.count(stdout.as_ref(), stderr.as_ref());
        Ok(Output { outcome, stdout: kept_out?, stderr: kept_err? })
    }

    /// Sends a signal to the command's process group. SIGSTOP and SIGCONT reach every process of the sandbox.
    ///
    /// # Errors
    /// Those of send(2). A command that has ended is no error.
    pub fn signal(&self, number: i32) -> io::Result<()> {
        let number = u32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.running
            .as_ref()
            .map_or(Ok(()), |running| running.inside.get_ref().order(&Order::Signal { number }))
    }

    /// Orders the end of every process of the sandbox; [`wait`](Self::wait) tells when it is done.
    ///
    /// # Errors
    /// Those of send(2).
    pub fn start_kill(&mut self) -> io::Result<()> {
        self.running.as_mut().map_or(Ok(()), |running| running.kill(Ended::Killed))
    }

    /// Ends every process of the sandbox and waits until it is done.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
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
            Arrival::Report(Report::Ended { status, user_us, system_us, max_rss_kib, killed }) => {
                let usage = Usage { user_us, system_us, max_rss_bytes: max_rss_kib * 1024, killed };
                Ok(Some(running.outcome(ExitStatus::from_raw(status), usage)))
            }
            Arrival::Report(Report::Failed { section, index, errno }) => {
                Err(running.failure(section, index, errno))
            }
            Arrival::Report(report) => {
                running.note(&report);
                return Ok(None);
            }
            // Init was killed: by the last resort of ours, or by somebody else.
            Arrival::Closed if running.killed.is_some() => {
                Ok(Some(running.outcome(ExitStatus::from_raw(libc::SIGKILL), Usage::default())))
            }
            Arrival::Closed => {
                for denial in running.inside.get_mut().undo() {
                    tracing::warn!(path = denial.subject, reason = denial.reason, "denied");
                }
                Err(Error::Lost)
            }
        };
        self.running = None;
        result
    }
}

impl Running {
    /// The next arrival; when the time is up meanwhile, everything is killed and its end awaited.
    async fn next(&mut self) -> Result<Arrival, Error> {
        loop {
            tokio::select! {
                biased;
                arrival = self.inside.async_io(Interest::READABLE, Inside::receive) => {
                    let arrival = arrival.map_err(Error::io("read the control socket"))?;
                    if matches!(arrival, Arrival::Closed) {
                        // Init closes its descriptors before it takes the other processes with it.
                        self.inside.get_ref().gone().await;
                    }
                    return Ok(arrival);
                }
                () = until(self.deadline()), if self.killed.is_none() => {
                    self.kill(Ended::TimedOut).map_err(Error::io("order the end of the sandbox"))?;
                }
                () = until(self.last), if self.killed.is_some() => {
                    self.inside.get_ref().kill();
                    self.last = None;
                }
            }
        }
    }

    fn deadline(&self) -> Option<Deadline> {
        self.timeout.and_then(|timeout| self.born.checked_add(timeout)).map(Deadline::from_std)
    }

    fn kill(&mut self, reason: Ended) -> io::Result<()> {
        if self.killed.is_none() {
            self.killed = Some(reason);
            self.last = Some(Deadline::now() + GRACE);
        }
        self.inside.get_ref().order(&Order::Kill {})
    }

    /// A report that does not end anything.
    fn note(&mut self, report: &Report) {
        match *report {
            Report::Started {} => self.has_started = true,
            Report::Skipped { section, index, errno } => {
                if let Some((protection, step)) = self.step(section, index) {
                    let error = io::Error::from_raw_os_error(errno);
                    let detail = format!("{}: {error}", describe(&step));
                    tracing::warn!(%protection, %detail, "a protection is off");
                    self.enforcement.set(protection, State::Off, detail);
                }
            }
            _ => {}
        }
    }

    fn step(&self, section: u32, index: u32) -> Option<(crate::Protection, kennel_helper::plan::Step<'_>)> {
        match section {
            section::SETUP => self.prepared.compiled.setup.step(index),
            section::PAYLOAD => self.prepared.compiled.payload.step(index),
            _ => None,
        }
    }

    /// The error for a failed start.
    fn failure(&self, section: u32, index: u32, errno: i32) -> Error {
        let source = io::Error::from_raw_os_error(errno);
        let program = || self.program.to_string_lossy().into_owned();
        if section == section::REQUEST {
            return match (index, errno) {
                (request::EXEC, libc::ENOENT) => Error::NotFound { program: program() },
                (request::EXEC, _) => Error::NotExecutable { program: program(), source },
                (request::CWD, _) => Error::Command {
                    what: "working directory",
                    value: self.directory.display().to_string(),
                    reason: format!("cannot be entered in the sandbox: {source}"),
                },
                _ => Error::Io { what: "open a terminal for the command", source },
            };
        }
        match self.step(section, index) {
            Some((protection, step)) => {
                Error::Step { step: describe(&step), protection, source, remedy: remedy(protection, errno) }
            }
            None => Error::Io { what: "carry out the plan inside", source },
        }
    }

    fn outcome(&mut self, status: ExitStatus, usage: Usage) -> Outcome {
        let limit = match (self.killed, status.signal()) {
            (Some(Ended::TimedOut), _) => Some(Limit::WallTime),
            (None, Some(libc::SIGXCPU)) => Some(Limit::CpuTime),
            (None, Some(libc::SIGXFSZ)) => Some(Limit::FileSize),
            _ => None,
        };
        let by_itself = if status.signal().is_some() { Ended::Signaled } else { Ended::Exited };
        Outcome {
            status,
            ended: self.killed.unwrap_or(by_itself),
            limit,
            duration: self.born.elapsed(),
            usage,
            stdout_bytes: None,
            stderr_bytes: None,
            truncated: false,
            enforcement: std::mem::take(&mut self.enforcement),
            denials: self.inside.get_mut().undo(),
            configured: limit.and_then(|limit| self.configured(limit)),
        }
    }

    /// The value of a limit, in the words of the policy.
    fn configured(&self, limit: Limit) -> Option<String> {
        let limits = &self.prepared.compiled.limits;
        match limit {
            Limit::WallTime => self.timeout.map(|timeout| format!("{}ms", timeout.as_millis())),
            Limit::CpuTime => limits.cpu_time.map(|span| span.to_string()),
            Limit::FileSize => limits.file_size.map(|size| size.to_string()),
        }
    }
}

/// Sleeps until `deadline`; forever where there is none.
async fn until(deadline: Option<Deadline>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
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
