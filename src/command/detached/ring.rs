//! What a detached command wrote last: stdout and stderr in the order in which they arrived, up to a size.

use std::collections::VecDeque;

/// Bytes that a ring takes, with what tells the streams apart.
pub(crate) const CAPACITY: usize = 1 << 20;

/// Most bytes of one piece.
const PIECE: usize = 8 << 10;

/// Bytes that a run takes besides its output.
const RUN: usize = size_of::<Run>();

/// An output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

/// A part of what a detached command wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogPiece {
    /// Bytes of stdout.
    Stdout(Vec<u8>),
    /// Bytes of stderr.
    Stderr(Vec<u8>),
    /// That many bytes of both came here, and are not kept any more.
    Dropped(u64),
}

/// Bytes of one stream that arrived without bytes of the other in between.
#[derive(Clone, Copy, Debug)]
struct Run {
    stream: OutputStream,
    /// The position after its last byte.
    end: u64,
}

/// The last bytes of both streams. A position counts all bytes that ever arrived before it.
#[derive(Debug)]
pub(crate) struct Ring {
    capacity: usize,
    bytes: VecDeque<u8>,
    runs: VecDeque<Run>,
    /// The position after the last byte.
    end: u64,
}

impl Ring {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, bytes: VecDeque::new(), runs: VecDeque::new(), end: 0 }
    }

    /// The position after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The position of the first byte that is kept.
    fn start(&self) -> u64 {
        self.end - self.bytes.len() as u64
    }

    /// Adds bytes and drops the oldest ones.
    pub(crate) fn append(&mut self, stream: OutputStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let kept = bytes.get(bytes.len().saturating_sub(self.capacity - RUN)..).unwrap_or_default();
        self.make_room(kept.len() + RUN);
        self.end += bytes.len() as u64;
        self.bytes.extend(kept);
        match self.runs.back_mut() {
            Some(run) if run.stream == stream => run.end = self.end,
            _ => self.runs.push_back(Run { stream, end: self.end }),
        }
    }

    /// Drops the oldest bytes until `room` is free.
    fn make_room(&mut self, room: usize) {
        while let Some(run) = self.runs.front().copied() {
            let used = self.bytes.len() + self.runs.len() * RUN;
            let surplus = (used + room).saturating_sub(self.capacity);
            if surplus == 0 {
                return;
            }
            let of_run = usize::try_from(run.end - self.start()).unwrap_or(usize::MAX);
            self.bytes.drain(..surplus.min(of_run));
            if surplus >= of_run {
                self.runs.pop_front();
            }
        }
    }

    /// Gives back memory that later output would have needed.
    pub(crate) fn close(&mut self) {
        self.bytes.shrink_to_fit();
        self.runs.shrink_to_fit();
    }

    /// What follows `position`, and the position after it; `None` if nothing does.
    pub(crate) fn read(&self, position: u64) -> Option<(LogPiece, u64)> {
        let start = self.start();
        if position < start {
            return Some((LogPiece::Dropped(start - position), start));
        }
        let run = self.runs.get(self.runs.partition_point(|run| run.end <= position))?;
        let first = usize::try_from(position - start).ok()?;
        let count = usize::try_from(run.end - position).unwrap_or(PIECE).min(PIECE);
        let piece = self.bytes.iter().skip(first).take(count).copied().collect();
        let piece = match run.stream {
            OutputStream::Stdout => LogPiece::Stdout(piece),
            OutputStream::Stderr => LogPiece::Stderr(piece),
        };
        Some((piece, position + count as u64))
    }

    /// The position of the last `lines` lines of both streams; 0 if there are fewer.
    pub(crate) fn tail(&self, lines: u64) -> u64 {
        let mut left = lines;
        if left == 0 {
            return self.end;
        }
        // The newline that ends the last line begins none.
        for (behind, _) in self.bytes.iter().rev().enumerate().skip(1).filter(|(_, byte)| **byte == b'\n') {
            left -= 1;
            if left == 0 {
                return self.end - behind as u64;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ring: &Ring, mut position: u64) -> Vec<LogPiece> {
        let mut pieces = Vec::new();
        while let Some((piece, next)) = ring.read(position) {
            assert!(next > position);
            pieces.push(piece);
            position = next;
        }
        assert_eq!(position, ring.end().max(position));
        pieces
    }

    #[test]
    fn streams_come_out_apart_and_in_the_order_of_arrival() {
        let mut ring = Ring::new(1000);
        ring.append(OutputStream::Stdout, b"one ");
        ring.append(OutputStream::Stdout, b"two");
        ring.append(OutputStream::Stderr, b"three");
        ring.append(OutputStream::Stderr, b"");
        ring.append(OutputStream::Stdout, b"four");
        let expected = [
            LogPiece::Stdout(b"one two".to_vec()),
            LogPiece::Stderr(b"three".to_vec()),
            LogPiece::Stdout(b"four".to_vec()),
        ];
        assert_eq!(all(&ring, 0), expected);
        assert_eq!(all(&ring, 9), [LogPiece::Stderr(b"ree".to_vec()), LogPiece::Stdout(b"four".to_vec())]);
        assert_eq!(all(&ring, ring.end()), []);
    }

    #[test]
    fn oldest_bytes_are_dropped_and_counted() {
        let mut ring = Ring::new(100 + RUN);
        ring.append(OutputStream::Stdout, &[b'a'; 80]);
        ring.append(OutputStream::Stdout, &[b'b'; 80]);
        let pieces = all(&ring, 0);
        let [LogPiece::Dropped(dropped), LogPiece::Stdout(kept)] = pieces.as_slice() else {
            panic!("{pieces:?}")
        };
        assert_eq!(*dropped + kept.len() as u64, 160);
        assert!(kept.ends_with(&[b'b'; 80]));
        ring.append(OutputStream::Stderr, &[b'c'; 5000]);
        let pieces = all(&ring, 0);
        let [LogPiece::Dropped(dropped), LogPiece::Stderr(kept)] = pieces.as_slice() else {
            panic!("{pieces:?}")
        };
        assert_eq!((*dropped, kept.len()), (5060, 100));
    }

    /// Each change of the stream costs memory too.
    #[test]
    fn no_pattern_of_writes_takes_more_than_the_capacity() {
        let mut ring = Ring::new(4096);
        let mut written = 0u64;
        for round in 0..20_000usize {
            let stream = if round % 2 == 0 { OutputStream::Stdout } else { OutputStream::Stderr };
            let count = if round % 997 == 0 { 5000 } else { round % 3 };
            ring.append(stream, &vec![b'x'; count]);
            written += count as u64;
            assert!(ring.bytes.len() + ring.runs.len() * RUN <= 4096);
        }
        let count = |piece: &LogPiece| match piece {
            LogPiece::Stdout(bytes) | LogPiece::Stderr(bytes) => bytes.len() as u64,
            LogPiece::Dropped(count) => *count,
        };
        assert_eq!(all(&ring, 0).iter().map(count).sum::<u64>(), written);
    }

    #[test]
    fn tail_counts_lines_of_both_streams() {
        let mut ring = Ring::new(1000);
        ring.append(OutputStream::Stdout, b"one\ntwo\n");
        ring.append(OutputStream::Stderr, b"three\n");
        assert_eq!([0, 1, 2, 3, 4].map(|lines| ring.tail(lines)), [14, 8, 4, 0, 0]);
        ring.append(OutputStream::Stdout, b"unfinished");
        assert_eq!([1, 2].map(|lines| ring.tail(lines)), [14, 8]);
    }
}
