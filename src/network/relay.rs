//! Relays bytes in both directions until both have ended or the connection is idle. When one direction ends,
//! the other side sees the end, and the other direction continues.
//!
//! An idle connection owns no buffer: each thread has one, used between two waits. On Linux, splice(2) moves
//! bulk data without copying its pages.

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::Interest;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::network::meter::{Direction, HALF_OPEN, Meter, Traffic};
use crate::network::stream::Stream;
use crate::sys::{self, SplicingPipe};

/// Bytes that are copied at once.
const CHUNK: usize = 64 << 10;

/// Bytes that are spliced at once.
const SPLICED: usize = 1 << 20;

/// After this many small transfers in a row, the pipe is closed.
const MAX_SMALL: u32 = 16;

/// How long an unused pipe stays open.
const PIPE_IDLE: Duration = Duration::from_secs(1);

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// What the relays of one sandbox share: their limits, and the end.
pub(crate) struct Relays {
    /// How long a connection may carry no data; `None` for no limit.
    pub(crate) idle_time: Option<Duration>,
    pub(crate) meter: Meter,
    /// Pairs of descriptors beside the two of each connection: for pipes, and for parallel connection
    /// attempts.
    pub(crate) spare: Arc<Semaphore>,
    closing: watch::Sender<Closing>,
}

/// How far the end of a proxy is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Closing {
    Open,
    /// No more connections are accepted. Those that are open go on.
    Draining,
    /// The command of the sandbox has ended.
    Over,
}

impl Relays {
    pub(crate) fn new(idle_time: Option<Duration>, meter: Meter, spare: usize) -> Self {
        Self {
            idle_time,
            meter,
            spare: Arc::new(Semaphore::new(spare)),
            closing: watch::Sender::new(Closing::Open),
        }
    }

    /// The command of the sandbox has ended: nobody receives anything more.
    pub(crate) fn close(&self) {
        self.closing.send_replace(Closing::Over);
    }

    /// Accepts no more connections, and lets those that are open end by themselves.
    pub(crate) fn drain(&self) {
        self.closing.send_replace(Closing::Draining);
    }

    /// Returns once no more connections are accepted.
    pub(crate) async fn closing(&self) {
        self.reaches(Closing::Draining).await;
    }

    /// Returns once the command of the sandbox has ended.
    async fn over(&self) {
        self.reaches(Closing::Over).await;
    }

    /// Whether connections that are open go on, and no others are accepted.
    pub(crate) fn is_draining(&self) -> bool {
        *self.closing.borrow() == Closing::Draining
    }

    async fn reaches(&self, stage: Closing) {
        // The sender lives as long as `self`.
        let _ = self.closing.subscribe().wait_for(|closing| *closing >= stage).await;
    }
}

/// One end of a relay, with bytes that were read from it already.
pub(crate) struct RelayEnd {
    pub(crate) stream: Stream,
    pub(crate) early: Bytes,
    /// Whether these bytes are counted already.
    pub(crate) is_counted: bool,
}

impl From<Stream> for RelayEnd {
    fn from(stream: Stream) -> Self {
        Self { stream, early: Bytes::new(), is_counted: false }
    }
}

/// Relays between the end in the sandbox and the end outside.
pub(crate) async fn between(relays: &Relays, traffic: &Traffic, inside: RelayEnd, outside: RelayEnd) {
    let RelayEnd { stream: inside, early, is_counted } = inside;
    let RelayEnd { stream: outside, early: answer, is_counted: is_answer_counted } = outside;
    // Set before anything else, for every end of the relay, even a crash of the process: an incomplete stream
    // must end with a reset.
    inside.resets(true);
    outside.resets(true);
    let sent = watch::Sender::new(false);
    let ended = {
        let up = OneWay { relays, traffic, direction: Direction::Up, from: &inside, to: &outside };
        let down = OneWay { relays, traffic, direction: Direction::Down, from: &outside, to: &inside };
        let pass_up = async {
            up.pass(early, is_counted).await?;
            sent.send_replace(true);
            Ok(())
        };
        // The end inside waits for an answer, or it is dead; the socket does not tell. Bytes that it sent may
        // still be unread.
        let half_open_time = relays.idle_time.map_or(HALF_OPEN, |idle| HALF_OPEN.min(idle));
        let half_open = traffic.silent(half_open_time, || sys::has_hung_up(inside.as_fd().as_raw_fd()));
        let idle = async {
            match relays.idle_time {
                Some(idle) => traffic.idle(idle).await,
                None => pending().await,
            }
        };
        // When the command has ended, nobody receives anything more.
        let closed = async {
            relays.over().await;
            let _ = sent.subscribe().wait_for(|is_sent| *is_sent).await;
        };
        tokio::select! {
            ended = async { tokio::try_join!(pass_up, down.pass(answer, is_answer_counted)).map(drop) } => ended,
            () = idle => Err(io::ErrorKind::TimedOut.into()),
            () = half_open => Err(io::ErrorKind::TimedOut.into()),
            () = closed => Ok(()),
        }
    };
    match ended {
        Ok(()) => {
            inside.resets(false);
            outside.resets(false);
        }
        Err(error) => tracing::debug!(%error, "relay"),
    }
}

