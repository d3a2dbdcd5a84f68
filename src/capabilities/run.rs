//! Runs an unconfined command to its end, with a timeout and an output limit, which a `tokio` command alone
//! does not have.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use crate::command::cause::Cause;
use crate::command::ending::{Facts, ending};
use crate::command::output::{ChildOutput, Collected};
use crate::launch::cgroup::leaf::CgroupUsage;
use crate::policy::limits::Limits;
use crate::policy::units::Size;
use crate::report::error::Error;
use crate::report::outcome::{Outcome, Output, Usage};
use crate::sys;

/// Limits of a command of [`run_command`](crate::capabilities::wrapper::run_command), besides its
/// capabilities. They hold in every layer.
///
/// ```
/// use kennel::capabilities::RunLimits;
/// use std::time::Duration;
///
/// let limits = RunLimits { timeout: Some(Duration::from_secs(30)), ..RunLimits::default() };
/// assert_eq!(limits.output, Some(1 << 20));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Wall time, after which Kennel kills it; its exit status is then 124. Default: 10 minutes. `None`: no
    /// limit.
    pub timeout: Option<Duration>,
    /// Bytes to keep of each output stream. Kennel reads and drops the rest, and counts it in a line at the
    /// end. Default: 1 MiB. `None`: no limit.
    pub output: Option<u64>,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { timeout: Some(Duration::from_secs(600)), output: Some(1 << 20) }
    }
}

impl RunLimits {
    /// Converts them to the limits of a command in a session.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            timeout: self.timeout.map(Into::into),
            output: self.output.map(Size::from_bytes),
            ..Limits::default()
        }
    }
}

/// Runs a command to its end, without input. Kills what it leaves in its process group. Dropping the future
/// kills the group.
pub(crate) async fn run(mut command: Command, program: &OsStr, limits: &RunLimits) -> Result<Output, Error> {
    let begun = Instant::now();
    let mut group = Group::start(&mut command, program)?;
    let [stdout, stderr] = group.streams(limits)?;
    let mut streams = [Collected::new(Some(stdout)), Collected::new(Some(stderr))];
    let timed_out = gather(&mut streams, &group.exit, limits.timeout).await?;
    let (status, usage) = group.end(timed_out).await?;
    let duration = begun.elapsed();
    let [stdout, stderr] = streams;
    let ((out, kept_out), (err, kept_err)) = (stdout.finish()?, stderr.finish()?);
    let cause = timed_out.then_some(Cause::TimedOut);
    let mut outcome = outcome(status, usage, duration, cause, limits);
    outcome.count(out.as_ref(), err.as_ref());
    Ok(Output { outcome, stdout: kept_out, stderr: kept_err })
}

fn outcome(
    status: ExitStatus,
    usage: Usage,
    duration: Duration,
    cause: Option<Cause>,
    limits: &RunLimits,
) -> Outcome {
    let (limits, timeout) = (&limits.limits(), limits.timeout);
    let facts = Facts {
        status,
        cause,
        duration,
        usage: &usage,
        limits,
        timeout,
        full: None,
        group: &CgroupUsage::default(),
    };
    ending(&facts).outcome(&facts)
}

/// Reads output until the command ends or its time is up. Returns whether its time was up.
async fn gather(
    [stdout, stderr]: &mut [Collected; 2],
    exit: &AsyncFd<OwnedFd>,
    timeout: Option<Duration>,
) -> Result<bool, Error> {
    let mut up = pin!(async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    });
    loop {
        tokio::select! {
            biased;
            ended = exit.readable() => break ended.map(|_| false).map_err(unwaited()),
            () = &mut up => break Ok(true),
            read = stdout.read(), if stdout.is_open() => read?,
            read = stderr.read(), if stderr.is_open() => read?,
        }
    }
}

/// A command in its own process group. Dropping this before the leader was waited for kills the group. Until
/// then the kernel does not reuse the leader's pid.
struct Group {
    /// `None` while the leader is being waited for.
    child: Option<Child>,
    leader: Pid,
    /// A pidfd: readable when the leader has exited, which does not take its status.
    exit: AsyncFd<OwnedFd>,
}

impl Group {
    fn start(command: &mut Command, program: &OsStr) -> Result<Self, Error> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).kill_on_drop(true).spawn().map_err(|source| {
            let program = program.to_string_lossy().into_owned();
            match source.raw_os_error() {
                Some(libc::ENOENT) => Error::NoProgram { program },
                Some(libc::EACCES | libc::ENOEXEC) => Error::NotExecutable { program, source },
                _ => Error::io("start the command")(source),
            }
        })?;
        let number = child.id().ok_or_else(|| unwaited()(io::ErrorKind::NotFound.into()))?;
        let leader = Pid::from_raw(number.cast_signed());
        let exit = sys::open_process(number)
            .map_err(io::Error::from)
            .and_then(|process| sys::watched(process, Interest::READABLE))
            .map_err(unwaited())?;
        Ok(Self { child: Some(child), leader, exit })
    }

    fn streams(&mut self, limits: &RunLimits) -> Result<[ChildOutput; 2], Error> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let child = self.child.as_mut();
        let (stdout, stderr) =
            child.map(|child| (child.stdout.take(), child.stderr.take())).unwrap_or_default();
        let stdout = stdout.ok_or_else(missing).and_then(|out| out.into_owned_fd());
        let stderr = stderr.ok_or_else(missing).and_then(|err| err.into_owned_fd());
        let stream = |fd: io::Result<OwnedFd>| {
            fd.and_then(|fd| ChildOutput::new(fd, limits.output))
                .map_err(Error::io("read the command's output"))
        };
        Ok([stream(stdout)?, stream(stderr)?])
    }

    /// Kills the rest of the group and waits for the leader. `kill` means that the leader still runs.
    async fn end(mut self, kill: bool) -> Result<(ExitStatus, Usage), Error> {
        if kill {
            self.kill();
            drop(self.exit.readable().await.map_err(unwaited())?);
        }
        let usage = Usage::from(sys::usage_of_ended(self.leader).map_err(unwaited())?);
        self.kill();
        let child = self.child.take().ok_or_else(|| unwaited()(io::ErrorKind::NotFound.into()));
        let status = child?.wait().await.map_err(unwaited())?;
        Ok((status, usage))
    }

    fn kill(&self) {
        // Ignore the error if the group has no process left.
        let _ = killpg(self.leader, Signal::SIGKILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        self.kill();
        // Wait for the child here. Otherwise tokio would install a SIGCHLD handler to do so later.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { child.wait().await });
        }
    }
}

fn unwaited() -> impl FnOnce(io::Error) -> Error {
    Error::io("wait for the command")
}
