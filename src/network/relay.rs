//! Bytes in both directions, until both have ended or nothing passes any more. A direction that ends is told to the other
//! side, and the other direction goes on.
//!
//! An idle connection has no buffer: each thread has one, used between two waits. A stream of much is moved by
//! splice(2), which passes pages on instead of copying them.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use bytes::Bytes;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe2;
use tokio::io::Interest;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::network::dial::Dialled;
use crate::network::meter::{Heading, Tally};
use crate::network::proxy::Proxy;
use crate::network::stream::Stream;
use crate::sys;

/// How long a connection may be silent whose client has ended its side: a command that is gone looks so too, and must not
/// keep others from theirs.
pub(crate) const HALF_OPEN: Duration = Duration::from_secs(60);

/// What is copied at once.
const CHUNK: usize = 64 << 10;

/// What is moved at once.
const SPLICED: usize = 1 << 20;

/// So many small moves in a row, and the pipe goes.
const PATIENCE: u32 = 16;

/// How long a pipe is kept that nothing comes through.
const PAUSE: Duration = Duration::from_secs(1);

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// Relays between a client and what was dialled for it; `early` is what the client sent already.
pub(crate) async fn relay(proxy: &Proxy, client: Stream, early: Bytes, dialled: Dialled) {
    let Dialled { stream: server, early: answer, passage } = dialled;
    let tally = &passage.tally;
    let idle = proxy.gate.settings().limits.idle_time;
    // Whatever ends this, also the end of the whole process: what broke off must not look complete.
    client.resets(true);
    server.resets(true);
    let sent = watch::Sender::new(false);
    let ended = {
        let up = Direction { proxy, tally, heading: Heading::Up, from: &client, to: &server };
        let down = Direction { proxy, tally, heading: Heading::Down, from: &server, to: &client };
        let pass_up = async {
            up.pass(early).await?;
            sent.send_replace(true);
            Ok(())
        };
        // It has said all that it had to say, or it is gone: nobody can tell. What it said may not all have been taken.
        let half_open = tally.silent(HALF_OPEN.min(idle), || sys::has_hung_up(client.as_fd().as_raw_fd()));
        // Nobody is left to receive anything then.
        let closed = async {
            proxy.closing().await;
            let _ = sent.subscribe().wait_for(|is_sent| *is_sent).await;
        };
        tokio::select! {
            ended = async { tokio::try_join!(pass_up, down.pass(answer)).map(drop) } => ended,
            () = tally.idle(idle) => Err(io::ErrorKind::TimedOut.into()),
            () = half_open => Err(io::ErrorKind::TimedOut.into()),
            () = closed => Ok(()),
        }
    };
    match ended {
        Ok(()) => {
            client.resets(false);
            server.resets(false);
        }
        Err(error) => tracing::debug!(%error, "relay"),
    }
}

/// One way.
struct Direction<'r> {
    proxy: &'r Proxy,
    tally: &'r Tally,
    heading: Heading,
    from: &'r Stream,
    to: &'r Stream,
}

/// What was moved at once.
struct Chunk {
    /// How much was read; nothing at the end.
    count: usize,
    /// What of it could not be written at once.
    rest: Vec<u8>,
    /// Until when to wait before there is more.
    until: Option<Instant>,
}

/// Whether a direction has come to its end.
#[derive(PartialEq, Eq)]
enum Flow {
    Ended,
    /// There is so much that it pays to move it without copying.
    Bulk,
    /// There is so little that a pipe is not worth its descriptors.
    Little,
}

