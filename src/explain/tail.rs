//! The end of what a command writes to stderr, kept beside whoever reads it.

use std::collections::VecDeque;

use super::Judge;
use crate::{Denial, audit::Late};

/// That many bytes are kept: a command says last what it ends for.
const SIZE: usize = 64 << 10;

/// The last bytes of a stream, and who can read them.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
    judge: Judge,
    late: Late,
}

impl Tail {
    pub(crate) fn new(judge: Judge, late: Late) -> Self {
        Self { bytes: VecDeque::new(), judge, late }
    }

    /// Takes in what was read.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(bytes.len().saturating_sub(SIZE)..).unwrap_or_default();
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(SIZE);
        self.bytes.drain(..surplus);
        self.bytes.extend(bytes);
    }

    /// What the errors in it are about.
    pub(crate) fn denials(&self) -> Vec<Denial> {
        let (front, back) = self.bytes.as_slices();
        self.judge.denials(&[front, back].concat())
    }

    /// Writes down what was found.
    pub(crate) fn record(&self, denials: &[Denial]) {
        self.late.denied(denials);
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }
}
