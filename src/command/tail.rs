//! The last bytes that a command writes to stderr or to its terminal, in which Kennel looks for errors.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::audit::trail::DenialLog;
use crate::explain::context::Judge;
use crate::explain::hints::HintSource;
use crate::report::denial::Denial;
use crate::report::enforcement::Protection;
use crate::report::outcome::Outcome;

/// How many bytes a [`Tail`] keeps: a command writes the reason of its end last.
const TAIL_SIZE: usize = 64 << 10;

/// The last bytes of stderr, and what explains errors in them.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
    judge: Judge,
    /// Errors become hints, and no denials.
    hints: Option<Arc<HintSource>>,
    late: DenialLog,
}

impl Tail {
    pub(crate) fn new(judge: Judge, late: DenialLog) -> Self {
        Self { bytes: VecDeque::new(), judge, hints: None, late }
    }

    /// Makes hints of errors.
    pub(crate) fn for_hints(hints: &Arc<HintSource>, late: DenialLog) -> Self {
        Self { hints: Some(Arc::clone(hints)), ..Self::new(hints.judge.clone(), late) }
    }

    /// Adds bytes and drops the oldest ones.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(bytes.len().saturating_sub(TAIL_SIZE)..).unwrap_or_default();
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(TAIL_SIZE);
        self.bytes.drain(..surplus);
        self.bytes.extend(bytes);
    }

    /// Adds what the errors in these bytes tell: denials, or hints. Of a command that succeeded only errors
    /// at protected paths count as denials: git goes on if it cannot write its configuration.
    pub(crate) fn explain(&self, outcome: &mut Outcome) {
        if let Some(hints) = &self.hints {
            return hints.add_of_errors(outcome, || self.denials());
        }
        let mut explained = self.denials();
        let counts =
            |denial: &Denial| !outcome.status.success() || denial.protection == Protection::ProtectedPaths;
        explained.retain(|denial| counts(denial) && !outcome.denials.contains(denial));
        self.late.record(&explained);
        outcome.denials.extend(explained);
    }

    /// The errors in these bytes that the sandbox caused.
    fn denials(&self) -> Vec<Denial> {
        let (front, back) = self.bytes.as_slices();
        self.judge.denials(&[front, back].concat())
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }
}
