//! Numbers of a router for Prometheus. Labels are kinds, reasons and states, never ids.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::route::workers::State;
use crate::wire::room::Room;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

/// What the router counts.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<OfKind, Counter<u64, AtomicU64>>,
    refused: Family<OfReason, Counter<u64, AtomicU64>>,
    retried: Counter<u64, AtomicU64>,
    workers: Family<OfState, Gauge>,
    running: Gauge,
    room: Gauge,
    waiting: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("kennel_router");
        let (requests, refused, workers) = (Family::default(), Family::default(), Family::default());
        let (running, room, waiting) = (Gauge::default(), Gauge::default(), Gauge::default());
        let retried = Counter::default();
        registry.register("requests", "Requests that were passed on", requests.clone());
        registry.register("refused", "Requests that were refused here", refused.clone());
        registry.register("retried", "Creations that were passed on once more", retried.clone());
        registry.register("workers", "Workers", workers.clone());
        registry.register("running", "Sandboxes that run", running.clone());
        registry.register("room", "Sandboxes that could still run", room.clone());
        registry.register("waiting", "Creations that wait at workers", waiting.clone());
        Self { registry, requests, refused, retried, workers, running, room, waiting }
    }

    pub(crate) fn passed(&self, kind: &'static str) {
        self.requests.get_or_create(&OfKind { kind }).inc();
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&OfReason { reason }).inc();
    }

    pub(crate) fn retried(&self) {
        self.retried.inc();
    }

    /// The text of Prometheus, with these rooms, and so many workers of each state.
    pub(crate) fn text(&self, rooms: &[Room], counts: [(State, usize); 3]) -> String {
        for (state, count) in counts {
            self.workers.get_or_create(&OfState { state: state.as_str() }).set(number(count));
        }
        let sum = |of: fn(&Room) -> usize| number(rooms.iter().map(of).fold(0, usize::saturating_add));
        self.room.set(sum(|room| if room.draining { 0 } else { room.room }));
        self.running.set(sum(|room| room.running));
        self.waiting.set(sum(|room| room.waiting));
        let mut text = String::new();
        // A String takes all of it.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
