//! A request that is refused: status, words, and how each protocol shows them.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use kennel::Error;
use kennel::overlay::OverlayError;
use serde_json::json;

use crate::wire::headers::REASON;

/// Why a sandbox is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// A client ended it.
    Ended,
    /// Its time was over.
    Expired,
    /// It used the most memory when the worker ran out of it.
    Memory,
    /// Its host died, or its own processes were killed from outside.
    SessionLost,
}

impl Reason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Expired => "expired",
            Self::Memory => "memory",
            Self::SessionLost => "session_lost",
        }
    }
}

/// The answer to a request that cannot be served.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    reason: Option<Reason>,
    retry_after: Option<u64>,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), reason: None, retry_after: None }
    }

    /// The request says something that makes no sense: 400.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Something that Kennel does not do: 501.
    pub(crate) fn not_done(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }

    /// A path that nothing is behind, for this client: 501.
    pub(crate) fn no_route() -> Self {
        Self::not_done("this route is not served: docs/server.md lists those that are")
    }

    /// What a host has refused, for the client.
    pub(crate) fn of_answer(status: StatusCode, body: &[u8]) -> Self {
        let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        Self::new(status, body["message"].as_str().unwrap_or("the host gave no reason"))
    }

    /// An answer that comes sooner or later: 429 or 503.
    pub(crate) fn later(status: StatusCode, seconds: u64, message: impl Into<String>) -> Self {
        Self { retry_after: Some(seconds), ..Self::new(status, message) }
    }

    /// The sandbox is not there, on a route of its files and commands: 502. Clients look for these words.
    pub(crate) fn gone(reason: Option<Reason>) -> Self {
        Self { reason, ..Self::new(StatusCode::BAD_GATEWAY, "The sandbox was not found") }
    }

    /// The sandbox is not there, on a control route: 404.
    pub(crate) fn unknown(id: &str, reason: Option<Reason>) -> Self {
        Self { reason, ..Self::new(StatusCode::NOT_FOUND, format!("sandbox {id} was not found")) }
    }

    /// The server cannot write its own files: 507, or 500.
    pub(crate) fn on_disk(error: &std::io::Error) -> Self {
        let status = match error.raw_os_error() {
            Some(nix::libc::ENOSPC | nix::libc::EDQUOT) => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, format!("the server's state directory: {error}"))
    }

    /// The host is ending, and with it what was under way.
    pub(crate) fn host_ends() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the host is ending")
    }

    /// The same with other words.
    pub(crate) fn with_message(self, message: String) -> Self {
        Self { message, ..self }
    }

    /// As an answer of the Connect protocol to a call that is no stream.
    pub(crate) fn connect(&self) -> Response {
        let body = json!({ "code": self.code(), "message": self.message });
        self.respond(body)
    }

    /// The error of the Connect protocol.
    pub(crate) fn code(&self) -> &'static str {
        match self.status.as_u16() {
            400 | 413 | 415 => "invalid_argument",
            401 => "unauthenticated",
            403 => "permission_denied",
            404 => "not_found",
            408 => "canceled",
            409 => "already_exists",
            429 | 507 => "resource_exhausted",
            501 => "unimplemented",
            502 | 503 => "unavailable",
            504 => "deadline_exceeded",
            _ => "internal",
        }
    }

    fn respond(&self, body: serde_json::Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        if let Some(reason) = self.reason {
            response.headers_mut().insert(REASON, HeaderValue::from_static(reason.as_str()));
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.respond(json!({ "code": self.status.as_u16(), "message": self.message }))
    }
}

/// What a call about files or commands answers: the words of the library.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::SessionEnded | Error::Lost | Error::StillRuns => return Self::gone(None),
            Error::File { source, .. } => of_errno(source.raw_os_error()),
            Error::NotFound { .. } | Error::NoInterpreter { .. } | Error::NoProgram { .. } => {
                StatusCode::NOT_FOUND
            }
            Error::NotExecutable { .. } => StatusCode::FORBIDDEN,
            Error::Command { .. } | Error::Policy(_) => StatusCode::BAD_REQUEST,
            Error::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Error::Overlay(OverlayError::None | OverlayError::Running | OverlayError::Committing) => {
                StatusCode::CONFLICT
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, kennel::internal::escape::harmless(&error.chain()))
    }
}

/// The status for an errno of a call about files.
fn of_errno(errno: Option<i32>) -> StatusCode {
    use nix::libc;
    match errno {
        Some(libc::ENOENT | libc::ENOTDIR) => StatusCode::NOT_FOUND,
        Some(libc::EROFS | libc::EACCES | libc::EPERM | libc::EBUSY | libc::EXDEV) => StatusCode::FORBIDDEN,
        Some(libc::ENOSPC | libc::EDQUOT) => StatusCode::INSUFFICIENT_STORAGE,
        Some(libc::EEXIST) => StatusCode::CONFLICT,
        Some(
            libc::EISDIR
            | libc::ELOOP
            | libc::EINVAL
            | libc::ENAMETOOLONG
            | libc::EOPNOTSUPP
            | libc::EFBIG
            | libc::E2BIG
            | libc::ENOTEMPTY,
        ) => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
