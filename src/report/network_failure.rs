//! Connections that the policy allows and that could not be made. The policy refused nothing, so they are no
//! denials.

use serde::{Deserialize, Serialize};

use crate::report::enforcement::Note;
use crate::report::remedy::{SettingKey, remedy};
use crate::report::words::words;

words! {
    /// Why a connection could not be made.
    #[non_exhaustive]
    pub enum NetworkCause {
        /// The name of the host does not resolve, or no name server answers.
        Name = "name",
        /// The host refused the connection: nothing listens at that port.
        Refused = "refused",
        /// Resolving, connecting or answering took too long.
        Timeout = "timeout",
        /// There is no way to the host.
        Unreachable = "unreachable",
        /// The upstream proxy of the policy cannot be reached, or did not connect.
        Upstream = "upstream",
        /// The host closed the connection without an answer, or its answer is not HTTP.
        Broken = "broken",
    }
}

/// A connection that the policy allows and that could not be made. The proxy knows it; programs often only
/// say "reset".
///
/// ```no_run
/// # async fn example(outcome: kennel::Outcome) {
/// for failure in &outcome.network_failures {
///     eprintln!("{}: {}", failure.destination, failure.reason);
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NetworkFailure {
    /// The host and port. One line, without control characters.
    pub destination: String,
    /// The kind of failure.
    pub cause: NetworkCause,
    /// What failed, in words. One line.
    pub reason: String,
    /// Whether your own environment names an HTTP proxy for this host (`https_proxy`), and the policy names
    /// none.
    pub has_unused_upstream: bool,
}

impl NetworkFailure {
    /// The hint for people.
    pub(crate) fn note(&self) -> Note {
        let upstream = || {
            let words = " goes through the proxy that your https_proxy names";
            remedy![SettingKey::Upstream.to("environment"), words]
        };
        Note::new(&self.destination, &self.reason, self.has_unused_upstream.then(upstream))
    }
}
