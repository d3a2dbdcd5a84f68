//! Refusals: why the proxy does not connect, in words that a person or a model can act on.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use hyper::StatusCode;
use tokio::time::Instant;

use crate::policy::destination::{Destination, Host, Malformed};
use crate::report::denial::{Basis, Denial, NOT_LISTED, ONLY_LOOKED_UP, advice};
use crate::report::enforcement::Protection;
use crate::report::failure::Class;
use crate::sys::locked;

/// What a program should know that asks the proxy for its own loopback.
const OWN_SERVER: &str = " (a server in the sandbox is reached without the proxy, see no_proxy)";

/// Why a connection is refused or has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The allow list does not have it.
    NotAllowed,
    /// The DNS stub does not answer: the name is allowed, but only at ports without a transparent listener.
    NotServed,
    /// This rule of the deny list has it.
    Denied(String),
    /// All of its addresses are outside the public internet: one of them, and the name of its range.
    AddressBlocked(IpAddr, &'static str),
    /// The destination or the request is malformed.
    Malformed(&'static str),
    /// The proxy does not support the method.
    Method(&'static str),
    /// The byte limit of the sandbox is used up.
    Limit,
    /// The policy requires an audit record, and the log cannot be written.
    Unrecorded,
    /// The destination cannot be reached.
    Unreachable(String),
    /// The destination took too long.
    Timeout(&'static str),
}

/// A connection, query or request that the proxy does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProxyRefusal {
    pub(crate) subject: String,
    pub(crate) destination: Option<Destination>,
    pub(crate) reason: Reason,
}

impl ProxyRefusal {
    pub(crate) fn of(destination: &Destination, reason: Reason) -> Self {
        Self { subject: destination.to_string(), destination: Some(destination.clone()), reason }
    }

    pub(crate) fn malformed(subject: &str, malformed: &Malformed) -> Self {
        Self::request(subject, Reason::Malformed(malformed.0))
    }

    /// For a request without a valid destination.
    pub(crate) fn request(subject: &str, reason: Reason) -> Self {
        let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
        let subject: String = subject.chars().map(plain).take(300).collect();
        let subject = if subject.is_empty() { "no destination".to_owned() } else { subject };
        Self { subject, destination: None, reason }
    }

    /// The word for programs: the value of `x-kennel-deny`, and `reason` in the audit log.
    pub(crate) fn word(&self) -> &'static str {
        match self.reason {
            Reason::NotAllowed => "not-allowed",
            Reason::NotServed => "not-served",
            Reason::Denied(_) => "denied",
            Reason::AddressBlocked(..) => "address-blocked",
            Reason::Malformed(_) => "malformed",
            Reason::Method(_) => "method",
            Reason::Limit => "limit",
            Reason::Unrecorded => "unrecorded",
            Reason::Unreachable(_) => "unreachable",
            Reason::Timeout(_) => "timeout",
        }
    }

    /// The HTTP status code.
    pub(crate) fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Malformed(_) => StatusCode::BAD_REQUEST,
            Reason::NotAllowed | Reason::NotServed | Reason::Denied(_) | Reason::AddressBlocked(..) => {
                StatusCode::FORBIDDEN
            }
            Reason::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Reason::Limit => StatusCode::TOO_MANY_REQUESTS,
            Reason::Unrecorded => StatusCode::SERVICE_UNAVAILABLE,
            Reason::Unreachable(_) => StatusCode::BAD_GATEWAY,
            Reason::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// The failure class in reports.
    pub(crate) fn class(&self) -> Class {
        match self.reason {
            Reason::NotAllowed
            | Reason::NotServed
            | Reason::Denied(_)
            | Reason::AddressBlocked(..)
            | Reason::Malformed(_)
            | Reason::Method(_) => Class::CapabilityDenied,
            Reason::Limit => Class::ResourceLimitExceeded,
            Reason::Unrecorded => Class::RuntimeError,
            Reason::Unreachable(_) => Class::NetworkUnreachable,
            Reason::Timeout(_) => Class::NetworkError,
        }
    }

    /// Whether the policy refused it. `false` for errors of the network.
    pub(crate) fn is_denial(&self) -> bool {
        !matches!(self.reason, Reason::Unreachable(_) | Reason::Timeout(_))
    }

    /// The flag that would allow it, if one would.
    pub(crate) fn flag(&self) -> Option<String> {
        match (&self.reason, &self.destination) {
            (Reason::NotAllowed, Some(_)) => Some(format!("--allow {}", self.subject)),
            // Only the name was looked up.
            (Reason::NotAllowed, None) => Some(format!("--allow {}:PORT", self.subject)),
            (Reason::AddressBlocked(address, _), Some(Destination { host: Host::Name(_), .. })) => {
                Some(format!("--allow-address {address}"))
            }
            (Reason::AddressBlocked(..), Some(destination)) => Some(format!("--allow {destination}")),
            _ => None,
        }
    }

    /// The reason and the remedy, for a [`Denial`].
    pub(crate) fn advice(&self) -> String {
        match (&self.reason, self.flag()) {
            (Reason::Denied(rule), _) => format!("{self}; remove --deny {rule} to allow it"),
            (Reason::NotAllowed, Some(flag)) if self.destination.is_none() => {
                advice(self.to_string(), Some(&flag), "would allow it") + ONLY_LOOKED_UP
            }
            (_, flag) => advice(self.to_string(), flag.as_deref(), "would allow it"),
        }
    }
}

impl fmt::Display for ProxyRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::NotAllowed => {
                f.write_str(NOT_LISTED)?;
                match &self.destination {
                    Some(destination) if destination.host.is_loopback() => f.write_str(OWN_SERVER),
                    _ => Ok(()),
                }
            }
            Reason::NotServed => f.write_str(
                "allowed, but only through the proxy variables: programs without proxy support can reach ports below 1024 only",
            ),
            Reason::Denied(rule) => write!(f, "rule {rule} of the deny list refuses it"),
            Reason::AddressBlocked(address, range) => {
                write!(f, "resolves to {address}, which is not a public address ({range})")
            }
            Reason::Malformed(why) | Reason::Method(why) => f.write_str(why),
            Reason::Limit => {
                f.write_str("the byte limit of the sandbox is used up (network.limits.bytes)")
            }
            Reason::Unrecorded => f.write_str("the audit log cannot be written, and the policy requires it"),
            Reason::Unreachable(why) => write!(f, "it cannot be reached: {why}"),
            Reason::Timeout(what) => write!(f, "{what} took too long"),
        }
    }
}

