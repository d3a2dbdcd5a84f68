//! What a command wrote, beside what became of it.

use std::ops::Deref;

use super::Outcome;

/// The outcome of a command whose output was collected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// How it ended.
    pub outcome: Outcome,
    /// What it wrote to stdout, with a marker at the end where the cap cut it.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr, likewise.
    pub stderr: Vec<u8>,
}

impl Deref for Output {
    type Target = Outcome;

    fn deref(&self) -> &Outcome {
        &self.outcome
    }
}
