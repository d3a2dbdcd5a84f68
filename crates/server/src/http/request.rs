//! What a request says about itself: the sandbox that it names, its key, its parameters and its body.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{HeaderMap, Request, StatusCode, Uri};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::wire::ENVD_PORT;
use crate::wire::failure::Failure;
use crate::wire::headers::{ACCESS_TOKEN, API_KEY, SANDBOX_ID, SANDBOX_PORT, text};
use crate::wire::id::SandboxId;

/// The longest body of a control route.
pub(crate) const MOST_CONTROL: usize = 1 << 20;

/// The longest body with a command. Larger files are sent as blobs.
pub(crate) const MOST_RUN: usize = 16 << 20;

/// What a request is for.
pub(crate) enum Target {
    /// A port of a sandbox.
    Sandbox(SandboxId, u16),
    /// A sandbox with a name that none can have.
    Unknown,
    /// Who answers itself.
    Own,
}

impl Target {
    fn of(id: Option<SandboxId>, port: Option<u16>) -> Self {
        id.zip(port).map_or(Self::Unknown, |(id, port)| Self::Sandbox(id, port))
    }

    /// By its headers, by the label of its host that `label` finds, or by the token of a sandbox.
    pub(crate) fn find(request: &Request<Body>, label: impl FnOnce(&str) -> Option<Label>) -> Self {
        let text = |name: &str| text(request.headers(), name);
        let path = request.uri().path();
        let is_control = ["/sandboxes", "/v2/sandboxes"].iter().any(|route| path.starts_with(route));
        if let Some(id) = text(SANDBOX_ID) {
            let port = text(SANDBOX_PORT).map_or(Some(ENVD_PORT), |port| port.parse().ok());
            // Some clients name the sandbox on control routes, too.
            if !(is_control && port == Some(ENVD_PORT) && text(API_KEY).is_some()) {
                return Self::of(id.parse().ok(), port);
            }
        }
        let host = text(HOST.as_str()).or_else(|| request.uri().host()).unwrap_or_default();
        match label(without_port(host)) {
            Some(Label { id, port }) => Self::of(id, port),
            // Some clients name a sandbox by its token only.
            None if is_envd(path) => {
                Self::of(text(ACCESS_TOKEN).and_then(SandboxId::of_token), Some(ENVD_PORT))
            }
            // `api.DOMAIN` is the server, as with E2B.
            None => Self::Own,
        }
    }
}

/// A name of a host without its port.
fn without_port(host: &str) -> &str {
    let pair = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    pair.map_or(host, |(host, _)| host)
}

/// `PORT-ID`, the first label of the name of a host. Both may be nothing of the kind.
pub(crate) struct Label {
    id: Option<SandboxId>,
    port: Option<u16>,
}

impl Label {
    /// The label below a domain, which is in lower case.
    pub(crate) fn below(domain: &str, host: &str) -> Option<Self> {
        let host = host.to_ascii_lowercase();
        Self::parse(host.strip_suffix(domain)?.strip_suffix('.')?)
    }

    /// The label of a host in any domain, if it names a port and a sandbox.
    pub(crate) fn first(host: &str) -> Option<Self> {
        let label = host.split('.').next().unwrap_or_default().to_ascii_lowercase();
        Self::parse(&label).filter(|label| label.id.is_some() && label.port.is_some())
    }

    fn parse(label: &str) -> Option<Self> {
        let (port, id) = label.split_once('-')?;
        Some(Self { id: id.parse().ok(), port: port.parse().ok() })
    }
}

/// Whether it is a route of a sandbox's files and commands.
pub(crate) fn is_envd(path: &str) -> bool {
    matches!(path, "/health" | "/files") || path.starts_with("/process.") || path.starts_with("/filesystem.")
}

