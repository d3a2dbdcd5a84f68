//! What was refused lately, for the outcomes of commands. Bounded: whoever asks for a million names learns of the last.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::refusal::Refusal;
use crate::{Denial, Protection};

/// How many different ones are remembered.
const MOST: usize = 100;

#[derive(Default)]
pub(super) struct Denials {
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// How many there were.
    count: u64,
    /// Different ones, with the number of the last of its kind.
    recent: VecDeque<(u64, Denial)>,
}

impl Denials {
    pub(super) fn add(&self, refusal: &Refusal) {
        if !refusal.is_denial() {
            return;
        }
        let reason = refusal.advice();
        tracing::info!(subject = refusal.subject, reason, "denied");
        let denial = Denial { protection: Protection::Proxy, subject: refusal.subject.clone(), reason };
        let mut log = self.lock();
        log.count += 1;
        log.recent.retain(|(_, other)| *other != denial);
        if log.recent.len() == MOST {
            log.recent.pop_front();
        }
        let count = log.count;
        log.recent.push_back((count, denial));
    }

    /// A point in time.
    pub(super) fn now(&self) -> u64 {
        self.lock().count
    }

    /// What was refused after that point.
    pub(super) fn since(&self, point: u64) -> Vec<Denial> {
        let log = self.lock();
        log.recent.iter().filter(|(count, _)| *count > point).map(|(_, denial)| denial.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
