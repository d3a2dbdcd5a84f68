//! The last bytes that a command writes to stderr or to its terminal, in which Kennel looks for errors.

use std::collections::VecDeque;

use crate::audit::trail::DenialLog;
use crate::command::explain::Judge;
use crate::report::denial::Denial;

/// How many bytes a [`Tail`] keeps: a command writes the reason of its end last.
const TAIL_SIZE: usize = 64 << 10;

/// The last bytes of stderr, and what explains errors in them.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
    judge: Judge,
    late: DenialLog,
}

impl Tail {
    pub(crate) fn new(judge: Judge, late: DenialLog) -> Self {
        Self { bytes: VecDeque::new(), judge, late }
    }

    /// Adds bytes and drops the oldest ones.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(bytes.len().saturating_sub(TAIL_SIZE)..).unwrap_or_default();
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(TAIL_SIZE);
        self.bytes.drain(..surplus);
        self.bytes.extend(bytes);
    }

    /// The errors in these bytes that the sandbox caused.
    pub(crate) fn denials(&self) -> Vec<Denial> {
        let (front, back) = self.bytes.as_slices();
        self.judge.denials(&[front, back].concat())
    }

    /// Writes denials to the audit log.
    pub(crate) fn record(&self, denials: &[Denial]) {
        self.late.record(denials);
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }
}
