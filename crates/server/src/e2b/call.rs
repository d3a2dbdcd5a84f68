//! What calls of clients have in common: which sandbox, which user, which content, and JSON.

use axum::extract::FromRequestParts;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

use crate::sandboxes::Sandboxes;
use crate::sandboxes::sandbox::Sandbox;
use crate::wire::failure::Failure;
use crate::wire::headers::{OWNER, TO_SANDBOX, text};

/// The sandbox that the front names. Its token is the sandbox's own, so it opens this one only.
pub(crate) struct Addressed(pub(crate) Arc<Sandbox>);

impl FromRequestParts<Arc<Sandboxes>> for Addressed {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, host: &Arc<Sandboxes>) -> Result<Self, Failure> {
        let id = text(&parts.headers, TO_SANDBOX).and_then(|id| id.parse().ok());
        host.find(&id.ok_or_else(|| Failure::gone(None))?).map(Self)
    }
}

/// The name of the token that asks, on control routes.
pub(crate) struct Owner(pub(crate) String);

impl<S: Sync> FromRequestParts<S> for Owner {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let owner = text(&parts.headers, OWNER).map(ToOwned::to_owned).map(Self);
        owner.ok_or_else(|| Failure::new(StatusCode::UNAUTHORIZED, "the front names no owner"))
    }
}

/// Refuses a body that is no JSON by its own word, such as binary protocol buffers.
pub(crate) fn is_json(headers: &HeaderMap, expected: &str) -> Result<(), Failure> {
    let found = text(headers, CONTENT_TYPE).unwrap_or_default();
    let kind = found.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    let message = format!("Content-Type {found:?}: only {expected} is read here");
    Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// Reads JSON. Unknown keys are ignored: clients add some.
pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    let body: &[u8] = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| Failure::bad(format!("the body: {error}")))
}

/// The answer to a unary call.
pub(crate) fn answer<T: Serialize>(done: Result<T, Failure>) -> axum::response::Response {
    use axum::response::IntoResponse;
    match done {
        Ok(value) => axum::Json(value).into_response(),
        Err(failure) => failure.connect(),
    }
}

/// Bytes of a client in base64; with or without padding.
pub(crate) fn bytes(text: &str) -> Result<Vec<u8>, Failure> {
    STANDARD.decode(text).map_err(|error| Failure::bad(format!("base64: {error}")))
}

/// Refuses a call for another user than that of the sandbox. `user` is E2B's word for it.
pub(crate) fn check_user(sandbox: &Sandbox, headers: &HeaderMap) -> Result<(), Failure> {
    let basic = text(headers, AUTHORIZATION).and_then(|value| value.strip_prefix("Basic "));
    let Some(basic) = basic else { return Ok(()) };
    let decoded = bytes(basic)?;
    let name = decoded.split(|byte| *byte == b':').next().unwrap_or_default();
    check_user_name(sandbox, &String::from_utf8_lossy(name))
}

/// As [`check_user`], for a name.
pub(crate) fn check_user_name(sandbox: &Sandbox, name: &str) -> Result<(), Failure> {
    let own = sandbox.user();
    if name.is_empty() || name == "user" || name == own {
        return Ok(());
    }
    Err(Failure::bad(format!(
        "user {name:?}: commands and files of this sandbox belong to its one user, {own:?}"
    )))
}
