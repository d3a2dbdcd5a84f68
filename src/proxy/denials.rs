//! What was refused lately, for the outcomes of commands. Bounded: whoever asks for a million names learns of the last.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use super::refusal::Refusal;
use crate::{Basis, Denial, Protection, locked::locked};

/// How many different ones are remembered.
const MOST: usize = 100;

/// How much time each takes, and how many may come at once.
const EACH: Duration = Duration::from_millis(20);
const AT_ONCE: u32 = 250;

/// How far the last of them may be due ahead.
const LONGEST: Duration = Duration::from_secs(60);

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
        // Who floods it is not to be waited for longer than that.
        self.due = Some(due.min(now + LONGEST));
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
        let denial = Denial {
            protection: Protection::Proxy,
            subject: refusal.subject.clone(),
            reason,
            basis: Basis::Observed,
            remedy: refusal.flag(),
        };
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

    /// Whether the next would have to wait.
    pub(super) fn is_too_much(&self) -> bool {
        let now = Instant::now();
        self.lock().due.is_some_and(|due| due + EACH > now + EACH * AT_ONCE)
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
        locked(&self.log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::refusal::Reason;

    fn refusal(name: &str) -> Refusal {
        Refusal::request(name, Reason::NotAllowed)
    }

    #[tokio::test]
    async fn each_point_in_time_sees_what_came_after_it_once() {
        let denials = Denials::default();
        let first = denials.now();
        denials.add(&refusal("a.example"));
        let second = denials.now();
        denials.add(&refusal("b.example"));
        denials.add(&refusal("b.example"));
        let subjects =
            |point| denials.since(point).into_iter().map(|denial| denial.subject).collect::<Vec<_>>();
        assert_eq!(subjects(first), ["a.example", "b.example"]);
        assert_eq!(subjects(second), ["b.example"]);
        denials.add(&refusal("a.example"));
        assert_eq!(subjects(second), ["b.example", "a.example"], "again is also after");
        assert!(subjects(denials.now()).is_empty());
    }

    #[tokio::test]
    async fn who_is_refused_a_thousand_times_waits_and_is_forgotten() {
        let denials = Denials::default();
        let waits: Vec<_> = (0..1000).map(|n| denials.add(&refusal(&format!("n{n}.example")))).collect();
        assert!(waits[..usize::try_from(AT_ONCE).expect("small")].iter().all(Option::is_none));
        let last = waits.last().copied().flatten().expect("a wait");
        assert!(last > Instant::now() + EACH * 700, "each takes its time");
        let kept = denials.since(0);
        assert_eq!((kept.len(), &*kept[MOST - 1].subject), (MOST, "n999.example"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_over_a_minute_after_it() {
        let denials = Denials::default();
        for _ in 0..100_000 {
            denials.add(&refusal("a.example"));
        }
        assert!(denials.is_too_much());
        tokio::time::advance(LONGEST).await;
        assert!(!denials.is_too_much());
    }

    #[tokio::test]
    async fn what_the_network_refuses_is_no_denial() {
        let denials = Denials::default();
        let destination = crate::proxy::destination::Destination::parse("a.example:1").expect("valid");
        for reason in [Reason::Unreachable("x".into()), Reason::Timeout("x")] {
            denials.add(&Refusal::of(&destination, reason));
        }
        assert!(denials.since(0).is_empty());
        denials.add(&Refusal::of(&destination, Reason::Limit));
        assert_eq!(denials.since(0).len(), 1);
    }
}
