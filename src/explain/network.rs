//! Errors of the network that follow from the policy. What the proxy refuses it tells itself.

use super::{advice, text::Trouble};
use crate::{Basis, Denial, Protection, compile::explain::Terms, policy::NetworkMode};

/// Where the command does not say what it wanted to reach.
const ANYWHERE: &str = "HOST:PORT";

/// What the sandbox has to do with it, if anything.
pub(super) fn denial(terms: &Terms, what: &Trouble) -> Option<Denial> {
    match (what, terms.network) {
        (Trouble::Unreachable, NetworkMode::None) => Some(no_network(terms, "network".to_owned(), ANYWHERE)),
        (Trouble::Name(name), NetworkMode::None) => {
            let subject = name.clone().unwrap_or_else(|| "network".to_owned());
            // The port is not said; most that asks for a name speaks HTTPS.
            let to = name.as_ref().map_or_else(|| ANYWHERE.to_owned(), |name| format!("{name}:443"));
            Some(no_network(terms, subject, &to))
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

fn no_network(terms: &Terms, subject: String, to: &str) -> Denial {
    let flag = terms.proxy_flags.map(|flags| format!("{flags} {to}"));
    Denial {
        protection: Protection::NetworkNamespace,
        subject,
        reason: advice("the sandbox has no network".to_owned(), flag.as_deref(), "would allow it"),
        basis: Basis::Derived,
        remedy: flag,
    }
}
