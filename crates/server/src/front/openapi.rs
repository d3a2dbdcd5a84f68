//! The description of Kennel's own routes, made from their types: OpenAPI 3.1. A copy is `openapi.json` of
//! the package.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

use crate::front::v1::{HostsRequest, RunOnceRequest};
use crate::v1::{Changes, CommitRequest};
use crate::wire::headers::API_KEY;

/// Why a request is refused.
#[derive(ToSchema)]
#[expect(dead_code, reason = "a description of what `Failure` writes")]
pub(crate) struct Refusal {
    /// The status of the answer.
    code: u16,
    /// The thing, the cause and what to do.
    message: String,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "kennel serve",
        description = "Kennel's own routes, beside those of E2B: docs/server.md. Unknown keys are errors.",
        version = "1",
        license(name = "MIT OR Apache-2.0")
    ),
    paths(
        crate::front::v1::run_once,
        crate::front::v1::put_blob,
        crate::front::v1::has_blob,
        crate::v1::run,
        crate::v1::changes,
        crate::v1::commit,
        crate::v1::report,
    ),
    components(schemas(RunOnceRequest, HostsRequest, Changes, CommitRequest, Refusal)),
    security(("key" = []), ("bearer" = [])),
    modifiers(&Keys)
)]
struct Own;

struct Keys;

impl Modify for Keys {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        let key = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new(API_KEY)));
        components.add_security_scheme("key", key);
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    }
}

/// The document as JSON.
fn text() -> String {
    Own::openapi().to_pretty_json().unwrap_or_default()
}

/// The answer to whoever asks for it.
pub(crate) fn answer() -> Response {
    ([(CONTENT_TYPE, "application/json")], text()).into_response()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// `KENNEL_WRITE=1 cargo test -p kennel-server openapi` writes it.
    #[test]
    fn the_copy_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
        let text = text() + "\n";
        if std::env::var_os("KENNEL_WRITE").is_some() {
            fs::write(&path, &text).expect("written");
        }
        assert_eq!(fs::read_to_string(path).expect("read"), text);
    }
}
