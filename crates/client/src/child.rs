//! A running command, in the shape of `tokio::process::Child`: pipes, signals and the end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use crate::error::Error;
use crate::events::{Event, Events, Over};
use crate::outcome::{Outcome, Output};
use crate::session::{Access, LONGEST};

/// Bytes that a pipe holds: as a pipe of Linux.
const PIPE: usize = 64 << 10;

/// Which streams of a command are pipes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pipes {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// A running command. Dropping it kills the command and every process that it started, unless
/// [`kill_on_drop`](crate::Command::kill_on_drop) is off: a task of the runtime tells the server, and tries
/// again for [`Server::patience`](crate::Server::patience) if nobody listens.
///
/// Both outputs share a connection: if you read only one of two pipes, the command stops when the other one
/// is full, as with pipes. Drop the one that you do not want.
#[derive(Debug)]
pub struct Child {
    /// Standard input, if piped.
    pub stdin: Option<ChildStdin>,
    /// Standard output, if piped.
    pub stdout: Option<ChildOutput>,
    /// Standard error, if piped.
    pub stderr: Option<ChildOutput>,
    access: Access,
    pid: u32,
    /// Follows the command to its end; `None` afterwards.
    follower: Option<JoinHandle<Result<Outcome, Error>>>,
    /// Carries the input to the command.
    feeder: Option<AbortHandle>,
    most_output: usize,
    kill_on_drop: bool,
    outcome: Option<Outcome>,
}

impl Child {
    pub(crate) fn new(
        access: Access,
        pid: u32,
        events: Events,
        pipes: Pipes,
        most_output: usize,
        kill_on_drop: bool,
    ) -> Self {
        let pipe = |is_piped: bool| is_piped.then(|| duplex(PIPE)).unzip();
        let (stdin, input) = pipe(pipes.stdin);
        let ((stdout, to_stdout), (stderr, to_stderr)) = (pipe(pipes.stdout), pipe(pipes.stderr));
        let feeder = input.map(|input| tokio::spawn(feed(access.clone(), pid, input)).abort_handle());
        let follower = Some(tokio::spawn(follow(access.clone(), events, to_stdout, to_stderr)));
        Self {
            stdin: stdin.map(ChildStdin),
            stdout: stdout.map(ChildOutput),
            stderr: stderr.map(ChildOutput),
            access,
            pid,
            follower,
            feeder,
            most_output,
            kill_on_drop,
            outcome: None,
        }
    }

    /// The number of the command in its session, for [`Session::report`](crate::Session::report).
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// Closes standard input and waits for the end of the command. A second call returns the same outcome.
    ///
    /// # Errors
    /// [`Error::SessionLost`] if the session ended first; [`Error::Cut`] and [`Error::Deadline`] if the
    /// stream broke off. Then nobody knows how the command would have ended: it may still run, and is killed
    /// when this is dropped.
    pub async fn wait(&mut self) -> Result<Outcome, Error> {
        drop(self.stdin.take());
        if let Some(outcome) = &self.outcome {
            return Ok(outcome.clone());
        }
        let follower = self.follower.as_mut().ok_or_else(|| Error::cut("its stream broke off earlier"))?;
        let ended = follower.await;
        self.follower = None;
        Ok(self.outcome.insert(ended.map_err(Error::cut)??).clone())
    }

    /// Waits for the end and collects what the command writes to its pipes until then.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait); [`Error::TooLarge`] beyond [`Command::max_output`], and the command is
    /// killed.
    ///
    /// [`Command::max_output`]: crate::Command::max_output
    pub async fn wait_with_output(mut self) -> Result<Output, Error> {
        let (stdout, stderr, most) = (self.stdout.take(), self.stderr.take(), self.most_output);
        drop(self.stdin.take());
        let (stdout, stderr) = tokio::try_join!(collect(stdout, most), collect(stderr, most))?;
        Ok(Output { outcome: self.wait().await?, stdout, stderr })
    }

    /// Sends a signal to the processes of the command. It is no error that it has ended.
    ///
    /// # Errors
    /// The server cannot be asked.
    pub async fn signal(&self, signal: Signal) -> Result<(), Error> {
        self.access.signal(&json!({ "pid": self.pid }), signal).await
    }

    /// Kills every process of the command, and waits for its end.
    ///
    /// # Errors
    /// As for [`signal`](Self::signal) and [`wait`](Self::wait).
    pub async fn kill(&mut self) -> Result<Outcome, Error> {
        self.signal(Signal::KILL).await?;
        // What nobody reads any more must not stop the stream before its end.
        drop((self.stdout.take(), self.stderr.take()));
        self.wait().await
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.follower.iter().for_each(JoinHandle::abort);
        self.feeder.iter().for_each(AbortHandle::abort);
        if self.kill_on_drop && self.outcome.is_none() {
            let (access, pid) = (self.access.clone(), self.pid);
            self.access.spawn(async move { access.kill(&json!({ "pid": pid })).await });
        }
    }
}

