//! A command that is a process group: the group is what a timeout ends, and what a dropped command leaves
//! nothing of. A process that leaves the group, as a daemon does, is out of reach.

use std::ffi::OsStr;
use std::future::pending;
use std::io;
use std::process::Command;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::policy::limits::Limits;
use crate::process::cause::Cause;
use crate::process::ending::{Facts, Refused, ending};
use crate::report::error::Error;
use crate::report::outcome::{Outcome, Usage};
use crate::sys::{self, ChildExit};

/// A running command and what it started in its process group. Dropping this kills the group.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Pid,
    exit: ChildExit,
    begun: Instant,
    /// Why the caller has killed it.
    cause: Option<Cause>,
    /// Whether the leader was waited for. Until then the kernel does not reuse its number.
    is_reaped: bool,
}

impl Group {
    /// Starts a command that makes itself the leader of a group. Messages call it `program`.
    ///
    /// # Errors
    /// The program does not exist or cannot be executed; this process can start none.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub(crate) fn start(command: &mut Command, program: &OsStr) -> Result<Self, Error> {
        let begun = Instant::now();
        let child = command.spawn().map_err(|source| {
            let program = program.to_string_lossy().into_owned();
            match source.raw_os_error() {
                Some(libc::ENOENT) => Error::NoProgram { program },
                Some(libc::EACCES | libc::ENOEXEC) => Error::NotExecutable { program, source },
                _ => Error::io("start the command")(source),
            }
        })?;
        let leader = Pid::from_raw(child.id().cast_signed());
        match ChildExit::of(leader) {
            Ok(exit) => Ok(Self { leader, exit, begun, cause: None, is_reaped: false }),
            Err(error) => {
                end(leader);
                Err(unwaited()(error))
            }
        }
    }

    /// Sends a signal to every process of the group. It is no error if there is none left.
    ///
    /// # Errors
    /// Those of killpg(2).
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match killpg(self.leader, signal) {
            Err(Errno::ESRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Kills the group. [`outcome`](Self::outcome) says that this was the cause.
    ///
    /// # Errors
    /// Those of killpg(2).
    pub(crate) fn kill(&mut self, cause: Cause) -> io::Result<()> {
        self.cause = Some(cause);
        self.signal(Signal::SIGKILL)
    }

    /// Waits for the leader, kills what is left of the group, and says how the command ended. Kills it if its
    /// time is up, or when `flood` is ready. Once it has told, it must not be asked again.
    ///
    /// # Errors
    /// The kernel does not tell how it ended: the embedding program ignores SIGCHLD.
    pub(crate) async fn outcome(
        &mut self,
        limits: &Limits,
        flood: impl Future<Output = Cause>,
    ) -> Result<Outcome, Error> {
        let timeout = limits.timeout.map(|span| span.duration());
        let up = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout.saturating_sub(self.begun.elapsed())).await,
                None => pending().await,
            }
        };
        let cause = tokio::select! {
            biased;
            ended = self.exit.ended() => ended.map(|()| None).map_err(unwaited())?,
            () = up => Some(Cause::TimedOut),
            cause = flood => Some(cause),
        };
        if let Some(cause) = cause {
            let _ = self.kill(cause);
            self.exit.ended().await.map_err(unwaited())?;
        }
        let duration = self.begun.elapsed();
        let _ = self.signal(Signal::SIGKILL);
        let (status, used) = sys::wait_for_child(self.leader).map_err(unwaited())?;
        self.is_reaped = true;
        let usage = Usage::from(used);
        let (refused, full, cause) = (Refused::default(), None, self.cause);
        let facts = Facts { status, cause, duration, usage: &usage, limits, timeout, full, refused };
        Ok(ending(&facts).outcome(&facts))
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
