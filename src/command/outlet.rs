//! Where the output goes that passes through us because it is counted, cut or read. That may be anything and may make its
//! writer wait, so a thread of its own writes to it. The thread is had before the command starts: a command can use up the
//! processes of its user, and the end of it must be told all the same.

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
use crate::command::output::ChildOutput;
use crate::command::stdio::{Stdio, checked};
use crate::report::error::{Error, STREAMS};
use crate::report::outcome::{Ended, Outcome};

/// Bytes that are read at once: what a pipe holds.
const PIECE: usize = 64 << 10;

/// Bytes of stack that a thread needs, with room to spare.
const STACK: usize = 128 << 10;

/// How long output that nobody takes may hold up the end, once somebody wants that.
const PATIENCE: Duration = Duration::from_secs(1);

/// Descriptors that a command's output is copied to, so that it is counted, and cut at the policy's cap. Each has a thread
/// that writes to it, from before the command starts.
///
/// ```no_run
/// # async fn example(sandbox: kennel::Sandbox) -> Result<(), Box<dyn std::error::Error>> {
/// use std::os::fd::AsFd;
///
/// let mut command = sandbox.command("make");
/// let stdout = std::io::stdout().as_fd().try_clone_to_owned()?;
/// let outlets = kennel::Outlets::new(&mut command, Some(stdout), None)?;
/// let mut child = command.spawn().await?;
/// let copying = outlets.copy(&mut child);
/// let mut outcome = child.wait().await?;
/// copying.finish(&mut outcome, std::future::pending()).await;
/// assert!(outcome.stdout_bytes.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Outlets([Option<Outlet>; 2]);

/// One descriptor: what is to be written, and what came of it.
#[derive(Debug)]
struct Outlet {
    pieces: Sender<Vec<u8>>,
    written: oneshot::Receiver<io::Result<()>>,
}

impl Outlets {
    /// Gives the command a pipe for stdout and for stderr if there is a descriptor to copy to; otherwise the stream is left
    /// as it is.
    ///
    /// # Errors
    /// A directory, or a descriptor that was opened as a path only: nothing could be written there. No thread can be started.
    pub fn new(
        command: &mut Command,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    ) -> Result<Self, Error> {
        let [_, output, error] = STREAMS;
        let usable = |stream, to: Option<OwnedFd>| to.map(checked).transpose().map_err(Error::io(stream));
        let (stdout, stderr) = (usable(output, stdout)?, usable(error, stderr)?);
        if stdout.is_some() {
            command.stdout(Stdio::piped());
        }
        if stderr.is_some() {
            command.stderr(Stdio::piped());
        }
        let open =
            |to: Option<OwnedFd>| to.map(Outlet::open).transpose().map_err(Error::io("start a thread"));
        Ok(Self([open(stdout)?, open(stderr)?]))
    }

    /// Copies what the command writes, from now on. Takes its pipes; call it within a runtime.
    ///
    /// If the reader is gone, the command gets SIGPIPE when it writes on.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    #[must_use]
    pub fn copy(self, child: &mut Child) -> Copying {
        let Self([stdout, stderr]) = self;
        let start = |to: Outlet, from: &mut Option<ChildOutput>| {
            let (ended, end) = oneshot::channel();
            from.take().map(|from| Pump { task: tokio::spawn(to.copy(from, end)), ended })
        };
        let stdout = stdout.and_then(|to| start(to, &mut child.stdout));
        Copying([stdout, stderr.and_then(|to| start(to, &mut child.stderr))])
    }
}

/// The copying of one command's output. Dropped, it ends as at the command's end.
#[derive(Debug)]
pub struct Copying([Option<Pump>; 2]);

/// One stream: its task, and what tells it that the command has ended.
#[derive(Debug)]
struct Pump {
    task: JoinHandle<Copied>,
    ended: oneshot::Sender<()>,
}

/// What came of one stream.
#[derive(Debug, Default)]
struct Copied {
    /// The stream, which has counted; `None` where it was not read to its end.
    stream: Option<ChildOutput>,
    /// Why not all of it was written.
    failed: Option<io::Error>,
}

impl Copying {
    /// Once the command has ended: takes what is in its pipes, waits until all is written, and enters how much it was or
    /// [why it was not](Outcome::unwritten). Output of other processes that were given the pipes is not waited for.
    ///
    /// This waits for a reader that does not read, but only one more second after the command timed out or `hurry` is
    /// ready. The thread and its descriptor then stay until the output is read, or can no longer be.
    ///
    /// # Panics
    /// Outside of the runtime that copies.
    pub async fn finish(self, outcome: &mut Outcome, hurry: impl Future<Output = ()>) {
        let Self([stdout, stderr]) = self;
        let is_over = outcome.ended == Ended::TimedOut;
        // Then that is what is told.
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
        // What could not be said on stderr is no reason to call a success a failure.
        let why = match out.failed {
            Some(error) => Some(Error::io("write to stdout what the command wrote")(error).chain()),
            None if is_stdout_left && !was_killed => Some("the command's output was not read".to_owned()),
            None => None,
        };
        outcome.unwritten = why;
    }
}

async fn finished(pump: Option<Pump>, copied: &mut Option<Copied>) {
    let Some(Pump { task, ended }) = pump else { return };
    let _ = ended.send(());
    *copied = task.await.ok();
}

impl Outlet {
    fn open(to: OwnedFd) -> io::Result<Self> {
        let (pieces, mut received) = mpsc::channel(2);
        let (done, written) = oneshot::channel();
        let thread = thread::Builder::new().name("kennel-output".to_owned()).stack_size(STACK);
        thread.spawn(move || {
            // Some would end the embedding program: a reader that is gone, a limit on the size of files. The handlers of others
            // may need more of a stack.
            let _ = SigSet::all().thread_block();
            let result = write(&mut received, &to);
            drop(to);
            let _ = done.send(result);
        })?;
        Ok(Self { pieces, written })
    }

    /// Copies all of `from`, or what is in it at the command's end: another command may have been given the pipe.
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
                        // The command is told by SIGPIPE, as it would be without us.
                        return Copied::default();
                    }
                    // It cannot be told; it ends as it likes, and we say what became of its words.
                    result = Some(early);
                    continue;
                }
                read = from.read(&mut piece) => read.unwrap_or(0),
            };
            if count == 0 {
                break;
            }
            // When nothing is written any more, `written` says why.
            let _ = pieces.send(piece.get(..count).unwrap_or_default().to_vec()).await;
        }
        let mut rest = Vec::new();
        // What cannot be read any more is lost.
        let _ = from.drain(&mut rest);
        if !rest.is_empty() {
            let _ = pieces.send(rest).await;
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

/// Whether the reader has seen enough.
fn is_gone(result: &io::Result<()>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes what comes until there is no more, or it cannot be written.
fn write(pieces: &mut Receiver<Vec<u8>>, to: &OwnedFd) -> io::Result<()> {
    while let Some(piece) = pieces.blocking_recv() {
        let mut left = piece.as_slice();
        while !left.is_empty() {
            match nix::unistd::write(to, left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => left = left.get(count..).unwrap_or_default(),
                Err(Errno::EINTR) => {}
                // Somebody who has it too made it non-blocking: it means to wait.
                Err(Errno::EAGAIN) => {
                    let _ = poll(&mut [PollFd::new(to.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}