/// A signal that can be sent through a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(&'static str);

impl Signal {
    /// Asks a command to end.
    pub const TERM: Self = Self("SIGNAL_SIGTERM");
    /// Kills it.
    pub const KILL: Self = Self("SIGNAL_SIGKILL");
}

impl Access {
    /// Sends a signal to what `process` selects.
    async fn signal(&self, process: &Value, signal: Signal) -> Result<(), Error> {
        let body = json!({ "process": process, "signal": signal.0 });
        let call = self.call(Method::POST, "/process.Process/SendSignal").json(&body);
        // The number of a command is not that of another one later.
        let call = if signal == Signal::KILL { call.idempotent() } else { call };
        match self.server.ask(call, LONGEST).await {
            Ok(Value::Object(_)) | Err(Error::Refused { status: 404, .. }) => Ok(()),
            Ok(_) => Err(Error::protocol("the answer to a signal")),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn kill(&self, process: &Value) -> Result<(), Error> {
        self.signal(process, Signal::KILL).await
    }
}

/// Follows a command to its end, and passes its output on. Output that nobody reads any more is dropped.
async fn follow(
    access: Access,
    mut events: Events,
    mut stdout: Option<DuplexStream>,
    mut stderr: Option<DuplexStream>,
) -> Result<Outcome, Error> {
    let begun = Instant::now();
    loop {
        match events.next().await {
            Ok(Event::Data(data)) => {
                pass(&mut stdout, &data.stdout()?).await;
                pass(&mut stderr, &data.stderr()?).await;
            }
            Ok(Event::End(end)) => {
                let outcome = Outcome::of(&end, begun.elapsed());
                drop((stdout, stderr));
                events.finish().await;
                return outcome.ok_or_else(|| Error::protocol("an end without a status"));
            }
            Ok(Event::Start { .. } | Event::Keepalive {}) => {}
            Err(Over::TimedOut) => return Ok(Outcome::timed_out(begun.elapsed())),
            Err(over) => return Err(why(&access, over).await),
        }
    }
}

/// Why a stream broke off.
pub(crate) async fn why(access: &Access, over: Over) -> Error {
    match over {
        Over::Failed(error) if !matches!(error, Error::Cut { .. }) => error,
        over => access.verdict(over.into_error()).await,
    }
}

async fn pass(to: &mut Option<DuplexStream>, bytes: &[u8]) {
    let Some(pipe) = to else { return };
    if pipe.write_all(bytes).await.is_err() {
        *to = None;
    }
}

/// Carries input to a command until its end, or until the command reads no more.
async fn feed(access: Access, pid: u32, mut input: DuplexStream) {
    let process = json!({ "pid": pid });
    // A command may read as slowly as it likes.
    let access = access.with_deadline(Duration::MAX);
    let mut buffer = vec![0; PIPE];
    while let Ok(count @ 1..) = input.read(&mut buffer).await {
        let bytes = STANDARD.encode(buffer.get(..count).unwrap_or_default());
        let body = json!({ "process": process, "input": { "stdin": bytes } });
        if access.unary::<Value>("/process.Process/SendInput", &body).await.is_err() {
            // With this, its writer finds that nobody reads.
            return;
        }
    }
    let _ = access.unary::<Value>("/process.Process/CloseStdin", &json!({ "process": process })).await;
}

async fn collect(from: Option<ChildOutput>, most: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let limit = (most as u64).saturating_add(1);
        from.take(limit).read_to_end(&mut bytes).await.map_err(Error::cut)?;
    }
    if bytes.len() > most {
        return Err(Error::TooLarge { what: "the output of the command", most: most as u64 });
    }
    Ok(bytes)
}

/// The writing end of a command's stdin. Dropping it ends the input.
///
/// As with a pipe, what was written is not yet read. `BrokenPipe` if the command does not read any more.
#[derive(Debug)]
pub struct ChildStdin(DuplexStream);

impl AsyncWrite for ChildStdin {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}

/// The reading end of a command's stdout or stderr. Its end says nothing about the command: only
/// [`Child::wait`] tells a command that has ended from a connection that broke.
#[derive(Debug)]
pub struct ChildOutput(DuplexStream);

impl AsyncRead for ChildOutput {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, to)
    }
}
