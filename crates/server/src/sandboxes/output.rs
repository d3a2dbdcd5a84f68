//! What a command writes, on its way to whoever reads it.
//!
//! While somebody reads, nothing is dropped: the command waits for the slowest reader. While nobody does, the
//! last mebibyte is kept for the next one, who begins where the last one stopped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// Bytes that a reader may be behind before the command waits.
const WINDOW: u64 = 256 << 10;

/// Bytes that are kept while nobody reads.
const KEPT: u64 = 1 << 20;

/// Bytes that a piece takes beside its output, however small it is.
const PIECE: u64 = 64;

/// Which stream of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
    Terminal,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It has a real exit status.
    Exited { code: i32, signal: Option<i32>, message: Option<String> },
    /// Its time was over.
    TimedOut,
    /// Nobody knows how: its sandbox has ended.
    Lost,
}

/// The next thing that a reader gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Data(Stream, Bytes),
    End(End),
}

/// The output of one command. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Output(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<Kept>,
    /// Something new is there.
    written: Notify,
    /// A reader has taken something, or is gone.
    read: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    pieces: VecDeque<(Stream, Bytes)>,
    /// The position of the first byte that is kept. A position counts all bytes before it.
    start: u64,
    /// The position after the last byte.
    end: u64,
    /// Bytes of memory that the pieces take.
    taken: u64,
    /// The first position that no reader has got.
    unread: u64,
    readers: BTreeMap<u64, u64>,
    next_reader: u64,
    ended: Option<End>,
}

impl Kept {
    fn add(&mut self, stream: Stream, bytes: Bytes) {
        self.end += bytes.len() as u64;
        self.taken += bytes.len() as u64 + PIECE;
        self.pieces.push_back((stream, bytes));
    }

    /// Drops what every reader has; or without readers, all but the last bytes.
    fn trim(&mut self) {
        let slowest = self.readers.values().copied().min();
        while let Some((_, piece)) = self.pieces.front() {
            let length = piece.len() as u64;
            let is_read = self.start + length <= slowest.unwrap_or(self.unread);
            if !is_read && (slowest.is_some() || self.taken <= KEPT) {
                return;
            }
            self.start += length;
            self.taken -= length + PIECE;
            self.pieces.pop_front();
        }
    }

    /// The piece at this position, and the position after it.
    fn at(&self, position: u64) -> Option<(Stream, Bytes, u64)> {
        let mut begin = self.start;
        for (stream, piece) in &self.pieces {
            let after = begin + piece.len() as u64;
            if position < after {
                let skipped = usize::try_from(position.saturating_sub(begin)).unwrap_or(0);
                return Some((*stream, piece.slice(skipped..), after));
            }
            begin = after;
        }
        None
    }

    fn is_full(&self) -> bool {
        !self.readers.is_empty() && self.taken >= WINDOW
    }
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what the command wrote.
    pub(crate) fn push(&self, stream: Stream, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let mut kept = self.lock();
        kept.add(stream, bytes);
        kept.trim();
        drop(kept);
        self.0.written.notify_waiters();
    }

    /// Waits until there is room for more.
    pub(crate) async fn room(&self) {
        loop {
            let read = self.0.read.notified();
            if !self.lock().is_full() {
                return;
            }
            read.await;
        }
    }

    /// The command has ended, and has written everything.
    pub(crate) fn close(&self, end: End) {
        self.lock().ended.get_or_insert(end);
        self.0.written.notify_waiters();
    }

    /// Whether there is nothing more to come.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// A reader of what nobody has got yet.
    pub(crate) fn reader(&self) -> Reader {
        let mut kept = self.lock();
        let position = kept.unread.max(kept.start);
        let number = kept.next_reader;
        kept.next_reader += 1;
        kept.readers.insert(number, position);
        drop(kept);
        Reader { output: self.clone(), number }
    }
}

/// Reads an output. Dropping it lets the command go on without it.
#[derive(Debug)]
pub(crate) struct Reader {
    output: Output,
    number: u64,
}

