//! Reads what a command writes, up to a cap. Beyond the cap the reader gets a marker line; the command never
//! gets `EPIPE`.

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::errno::Errno;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::net::unix::pipe;

use crate::process::cause::Flood;
use crate::report::error::Error;
use crate::report::outcome::{Outcome, Output};
use crate::sys::memory_file::MemoryFile;

/// The largest pipe of an ordinary user, in bytes: the default of `fs.pipe-max-size`.
const LARGEST_PIPE: u64 = 1 << 20;

/// How much each read asks for at least, in bytes.
const LEAST_READ: usize = 4096;

/// The last bytes of a stream, and what explains errors in them.
pub(crate) trait Tail: Debug + Send + Sync {
    /// Adds bytes and drops the oldest ones.
    fn add(&mut self, bytes: &[u8]);

    /// Adds hints for the errors in these bytes.
    fn explain(&self, outcome: &mut Outcome);
}

/// The reading end of a command's stdout or stderr.
///
/// Beyond the policy's output cap, it reads on and discards, so that the command is not disturbed. With
/// [`Limits::output_ends`](crate::policy::limits::Limits::output_ends), Kennel kills the command instead. At
/// the end of the stream, the line `[kennel: output truncated, N bytes dropped]` follows the kept bytes.
/// Programs that ask a session for its output get no such line: their report says that it was cut.
#[derive(Debug)]
pub struct ChildOutput {
    pipe: pipe::Receiver,
    /// Bytes that still fit below the cap; `None` without a cap.
    room: Option<u64>,
    seen: u64,
    dropped: u64,
    /// Whether a line follows a cut stream.
    is_marked: bool,
    marker: Option<io::Cursor<Vec<u8>>>,
    /// The last bytes read, if Kennel explains errors in them.
    tail: Option<Box<dyn Tail>>,
    /// Where to report that the stream is beyond the cap, and the cap.
    flood: Option<(Arc<Flood>, u64)>,
}

/// The line that follows a cut stream.
pub(crate) fn marker(dropped: u64) -> Vec<u8> {
    format!("\n[kennel: output truncated, {dropped} bytes dropped]\n").into_bytes()
}

impl ChildOutput {
    pub(crate) fn new(fd: OwnedFd, cap: Option<u64>) -> io::Result<Self> {
        let pipe = pipe::Receiver::from_owned_fd(fd)?;
        Ok(Self {
            pipe,
            room: cap,
            seen: 0,
            dropped: 0,
            is_marked: true,
            marker: None,
            tail: None,
            flood: None,
        })
    }

    /// Keeps the last bytes, so that errors in them can be explained.
    pub(crate) fn explain_errors(&mut self, tail: impl Tail + 'static) {
        self.tail = Some(Box::new(tail));
    }

    /// Ends the command when the stream is beyond its cap.
    pub(crate) fn end_at_cap(&mut self, flood: &Arc<Flood>) {
        self.flood = self.room.map(|cap| (Arc::clone(flood), cap));
    }

    /// Leaves out the line that follows a cut stream.
    pub(crate) fn leave_unmarked(&mut self) {
        self.is_marked = false;
    }

    /// Counts bytes that were read. Returns how many of them are below the cap.
    fn count(&mut self, bytes: &[u8]) -> usize {
        if let Some(tail) = &mut self.tail {
            tail.add(bytes);
        }
        let fits = self.room.map_or(bytes.len(), |room| usize::try_from(room).unwrap_or(usize::MAX));
        let kept = fits.min(bytes.len());
        self.room = self.room.map(|room| room - kept as u64);
        self.seen += bytes.len() as u64;
        self.dropped += (bytes.len() - kept) as u64;
        kept
    }

    /// Reports a stream that is beyond its cap.
    fn report_flood(&self) {
        if let Some((flood, cap)) = self.flood.as_ref().filter(|_| self.dropped > 0) {
            flood.report(self.seen, *cap);
        }
    }

