//! One command of a sandbox: started, fed, signalled, and followed to its end by a task of its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{pending, poll_fn};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use kennel::report::Report;
use kennel::{Child, ChildOutput, ChildStdin, Ended, Outcome, Session, Signal, Stdio, Terminal};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

use crate::sandboxes::output::{End, Output, Stream};

/// The most bytes of one read.
const PIECE: usize = 32 << 10;

/// How long a stream that others still hold is read after the end of the command.
const AFTER_END: Duration = Duration::from_millis(50);

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) directory: Option<String>,
    /// A word of the client's to find it again.
    pub(crate) tag: Option<String>,
    /// Whether the client writes to its stdin.
    pub(crate) stdin: bool,
    /// Rows and columns of a terminal.
    pub(crate) terminal: Option<(u16, u16)>,
    pub(crate) timeout: Option<Duration>,
}

/// A command that runs, or has run.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) start: Start,
    pub(crate) output: Output,
    /// Set before the end is told.
    report: Arc<OnceLock<Report>>,
    input: Mutex<Option<Input>>,
    signals: mpsc::UnboundedSender<Signal>,
    /// The terminal, to change its size.
    terminal: Option<OwnedFd>,
}

#[derive(Debug)]
enum Input {
    Pipe(ChildStdin),
    Terminal(WriteHalf<Terminal>),
}

impl Process {
    /// Starts it. `ended` is called when it is over.
    pub(crate) async fn start(
        session: &Session,
        pid: u32,
        start: Start,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Self>, kennel::Error> {
        let mut command = session.command(&start.program);
        command.args(&start.arguments);
        for (name, value) in &start.variables {
            command.env(name, value);
        }
        if let Some(directory) = start.directory.as_ref().filter(|directory| !directory.is_empty()) {
            command.current_dir(directory);
        }
        if let Some(timeout) = start.timeout {
            command.timeout(timeout);
        }
        match start.terminal {
            Some((rows, columns)) => {
                command.terminal(rows, columns);
            }
            None => {
                command.stdin(if start.stdin { Stdio::piped() } else { Stdio::null() });
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
        }
        let mut child = command.spawn().await?;
        let (mut input, mut screen, mut terminal) = (child.stdin.take().map(Input::Pipe), None, None);
        if let Some(found) = child.terminal.take() {
            let for_size = found.as_fd().try_clone_to_owned();
            terminal =
                Some(for_size.map_err(|source| kennel::Error::Io { what: "hold the terminal", source })?);
            let (read, write) = tokio::io::split(found);
            input = Some(Input::Terminal(write));
            screen = Some(read);
        }
        let (signals, orders) = mpsc::unbounded_channel();
        let (output, report) = (Output::default(), Arc::new(OnceLock::new()));
        let sources =
            Sources { stdout: child.stdout.take(), stderr: child.stderr.take(), screen, read: [None, None] };
        let follower = follow(child, sources, output.clone(), orders);
        let (kept, told) = (Arc::clone(&report), output.clone());
        tokio::spawn(async move {
            let result = follower.await;
            // Nobody else sets it.
            let _ = kept.set(Report::of(&result));
            told.close(end(result));
            ended();
        });
        let input = Mutex::new(input);
        Ok(Arc::new(Self { pid, start, output, report, input, signals, terminal }))
    }

    /// Whether it has ended, and has written everything.
    pub(crate) fn has_ended(&self) -> bool {
        self.output.has_ended()
    }

    /// What is to be said about it, once it has ended.
    pub(crate) fn report(&self) -> Option<Report> {
        self.report.get().cloned()
    }

    /// Sends a signal to its process group. It is no error that it has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        // Without a receiver it has ended.
        let _ = self.signals.send(signal);
    }

    /// Writes to its stdin, or types into its terminal.
    ///
    /// # Errors
    /// `BrokenPipe` if it does not read any more, or its stdin was closed.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match &mut *self.input.lock().await {
            Some(Input::Pipe(pipe)) => pipe.write_all(bytes).await,
            Some(Input::Terminal(terminal)) => terminal.write_all(bytes).await,
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Closes its stdin, or types the end of a file into its terminal.
    pub(crate) async fn close_input(&self) -> io::Result<()> {
        const END_OF_FILE: &[u8] = &[4];
        let mut input = self.input.lock().await;
        match &mut *input {
            Some(Input::Terminal(terminal)) => terminal.write_all(END_OF_FILE).await,
            _ => {
                *input = None;
                Ok(())
            }
        }
    }

    /// Whether `write` can work.
    pub(crate) fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Changes the size of its terminal, in characters.
    pub(crate) fn resize(&self, rows: u16, columns: u16) -> io::Result<()> {
        match &self.terminal {
            Some(terminal) => Terminal::set_size(terminal, rows, columns),
            None => Err(io::Error::other("the command has no terminal")),
        }
    }
}

/// Where output comes from.
struct Sources {
    stdout: Option<ChildOutput>,
    stderr: Option<ChildOutput>,
    screen: Option<ReadHalf<Terminal>>,
    /// Those of stdout and stderr that have ended.
    read: [Option<ChildOutput>; 2],
}

impl Sources {
    /// Reads once from a stream that has something; an empty piece is its end. Forever pending without
    /// streams.
    async fn read(&mut self) -> (Stream, Bytes) {
        tokio::select! {
            piece = read(self.stdout.as_mut()) => (Stream::Stdout, piece),
            piece = read(self.stderr.as_mut()) => (Stream::Stderr, piece),
            piece = read(self.screen.as_mut()) => (Stream::Terminal, piece),
        }
    }

