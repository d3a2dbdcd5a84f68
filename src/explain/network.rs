//! Errors of the network that follow from the policy. What the proxy refuses it tells itself.

use super::{advice, text::Trouble};
use crate::{Basis, Denial, Protection, compile::explain::Terms, policy::NetworkMode};

/// What the sandbox has to do with it, if anything.
pub(super) fn denial(terms: &Terms, what: &Trouble) -> Option<Denial> {
    match (what, terms.network) {
        (Trouble::Unreachable, NetworkMode::None) => Some(no_network(terms, "network".to_owned(), "HOST")),
        (Trouble::Name(name), NetworkMode::None) => {
            let subject = name.clone().unwrap_or_else(|| "network".to_owned());
            Some(no_network(terms, subject, name.as_deref().unwrap_or("HOST")))
        }
        (Trouble::Port(port), NetworkMode::Host) => {
            let allowed = terms.ports.as_ref().filter(|ports| !ports.contains(port))?;
            let allowed: Vec<String> = allowed.iter().map(u16::to_string).collect();
            let flag = format!("--allow '*:{port}'");
            let reason = format!("TCP connections are allowed to port {} only", allowed.join(", "));
            Some(Denial {
                protection: Protection::LandlockNetwork,
                subject: format!("port {port}"),
                reason: advice(reason, Some(&flag), "would allow it"),
                basis: Basis::Derived,
                remedy: Some(flag),
            })
        }
        _ => None,
    }
}

fn no_network(terms: &Terms, subject: String, host: &str) -> Denial {
    let flag = terms.proxy_flags.map(|flags| format!("{flags} {host}:PORT"));
    Denial {
        protection: Protection::NetworkNamespace,
        subject,
        reason: advice("the sandbox has no network".to_owned(), flag.as_deref(), "would allow it"),
        basis: Basis::Derived,
        remedy: flag,
    }
}