impl Reader {
    /// The next piece. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Piece {
        let shared = Arc::clone(&self.output.0);
        loop {
            let written = shared.written.notified();
            if let Some(piece) = self.take() {
                return piece;
            }
            written.await;
        }
    }

    /// The next piece, if it is there.
    pub(crate) fn take(&mut self) -> Option<Piece> {
        let mut kept = self.output.lock();
        let position = kept.readers.get(&self.number).copied()?;
        let Some((stream, bytes, after)) = kept.at(position) else {
            return kept.ended.clone().map(Piece::End);
        };
        kept.readers.insert(self.number, after);
        kept.unread = kept.unread.max(after);
        kept.trim();
        drop(kept);
        self.output.0.read.notify_waiters();
        Some(Piece::Data(stream, bytes))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut kept = self.output.lock();
        kept.readers.remove(&self.number);
        kept.trim();
        drop(kept);
        self.output.0.read.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn bytes(count: usize) -> Bytes {
        Bytes::from(vec![b'x'; count])
    }

    fn rest(reader: &mut Reader) -> usize {
        let mut sum = 0;
        while let Some(Piece::Data(_, bytes)) = reader.take() {
            sum += bytes.len();
        }
        sum
    }

    #[test]
    fn without_readers_the_last_mebibyte_is_kept() {
        let output = Output::default();
        for _ in 0..300 {
            output.push(Stream::Stdout, bytes(8192));
        }
        let kept = rest(&mut output.reader());
        assert!(((1 << 20) - 20_000..=1 << 20).contains(&kept), "{kept}");
    }

    #[test]
    fn no_pattern_of_writes_takes_more_memory() {
        let output = Output::default();
        for _ in 0..200_000 {
            output.push(Stream::Stdout, bytes(1));
        }
        let pieces = output.lock().pieces.len() as u64;
        assert!(pieces <= KEPT / PIECE, "{pieces}");
        let mut reader = output.reader();
        let _ = reader.take();
        assert!(output.lock().is_full(), "a command of small pieces waits, too");
    }

    #[test]
    fn a_later_reader_begins_where_the_last_one_stopped() {
        let output = Output::default();
        let mut first = output.reader();
        output.push(Stream::Stdout, Bytes::from_static(b"one"));
        output.push(Stream::Stderr, Bytes::from_static(b"two"));
        assert_eq!(first.take(), Some(Piece::Data(Stream::Stdout, Bytes::from_static(b"one"))));
        drop(first);
        let mut second = output.reader();
        assert_eq!(second.take(), Some(Piece::Data(Stream::Stderr, Bytes::from_static(b"two"))));
        assert_eq!(second.take(), None);
        output.close(End::Lost);
        assert_eq!(second.take(), Some(Piece::End(End::Lost)));
        assert_eq!(output.reader().take(), Some(Piece::End(End::Lost)), "everybody is told the end");
    }

    #[tokio::test]
    async fn the_command_waits_for_the_slowest_reader_and_nothing_is_dropped() {
        let output = Output::default();
        let (mut slow, mut quick) = (output.reader(), output.reader());
        let writer = {
            let output = output.clone();
            tokio::spawn(async move {
                for _ in 0..1000 {
                    output.room().await;
                    output.push(Stream::Stdout, bytes(8192));
                }
                output.close(End::TimedOut);
            })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(rest(&mut quick) as u64 <= WINDOW + 8192);
        assert!(!writer.is_finished());
        drop(quick);
        let mut sum = 0;
        while let Piece::Data(_, bytes) = slow.next().await {
            sum += bytes.len();
        }
        assert_eq!(sum, 1000 * 8192);
        writer.await.expect("written");
    }

    #[tokio::test]
    async fn a_reader_that_goes_lets_the_command_go_on() {
        let output = Output::default();
        let reader = output.reader();
        output.push(Stream::Terminal, bytes(1 << 19));
        let waiting = {
            let output = output.clone();
            tokio::spawn(async move { output.room().await })
        };
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waiting.is_finished());
        drop(reader);
        waiting.await.expect("it goes on");
    }
}
