//! Headers: their names, and what they say.

use axum::http::HeaderMap;
use axum::http::header::AsHeaderName;

/// The client's key for control routes.
pub(crate) const API_KEY: &str = "x-api-key";
/// The token of a sandbox, for its files and commands.
pub(crate) const ACCESS_TOKEN: &str = "x-access-token";
/// The token of a sandbox for its ports.
pub(crate) const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";
/// Which sandbox the client means, where the host name does not say it.
pub(crate) const SANDBOX_ID: &str = "e2b-sandbox-id";
/// Which port of it.
pub(crate) const SANDBOX_PORT: &str = "e2b-sandbox-port";
/// Creation: the same key and body give the same sandbox.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Lists: where the next page begins.
pub(crate) const NEXT_TOKEN: &str = "x-next-token";
/// Lists of a router: workers that have not answered.
pub(crate) const MISSING: &str = "x-kennel-missing";
/// Why a sandbox is not there any more.
pub(crate) const REASON: &str = "x-kennel-reason";
/// Connect: milliseconds until the call is over.
pub(crate) const TIMEOUT: &str = "connect-timeout-ms";
/// Connect: seconds of silence after which a stream says that it lives.
pub(crate) const KEEPALIVE: &str = "keepalive-ping-interval";

/// The trace of a request: W3C Trace Context.
pub(crate) const TRACE: &str = "traceparent";

/// From the front to a host: the sandbox. The front takes these three away from what clients send.
pub(crate) const TO_SANDBOX: &str = "x-kennel-sandbox";
/// From the front to a host: the port of the sandbox.
pub(crate) const TO_PORT: &str = "x-kennel-port";
/// From the front to a host: the name of the token that asks. Hosts serve only its sandboxes.
pub(crate) const OWNER: &str = "x-kennel-owner";

/// A header as text.
pub(crate) fn text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
