//! E2B's routes, as a host serves them: what its clients of Python and JavaScript send, in JSON. The tables
//! of docs/server.md say what differs.
//!
//! Keys are the front's to check. Creations and lists come through it, too.

pub(crate) mod call;
pub(crate) mod control;
mod events;
mod files;
mod filesystem;
pub(crate) mod frames;
mod process;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::sandboxes::ready::Wanted;
use crate::sandboxes::{Sandboxes, news};
use crate::wire::failure::{Failure, Reason};
use crate::wire::id::SandboxId;

use call::Addressed;

/// The content of calls that answer with a stream.
pub(crate) const STREAMED: &str = "application/connect+json";

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
        .route("/host/largest", get(largest))
        .route("/host/ready", post(want_ready))
        .route("/host/sandboxes/{id}/memory", post(end_for_memory))
        .fallback(unknown)
}

/// Whether the sandbox runs.
async fn health(Addressed(sandbox): Addressed) -> Result<StatusCode, Failure> {
    sandbox.session().map(|_| StatusCode::NO_CONTENT)
}

async fn tell(State(host): State<Arc<Sandboxes>>) -> Response {
    Response::new(news::body(&host))
}

async fn want_ready(State(host): State<Arc<Sandboxes>>, Json(wanted): Json<Vec<Wanted>>) -> StatusCode {
    host.want_ready(wanted);
    StatusCode::NO_CONTENT
}

async fn largest(State(host): State<Arc<Sandboxes>>) -> Json<Option<Value>> {
    Json(host.largest().await.map(|(id, bytes)| json!({ "id": id, "bytes": bytes })))
}

/// The worker runs out of memory, and this sandbox uses the most.
async fn end_for_memory(
    State(host): State<Arc<Sandboxes>>,
    Path(id): Path<SandboxId>,
) -> Result<StatusCode, Failure> {
    let sandbox = host.find(&id)?;
    host.end(&sandbox, Reason::Memory);
    Ok(StatusCode::NO_CONTENT)
}

async fn unknown() -> Failure {
    Failure::unserved()
}
