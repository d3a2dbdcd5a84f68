//! Who may do what: keys of clients for control routes, tokens of sandboxes for what is in them.

use std::sync::{Arc, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, Method, StatusCode, Uri};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::tokens::{Token, Tokens};
use crate::http::request::{key, parameters};
use crate::wire::failure::Failure;
use crate::wire::headers::{ACCESS_TOKEN, TRAFFIC_TOKEN, text};
use crate::wire::id::{SandboxId, Seed};

/// What requests are checked against.
pub(crate) struct Access {
    tokens: RwLock<Arc<Tokens>>,
    seed: Seed,
}

impl Access {
    pub(crate) fn new(tokens: Tokens, seed: Seed) -> Self {
        Self { tokens: RwLock::new(Arc::new(tokens)), seed }
    }

    /// Other tokens from now on.
    pub(crate) fn replace(&self, tokens: Tokens) {
        *self.tokens.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(tokens);
    }

    pub(crate) fn tokens(&self) -> Arc<Tokens> {
        Arc::clone(&self.tokens.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// The name of the state directory.
    pub(crate) fn instance(&self) -> String {
        self.seed.instance()
    }

    /// The token of the key in a request for a control route.
    pub(crate) fn token(&self, headers: &HeaderMap) -> Result<Token, Failure> {
        let Some(key) = key(headers) else {
            return Err(unauthorized("X-API-KEY is missing"));
        };
        self.tokens().find(&key).cloned().ok_or_else(|| unauthorized("X-API-KEY: no token has this key"))
    }

    /// Checks a request for files and commands of a sandbox: by its token, or by the signature of a URL.
    pub(crate) fn check_envd(
        &self,
        id: &SandboxId,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), Failure> {
        let expected = self.seed.token(id);
        match text(headers, ACCESS_TOKEN) {
            Some(given) if is_same(given, &expected) => Ok(()),
            Some(_) => Err(unauthorized("X-Access-Token: it is not the token of this sandbox")),
            None if uri.path() == "/files" => check_signature(method, uri, &expected),
            None => Err(unauthorized("X-Access-Token is missing")),
        }
    }

    /// Checks a request for a port of a sandbox.
    pub(crate) fn check_traffic(&self, id: &SandboxId, headers: &HeaderMap) -> Result<(), Failure> {
        match text(headers, TRAFFIC_TOKEN) {
            Some(given) if is_same(given, &self.seed.traffic_token(id)) => Ok(()),
            Some(_) => Err(unauthorized("e2b-traffic-access-token: it is not the token of this sandbox")),
            None => {
                Err(unauthorized("e2b-traffic-access-token is missing: ports of this sandbox are private"))
            }
        }
    }
}

fn unauthorized(message: &str) -> Failure {
    Failure::new(StatusCode::UNAUTHORIZED, message)
}

fn is_same(given: &str, expected: &str) -> bool {
    given.as_bytes().ct_eq(expected.as_bytes()).into()
}

/// The signature of a URL: for one path, one direction, one user, and perhaps until a time.
fn check_signature(method: &Method, uri: &Uri, token: &str) -> Result<(), Failure> {
    let query = parameters(uri.query().unwrap_or_default());
    let of = |name: &str| query.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
    let Some(signature) = of("signature") else {
        return Err(unauthorized("neither X-Access-Token nor a signature"));
    };
    let operation = if [Method::GET, Method::HEAD].contains(method) { "read" } else { "write" };
    let (path, user) = (of("path").unwrap_or_default(), of("username").unwrap_or_default());
    let mut text = format!("{path}:{operation}:{user}:{token}");
    if let Some(expiration) = of("signature_expiration") {
        text.push(':');
        text.push_str(expiration);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |time| time.as_secs());
        if expiration.parse::<u64>().map_or(true, |until| until < now) {
            return Err(unauthorized("the signature has expired"));
        }
    }
    let expected = format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes())));
    if is_same(signature, &expected) { Ok(()) } else { Err(unauthorized("the signature is not right")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_opens_one_path_in_one_direction() {
        let token = "t".repeat(64);
        let sign = |text: &str| {
            let digest = STANDARD_NO_PAD.encode(Sha256::digest(format!("{text}:{token}").as_bytes()));
            form_urlencoded::byte_serialize(format!("v1_{digest}").as_bytes()).collect::<String>()
        };
        let check = |method: Method, query: &str| {
            let uri = format!("/files?{query}").parse().expect("a URI");
            check_signature(&method, &uri, &token)
        };
        let read = sign("/a b:read:");
        check(Method::GET, &format!("path=%2Fa+b&signature={read}")).expect("signed");
        check(Method::POST, &format!("path=%2Fa+b&signature={read}")).expect_err("another direction");
        let write = sign("/a b:write:");
        check(Method::HEAD, &format!("path=%2Fa+b&signature={write}")).expect_err("another direction");
        check(Method::GET, &format!("path=%2Fa&signature={read}")).expect_err("another path");
        check(Method::GET, &format!("path=%2Fa+b&username=root&signature={read}")).expect_err("another user");
        check(Method::GET, "path=%2Fa+b").expect_err("none");
    }

    #[test]
    fn a_signature_ends_at_its_time() {
        let token = "t".repeat(64);
        for (until, good) in [("1", false), ("99999999999", true), ("x", false)] {
            let digest = Sha256::digest(format!("/a:read::{token}:{until}").as_bytes());
            let signature: String =
                form_urlencoded::byte_serialize(format!("v1_{}", STANDARD_NO_PAD.encode(digest)).as_bytes())
                    .collect();
            let uri = format!("/files?path=/a&signature={signature}&signature_expiration={until}");
            let uri = uri.parse().expect("a URI");
            assert_eq!(check_signature(&Method::GET, &uri, &token).is_ok(), good, "{until}");
        }
    }
}
