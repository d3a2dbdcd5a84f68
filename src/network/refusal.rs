//! Refusals: why the proxy does not connect, in words that a person or a model can act on.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use std::{fmt, io};

use hyper::StatusCode;
use tokio::time::Instant;

use crate::policy::network::destination::{Destination, DestinationHost, Malformed};
use crate::policy::network::preset::{self, Preset};
use crate::policy::network::settings::AllowListOwner;
use crate::report::denial::{ADD_TO_MANIFEST, Basis, Denial, NOT_LISTED, ONLY_LOOKED_UP, WOULD_ALLOW};
use crate::report::enforcement::Protection;
use crate::report::failure;
use crate::report::failure::Class;
use crate::report::network_failure::{NetworkCause, NetworkFailure};
use crate::report::remedy::{Remedy, Setting, SettingKey, remedy};
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
    /// The destination cannot be reached: why, and the same in words.
    Unreachable(NetworkCause, String),
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
            Reason::Unreachable(..) => "unreachable",
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
            Reason::Unreachable(..) => StatusCode::BAD_GATEWAY,
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
            Reason::Unreachable(..) => Class::NetworkUnreachable,
            Reason::Timeout(_) => Class::NetworkError,
        }
    }

    /// Whether the policy refused it. `false` for errors of the network.
    pub(crate) fn is_denial(&self) -> bool {
        self.cause().is_none()
    }

    /// What failed, if no policy refused it.
    fn cause(&self) -> Option<NetworkCause> {
        match self.reason {
            Reason::Unreachable(cause, _) => Some(cause),
            Reason::Timeout(_) => Some(NetworkCause::Timeout),
            _ => None,
        }
    }

    /// The setting that would allow it, if one would.
    pub(crate) fn setting(&self) -> Option<Setting> {
        match (&self.reason, &self.destination) {
            (Reason::NotAllowed, Some(_)) => Some(SettingKey::Allow.to(&self.subject)),
            // Only the name was looked up.
            (Reason::NotAllowed, None) => Some(SettingKey::Allow.to(format!("{}:PORT", self.subject))),
            (
                Reason::AddressBlocked(address, _),
                Some(Destination { host: DestinationHost::Name(_), .. }),
            ) => Some(SettingKey::AllowAddress.to(address)),
            (Reason::AddressBlocked(..), Some(destination)) => Some(SettingKey::Allow.to(destination)),
            _ => None,
        }
    }

    /// The preset that would allow it, if one would.
    pub(crate) fn preset(&self) -> Option<&'static Preset> {
        match (&self.reason, &self.destination) {
            (Reason::NotAllowed, Some(destination)) => {
                preset::of_host(&destination.host, Some(destination.port))
            }
            (Reason::NotAllowed, None) => preset::of_host(&DestinationHost::parse(&self.subject).ok()?, None),
            _ => None,
        }
    }

    /// What would allow it, for a [`Denial`].
    fn remedy(&self, decides: AllowListOwner) -> Option<Remedy> {
        if decides == AllowListOwner::Manifest {
            return self.could_be_listed().then(|| ADD_TO_MANIFEST.into());
        }
        match (&self.reason, self.setting()) {
            (Reason::Denied(rule), _) => Some(remedy!["remove ", SettingKey::Deny.to(rule), " to allow it"]),
            (Reason::NotAllowed, Some(allow)) if self.destination.is_none() => {
                Some(remedy![allow, WOULD_ALLOW, ONLY_LOOKED_UP])
            }
            (_, setting) => setting.map(|setting| remedy![setting, WOULD_ALLOW]),
        }
    }

    /// Whether an entry for exactly this destination would allow it.
    pub(crate) fn could_be_listed(&self) -> bool {
        self.setting().is_some_and(|setting| setting.key == SettingKey::Allow)
    }

    /// What a [`Denial`] says.
    fn denial(&self, decides: AllowListOwner) -> Denial {
        let is_of_policy = decides == AllowListOwner::Policy;
        let preset = self.preset().filter(|_| is_of_policy);
        let reason = match self.reason {
            Reason::Malformed(_) | Reason::Method(_) => format!("the proxy refuses it: {self}"),
            _ => self.to_string(),
        };
        let is_loopback = self.destination.as_ref().is_some_and(|to| to.host.is_loopback());
        Denial {
            remedy: self.remedy(decides),
            preset: preset.map(Preset::word),
            is_update_check: preset.is_some_and(Preset::has_update_checks),
            is_unlisted: is_of_policy && matches!(self.reason, Reason::NotAllowed) && !is_loopback,
            ..Denial::new(Protection::Proxy, self.subject.clone(), reason, Basis::Observed)
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
            Reason::Unreachable(_, why) => write!(f, "it cannot be reached: {why}"),
            Reason::Timeout(what) => write!(f, "{what} took too long"),
        }
    }
}