/// The sandbox that the path of a control route names.
pub(crate) fn named_by_path(uri: &Uri) -> Option<&str> {
    let path = uri.path();
    let path = ["/v1", "/v2"].iter().find_map(|version| path.strip_prefix(version)).unwrap_or(path);
    let id = path.strip_prefix("/sandboxes/")?.split('/').next();
    id.filter(|id| !id.is_empty())
}

/// The key of a request: `X-API-KEY`, `Authorization: Bearer`, or the password of a URL.
pub(crate) fn key(headers: &HeaderMap) -> Option<String> {
    if let Some(key) = text(headers, API_KEY) {
        return Some(key.to_owned());
    }
    let (scheme, given) = text(headers, AUTHORIZATION)?.split_once(' ')?;
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Some(given.trim().to_owned()),
        "basic" => {
            let pair = String::from_utf8(STANDARD.decode(given.trim()).ok()?).ok()?;
            pair.split_once(':').map(|(_, password)| password.to_owned())
        }
        _ => None,
    }
}

/// The parameters of a query, decoded.
pub(crate) fn parameters(query: &str) -> Vec<(String, String)> {
    form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

/// A body of at most that many bytes.
pub(crate) async fn body_of(body: Body, most: usize) -> Result<Bytes, Failure> {
    to_bytes(body, most).await.map_err(|_| {
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body: more than {most} bytes, or cut off"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "a-w-aaaaaaaaaaaaaaaa";

    fn found(path: &str, headers: &[(&str, &str)]) -> String {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("a request");
        match Target::find(&request, Label::first) {
            Target::Sandbox(id, port) => format!("{id} {port}"),
            Target::Unknown => "unknown".to_owned(),
            Target::Own => "own".to_owned(),
        }
    }

    #[test]
    fn a_sandbox_is_named_by_header_host_or_token() {
        let envd = format!("{ID} 49983");
        assert_eq!(found("/x", &[("e2b-sandbox-id", ID)]), envd);
        assert_eq!(found("/x", &[("e2b-sandbox-id", ID), ("e2b-sandbox-port", "80")]), format!("{ID} 80"));
        assert_eq!(found("/x", &[("e2b-sandbox-id", ID), ("e2b-sandbox-port", "x")]), "unknown");
        assert_eq!(found("/x", &[("e2b-sandbox-id", "x")]), "unknown");
        assert_eq!(found("/sandboxes", &[("e2b-sandbox-id", ID), ("x-api-key", "k")]), "own");
        assert_eq!(found("/x", &[("host", &format!("80-{ID}.k.test:1"))]), format!("{ID} 80"));
        assert_eq!(found("/x", &[("host", "80-other.k.test")]), "own");
        assert_eq!(found("/files?path=x", &[("x-access-token", &format!("{ID}.00"))]), envd);
        assert_eq!(found("/files?path=x", &[("x-access-token", "00")]), "unknown");
        assert_eq!(found("/other", &[("x-access-token", &format!("{ID}.00"))]), "own");
    }

    #[test]
    fn a_domain_ends_a_name() {
        let label = |host: &str| Label::below("k.test", host).map(|label| label.port);
        assert_eq!(label("80-x.K.test"), Some(Some(80)));
        assert_eq!(label("x-x.k.test"), Some(None));
        for host in ["k.test", "api.k.test", "80-xk.test", "80-x.other"] {
            assert_eq!(label(host), None, "{host}");
        }
    }

    #[test]
    fn control_routes_name_it_in_their_path() {
        let id = |path: &str| named_by_path(&path.parse().expect("a path")).map(ToOwned::to_owned);
        for path in ["/sandboxes/x", "/v2/sandboxes/x/connect", "/v1/sandboxes/x/run?a=b"] {
            assert_eq!(id(path).as_deref(), Some("x"), "{path}");
        }
        for path in ["/sandboxes", "/v2/sandboxes", "/sandboxes/", "/v1/run", "/", "/v3/sandboxes/x"] {
            assert_eq!(id(path), None, "{path}");
        }
    }
}
