//! Jobs that nobody tells about any more. After its last delivery, JetStream leaves a message in the stream,
//! and counts it nowhere; after a crash, messages that were acknowledged may be there again. Every worker
//! looks for them: when NATS says so, at the start, after a new connection, and from time to time. Twice is
//! as good as once.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::{LastRawMessageErrorKind, RawMessageErrorKind};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::queue::attempts;
use crate::queue::jobs::{id_of, notify_of, publish_again};
use crate::queue::places::{CONSUMER, Places, subject};
use crate::queue::results::{Kind, Outcome, Parcel, Settle, line_of, settle};
use crate::queue::{AGAIN, Trouble, Worker};

/// The pause between two looks.
const LOOK: Duration = Duration::from_secs(30);

/// How long an acknowledgement may be under way.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// The most messages of one look.
const MOST: usize = 1000;

/// What NATS says when a message was delivered too often.
#[derive(Deserialize)]
struct Advisory {
    stream_seq: u64,
}

impl Worker {
    /// Looks after lost jobs, for ever.
    pub(crate) async fn watch_lost(self: Arc<Self>, places: Arc<Places>) {
        loop {
            // If the connection ends, there is a new one.
            let _ = self.watch_advisories(&places).await;
            sleep(AGAIN).await;
        }
    }

    async fn watch_advisories(&self, places: &Places) -> Result<(), Trouble> {
        let prefix = &self.nats.prefix;
        let advisories = format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{prefix}-jobs.{CONSUMER}");
        let mut advisories = self.client.queue_subscribe(advisories, format!("{prefix}-janitors")).await?;
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let connected = self.connected.notified();
            tokio::select! {
                advisory = advisories.next() => {
                    let Some(advisory) = advisory else { return Ok(()) };
                    if let Ok(advisory) = serde_json::from_slice::<Advisory>(&advisory.payload) {
                        // What fails now is found by a look.
                        let _ = self.bury(places, advisory.stream_seq, true).await;
                    }
                }
                _ = looks.tick() => drop(self.look_for_lost(places).await),
                () = connected => drop(self.look_for_lost(places).await),
            }
        }
    }

    /// Finds messages that the consumer has passed, and that are there all the same.
    async fn look_for_lost(&self, places: &Places) -> Result<(), Trouble> {
        let info = places.stream.consumer_info(CONSUMER).await?;
        // What is given up moves no floor. If nothing is under way, all that was delivered is passed.
        let passed = if info.num_ack_pending == 0 { info.delivered } else { info.ack_floor };
        let floor = passed.stream_sequence;
        let (mut next, mut lost) = (1, Vec::new());
        let subject = subject(&self.nats.prefix);
        while next <= floor && lost.len() < MOST {
            let found = places.stream.raw_message_builder().sequence(next).next_by_subject(&subject);
            let sequence = match found.send().await {
                Ok(message) => message.sequence,
                Err(error) if is_missing(error.kind()) => break,
                Err(error) => return Err(error.into()),
            };
            if sequence > floor {
                break;
            }
            lost.push(sequence);
            next = sequence + 1;
        }
        if !lost.is_empty() {
            sleep(UNDER_WAY).await;
        }
        for sequence in lost {
            self.bury(places, sequence, false).await?;
        }
        Ok(())
    }

    /// Takes a message out of the stream that is delivered no more. If its job has no outcome, it is dead
    /// after as many deliveries as there are, and published once more otherwise.
    async fn bury(&self, places: &Places, sequence: u64, is_exceeded: bool) -> Result<(), Trouble> {
        let message = match places.stream.get_raw_message(sequence).await {
            Ok(message) => message,
            Err(error) if is_missing(error.kind()) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let id = id_of(&message.headers).unwrap_or_else(|| format!("sequence-{sequence}"));
        let value = places.results.get(&id).await?;
        if let Some(outcome) = value.as_deref().and_then(line_of) {
            if outcome.outcome == Kind::Dead && places.dead.get(&id).await?.is_none() {
                places.dead.put(&id, value.unwrap_or_default()).await?;
            }
            settle(places, &Settle::Remove(sequence), outcome.outcome).await;
            return Ok(());
        }
        let history = attempts::of_job(&places.attempts, &id).await?;
        let deliveries = places.deliveries();
        if !is_exceeded && history.iter().all(|attempt| attempt.delivery < deliveries) {
            let (headers, payload) = (&message.headers, message.payload);
            publish_again(&places.context, &self.nats.prefix, sequence, headers, payload).await?;
            settle(places, &Settle::Remove(sequence), Kind::Done).await;
            return Ok(());
        }
        let last = history.iter().rev().find_map(|attempt| attempt.error.as_deref());
        let why = last.map_or_else(
            || format!("it was delivered {deliveries} times, and no worker has told what became of it"),
            ToOwned::to_owned,
        );
        let outcome = Outcome::dead(&id, deliveries, self.front.worker_name(), &why, history);
        let notify = notify_of(&message.headers, &self.nats.prefix);
        let settle = Settle::Remove(sequence);
        let parcel = Parcel { outcome, settle, notify, contents: message.payload };
        self.store(places, &parcel).await
    }
}

fn is_missing(kind: RawMessageErrorKind) -> bool {
    kind == LastRawMessageErrorKind::NoMessageFound
}
