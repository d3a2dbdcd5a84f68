//! Copies the output of a command to descriptors, so that Kennel can count, cut and read it.
//!
//! A descriptor can be anything and may block its writer, so each has its own thread. The thread starts
//! before the command: a command can use up the process limit of its user, and Kennel must be able to report
//! its end anyway.

use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use std::{io, thread};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::command::Command;
use crate::command::child::Child;
use crate::process::output::ChildOutput;
use crate::process::stdio::{Stdio, checked};
use crate::report::error::{Error, STREAMS};
use crate::report::outcome::{Ended, Outcome};
use crate::sys::closing::HeldFd;

/// Bytes of one read: the default size of a pipe.
const PIECE: usize = 64 << 10;

/// Stack of a thread in bytes, with room to spare.
const STACK: usize = 128 << 10;

/// How long unread output may delay the end, once the caller is in a hurry.
const PATIENCE: Duration = Duration::from_secs(1);

/// Descriptors that Kennel copies a command's output to. Kennel counts the output and cuts it at the policy's
/// cap. Each descriptor has a thread that writes to it; the threads start before the command.
///
/// ```no_run
/// # async fn example(sandbox: kennel::Sandbox) -> Result<(), Box<dyn std::error::Error>> {
/// use std::os::fd::AsFd;
///
/// let mut command = sandbox.command("make");
/// let stdout = std::io::stdout().as_fd().try_clone_to_owned()?;
/// let copier = kennel::internal::OutputCopier::new(&mut command, Some(stdout), None)?;
/// let mut child = command.spawn().await?;
/// let copies = copier.copy(&mut child);
/// let mut outcome = child.wait().await?;
/// copies.finish(&mut outcome, std::future::pending()).await;
/// assert!(outcome.stdout_bytes.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OutputCopier([Option<Outlet>; 2]);

/// The thread of one descriptor.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) pieces: Sender<Vec<u8>>,
    /// The result of all writes.
    pub(crate) written: oneshot::Receiver<io::Result<()>>,
}

impl OutputCopier {
    /// Gives the command a pipe for each stream that has a descriptor here. The other streams stay as they
    /// are.
    ///
    /// # Errors
    /// A descriptor that cannot be written to: a directory or an `O_PATH` descriptor. The kernel refuses a
    /// thread.
    pub fn new(
        command: &mut Command,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    ) -> Result<Self, Error> {
        Self::connect(command, stdout.map(HeldFd::from), stderr.map(HeldFd::from))
    }

    /// As [`new`](Self::new), for descriptors that strangers gave.
    pub(crate) fn connect(
        command: &mut Command,
        stdout: Option<HeldFd>,
        stderr: Option<HeldFd>,
    ) -> Result<Self, Error> {
        if stdout.is_some() {
            command.stdout(Stdio::piped());
        }
        if stderr.is_some() {
            command.stderr(Stdio::piped());
        }
        Self::open(stdout, stderr)
    }

    /// As [`new`](Self::new), for streams that are pipes already.
    pub(crate) fn open(stdout: Option<HeldFd>, stderr: Option<HeldFd>) -> Result<Self, Error> {
        let [_, output, error] = STREAMS;
        let usable = |stream, to: Option<HeldFd>| to.map(checked).transpose().map_err(Error::io(stream));
        let (stdout, stderr) = (usable(output, stdout)?, usable(error, stderr)?);
        let open = |to: Option<HeldFd>| to.map(Outlet::open).transpose().map_err(Error::io("start a thread"));
        Ok(Self([open(stdout)?, open(stderr)?]))
    }

    /// Takes the pipes of the command and starts to copy.
    ///
    /// If the reader of a descriptor is gone, the command gets SIGPIPE at its next write.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    #[must_use]
    pub fn copy(self, child: &mut Child) -> RunningCopies {
        self.copy_from([&mut child.stdout, &mut child.stderr])
    }

    /// Takes these pipes and starts to copy.
    pub(crate) fn copy_from(self, [out, err]: [&mut Option<ChildOutput>; 2]) -> RunningCopies {
        let Self([stdout, stderr]) = self;
        let start = |to: Outlet, from: &mut Option<ChildOutput>| {
            let (ended, end) = oneshot::channel();
            from.take().map(|from| CopyTask { task: tokio::spawn(to.copy(from, end)), ended })
        };
        RunningCopies([stdout.and_then(|to| start(to, out)), stderr.and_then(|to| start(to, err))])
    }
}

/// The running copies of one command's output. Dropping it ends them as the end of the command does.
#[derive(Debug)]
pub struct RunningCopies([Option<CopyTask>; 2]);

/// The task of one stream.
#[derive(Debug)]
struct CopyTask {
    task: JoinHandle<Copied>,
    /// Tells the task that the command has ended.
    ended: oneshot::Sender<()>,
}

/// The result of one stream.
#[derive(Debug, Default)]
struct Copied {
    /// The stream with its counters; `None` if it was not read to the end.
    stream: Option<ChildOutput>,
    /// Why not everything was written.
    failed: Option<io::Error>,
}

