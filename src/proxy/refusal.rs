//! Why something did not pass, in words that a person or a model can act on. Pure.

use std::{fmt, net::IpAddr};

use hyper::StatusCode;

use super::destination::{Destination, Host, Malformed};
use crate::Class;

/// Why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
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
pub(super) struct Refusal {
    pub(super) subject: String,
    pub(super) destination: Option<Destination>,
    pub(super) reason: Reason,
}

impl Refusal {
    pub(super) fn of(destination: &Destination, reason: Reason) -> Self {
        Self { subject: destination.to_string(), destination: Some(destination.clone()), reason }
    }

    pub(super) fn malformed(subject: &str, malformed: &Malformed) -> Self {
        Self::request(subject, Reason::Malformed(malformed.0))
    }

    /// What has no destination.
    pub(super) fn request(subject: &str, reason: Reason) -> Self {
        let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
        let subject: String = subject.chars().map(plain).take(300).collect();
        let subject = if subject.is_empty() { "no destination".to_owned() } else { subject };
        Self { subject, destination: None, reason }
    }

    /// One word for programs: the value of `x-kennel-deny`, `reason` in the audit log.
    pub(super) fn word(&self) -> &'static str {
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
    pub(super) fn status(&self) -> StatusCode {
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
    pub(super) fn class(&self) -> Class {
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
    pub(super) fn is_denial(&self) -> bool {
        !matches!(self.reason, Reason::Unreachable(_) | Reason::Timeout(_))
    }

    /// The flag that would let it pass, where one would.
    pub(super) fn flag(&self) -> Option<String> {
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
    pub(super) fn advice(&self) -> String {
        match (&self.reason, self.flag()) {
            (Reason::Denied(rule), _) => format!("{self}; remove --deny {rule} to allow it"),
            (_, Some(flag)) => format!("{self}; {flag} would allow it"),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for Refusal {
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
