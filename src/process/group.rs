//! A command that is a process group: the group is what a timeout ends, and what a dropped command leaves
//! nothing of. A process that leaves the group, as a daemon does, is out of reach.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::pin::pin;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::policy::limits::Limits;
use crate::process::cause::Cause;
use crate::process::ending::{Facts, Refused, ending};
use crate::process::output::{ChildOutput, CollectedOutput};
use crate::report::error::Error;
use crate::report::outcome::{Outcome, Output, Usage};
use crate::sys::{self, ChildExit};

/// A running command and what it started in its process group. Dropping this kills the group.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Pid,
    exit: ChildExit,
    begun: Instant,
    /// Whether the leader was waited for. Until then the kernel does not reuse its number.
    is_reaped: bool,
    /// The pipes that the command asked for.
    pub(crate) pipes: Pipes,
}

/// The caller's ends of pipes.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) stdout: Option<ChildStdout>,
    pub(crate) stderr: Option<ChildStderr>,
}

impl Group {
    /// Starts `command` as the leader of a new group. Messages call it `program`.
    ///
    /// # Errors
    /// The program does not exist or cannot be executed; this process can start none.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub(crate) fn start(command: &mut Command, program: &OsStr) -> Result<Self, Error> {
        let begun = Instant::now();
        let mut child = command.process_group(0).spawn().map_err(|source| {
            let program = program.to_string_lossy().into_owned();
            match source.raw_os_error() {
                Some(libc::ENOENT) => Error::NoProgram { program },
                Some(libc::EACCES | libc::ENOEXEC) => Error::NotExecutable { program, source },
                _ => Error::io("start the command")(source),
            }
        })?;
        let leader = Pid::from_raw(child.id().cast_signed());
        let pipes =
            Pipes { stdin: child.stdin.take(), stdout: child.stdout.take(), stderr: child.stderr.take() };
        match ChildExit::of(leader) {
            Ok(exit) => Ok(Self { leader, exit, begun, is_reaped: false, pipes }),
            Err(error) => {
                end(leader);
                Err(unwaited()(error))
            }
        }
    }

    /// Waits until the leader has ended.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(crate) async fn ended(&self) -> Result<(), Error> {
        self.exit.ended().await.map_err(unwaited())
    }

    /// Sends a signal to every process of the group. It is no error if there is none left.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match killpg(self.leader, signal) {
            Err(nix::errno::Errno::ESRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Waits for the leader, up to `timeout` after its start, kills what is left of the group, and says how
    /// the command ended. `cause` is why the caller has killed it.
    ///
    /// # Errors
    /// The kernel does not tell how it ended: the embedding program ignores SIGCHLD.
    pub(crate) async fn outcome(
        &mut self,
        limits: &Limits,
        timeout: Option<Duration>,
        cause: Option<Cause>,
    ) -> Result<Outcome, Error> {
        let up = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout.saturating_sub(self.begun.elapsed())).await,
                None => std::future::pending().await,
            }
        };
        let timed_out = tokio::select! {
            biased;
            ended = self.ended() => ended.map(|()| None)?,
            () = up => Some(Cause::TimedOut),
        };
        self.end(limits, timeout, timed_out.or(cause)).await
    }

    /// Kills the rest of the group and waits for the leader.
    async fn end(
        &mut self,
        limits: &Limits,
        timeout: Option<Duration>,
        cause: Option<Cause>,
    ) -> Result<Outcome, Error> {
        if cause.is_some() {
            let _ = self.signal(Signal::SIGKILL);
            self.ended().await?;
        }
        let duration = self.begun.elapsed();
        let _ = self.signal(Signal::SIGKILL);
        let (status, used) = sys::wait_for_child(self.leader).map_err(unwaited())?;
        self.is_reaped = true;
        let usage = Usage::from(used);
        let (refused, full) = (Refused::default(), None);
        let facts = Facts { status, cause, duration, usage: &usage, limits, timeout, full, refused };
        Ok(ending(&facts).outcome(&facts))
    }

    /// Runs the command to its end and collects what it writes to pipes, up to the output limit.
    ///
    /// # Errors
    /// As [`outcome`](Self::outcome).
    pub(crate) async fn output(
        mut self,
        limits: &Limits,
        timeout: Option<Duration>,
    ) -> Result<Output, Error> {
        let [stdout, stderr] = self.outputs(limits)?;
        let mut collected = CollectedOutput::new(stdout, stderr);
        let outcome = {
            let mut outcome = pin!(self.outcome(limits, timeout, None));
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut outcome => break outcome?,
                    read = collected.read(), if collected.is_open() => read?,
                }
            }
        };
        collected.end(outcome)
    }

    /// The pipes of stdout and stderr, as streams that are cut at the output limit.
    ///
    /// # Errors
    /// The runtime does not accept them.
    pub(crate) fn outputs(&mut self, limits: &Limits) -> Result<[Option<ChildOutput>; 2], Error> {
        let cap = limits.output.map(|size| size.bytes());
        let stream = |fd: Option<OwnedFd>| {
            let stream = fd.map(|fd| {
                // The standard library makes pipes that block.
                nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
                ChildOutput::new(fd, cap)
            });
            stream.transpose().map_err(Error::io("read the command's output"))
        };
        let Pipes { stdout, stderr, .. } = &mut self.pipes;
        Ok([stream(stdout.take().map(OwnedFd::from))?, stream(stderr.take().map(OwnedFd::from))?])
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_reaped {
            end(self.leader);
        }
    }
}

/// Kills a group whose leader was not waited for, and waits for the leader elsewhere: a killed process may be
/// stuck in the kernel for a while.
fn end(leader: Pid) {
    let _ = killpg(leader, Signal::SIGKILL);
    let waits = std::thread::Builder::new().name("kennel-reap".to_owned());
    // Without a thread the process stays a zombie until this program ends.
    let _ = waits.spawn(move || sys::wait_for_child(leader));
}

fn unwaited() -> impl FnOnce(io::Error) -> Error {
    Error::io("wait for the command")
}