impl RunningCopies {
    /// Call it when the command has ended. It reads what is left in the pipes, waits until everything is
    /// written, and adds to `outcome` how much that was or [why it was not written](Outcome::unwritten). It
    /// does not wait for other processes that hold the pipes.
    ///
    /// If a reader does not read, this waits. After the command timed out or once `hurry` is ready, it waits
    /// one second more and gives up. The thread then keeps the descriptor until the output is read or the
    /// reader is gone.
    ///
    /// # Panics
    /// Outside of the runtime that copies.
    pub async fn finish(self, outcome: &mut Outcome, hurry: impl Future<Output = ()>) {
        drop(self.finish_and_keep(outcome, hurry).await);
    }

    /// As [`finish`](Self::finish). Returns the pipes, which other processes may hold.
    pub(crate) async fn finish_and_keep(
        self,
        outcome: &mut Outcome,
        hurry: impl Future<Output = ()>,
    ) -> [Option<ChildOutput>; 2] {
        let Self([stdout, stderr]) = self;
        let is_over = outcome.ended == Ended::TimedOut;
        // The kill is then reason enough.
        let was_killed = is_over || outcome.ended == Ended::Signaled;
        let copies_stdout = stdout.is_some();
        let (mut out, mut err) = (None, None);
        let all = async { tokio::join!(finished(stdout, &mut out), finished(stderr, &mut err)) };
        let patience = async {
            if !is_over {
                hurry.await;
            }
            sleep(PATIENCE).await;
        };
        let is_cut_short = tokio::select! {
            biased;
            _ = all => false,
            () = patience => true,
        };
        let is_stdout_left = copies_stdout && out.is_none();
        let (out, err) = (out.unwrap_or_default(), err.unwrap_or_default());
        outcome.count(out.stream.as_ref(), err.stream.as_ref());
        outcome.truncated |= is_cut_short || out.failed.is_some() || err.failed.is_some();
        // Only stdout counts: a lost message on stderr does not turn a success into a failure.
        outcome.unwritten = match out.failed {
            Some(error) => Some(Error::io("write to stdout what the command wrote")(error).chain()),
            None if is_stdout_left && !was_killed => Some("the command's output was not read".to_owned()),
            None => None,
        };
        [out.stream, err.stream]
    }
}

async fn finished(task: Option<CopyTask>, copied: &mut Option<Copied>) {
    let Some(CopyTask { task, ended }) = task else { return };
    let _ = ended.send(());
    *copied = task.await.ok();
}

impl Outlet {
    pub(crate) fn open(to: HeldFd) -> io::Result<Self> {
        let (pieces, mut received) = mpsc::channel(2);
        let (done, written) = oneshot::channel();
        let thread = thread::Builder::new().name("kennel-output".to_owned()).stack_size(STACK);
        thread.spawn(move || {
            // SIGPIPE and SIGXFSZ would end this program. Handlers of other signals may need a larger stack.
            let _ = SigSet::all().thread_block();
            let result = write(&mut received, &to);
            drop(to);
            let _ = done.send(result);
        })?;
        Ok(Self { pieces, written })
    }

    /// Copies `from` until it ends or, at the end of the command, until it is empty: another command may hold
    /// the pipe.
    async fn copy(self, mut from: ChildOutput, mut end: oneshot::Receiver<()>) -> Copied {
        let Self { pieces, mut written } = self;
        let mut result = None;
        let mut piece = vec![0; PIECE];
        loop {
            let count = tokio::select! {
                biased;
                _ = &mut end => break,
                early = &mut written, if result.is_none() => {
                    let early = early.unwrap_or(Ok(()));
                    if is_gone(&early) {
                        // Dropping the pipe gives the command SIGPIPE, as without Kennel in between.
                        return Copied::default();
                    }
                    // No signal fits another error. The command runs on, and its outcome reports the error.
                    result = Some(early);
                    continue;
                }
                read = from.read(&mut piece) => read.unwrap_or(0),
            };
            if count == 0 {
                break;
            }
            // If the thread has stopped, `written` holds the reason.
            let _ = pieces.send(piece.get(..count).unwrap_or_default().to_vec()).await;
        }
        let mut unread = Vec::new();
        // Unreadable output is lost.
        let _ = from.drain(&mut unread);
        if !unread.is_empty() {
            let _ = pieces.send(unread).await;
        }
        drop(pieces);
        let result = match result {
            Some(result) => result,
            None => written.await.unwrap_or(Ok(())),
        };
        let failed = if is_gone(&result) { None } else { result.err() };
        Copied { stream: Some(from), failed }
    }
}

/// Whether the reader is gone.
fn is_gone(result: &io::Result<()>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes the pieces until the channel closes or a write fails.
fn write(pieces: &mut Receiver<Vec<u8>>, to: &HeldFd) -> io::Result<()> {
    while let Some(piece) = pieces.blocking_recv() {
        let mut left = piece.as_slice();
        while !left.is_empty() {
            match nix::unistd::write(to, left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => left = left.get(count..).unwrap_or_default(),
                Err(Errno::EINTR) => {}
                // Another holder made the descriptor non-blocking.
                Err(Errno::EAGAIN) => {
                    let _ = poll(&mut [PollFd::new(to.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}
