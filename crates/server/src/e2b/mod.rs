//! E2B's routes, as a host serves them: what its clients of Python and JavaScript send, in JSON. The tables of
//! docs/server.md say what differs.
//!
//! Keys are the front's to check. Creations and lists come through it, too.

mod call;
pub(crate) mod control;
mod files;
mod filesystem;
mod frames;
mod paths;
mod process;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;

use crate::sandboxes::{Sandboxes, news};
use crate::wire::failure::Failure;

use call::Addressed;

/// All of them.
pub(crate) fn routes() -> Router<Arc<Sandboxes>> {
    Router::new()
        .route("/health", get(health))
        .merge(control::routes())
        .merge(process::routes())
        .merge(filesystem::routes())
        .layer(DefaultBodyLimit::max(frames::MOST))
        .merge(files::routes())
        .route("/host/news", get(tell))
        .fallback(unknown)
}

/// Whether the sandbox runs.
async fn health(Addressed(sandbox): Addressed) -> Result<StatusCode, Failure> {
    sandbox.session().map(|_| StatusCode::NO_CONTENT)
}

async fn tell(State(host): State<Arc<Sandboxes>>) -> Response {
    Response::new(news::body(&host))
}

async fn unknown() -> Failure {
    Failure::not_done("this route is not served: docs/server.md lists those that are")
}
