//! Bytes in both directions, until both have ended or nothing passes any more. A direction that ends is told to the other
//! side, and the other direction goes on.
//!
//! An idle connection has no buffer: each thread has one, used between two waits.

use std::{cell::RefCell, io};

use bytes::Bytes;
use tokio::time::sleep_until;

use super::{
    Proxy,
    dial::Dialled,
    meter::{Heading, Tally},
    stream::Stream,
};

/// What is moved at once.
const CHUNK: usize = 64 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// Relays between a client and what was dialled for it; `early` is what the client sent already.
pub(super) async fn relay(proxy: &Proxy, client: Stream, early: Bytes, dialled: Dialled) {
    let Dialled { stream: server, early: answer, record } = dialled;
    let tally = &record.tally;
    let idle = proxy.gate.settings().limits.idle_time;
    let ended = {
        let up = Direction { proxy, tally, heading: Heading::Up, from: &client, to: &server };
        let down = Direction { proxy, tally, heading: Heading::Down, from: &server, to: &client };
        let both = async { tokio::try_join!(up.pass(early), down.pass(answer)).map(drop) };
        tokio::select! {
            ended = both => ended,
            () = tally.idle(idle) => Err(io::ErrorKind::TimedOut.into()),
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "relay");
        // What broke off must not look complete.
        client.reset();
        server.reset();
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

impl Direction<'_> {
    /// Passes everything, `early` first, to the end.
    async fn pass(&self, early: Bytes) -> io::Result<()> {
        self.write(&early).await?;
        self.count(early.len()).await?;
        loop {
            self.from.readable().await?;
            let Some((count, rest)) = self.chunk()? else { continue };
            if count == 0 {
                self.to.end();
                return Ok(());
            }
            self.write(&rest).await?;
            self.count(count).await?;
        }
    }

    /// Moves what there is to move: how much was read, and what of it could not be written at once.
    fn chunk(&self) -> io::Result<Option<(usize, Vec<u8>)>> {
        BUFFER.with_borrow_mut(|buffer| {
            let Some(count) = ready(self.from.try_read(buffer))? else { return Ok(None) };
            let read = buffer.get(..count).unwrap_or_default();
            let written = if count == 0 { 0 } else { ready(self.to.try_write(read))?.unwrap_or(0) };
            Ok(Some((count, read.get(written..).unwrap_or_default().to_vec())))
        })
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.to.writable().await?;
            if let Some(written) = ready(self.to.try_write(bytes))? {
                bytes = bytes.get(written..).unwrap_or_default();
            }
        }
        Ok(())
    }

    async fn count(&self, bytes: usize) -> io::Result<()> {
        self.tally.add(self.heading, bytes);
        match self.proxy.meter.count(bytes) {
            None => Err(io::ErrorKind::QuotaExceeded.into()),
            Some(None) => Ok(()),
            Some(Some(until)) => {
                sleep_until(until).await;
                Ok(())
            }
        }
    }
}

/// What is not ready is no error.
fn ready(answer: io::Result<usize>) -> io::Result<Option<usize>> {
    match answer {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        answer => answer.map(Some),
    }
}
