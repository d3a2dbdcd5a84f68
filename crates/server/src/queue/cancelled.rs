//! Jobs that nobody wants any more: a bucket with their ids, which every worker watches. One that has not
//! begun is not run, and one that runs is killed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_nats::jetstream::kv::Store;
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::queue::places::Places;
use crate::queue::{AGAIN, Trouble, Worker};

/// How long an id is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// Up to how many ids old ones are not looked for.
const MANY: usize = 10_000;

#[derive(Default)]
pub(crate) struct Cancelled(watch::Sender<Ids>);

#[derive(Default)]
struct Ids {
    /// Each with the time when it was cancelled.
    since: HashMap<String, SystemTime>,
    /// How many there were once the old ones were forgotten.
    cleaned: usize,
}

impl Ids {
    fn add(&mut self, id: String, since: SystemTime) {
        // Only once they have doubled, so that each id costs the same.
        if self.since.len() >= MANY.max(2 * self.cleaned) {
            let oldest = SystemTime::now() - REMEMBERED;
            self.since.retain(|_, since| *since > oldest);
            self.cleaned = self.since.len();
        }
        self.since.insert(id, since);
    }
}

impl Cancelled {
    fn add(&self, id: String, since: SystemTime) {
        self.0.send_modify(|ids| ids.add(id, since));
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.0.borrow().since.contains_key(id)
    }

    /// Waits until it is cancelled.
    pub(crate) async fn wait(&self, id: &str) {
        // The sender is here as long as this waits.
        let _ = self.0.subscribe().wait_for(|ids| ids.since.contains_key(id)).await;
    }

    /// Takes those that are there, and those that come, until NATS is gone.
    async fn watch(&self, bucket: &Store) -> Result<(), Trouble> {
        let mut entries = bucket.watch_with_history(">").await?;
        while let Some(entry) = entries.next().await {
            let entry = entry?;
            self.add(entry.key, entry.created.into());
        }
        Ok(())
    }
}

impl Worker {
    /// Learns of cancelled jobs, for ever.
    pub(crate) async fn watch_cancelled(self: Arc<Self>, places: Arc<Places>) {
        loop {
            // After a failure, it begins with those that are there.
            let _ = self.cancelled.watch(&places.cancelled).await;
            sleep(AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_ids_are_forgotten_by_the_time_of_their_cancelling() {
        let mut ids = Ids::default();
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        ids.add("a-day-old".into(), now - REMEMBERED - hour);
        for number in 1..MANY {
            ids.add(format!("{number}"), now - hour);
        }
        assert!(ids.since.contains_key("a-day-old"));
        ids.add("one-more".into(), now);
        assert!(!ids.since.contains_key("a-day-old") && ids.since.len() == MANY);
        // The next time is at twice as many.
        assert_eq!(ids.cleaned, MANY - 1);
        for number in 0..MANY - 3 {
            ids.add(format!("old-{number}"), now - 2 * REMEMBERED);
        }
        assert_eq!(ids.since.len(), 2 * MANY - 3);
        ids.add("the-last".into(), now);
        ids.add("cleans".into(), now);
        assert_eq!(ids.since.len(), MANY + 2);
    }

    #[tokio::test]
    async fn who_waits_hears_of_it() {
        let cancelled = Arc::new(Cancelled::default());
        let waits = tokio::spawn({
            let cancelled = Arc::clone(&cancelled);
            async move { cancelled.wait("a").await }
        });
        cancelled.add("b".into(), SystemTime::now());
        tokio::task::yield_now().await;
        assert!(!waits.is_finished() && cancelled.has("b"));
        cancelled.add("a".into(), SystemTime::now());
        waits.await.expect("it waits no more");
    }
}
