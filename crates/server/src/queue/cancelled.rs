//! Jobs that nobody wants any more: a bucket with their ids, which every worker watches. One that has not
//! begun is not run, and one that runs is killed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream::kv::Store;
use futures_util::StreamExt;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::queue::{AGAIN, Trouble, Worker};

/// How long an id is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// From how many ids on old ones are forgotten.
const MANY: usize = 10_000;

#[derive(Default)]
pub(crate) struct Cancelled {
    ids: Mutex<HashMap<String, Instant>>,
    comes: Notify,
}

impl Cancelled {
    fn add(&self, id: String) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.len() >= MANY {
            ids.retain(|_, since| since.elapsed() < REMEMBERED);
        }
        ids.insert(id, Instant::now());
        drop(ids);
        self.comes.notify_waiters();
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }

    /// Waits until it is cancelled.
    pub(crate) async fn wait(&self, id: &str) {
        loop {
            let comes = self.comes.notified();
            tokio::pin!(comes);
            // From here on nothing is missed.
            comes.as_mut().enable();
            if self.has(id) {
                return;
            }
            comes.await;
        }
    }

    /// Takes those that are there, and those that come, until NATS is gone.
    async fn watch(&self, bucket: &Store) -> Result<(), Trouble> {
        let mut entries = bucket.watch_with_history(">").await?;
        while let Some(entry) = entries.next().await {
            self.add(entry?.key);
        }
        Ok(())
    }
}

impl Worker {
    /// Learns of cancelled jobs, for ever.
    pub(crate) async fn watch_cancelled(self: Arc<Self>) {
        let Some(places) = self.places().await else { return };
        loop {
            // After a failure, it begins with those that are there.
            let _ = self.cancelled.watch(&places.cancelled).await;
            sleep(AGAIN).await;
        }
    }
}
