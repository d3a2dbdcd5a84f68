//! stdin, watched: its end stops the calls that still run, and a message that is too long is reported.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::report;

/// The longest line that is read. A longer one is skipped.
pub(super) const LONGEST_MESSAGE: usize = 16 << 20;

/// How long calls may still finish after the end of stdin, so that a script can pipe its requests in.
const LAST_CALLS: Duration = Duration::from_secs(1);

/// Reads on and watches.
pub(super) struct Watched<R> {
    inner: R,
    /// Cancelled a moment after the end.
    ended: CancellationToken,
    is_over: bool,
    /// Bytes of the line that is being read.
    line: usize,
}

impl<R> Watched<R> {
    pub(super) fn new(inner: R, ended: CancellationToken) -> Self {
        Self { inner, ended, is_over: false, line: 0 }
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            let ended = self.ended.clone();
            tokio::spawn(async move {
                sleep(LAST_CALLS).await;
                ended.cancel();
            });
        }
    }

    fn count(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let before = self.line;
            self.line += piece.len();
            if before <= LONGEST_MESSAGE && self.line > LONGEST_MESSAGE {
                report::say(
                    "kennel: mcp: skipped a message of more than 16 MiB; the call in it gets no answer",
                );
            }
            if piece.ends_with(b"\n") {
                self.line = 0;
            }
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Watched<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.inner).poll_read(cx, buffer));
        let new = buffer.filled().get(before..).unwrap_or_default();
        if read.is_err() || new.is_empty() {
            self.end();
        }
        self.count(new);
        Poll::Ready(read)
    }
}
