//! Writes the numbers of sessions in the text format of Prometheus. The program decides how to serve it.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::session::log::stats::Stats;

type Label = [(&'static str, String); 1];

/// The numbers of `sessions`, each with its name, as OpenMetrics text. For sessions with the same name, it
/// adds up the counts and takes the longest time to make a worker.
///
/// ```
/// # async fn example(session: kennel::Session) {
/// let text = kennel::metrics([("agent-1", session.stats())]);
/// assert!(text.contains("kennel_commands_total{session=\"agent-1\"}"));
/// # }
/// ```
#[must_use]
pub fn metrics<'n>(sessions: impl IntoIterator<Item = (&'n str, Stats)>) -> String {
    let ready = Family::<Label, Gauge>::default();
    let running = Family::<Label, Gauge>::default();
    let background = Family::<Label, Gauge>::default();
    let served = Family::<Label, Counter>::default();
    let refill = Family::<Label, Gauge<f64, AtomicU64>>::default();
    for (name, stats) in sessions {
        let label = [("session", name.to_owned())];
        ready.get_or_create(&label).inc_by(gauge(stats.ready));
        running.get_or_create(&label).inc_by(gauge(stats.running));
        background.get_or_create(&label).inc_by(gauge(stats.background));
        served.get_or_create(&label).inc_by(stats.served);
        let refill = refill.get_or_create(&label);
        refill.set(refill.get().max(stats.refill.as_secs_f64()));
    }
    let mut registry = Registry::with_prefix("kennel");
    registry.register("workers_ready", "Workers that wait for a command", ready);
    registry.register("commands_running", "Commands that run", running);
    registry.register(
        "commands_background",
        "Ended commands that left processes which still run",
        background,
    );
    registry.register("commands", "Commands that have ended", served);
    registry.register_with_unit("refill", "Average time to make a worker", Unit::Seconds, refill);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn has_each_once(text: &str, lines: &[&str]) {
        for line in lines {
            assert_eq!(text.lines().filter(|other| other == line).count(), 1, "{line} in {text}");
        }
    }

    #[test]
    fn every_number_occurs_once_for_each_session() {
        let stats = Stats {
            ready: 2,
            running: 1,
            background: 3,
            served: 40,
            refill: Duration::from_micros(500),
            idle: None,
        };
        let text = metrics([("a", stats), ("b \"quoted\"", stats)]);
        let lines = [
            "kennel_workers_ready{session=\"a\"} 2",
            "kennel_commands_running{session=\"a\"} 1",
            "kennel_commands_background{session=\"a\"} 3",
            "kennel_commands_total{session=\"a\"} 40",
            "kennel_refill_seconds{session=\"a\"} 0.0005",
            "kennel_commands_total{session=\"b \\\"quoted\\\"\"} 40",
        ];
        has_each_once(&text, &lines);
    }

    #[test]
    fn sessions_of_one_name_are_added_up() {
        let slow = Stats {
            ready: 2,
            running: 1,
            background: 1,
            served: 40,
            refill: Duration::from_micros(500),
            idle: None,
        };
        let fast = Stats {
            ready: 1,
            running: 0,
            background: 1,
            served: 2,
            refill: Duration::from_micros(250),
            idle: None,
        };
        let text = metrics([("a", slow), ("a", fast)]);
        let lines = [
            "kennel_workers_ready{session=\"a\"} 3",
            "kennel_commands_running{session=\"a\"} 1",
            "kennel_commands_total{session=\"a\"} 42",
            "kennel_refill_seconds{session=\"a\"} 0.0005",
        ];
        has_each_once(&text, &lines);
    }
}
