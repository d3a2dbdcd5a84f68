//! Numbers for Prometheus. Labels are names of templates and reasons, never ids.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::wire::failure::Reason;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTemplate {
    template: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    reason: &'static str,
}

/// From half a millisecond to eight seconds.
const BUCKETS: [f64; 15] =
    [0.0005, 0.001, 0.002, 0.003, 0.005, 0.008, 0.012, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 8.0];

#[cfg(feature = "nats")]
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    outcome: &'static str,
}

type Durations = Family<OfTemplate, Histogram, fn() -> Histogram>;

/// What the front counts.
pub(crate) struct Metrics {
    registry: Registry,
    creations: Durations,
    commands: Durations,
    refused: Family<OfReason, Counter<u64, AtomicU64>>,
    ended: Family<OfReason, Counter<u64, AtomicU64>>,
    running: Gauge,
    room: Gauge,
    waiting: Gauge,
    #[cfg(feature = "nats")]
    jobs: Jobs,
}

/// What is counted of jobs from a queue.
#[cfg(feature = "nats")]
#[derive(Default)]
struct Jobs {
    outcomes: Family<OfOutcome, Counter<u64, AtomicU64>>,
    repeated: Counter<u64, AtomicU64>,
    kept: Gauge,
}

#[cfg(feature = "nats")]
impl Jobs {
    fn register(registry: &mut Registry) -> Self {
        let jobs = Self::default();
        registry.register("jobs", "Jobs from the queue, by what became of them here", jobs.outcomes.clone());
        registry.register("jobs_repeated", "Runs of jobs that may have run before", jobs.repeated.clone());
        registry.register("results_kept", "Results that wait until NATS can be reached", jobs.kept.clone());
        jobs
    }
}

impl Metrics {
    pub(crate) fn new() -> Arc<Self> {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let mut registry = Registry::with_prefix("kennel_server");
        let creations = Durations::new_with_constructor(histogram);
        let commands = Durations::new_with_constructor(histogram);
        let (refused, ended) = (Family::default(), Family::default());
        let (running, room, waiting) = (Gauge::default(), Gauge::default(), Gauge::default());
        registry.register("creation_seconds", "Time from a request to its sandbox", creations.clone());
        registry.register(
            "command_seconds",
            "Time from a request to the end of its command",
            commands.clone(),
        );
        registry.register("refused", "Creations that were refused", refused.clone());
        registry.register("ended", "Sandboxes that have ended", ended.clone());
        registry.register("running", "Sandboxes that run", running.clone());
        registry.register("room", "Sandboxes that could still run", room.clone());
        registry.register("waiting", "Creations that wait", waiting.clone());
        #[cfg(feature = "nats")]
        let jobs = Jobs::register(&mut registry);
        Arc::new(Self {
            registry,
            creations,
            commands,
            refused,
            ended,
            running,
            room,
            waiting,
            #[cfg(feature = "nats")]
            jobs,
        })
    }

    #[cfg(feature = "nats")]
    pub(crate) fn job(&self, outcome: &'static str) {
        self.jobs.outcomes.get_or_create(&OfOutcome { outcome }).inc();
    }

    #[cfg(feature = "nats")]
    pub(crate) fn job_repeated(&self) {
        self.jobs.repeated.inc();
    }

    #[cfg(feature = "nats")]
    pub(crate) fn results_kept(&self, count: usize) {
        self.jobs.kept.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn created(&self, template: &str, time: Duration) {
        self.creations.get_or_create(&of(template)).observe(time.as_secs_f64());
    }

    pub(crate) fn command(&self, template: &str, time: Duration) {
        self.commands.get_or_create(&of(template)).observe(time.as_secs_f64());
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&OfReason { reason }).inc();
    }

    pub(crate) fn ended(&self, reason: Reason) {
        self.ended.get_or_create(&OfReason { reason: reason.as_str() }).inc();
    }

    /// The text of Prometheus, with these numbers as of now.
    pub(crate) fn text(&self, running: usize, most: usize, waiting: usize) -> String {
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        self.running.set(number(running));
        self.room.set(number(most.saturating_sub(running)));
        self.waiting.set(number(waiting));
        let mut text = String::new();
        // A String takes all of it.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn of(template: &str) -> OfTemplate {
    OfTemplate { template: template.to_owned() }
}
