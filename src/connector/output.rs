//! The standard streams of a program: input from memory, and output into memory up to a cap.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::{io, mem};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::sys::locked;

/// Bytes kept of stdout. A program that writes more has failed.
pub(crate) const STDOUT_MAX: usize = 1 << 20;
/// Bytes kept of stderr: its last ones, for messages.
const STDERR_MAX: usize = 256;

/// What is kept if there is more than the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    First,
    Last,
}

/// A stream of a program. It takes everything, so a program never waits.
#[derive(Clone)]
pub(crate) struct Captured(Arc<Mutex<Content>>);

struct Content {
    bytes: Vec<u8>,
    cap: usize,
    keep: Keep,
    is_cut: bool,
}

impl Captured {
    pub(crate) fn stdout() -> Self {
        Self::new(STDOUT_MAX, Keep::First)
    }

    pub(crate) fn stderr() -> Self {
        Self::new(STDERR_MAX, Keep::Last)
    }

    fn new(cap: usize, keep: Keep) -> Self {
        Self(Arc::new(Mutex::new(Content { bytes: Vec::new(), cap, keep, is_cut: false })))
    }

    /// What was kept, and whether there was more.
    pub(crate) fn take(&self) -> (Vec<u8>, bool) {
        let content = &mut *locked(&self.0);
        let mut bytes = mem::take(&mut content.bytes);
        let excess = bytes.len().saturating_sub(content.cap);
        bytes.drain(..excess);
        (bytes, content.is_cut || excess > 0)
    }

    fn add(&self, bytes: &[u8]) {
        let content = &mut *locked(&self.0);
        let kept = match content.keep {
            Keep::First => bytes.get(..content.cap - content.bytes.len()).unwrap_or(bytes),
            Keep::Last => &bytes[bytes.len().saturating_sub(content.cap)..],
        };
        content.is_cut |= kept.len() < bytes.len();
        content.bytes.extend_from_slice(kept);
        // Rarely, because the rest moves each time.
        if content.bytes.len() > content.cap * 2 {
            let excess = content.bytes.len() - content.cap;
            content.bytes.drain(..excess);
            content.is_cut = true;
        }
    }
}

impl IsTerminal for Captured {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Captured {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Captured {
    async fn ready(&mut self) {}
}

impl OutputStream for Captured {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.add(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(STDOUT_MAX)
    }
}

impl AsyncWrite for Captured {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.add(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdout_keeps_its_first_bytes_and_stderr_its_last() {
        let of = |keep| {
            let stream = Captured::new(4, keep);
            ["ab", "cde", "", "fghijklmnop", "q"].iter().for_each(|text| stream.add(text.as_bytes()));
            stream.take()
        };
        assert_eq!(of(Keep::First), (b"abcd".to_vec(), true));
        assert_eq!(of(Keep::Last), (b"nopq".to_vec(), true));
        let stream = Captured::new(4, Keep::Last);
        stream.add(b"abcd");
        assert_eq!(stream.take(), (b"abcd".to_vec(), false));
    }
}