/// One direction of a relay.
struct OneWay<'r> {
    relays: &'r Relays,
    traffic: &'r Traffic,
    direction: Direction,
    from: &'r Stream,
    to: &'r Stream,
}

/// The result of one copy.
struct Chunk {
    /// The number of bytes read; 0 at the end of the stream.
    count: usize,
    /// The bytes that could not be written at once.
    rest: Vec<u8>,
    /// When to continue, under a rate limit.
    until: Option<Instant>,
}

/// Why one way of moving bytes stopped.
#[derive(PartialEq, Eq)]
enum Flow {
    Ended,
    /// Enough data for splice(2).
    Bulk,
    /// Too little data for a pipe.
    Little,
}

impl OneWay<'_> {
    /// Moves all bytes, `early` first, until the end of the stream.
    async fn pass(&self, early: Bytes, is_counted: bool) -> io::Result<()> {
        let until = if is_counted { None } else { self.count(early.len())? };
        self.write(&early).await?;
        self.wait(until).await;
        while self.copy().await? != Flow::Ended {
            // Without a spare pipe it continues to copy.
            if let Ok(_room) = self.relays.spare.try_acquire()
                && let Ok(pipe) = sys::splicing_pipe(SPLICED)
                && self.splice(pipe).await? == Flow::Ended
            {
                break;
            }
        }
        self.to.end();
        Ok(())
    }

    /// Copies until the end of the stream, or until a read fills the buffer.
    async fn copy(&self) -> io::Result<Flow> {
        loop {
            self.from.readable().await?;
            let Some(Chunk { count, rest, until }) = self.copy_once()? else { continue };
            if count == 0 {
                return Ok(Flow::Ended);
            }
            self.write(&rest).await?;
            self.wait(until).await;
            if count == CHUNK {
                return Ok(Flow::Bulk);
            }
        }
    }

    /// Copies once, without waiting. `None` if nothing is readable.
    fn copy_once(&self) -> io::Result<Option<Chunk>> {
        BUFFER.with_borrow_mut(|buffer| {
            let room = self.room().min(buffer.len());
            let buffer = buffer.get_mut(..room).unwrap_or_default();
            let Some(count) = none_if_not_ready(self.from.try_read(buffer))? else { return Ok(None) };
            let read = buffer.get(..count).unwrap_or_default();
            if count == 0 {
                return Ok(Some(Chunk { count, rest: Vec::new(), until: None }));
            }
            let until = self.count(count)?;
            let written = none_if_not_ready(self.to.try_write(read))?.unwrap_or(0);
            let rest = read.get(written..).unwrap_or_default().to_vec();
            Ok(Some(Chunk { count, rest, until }))
        })
    }

    /// How much to read: at most what the byte limit allows, but one byte at least, to see whether more
    /// arrives.
    fn room(&self) -> usize {
        self.relays.meter.room().max(1)
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.to.writable().await?;
            if let Some(written) = none_if_not_ready(self.to.try_write(bytes))? {
                bytes = bytes.get(written..).unwrap_or_default();
                self.mark_active();
            }
        }
        Ok(())
    }

    /// Moves pages through a pipe, until the end of the stream or until there is little data.
    async fn splice(&self, SplicingPipe { out, into }: SplicingPipe) -> io::Result<Flow> {
        let mut little = 0;
        while little < MAX_SMALL {
            // Other connections may need the pipe.
            let Ok(is_readable) = timeout(PIPE_IDLE, self.from.readable()).await else { break };
            is_readable?;
            let most = self.room().min(SPLICED);
            // The pipe is empty here, so `EAGAIN` is about the stream.
            let taken = self.from.try_io(Interest::READABLE, || sys::splice_once(self.from, &into, most));
            let Some(count) = none_if_not_ready(taken)? else { continue };
            if count == 0 {
                return Ok(Flow::Ended);
            }
            let until = self.count(count)?;
            let mut rest = count;
            while rest > 0 {
                self.to.writable().await?;
                let given = self.to.try_io(Interest::WRITABLE, || sys::splice_once(&out, self.to, rest));
                rest -= none_if_not_ready(given)?.unwrap_or(0);
                self.mark_active();
            }
            self.wait(until).await;
            little = if count < CHUNK / 4 { little + 1 } else { 0 };
        }
        Ok(Flow::Little)
    }

    /// Bytes are counted when they are read. While they are being written, the connection is not idle.
    fn mark_active(&self) {
        self.traffic.add(self.direction, 0);
    }

    async fn wait(&self, until: Option<Instant>) {
        if let Some(until) = until {
            sleep_until(until).await;
            self.mark_active();
        }
    }

    /// Counts bytes that are about to pass. Returns when to continue, under a rate limit.
    ///
    /// # Errors
    /// `QuotaExceeded`: the byte limit is used up.
    fn count(&self, bytes: usize) -> io::Result<Option<Instant>> {
        self.traffic.add(self.direction, bytes);
        self.relays.meter.count(bytes).ok_or_else(|| io::ErrorKind::QuotaExceeded.into())
    }
}

/// `EAGAIN` as `None`.
fn none_if_not_ready(answer: io::Result<usize>) -> io::Result<Option<usize>> {
    match answer {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        answer => answer.map(Some),
    }
}