impl Direction<'_> {
    /// Passes everything, `early` first, to the end.
    async fn pass(&self, early: Bytes) -> io::Result<()> {
        let until = self.count(early.len())?;
        self.write(&early).await?;
        self.wait(until).await;
        while self.copy().await? != Flow::Ended {
            // Who has no room for a pipe goes on copying.
            if let Ok(_room) = self.proxy.spare.try_acquire()
                && let Ok(pipe) = pipe()
                && self.splice(pipe).await? == Flow::Ended
            {
                break;
            }
        }
        self.to.end();
        Ok(())
    }

    /// Copies, until the end or until there is a lot.
    async fn copy(&self) -> io::Result<Flow> {
        loop {
            self.from.readable().await?;
            let Some(Chunk { count, rest, until }) = self.chunk()? else { continue };
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

    /// Moves what there is to move.
    fn chunk(&self) -> io::Result<Option<Chunk>> {
        BUFFER.with_borrow_mut(|buffer| {
            let room = self.room().min(buffer.len());
            let buffer = buffer.get_mut(..room).unwrap_or_default();
            let Some(count) = ready(self.from.try_read(buffer))? else { return Ok(None) };
            let read = buffer.get(..count).unwrap_or_default();
            if count == 0 {
                return Ok(Some(Chunk { count, rest: Vec::new(), until: None }));
            }
            let until = self.count(count)?;
            let written = ready(self.to.try_write(read))?.unwrap_or(0);
            let rest = read.get(written..).unwrap_or_default().to_vec();
            Ok(Some(Chunk { count, rest, until }))
        })
    }

    /// How much may be read: no more than may pass, and one byte where nothing may, which tells whether there is any.
    fn room(&self) -> usize {
        self.proxy.meter.room().max(1)
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.to.writable().await?;
            if let Some(written) = ready(self.to.try_write(bytes))? {
                bytes = bytes.get(written..).unwrap_or_default();
                self.goes_on();
            }
        }
        Ok(())
    }

    /// Moves pages through a pipe, until the end or until there is little.
    async fn splice(&self, (out, into): (OwnedFd, OwnedFd)) -> io::Result<Flow> {
        let mut little = 0;
        while little < PATIENCE {
            // Others may want the room for a pipe.
            let Ok(is_readable) = timeout(PAUSE, self.from.readable()).await else { break };
            is_readable?;
            let most = self.room().min(SPLICED);
            // The pipe is empty here, so it is the stream that is not ready.
            let taken = self.from.try_io(Interest::READABLE, || moved(self.from, &into, most));
            let Some(count) = ready(taken)? else { continue };
            if count == 0 {
                return Ok(Flow::Ended);
            }
            let until = self.count(count)?;
            let mut rest = count;
            while rest > 0 {
                self.to.writable().await?;
                let given = self.to.try_io(Interest::WRITABLE, || moved(&out, self.to, rest));
                rest -= ready(given)?.unwrap_or(0);
                self.goes_on();
            }
            self.wait(until).await;
            little = if count < CHUNK / 4 { little + 1 } else { 0 };
        }
        Ok(Flow::Little)
    }

    /// What was counted when it was read is on its way still.
    fn goes_on(&self) {
        self.tally.add(self.heading, 0);
    }

    async fn wait(&self, until: Option<Instant>) {
        if let Some(until) = until {
            sleep_until(until).await;
            self.goes_on();
        }
    }

    /// Counts what is about to pass; answers until when to wait then.
    ///
    /// # Errors
    /// So much may not pass.
    fn count(&self, bytes: usize) -> io::Result<Option<Instant>> {
        self.tally.add(self.heading, bytes);
        self.proxy.meter.count(bytes).ok_or_else(|| io::ErrorKind::QuotaExceeded.into())
    }
}

/// A pipe with as much room as it may have.
fn pipe() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (out, into) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let size = i32::try_from(SPLICED).unwrap_or(i32::MAX);
    // A user has only so much room in all pipes together: then it has the usual size.
    let _ = fcntl(&into, FcntlArg::F_SETPIPE_SZ(size));
    Ok((out, into))
}

/// splice(2): at most `count` bytes, without waiting.
fn moved(from: impl AsFd, to: impl AsFd, count: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    Ok(splice(from, None, to, None, count, flags)?)
}

/// What is not ready is no error.
fn ready(answer: io::Result<usize>) -> io::Result<Option<usize>> {
    match answer {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        answer => answer.map(Some),
    }
}
