//! Following one command to its end: what arrives on the control socket, its time, its outcome.

use std::{
    ffi::OsString,
    future::pending,
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};

use kennel_helper::control::{Order, Report, request, section};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant as Deadline, sleep_until},
};

use crate::{
    Ended, Enforcement, Error, Limit, Outcome, State, Usage,
    command::Prepared,
    describe::describe,
    host::remedy::remedy,
    inside::{Arrival, Inside},
    sys, watch,
};

/// How long init may take to end everything after an order, before it is killed itself.
const GRACE: Duration = Duration::from_secs(1);

/// What is needed to follow a command to its end.
#[derive(Debug)]
pub(crate) struct Running {
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

impl Running {
    pub(crate) fn new(
        inside: Inside,
        prepared: Arc<Prepared>,
        (program, directory): (OsString, PathBuf),
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let inside =
            sys::watched(inside, Interest::READABLE).map_err(Error::io("watch the control socket"))?;
        Ok(Self {
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
        })
    }

    /// Whether the program runs, as far as was heard.
    pub(crate) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Whether we ordered its end.
    pub(crate) fn was_killed(&self) -> bool {
        self.killed.is_some()
    }

    /// Bytes of each output stream that are kept.
    pub(crate) fn output_cap(&self) -> Option<u64> {
        self.prepared.compiled.limits.output.map(|size| size.bytes())
    }

    pub(crate) fn signal(&self, number: u32) -> io::Result<()> {
        self.inside.get_ref().order(&Order::Signal { number })
    }

    /// Undoes what was done to watched paths where no outcome is left to say so.
    pub(crate) fn undo_unheard(&mut self) {
        watch::log(&self.inside.get_mut().undo());
    }

    /// The next arrival; when the time is up meanwhile, everything is killed and its end awaited.
    pub(crate) async fn next(&mut self) -> Result<Arrival, Error> {
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

    pub(crate) fn kill(&mut self, reason: Ended) -> io::Result<()> {
        if self.killed.is_none() {
            self.killed = Some(reason);
            self.last = Some(Deadline::now() + GRACE);
        }
        self.inside.get_ref().order(&Order::Kill {})
    }

    /// A report that does not end anything.
    pub(crate) fn note(&mut self, report: &Report) {
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
    pub(crate) fn failure(&self, section: u32, index: u32, errno: i32) -> Error {
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

    pub(crate) fn outcome(&mut self, status: ExitStatus, usage: Usage) -> Outcome {
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