// Recent denials for the outcomes of commands. Their number is bounded: a command that causes a million sees
// only the last ones.

/// How many different denials are kept.
const MAX_KEPT: usize = 100;

/// The rate limit of refusals: one each 20 ms on average, and 250 at once.
const INTERVAL: Duration = Duration::from_millis(20);
const BURST: u32 = 250;

/// How long a flood of refusals has an effect.
const MAX_BACKLOG: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Denials {
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// The number of all denials so far.
    count: u64,
    /// Different denials, each with the number of its last occurrence.
    recent: VecDeque<(u64, Denial)>,
    /// When the next refusal is due.
    due: Option<Instant>,
}

impl Log {
    fn delay(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let due = self.due.unwrap_or(now).max(now) + INTERVAL;
        // The effect of a flood is bounded.
        self.due = Some(due.min(now + MAX_BACKLOG));
        // A burst passes without delay: a build may ask a dozen mirrors.
        (due > now + INTERVAL * BURST).then(|| due - INTERVAL * BURST)
    }
}

impl Denials {
    /// Keeps a denial. Returns when the client may get its answer, if that is later.
    pub(crate) fn add(&self, refusal: &ProxyRefusal) -> Option<Instant> {
        if !refusal.is_denial() {
            return self.lock().delay();
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
        if log.recent.len() == MAX_KEPT {
            log.recent.pop_front();
        }
        let count = log.count;
        log.recent.push_back((count, denial));
        log.delay()
    }

    /// Whether the next refusal would be delayed.
    pub(crate) fn is_flooded(&self) -> bool {
        let now = Instant::now();
        self.lock().due.is_some_and(|due| due + INTERVAL > now + INTERVAL * BURST)
    }

    /// The current position, for `since`.
    pub(crate) fn position(&self) -> u64 {
        self.lock().count
    }

    /// The denials after that position.
    pub(crate) fn since(&self, position: u64) -> Vec<Denial> {
        let log = self.lock();
        log.recent.iter().filter(|(count, _)| *count > position).map(|(_, denial)| denial.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        locked(&self.log)
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;
    use super::*;

    fn refusal(name: &str) -> ProxyRefusal {
        ProxyRefusal::request(name, Reason::NotAllowed)
    }

    #[tokio::test]
    async fn each_point_in_time_sees_what_came_after_it_once() {
        let denials = Denials::default();
        let first = denials.position();
        denials.add(&refusal("a.example"));
        let second = denials.position();
        denials.add(&refusal("b.example"));
        denials.add(&refusal("b.example"));
        let subjects =
            |position| denials.since(position).into_iter().map(|denial| denial.subject).collect::<Vec<_>>();
        assert_eq!(subjects(first), ["a.example", "b.example"]);
        assert_eq!(subjects(second), ["b.example"]);
        denials.add(&refusal("a.example"));
        assert_eq!(subjects(second), ["b.example", "a.example"], "again is also after");
        assert!(subjects(denials.position()).is_empty());
    }

    #[tokio::test]
    async fn who_is_refused_a_thousand_times_waits_and_is_forgotten() {
        let denials = Denials::default();
        let waits: Vec<_> = (0..1000).map(|n| denials.add(&refusal(&format!("n{n}.example")))).collect();
        assert!(waits[..usize::try_from(BURST).expect("small")].iter().all(Option::is_none));
        let last = waits.last().copied().flatten().expect("a wait");
        assert!(last > Instant::now() + INTERVAL * 700, "each takes its time");
        let kept = denials.since(0);
        assert_eq!((kept.len(), &*kept[MAX_KEPT - 1].subject), (MAX_KEPT, "n999.example"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_over_a_minute_after_it() {
        let denials = Denials::default();
        for _ in 0..100_000 {
            denials.add(&refusal("a.example"));
        }
        assert!(denials.is_flooded());
        tokio::time::advance(MAX_BACKLOG).await;
        assert!(!denials.is_flooded());
    }

    #[tokio::test]
    async fn what_the_network_refuses_is_no_denial() {
        let denials = Denials::default();
        let destination = crate::policy::destination::Destination::parse("a.example:1").expect("valid");
        for reason in [Reason::Unreachable("x".into()), Reason::Timeout("x")] {
            denials.add(&ProxyRefusal::of(&destination, reason));
        }
        assert!(denials.since(0).is_empty());
        denials.add(&ProxyRefusal::of(&destination, Reason::Limit));
        assert_eq!(denials.since(0).len(), 1);
    }
}
