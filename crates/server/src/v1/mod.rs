//! Kennel's own routes, for what E2B's lack: a command with its files in one request, reports, changes of an
//! overlay. They are strict: an unknown key is an error. `docs/openapi.json` describes them.

pub(crate) mod content;
pub(crate) mod run;

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use kennel::overlay::{Change, Committed, Conflicts};
use kennel::report::Report;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::blobs::Blobs;
use crate::e2b::call::Owner;
use crate::sandboxes::Sandboxes;
use crate::v1::run::{Ran, RunRequest};
use crate::wire::failure::Failure;
use crate::wire::id::SandboxId;

/// Those of a host. The front has the others.
pub(crate) fn routes() -> Router<Arc<Sandboxes>> {
    Router::new()
        .route("/v1/sandboxes/{id}/run", post(run))
        .route("/v1/sandboxes/{id}/changes", get(changes))
        .route("/v1/sandboxes/{id}/commit", post(commit))
        .route("/v1/sandboxes/{id}/commands/{pid}/report", get(report))
        // The front has its limit.
        .layer(DefaultBodyLimit::disable())
}

/// Reads JSON that may have no other keys.
pub(crate) fn strict<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::bad(format!("the body: {error}")))
}

/// Runs a command in a sandbox.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/run", operation_id = "run", params(("id" = String, Path, description = "The sandbox")),
    request_body = RunRequest,
    responses(
        (status = 200, description = "It ran, or its program could not start", body = Ran),
        (status = 404, description = "No such sandbox, or blob"),
        (status = 413, description = "More than 16 MiB; or files of the answer with more than 64"),
    )
)]
pub(crate) async fn run(
    State(host): State<Arc<Sandboxes>>,
    Owner(owner): Owner,
    Path(id): Path<SandboxId>,
    body: Bytes,
) -> Result<Json<Ran>, Failure> {
    let request: RunRequest = strict(&body)?;
    let sandbox = host.of_owner(&id, &owner)?;
    request.run(&host, &sandbox, &Blobs::of(host.state(), &owner)).await.map(Json)
}

/// What commands changed in a sandbox whose template has `files`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Changes {
    /// Of each: `path`, `kind` (`added`, `modified` or `deleted`) and `file`, the kind of file.
    #[schema(value_type = Vec<Object>)]
    changes: Vec<Change>,
}

/// What commands changed in a sandbox whose template has `files`.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/changes", operation_id = "changes", params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, description = "What differs from the files of its template", body = Changes),
        (status = 409, description = "Its template has no files"),
    )
)]
pub(crate) async fn changes(
    State(host): State<Arc<Sandboxes>>,
    Owner(owner): Owner,
    Path(id): Path<SandboxId>,
) -> Result<Json<Changes>, Failure> {
    let sandbox = host.of_owner(&id, &owner)?;
    let changes = sandbox.session()?.changes().await?;
    Ok(Json(Changes { changes }))
}

/// Which changes to apply to the files of the template.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CommitRequest {
    /// Changes at these paths and below them. None: all changes.
    paths: Vec<String>,
    /// Whether to replace what others have changed there meanwhile.
    overwrite: bool,
}

/// Applies changes to the files of the template.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/commit", operation_id = "commit", params(("id" = String, Path, description = "The sandbox")),
    request_body = CommitRequest,
    responses(
        (status = 200, description = "`applied`, `refused`, `left` and `denials`: lists of changes", body = Object),
        (status = 403, description = "The template does not say `commit = true`"),
        (status = 409, description = "A command runs, or the template has no files"),
    )
)]
pub(crate) async fn commit(
    State(host): State<Arc<Sandboxes>>,
    Owner(owner): Owner,
    Path(id): Path<SandboxId>,
    body: Bytes,
) -> Result<Json<Committed>, Failure> {
    let request: CommitRequest = if body.is_empty() { CommitRequest::default() } else { strict(&body)? };
    let sandbox = host.of_owner(&id, &owner)?;
    if !sandbox.record().new.making.commit {
        let message = "the files of the template are what all its sandboxes begin with; \
                       changes are applied to them only if the template says commit = true";
        return Err(Failure::new(StatusCode::FORBIDDEN, message));
    }
    let paths: Vec<_> = request.paths.into_iter().map(PathBuf::from).collect();
    let conflicts = if request.overwrite { Conflicts::Overwrite } else { Conflicts::Refuse };
    Ok(Json(sandbox.session()?.commit_part(&paths, conflicts).await?))
}

/// What is to be said about a command that has ended.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/commands/{pid}/report", operation_id = "report", params(("id" = String, Path, description = "The sandbox"), ("pid" = u32, Path, description = "The number of the command")),
    responses(
        (status = 200, description = "The object of `kennel run --json`", body = Object),
        (status = 404, description = "No such sandbox or command"),
        (status = 409, description = "It still runs"),
    )
)]
pub(crate) async fn report(
    State(host): State<Arc<Sandboxes>>,
    Owner(owner): Owner,
    Path((id, pid)): Path<(SandboxId, u32)>,
) -> Result<Json<Report>, Failure> {
    let sandbox = host.of_owner(&id, &owner)?;
    let unknown = || {
        let message = format!("process {pid} not found; those that ended last are remembered");
        Failure::new(StatusCode::NOT_FOUND, message)
    };
    let process = sandbox.process(pid).ok_or_else(unknown)?;
    if !process.has_ended() {
        return Err(Failure::new(StatusCode::CONFLICT, format!("process {pid} runs")));
    }
    process.report().map(Json).ok_or_else(unknown)
}