    /// Passes a piece on, or closes its stream.
    fn pass(&mut self, (stream, piece): (Stream, Bytes), output: &Output) {
        if !piece.is_empty() {
            return output.push(stream, piece);
        }
        match stream {
            Stream::Stdout => self.read[0] = self.stdout.take(),
            Stream::Stderr => self.read[1] = self.stderr.take(),
            Stream::Terminal => self.screen = None,
        }
    }

    /// Adds to the outcome what the streams tell.
    fn count(&self, outcome: &mut Outcome) {
        let [stdout, stderr] = &self.read;
        outcome.count(self.stdout.as_ref().or(stdout.as_ref()), self.stderr.as_ref().or(stderr.as_ref()));
    }

    fn is_empty(&self) -> bool {
        self.stdout.is_none() && self.stderr.is_none() && self.screen.is_none()
    }
}

thread_local! {
    /// Where reads go first, so that a silent stream needs no buffer of its own.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE]);
}

/// A stream that cannot be read is over: an empty piece.
async fn read(source: Option<&mut (impl AsyncRead + Unpin)>) -> Bytes {
    let Some(source) = source else { return pending().await };
    poll_fn(|cx| {
        BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            Pin::new(&mut *source).poll_read(cx, &mut buffer).map(|done| match done {
                Ok(()) => Bytes::copy_from_slice(buffer.filled()),
                Err(_) => Bytes::new(),
            })
        })
    })
    .await
}

/// Follows the command until it has ended and its output is read. The end is the caller's to tell.
async fn follow(
    mut child: Child,
    mut sources: Sources,
    output: Output,
    mut orders: mpsc::UnboundedReceiver<Signal>,
) -> Result<Outcome, kennel::Error> {
    let mut ended = loop {
        tokio::select! {
            ended = child.wait() => break ended,
            Some(signal) = orders.recv() => {
                // It may just be ending.
                let _ = match signal {
                    Signal::KILL => child.start_kill(),
                    other => child.signal(other),
                };
            }
            piece = async {
                output.room().await;
                sources.read().await
            } => sources.pass(piece, &output),
        }
    };
    // Another process may still hold a stream.
    while !sources.is_empty() {
        output.room().await;
        match timeout(AFTER_END, sources.read()).await {
            Ok(piece) => sources.pass(piece, &output),
            Err(_) => break,
        }
    }
    if let Ok(outcome) = &mut ended {
        sources.count(outcome);
    }
    ended
}

fn end(ended: Result<Outcome, kennel::Error>) -> End {
    use std::os::unix::process::ExitStatusExt;
    let Ok(outcome) = ended else { return End::Lost };
    if outcome.ended == Ended::TimedOut {
        return End::TimedOut;
    }
    let message = outcome.failure().map(|failure| failure.message);
    match (outcome.status.code(), outcome.status.signal()) {
        (Some(code), _) => End::Exited { code, signal: None, message },
        (None, signal) => End::Exited { code: -1, signal, message },
    }
}
