//! What was refused lately, for the outcomes of commands. Bounded: whoever asks for a million names learns of the last.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::refusal::Refusal;
use crate::{Denial, Protection};

/// How many different ones are remembered.
const MOST: usize = 100;

/// How much time each takes, and how many may come at once.
const EACH: Duration = Duration::from_millis(20);
const AT_ONCE: u32 = 250;

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
    /// When the next is due.
    due: Option<Instant>,
}

impl Log {
    fn wait(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let due = self.due.unwrap_or(now).max(now) + EACH;
        self.due = Some(due);
        // Many at once are let pass, such as a build that asks a dozen mirrors.
        (due > now + EACH * AT_ONCE).then(|| due - EACH * AT_ONCE)
    }
}

impl Denials {
    /// Remembers one; answers until when to wait with the answer.
    pub(super) fn add(&self, refusal: &Refusal) -> Option<Instant> {
        if !refusal.is_denial() {
            return self.lock().wait();
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
        log.wait()
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
