//! Why something did not pass, in words that a person or a model can act on. Pure.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use hyper::StatusCode;
use tokio::time::Instant;

use crate::policy::destination::{Destination, Host, Malformed};
use crate::report::denial::{Basis, Denial};
use crate::report::enforcement::Protection;
use crate::report::failure::Class;
use crate::sys::locked;

/// Why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The list does not have it.
    NotAllowed,
    /// A name that was looked up is allowed, but only at ports where programs that know no proxy are not served.
    NotServed,
    /// The deny list has it: that rule.
    Denied(String),
    /// It leads only to addresses that are not of the public internet: one of them, and the name of its range.
    AddressBlocked(IpAddr, &'static str),
    /// It is no destination, or no request.
    Malformed(&'static str),
    /// It is not served.
    Method(&'static str),
    /// The bytes of the sandbox are used up.
    Limit,
    /// It cannot be written down, and must be.
    Unrecorded,
    /// It could not be reached.
    Unreachable(String),
    /// It took too long.
    Timeout(&'static str),
}

/// Something that did not pass.
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

    /// What has no destination.
    pub(crate) fn request(subject: &str, reason: Reason) -> Self {
        let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
        let subject: String = subject.chars().map(plain).take(300).collect();
        let subject = if subject.is_empty() { "no destination".to_owned() } else { subject };
        Self { subject, destination: None, reason }
    }

    /// One word for programs: the value of `x-kennel-deny`, `reason` in the audit log.
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

    /// The status of HTTP for it.
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

    /// What it is for machines.
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

    /// Whether the policy refused it, and not the network.
    pub(crate) fn is_denial(&self) -> bool {
        !matches!(self.reason, Reason::Unreachable(_) | Reason::Timeout(_))
    }

    /// The flag that would let it pass, where one would.
    pub(crate) fn flag(&self) -> Option<String> {
        match (&self.reason, &self.destination) {
            (Reason::NotAllowed, Some(_)) => Some(format!("--allow {}", self.subject)),
            (Reason::NotAllowed, None) => Some(format!("--allow {}:443", self.subject)),
            (Reason::AddressBlocked(address, _), Some(Destination { host: Host::Name(_), .. })) => {
                Some(format!("--allow-address {address}"))
            }
            (Reason::AddressBlocked(..), Some(destination)) => Some(format!("--allow {destination}")),
            _ => None,
        }
    }

    /// Why, and what would let it pass: for a denial, beside its subject.
    pub(crate) fn advice(&self) -> String {
        match (&self.reason, self.flag()) {
            (Reason::Denied(rule), _) => format!("{self}; remove --deny {rule} to allow it"),
            (_, Some(flag)) => format!("{self}; {flag} would allow it"),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for ProxyRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::NotAllowed => f.write_str("not on the list of what is allowed"),
            Reason::NotServed => f.write_str(
                "allowed, but only through the proxy variables: programs without proxy support can reach ports below 1024 only",
            ),
            Reason::Denied(rule) => write!(f, "rule {rule} of the deny list refuses it"),
            Reason::AddressBlocked(address, range) => {
                write!(f, "resolves to {address}, which is not a public address ({range})")
            }
            Reason::Malformed(why) | Reason::Method(why) => f.write_str(why),
            Reason::Limit => {
                f.write_str("the bytes that the sandbox may pass are used up (network.limits.bytes)")
            }
            Reason::Unrecorded => f.write_str("the audit log cannot be written, and the policy says that it must be"),
            Reason::Unreachable(why) => write!(f, "it cannot be reached: {why}"),
            Reason::Timeout(what) => write!(f, "{what} took too long"),
        }
    }
}

// What was refused lately, for the outcomes of commands. Bounded: whoever asks for a million names learns of the last.

/// How many different ones are remembered.
const MOST: usize = 100;

/// How much time each takes, and how many may come at once.
const EACH: Duration = Duration::from_millis(20);
const AT_ONCE: u32 = 250;

/// How far the last of them may be due ahead.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Denials {
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
    pub(crate) fn add(&self, refusal: &ProxyRefusal) -> Option<Instant> {
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
    pub(crate) fn is_too_much(&self) -> bool {
        let now = Instant::now();
        self.lock().due.is_some_and(|due| due + EACH > now + EACH * AT_ONCE)
    }

    /// A point in time.
    pub(crate) fn now(&self) -> u64 {
        self.lock().count
    }

    /// What was refused after that point.
    pub(crate) fn since(&self, point: u64) -> Vec<Denial> {
        let log = self.lock();
        log.recent.iter().filter(|(count, _)| *count > point).map(|(_, denial)| denial.clone()).collect()
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
        let destination = crate::policy::destination::Destination::parse("a.example:1").expect("valid");
        for reason in [Reason::Unreachable("x".into()), Reason::Timeout("x")] {
            denials.add(&ProxyRefusal::of(&destination, reason));
        }
        assert!(denials.since(0).is_empty());
        denials.add(&ProxyRefusal::of(&destination, Reason::Limit));
        assert_eq!(denials.since(0).len(), 1);
    }
}