    /// Bytes read from the command so far, kept or not.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Bytes beyond the cap, which were discarded.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Reads what fits into `buffer`, and leaves what is below the cap there; nothing at the end of the
    /// stream.
    fn poll_kept(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.pipe).poll_read(cx, buffer))?;
        let kept = self.count(buffer.filled().get(before..).unwrap_or_default());
        buffer.set_filled(before + kept);
        self.report_flood();
        Poll::Ready(Ok(()))
    }

    /// Appends what is in the pipe to `kept`, as far as the cap allows, and the marker. Reads the descriptor
    /// itself: tokio may not know yet that it is readable. Returns whether the stream has ended.
    pub(crate) fn drain(&mut self, kept: &mut Vec<u8>) -> io::Result<bool> {
        let mut scratch = [0u8; 8192];
        let end = self.seen.saturating_add(LARGEST_PIPE);
        let mut is_over = false;
        // Another process that holds the pipe may write on.
        while self.seen < end {
            let count = match nix::unistd::read(&self.pipe, &mut scratch) {
                Err(Errno::EAGAIN) => break,
                Ok(0) => {
                    is_over = true;
                    break;
                }
                Err(Errno::EINTR) => continue,
                count => count?,
            };
            let fits = self.count(scratch.get(..count).unwrap_or_default());
            kept.extend_from_slice(scratch.get(..fits).unwrap_or_default());
        }
        let text = self.cut_marker();
        let mut marker = self.marker.take().unwrap_or_else(|| io::Cursor::new(text));
        io::Read::read_to_end(&mut marker, kept)?;
        Ok(is_over)
    }

    /// The line that follows a cut stream; empty if nothing was dropped, or nobody wants it.
    fn cut_marker(&self) -> Vec<u8> {
        match self.dropped {
            0 => Vec::new(),
            _ if !self.is_marked => Vec::new(),
            bytes => marker(bytes),
        }
    }

    /// Reads and discards until the stream ends.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut scratch = [0u8; 8192];
            let mut part = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut self.pipe).poll_read(cx, &mut part))?;
            if part.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.count(part.filled());
            self.report_flood();
        }
    }
}

impl AsyncRead for ChildOutput {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.room != Some(0) {
            return this.poll_kept(cx, buffer);
        }
        if this.marker.is_none() {
            ready!(this.poll_drain(cx))?;
            this.marker = Some(io::Cursor::new(this.cut_marker()));
        }
        this.marker.as_mut().map_or(Poll::Ready(Ok(())), |marker| Pin::new(marker).poll_read(cx, buffer))
    }
}

/// How much of a stream for a client stays in the memory of this process, in bytes. More goes into a memfd,
/// which the client gets: so it is written once, into memory that only the client needs.
const MOST_KEPT: usize = 1 << 20;

/// What a stream carried: the beginning in a memfd, if there was much of it, and the rest.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) file: Option<MemoryFile>,
    pub(crate) rest: Vec<u8>,
}

impl Kept {
    /// All of it, in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.file.as_ref().map_or(0, MemoryFile::length) + self.rest.len() as u64
    }
}

impl From<Vec<u8>> for Kept {
    fn from(rest: Vec<u8>) -> Self {
        Self { file: None, rest }
    }
}

/// Collects a stream of a command in memory.
pub(crate) struct Collected {
    stream: Option<ChildOutput>,
    is_open: bool,
    kept: Kept,
    /// Whether it is for a client, which can read a memfd.
    is_sent: bool,
}

impl Collected {
    pub(crate) fn new(stream: Option<ChildOutput>) -> Self {
        Self { is_open: stream.is_some(), stream, kept: Kept::default(), is_sent: false }
    }

    /// Whether the stream may carry more.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Reads once.
    pub(crate) async fn read(&mut self) -> Result<(), Error> {
        if let Some(stream) = &mut self.stream {
            let Kept { file, rest } = &mut self.kept;
            // Twice as much each time, so that all of it is copied at most once more.
            rest.reserve(LEAST_READ);
            let count = stream.read_buf(rest).await.map_err(unread())?;
            self.is_open = count > 0;
            if self.is_sent && rest.len() >= MOST_KEPT {
                let file = match file {
                    Some(file) => file,
                    None => file.insert(MemoryFile::new().map_err(unread())?),
                };
                file.append(rest).map_err(unread())?;
                rest.clear();
            }
        }
        Ok(())
    }

