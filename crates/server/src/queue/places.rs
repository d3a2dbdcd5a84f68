//! Where things are in NATS: the stream of jobs with its one consumer, buckets, and large bodies. Workers
//! make what is missing. It needs no more than nats-server 2.9 has.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::kv::Store;
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{self, Context};

use crate::config::nats::Nats;
use crate::queue::Trouble;
use crate::queue::objects::Objects;

/// The consumer that all workers share.
pub(crate) const CONSUMER: &str = "workers";

/// How much longer than results letters of dead jobs and large bodies are kept.
const LONGER: u32 = 7;

/// Requests for jobs that wait at once: one for each worker that has room.
const MOST_WAITING: i64 = 16_384;

/// All of them.
pub(crate) struct Places {
    pub(crate) context: Context,
    /// A work queue: what is acknowledged is removed.
    pub(crate) stream: Stream,
    pub(crate) consumer: PullConsumer,
    /// By the id of the job: its one outcome.
    pub(crate) results: Store,
    /// By the id of the job: why nobody could run it.
    pub(crate) dead: Store,
    /// By the id of the job: who has tried it.
    pub(crate) attempts: Store,
    /// The ids of jobs that nobody wants any more.
    pub(crate) cancelled: Store,
    /// What is too large for a message.
    pub(crate) bodies: Objects,
}

/// The subject of jobs.
pub(crate) fn subject(prefix: &str) -> String {
    format!("{prefix}.jobs")
}

impl Places {
    /// Finds them, and makes those that are missing.
    pub(crate) async fn open(client: &Client, nats: &Nats) -> Result<Self, Trouble> {
        let context = jetstream::new(client.clone());
        let prefix = &nats.prefix;
        let stream = context
            .get_or_create_stream(stream::Config {
                name: format!("{prefix}-jobs"),
                subjects: vec![subject(prefix)],
                retention: RetentionPolicy::WorkQueue,
                storage: StorageType::File,
                allow_direct: true,
                ..stream::Config::default()
            })
            .await?;
        let consumer = stream
            .get_or_create_consumer(
                CONSUMER,
                pull::Config {
                    durable_name: Some(CONSUMER.to_owned()),
                    ack_policy: AckPolicy::Explicit,
                    ack_wait: nats.ack_wait,
                    max_deliver: nats.deliveries,
                    // What workers pull is limited by their room.
                    max_ack_pending: -1,
                    max_waiting: MOST_WAITING,
                    ..pull::Config::default()
                },
            )
            .await?;
        let longer = nats.keep.saturating_mul(LONGER);
        Ok(Self {
            bodies: Objects::open(&context, format!("{prefix}-bodies"), longer).await?,
            results: bucket(&context, prefix, "results", nats.keep).await?,
            dead: bucket(&context, prefix, "dead", longer).await?,
            attempts: bucket(&context, prefix, "attempts", longer).await?,
            cancelled: bucket(&context, prefix, "cancelled", longer).await?,
            context,
            stream,
            consumer,
        })
    }

    /// How often a job is delivered at most.
    pub(crate) fn deliveries(&self) -> i64 {
        self.consumer.cached_info().config.max_deliver
    }

    /// How long a worker may be silent about a job.
    pub(crate) fn ack_wait(&self) -> Duration {
        self.consumer.cached_info().config.ack_wait
    }
}

/// A key-value bucket. The call that makes one asks for numbers that a server of 2.9 does not tell, so its
/// stream is made by hand, as ADR-8 of NATS has it.
async fn bucket(context: &Context, prefix: &str, name: &str, keep: Duration) -> Result<Store, Trouble> {
    let name = format!("{prefix}-{name}");
    context
        .get_or_create_stream(stream::Config {
            name: format!("KV_{name}"),
            subjects: vec![format!("$KV.{name}.>")],
            max_messages_per_subject: 1,
            max_age: keep,
            discard: DiscardPolicy::New,
            storage: StorageType::File,
            allow_rollup: true,
            deny_delete: true,
            allow_direct: true,
            ..stream::Config::default()
        })
        .await?;
    Ok(context.get_key_value(name).await?)
}