impl Reason {
    /// For an error of the destination itself.
    pub(crate) fn of_io(error: &io::Error) -> Self {
        let cause = match error.kind() {
            io::ErrorKind::ConnectionRefused => NetworkCause::Refused,
            io::ErrorKind::TimedOut => NetworkCause::Timeout,
            _ => NetworkCause::Unreachable,
        };
        Self::Unreachable(cause, failure::words(error))
    }
}

// Recent denials and failures for the outcomes of commands. Their number is bounded: a command that causes a
// million sees only the last ones.

/// How many different ones are kept of each.
const MAX_KEPT: usize = 100;

/// The rate limit of refusals: one each 20 ms on average, and 250 at once.
const INTERVAL: Duration = Duration::from_millis(20);
const BURST: u32 = 250;

/// How long a flood of refusals has an effect.
const MAX_BACKLOG: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Denials {
    decides: AllowListOwner,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// The number of all denials and failures so far.
    count: u64,
    denials: Recent<Denial>,
    failures: Recent<NetworkFailure>,
    /// Presets of which a host was reached.
    registries: Recent<String>,
    /// When the next refusal is due.
    due: Option<Instant>,
}

/// Different ones, each with the number of its last occurrence.
struct Recent<T>(VecDeque<(u64, T)>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Clone + PartialEq> Recent<T> {
    fn add(&mut self, count: u64, one: T) {
        self.0.retain(|(_, other)| *other != one);
        if self.0.len() == MAX_KEPT {
            self.0.pop_front();
        }
        self.0.push_back((count, one));
    }

    fn since(&self, position: u64) -> Vec<T> {
        self.0.iter().filter(|(count, _)| *count > position).map(|(_, one)| one.clone()).collect()
    }
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
    pub(crate) fn new(decides: AllowListOwner) -> Self {
        Self { decides, ..Self::default() }
    }

    /// Keeps a denial, or a failure. Returns when the client may get its answer, if that is later.
    pub(crate) fn add(&self, refusal: &ProxyRefusal, has_unused_upstream: bool) -> Option<Instant> {
        if let Some(cause) = refusal.cause() {
            let destination = refusal.subject.clone();
            let reason = refusal.to_string();
            let mut log = self.lock();
            log.count += 1;
            let count = log.count;
            log.failures.add(count, NetworkFailure { destination, cause, reason, has_unused_upstream });
            return log.delay();
        }
        let denial = refusal.denial(self.decides);
        tracing::info!(subject = refusal.subject, reason = denial.reason, "denied");
        let mut log = self.lock();
        log.count += 1;
        let count = log.count;
        log.denials.add(count, denial);
        log.delay()
    }

    /// Records that a destination was reached, and the registry that it belongs to. What failed there before
    /// is forgotten: a command may wait for its server.
    pub(crate) fn reached(&self, destination: &Destination, registry: Option<&'static Preset>) {
        let mut log = self.lock();
        if let Some(registry) = registry {
            log.count += 1;
            let count = log.count;
            log.registries.add(count, registry.word());
        }
        if !log.failures.0.is_empty() {
            let subject = destination.to_string();
            log.failures.0.retain(|(_, failure)| failure.destination != subject);
        }
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
        self.lock().denials.since(position)
    }

    /// The failures after that position.
    pub(crate) fn failures_since(&self, position: u64) -> Vec<NetworkFailure> {
        self.lock().failures.since(position)
    }

    /// The presets of which a host was reached after that position.
    pub(crate) fn registries_since(&self, position: u64) -> Vec<String> {
        self.lock().registries.since(position)
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        locked(&self.log)
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;
    use super::*;

    fn add(denials: &Denials, name: &str) -> Option<Instant> {
        denials.add(&ProxyRefusal::request(name, Reason::NotAllowed), false)
    }

    #[tokio::test]
    async fn each_point_in_time_sees_what_came_after_it_once() {
        let denials = Denials::default();
        let first = denials.position();
        add(&denials, "a.example");
        let second = denials.position();
        add(&denials, "b.example");
        add(&denials, "b.example");
        let subjects =
            |position| denials.since(position).into_iter().map(|denial| denial.subject).collect::<Vec<_>>();
        assert_eq!(subjects(first), ["a.example", "b.example"]);
        assert_eq!(subjects(second), ["b.example"]);
        add(&denials, "a.example");
        assert_eq!(subjects(second), ["b.example", "a.example"], "again is also after");
        assert!(subjects(denials.position()).is_empty());
    }

    #[tokio::test]
    async fn a_manifest_is_changed_by_its_own_key_only() {
        let denials = Denials::new(AllowListOwner::Manifest);
        let destination = |text: &str| Destination::parse(text).expect("valid");
        let address: IpAddr = "10.0.0.1".parse().expect("an address");
        let blocked =
            |text: &str| ProxyRefusal::of(&destination(text), Reason::AddressBlocked(address, "private"));
        let refusals = [
            ProxyRefusal::of(&destination("index.crates.io:443"), Reason::NotAllowed),
            ProxyRefusal::request("a.example", Reason::NotAllowed),
            blocked("10.0.0.1:443"),
            blocked("a.example:443"),
        ];
        for refusal in &refusals {
            denials.add(refusal, false);
        }
        let found = denials.since(0);
        let advised: Vec<_> =
            found.iter().map(|denial| denial.remedy.as_ref().map(Remedy::to_string)).collect();
        let add = Some(ADD_TO_MANIFEST.to_owned());
        assert_eq!(advised, [add.clone(), add.clone(), add, None]);
        assert!(found.iter().all(|denial| denial.preset.is_none() && denial.advised().is_empty()));
    }

    #[tokio::test]
    async fn who_is_refused_a_thousand_times_waits_and_is_forgotten() {
        let denials = Denials::default();
        let waits: Vec<_> = (0..1000).map(|n| add(&denials, &format!("n{n}.example"))).collect();
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
            add(&denials, "a.example");
        }
        assert!(denials.is_flooded());
        tokio::time::advance(MAX_BACKLOG).await;
        assert!(!denials.is_flooded());
    }

    #[tokio::test]
    async fn what_the_network_refuses_is_no_denial() {
        let denials = Denials::default();
        let destination =
            crate::policy::network::destination::Destination::parse("a.example:1").expect("valid");
        for reason in [Reason::Unreachable(NetworkCause::Refused, "x".into()), Reason::Timeout("x")] {
            denials.add(&ProxyRefusal::of(&destination, reason), false);
        }
        assert!(denials.since(0).is_empty());
        let causes: Vec<_> = denials.failures_since(0).iter().map(|failure| failure.cause).collect();
        assert_eq!(causes, [NetworkCause::Refused, NetworkCause::Timeout]);
        assert_eq!(denials.failures_since(1).len(), 1, "each point in time sees what came after it");
        denials.add(&ProxyRefusal::of(&destination, Reason::Limit), false);
        assert_eq!((denials.since(0).len(), denials.failures_since(0).len()), (1, 2));
    }

    #[tokio::test]
    async fn what_was_reached_later_is_no_failure() {
        let denials = Denials::default();
        let at = |text| Destination::parse(text).expect("valid");
        for to in ["a.example:1", "a.example:2"] {
            denials.add(&ProxyRefusal::of(&at(to), Reason::Timeout("x")), true);
        }
        denials.reached(&at("a.example:1"), None);
        let left = denials.failures_since(0);
        assert_eq!(left.len(), 1);
        assert_eq!((&*left[0].destination, left[0].has_unused_upstream), ("a.example:2", true));
    }
}