    /// Reads what is in the pipe now, without waiting. Returns the stream and the collected bytes.
    pub(crate) fn finish(mut self) -> Result<(Option<ChildOutput>, Kept), Error> {
        if let Some(stream) = self.stream.as_mut().filter(|_| self.is_open) {
            stream.drain(&mut self.kept.rest).map_err(unread())?;
        }
        Ok((self.stream, self.kept))
    }
}

/// Collects both outputs of a command in memory.
pub(crate) struct CollectedOutput {
    stdout: Collected,
    stderr: Collected,
}

impl CollectedOutput {
    /// Takes the pipes of a command; `None` for an output that has none.
    pub(crate) fn new(stdout: Option<ChildOutput>, stderr: Option<ChildOutput>) -> Self {
        Self { stdout: Collected::new(stdout), stderr: Collected::new(stderr) }
    }

    /// The same for a client, which can read a memfd.
    pub(crate) fn for_client(stdout: Option<ChildOutput>, stderr: Option<ChildOutput>) -> Self {
        let mut collected = Self::new(stdout, stderr);
        (collected.stdout.is_sent, collected.stderr.is_sent) = (true, true);
        collected
    }

    /// Whether a stream may carry more.
    pub(crate) fn is_open(&self) -> bool {
        self.stdout.is_open || self.stderr.is_open
    }

    /// Reads once from a stream that has something.
    pub(crate) async fn read(&mut self) -> Result<(), Error> {
        tokio::select! {
            read = self.stdout.read(), if self.stdout.is_open => read,
            read = self.stderr.read(), if self.stderr.is_open => read,
            else => Ok(()),
        }
    }

    /// The output once the command has ended. A background process or another command of the session may
    /// still hold the pipes. What they write after the end is not the output of this command.
    pub(crate) fn end(self, mut outcome: Outcome) -> Result<(Outcome, [Kept; 2]), Error> {
        let (stdout, kept_out) = self.stdout.finish()?;
        let (stderr, kept_err) = self.stderr.finish()?;
        outcome.count(stdout.as_ref(), stderr.as_ref());
        Ok((outcome, [kept_out, kept_err]))
    }
}

/// The output of a command that is waited for by `outcome`.
///
/// # Errors
/// Those of `outcome`; a stream cannot be read.
pub(crate) async fn collected(
    stdout: Option<ChildOutput>,
    stderr: Option<ChildOutput>,
    outcome: impl Future<Output = Result<Outcome, Error>>,
) -> Result<Output, Error> {
    let mut collected = CollectedOutput::new(stdout, stderr);
    let mut outcome = pin!(outcome);
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut outcome => break outcome?,
            read = collected.read(), if collected.is_open() => read?,
        }
    };
    let (outcome, [stdout, stderr]) = collected.end(outcome)?;
    Ok(Output { outcome, stdout: stdout.rest, stderr: stderr.rest })
}

fn unread() -> impl FnOnce(io::Error) -> Error {
    Error::io("read the command's output")
}

impl Outcome {
    /// Adds what the streams of the command tell, once they were read to the end: how many bytes they carried
    /// and, if the command failed and the caller asks for hints, which of its errors the sandbox may have
    /// caused.
    pub fn count(&mut self, stdout: Option<&ChildOutput>, stderr: Option<&ChildOutput>) {
        if let Some(tail) = stderr.and_then(|stderr| stderr.tail.as_ref()) {
            tail.explain(self);
        }
        self.stdout_bytes = stdout.map(ChildOutput::seen);
        self.stderr_bytes = stderr.map(ChildOutput::seen);
        self.truncated = [stdout, stderr].into_iter().flatten().any(|stream| stream.dropped() > 0);
    }
}
