//! The last bytes that a command writes to stderr or to its terminal, in which Kennel looks for errors.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::explain::context::ExplainContext;
use crate::process::output::Tail;
use crate::report::outcome::Outcome;

/// How many bytes a [`ErrorTail`] keeps: a command writes the reason of its end last.
const TAIL_SIZE: usize = 64 << 10;

/// The last bytes of stderr, and what explains errors in them.
#[derive(Debug)]
pub(crate) struct ErrorTail {
    bytes: VecDeque<u8>,
    context: Arc<ExplainContext>,
}

impl ErrorTail {
    pub(crate) fn new(context: Arc<ExplainContext>) -> Self {
        Self { bytes: VecDeque::new(), context }
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }
}

impl Tail for ErrorTail {
    fn add(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(bytes.len().saturating_sub(TAIL_SIZE)..).unwrap_or_default();
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(TAIL_SIZE);
        self.bytes.drain(..surplus);
        self.bytes.extend(bytes);
    }

    fn explain(&self, outcome: &mut Outcome) {
        let (front, back) = self.bytes.as_slices();
        self.context.add_of_errors(outcome, &[front, back].concat());
    }
}
