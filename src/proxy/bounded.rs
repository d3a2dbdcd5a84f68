//! A stream of which only so much may be read, for as long as somebody waits for the head of an answer: an endless one
//! would keep us busy without end.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use super::counted::{Count, Counted};

/// What is left to read.
#[derive(Clone, Default)]
pub(super) struct Allowance(Arc<AtomicUsize>);

impl Allowance {
    /// So many bytes from now on.
    pub(super) fn grant(&self, bytes: usize) {
        self.0.store(bytes, Relaxed);
    }

    /// As many as there are from now on.
    pub(super) fn lift(&self) {
        self.grant(usize::MAX);
    }
}

impl Count for Allowance {
    fn read(&self, bytes: usize) -> io::Result<()> {
        let left = self.0.load(Relaxed);
        if left == usize::MAX {
            return Ok(());
        }
        let rest = left.checked_sub(bytes);
        let rest = rest
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the head of its answer has no end"));
        self.grant(rest?);
        Ok(())
    }
}

/// A stream of which no more may be read than is left.
pub(super) type Bounded<T> = Counted<T, Allowance>;
