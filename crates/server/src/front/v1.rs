//! Kennel's own routes at the front: a command in a sandbox that is made for it, and blobs. What is about one
//! sandbox goes to its host.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request, Response, StatusCode};
use axum::response::IntoResponse;
use futures_util::StreamExt;
use kennel::Policy;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::blobs::{BlobName, Blobs};
use crate::config::template::USUAL_TEMPLATE;
use crate::config::tokens::Token;
use crate::front::Front;
use crate::front::control::Longest;
use crate::front::hosts::Hosts;
use crate::front::narrow::{LimitsRequest, NetworkRequest, narrow, narrow_limits};
use crate::front::openapi::Refusal;
use crate::front::trace;
use crate::http::request::{MOST_RUN, body_of};
use crate::v1::run::{Ran, RunRequest};
use crate::v1::strict;
use crate::wire::failure::Failure;
use crate::wire::headers::OWNER;
use crate::wire::id::{SandboxId, hex};
use crate::wire::sandbox::Making;

/// How long the sandbox of one command may live beside the time of the command: its files are written and
/// read meanwhile. Only a front that dies leaves it alone for so long.
const BESIDE: Duration = Duration::from_secs(60);

/// A command in a sandbox that is made for it, and ends with it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunOnceRequest {
    /// What the sandbox is made from. Default: `base`.
    template: Option<String>,
    /// Each within that of the template.
    #[serde(default)]
    limits: LimitsRequest,
    /// Where the command may connect to, within the template. Default: as the template.
    #[serde(default)]
    network: HostsRequest,
    #[serde(flatten)]
    run: RunRequest,
}

/// Hosts, such as `crates.io`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HostsRequest {
    /// These alone; the policy of the template must allow each. An empty list: none.
    allow: Option<Vec<String>>,
    /// Not these.
    deny: Vec<String>,
}

impl HostsRequest {
    fn narrow(&self, policy: &mut Policy, template: &str) -> Result<(), Failure> {
        let request = NetworkRequest::of(self.allow.clone().unwrap_or_default(), self.deny.clone());
        let is_closed = self.allow.as_ref().is_some_and(Vec::is_empty);
        narrow(policy, template, is_closed.then_some(false), &request)
    }
}

impl Front {
    /// A request for a route below `/v1`; `words` follow.
    pub(crate) async fn own(
        &self,
        token: &Token,
        words: &[&str],
        request: Request<Body>,
    ) -> Result<Response<Body>, Failure> {
        match (request.method(), words) {
            (&Method::POST, ["run"]) => run_once(self, token, request).await,
            (&Method::PUT, ["blobs", name]) => put_blob(self, token, name, request).await,
            (&Method::HEAD | &Method::GET, ["blobs", name]) => has_blob(self, token, name),
            (&Method::POST, ["sandboxes", id, "run"]) => self.run_in(token, id, request).await,
            (_, ["sandboxes", id, "changes" | "commit"] | ["sandboxes", id, "commands", _, "report"]) => {
                self.about_sandbox(token, id, request).await
            }
            _ => Err(Failure::no_route()),
        }
    }

    async fn run_in(
        &self,
        token: &Token,
        id: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Failure> {
        let (parts, body) = request.into_parts();
        let request = Request::from_parts(parts, Body::from(body_of(body, MOST_RUN).await?));
        let known = self.id(id).and_then(|id| self.hosts.find(&id));
        match known.filter(|summary| summary.owner == token.name) {
            Some(summary) => self.run_counted(token, &summary.id, &summary.template, request).await,
            None => self.about_sandbox(token, id, request).await,
        }
    }

    /// Runs a command, if the token may have one more, and measures it.
    async fn run_counted(
        &self,
        token: &Token,
        id: &SandboxId,
        template: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Failure> {
        self.may_start(id, Some(&token.name))?;
        let begun = Instant::now();
        let response = self.about_sandbox(token, id.as_str(), request).await;
        self.metrics.command(template, begun.elapsed());
        response
    }

    /// Runs a command in a sandbox that is made for it: the body of `/v1/run`, whoever brings it.
    pub(crate) async fn run_once(&self, token: &Token, body: &[u8]) -> Result<Response<Body>, Failure> {
        let asked: RunOnceRequest = strict(body)?;
        let name = asked.template.as_deref().unwrap_or(USUAL_TEMPLATE);
        let template = self.template(token, name)?;
        let time = asked.run.time()?;
        Longest::of(token, name, template).check(time)?;
        let mut policy = template.policy.clone();
        narrow_limits(&mut policy.limits, name, &asked.limits)?;
        asked.network.narrow(&mut policy, name)?;
        let sandbox = OfRequest::make(self, token, template.making(name, policy), time).await?;
        sandbox.run(self, token, &asked.run).await
    }
}

/// Runs a command in a sandbox that is made for it, and ends with it.
#[utoipa::path(
    post, path = "/v1/run", operation_id = "run_once", request_body = RunOnceRequest,
    responses(
        (status = 200, description = "It ran, or its program could not start", body = Ran),
        (status = 400, description = "A wrong request, or one beyond the template", body = Refusal),
        (status = 404, description = "No such template, or blob", body = Refusal),
        (status = 413, description = "More than 16 MiB; or files of the answer with more than 64", body = Refusal),
        (status = 429, description = "A quota of the token", body = Refusal),
        (status = 503, description = "No room", body = Refusal),
    )
)]
pub(crate) async fn run_once(
    front: &Front,
    token: &Token,
    request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    let body = body_of(request.into_body(), MOST_RUN).await?;
    front.run_once(token, &body).await
}

/// Sends a blob. Its token can name it in requests; the least recently used go first.
#[utoipa::path(
    put, path = "/v1/blobs/{sha256}", operation_id = "put_blob",
    params(("sha256" = String, Path, description = "64 hexadecimal digits")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 201, description = "It is there now"),
        (status = 200, description = "It was there before"),
        (status = 400, description = "The bytes have another SHA-256", body = Refusal),
        (status = 413, description = "More than `blobs` of the server", body = Refusal),
        (status = 507, description = "The disk is full", body = Refusal),
    )
)]
pub(crate) async fn put_blob(
    front: &Front,
    token: &Token,
    name: &str,
    request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    let (blobs, most) = (Blobs::of(&front.config.state, &token.name), front.config.blobs);
    let name = blob_name(name)?;
    let was_there = blobs.has(&name);
    let on_disk = |error| Failure::on_disk(&error);
    let mut upload = blobs.begin().map_err(on_disk)?;
    let (mut hash, mut length) = (Sha256::new(), 0);
    let mut pieces = request.into_body().into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| Failure::bad(format!("the body was cut off: {error}")))?;
        length += piece.len() as u64;
        if length > most {
            let message = format!("the blob: more than {most} bytes, which is `blobs` of the server");
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        hash.update(&piece);
        upload.file.write_all(&piece).map_err(on_disk)?;
    }
    let found = hex(&hash.finalize());
    if found != name.as_str() {
        return Err(Failure::bad(format!("the blob: its SHA-256 is {found}, not {}", name.as_str())));
    }
    blobs.keep(upload, &name, most).map_err(on_disk)?;
    Ok(if was_there { StatusCode::OK } else { StatusCode::CREATED }.into_response())
}

/// Whether a blob is there. It then counts as just used.
#[utoipa::path(
    head, path = "/v1/blobs/{sha256}", operation_id = "has_blob",
    params(("sha256" = String, Path, description = "64 hexadecimal digits")),
    responses((status = 200, description = "It is there"), (status = 404, description = "It is not there"))
)]
pub(crate) fn has_blob(front: &Front, token: &Token, name: &str) -> Result<Response<Body>, Failure> {
    let has = Blobs::of(&front.config.state, &token.name).has(&blob_name(name)?);
    Ok(if has { StatusCode::OK } else { StatusCode::NOT_FOUND }.into_response())
}

fn blob_name(text: &str) -> Result<BlobName, Failure> {
    text.parse().map_err(Failure::bad)
}

/// A sandbox that is made for one request. It ends with this value, however the request ends.
pub(crate) struct OfRequest {
    hosts: Arc<Hosts>,
    owner: String,
    template: String,
    id: SandboxId,
}

impl OfRequest {
    /// Makes one whose commands have that time.
    pub(crate) async fn make(
        front: &Front,
        token: &Token,
        making: Making,
        time: Duration,
    ) -> Result<Self, Failure> {
        let template = making.template.clone();
        let new = front.new_sandbox(token, making, time.saturating_add(BESIDE));
        let ending = || Failure::later(StatusCode::SERVICE_UNAVAILABLE, 5, "the worker is ending");
        let (front, token) = (front.this.upgrade().ok_or_else(ending)?, token.clone());
        // In a task of its own: if the request goes away meanwhile, what was made ends with the task's value.
        let making = tokio::spawn(trace::within(trace::current(), async move {
            let (id, _) = front.make_admitted(&token, &new).await?;
            Ok(Self { hosts: Arc::clone(&front.hosts), owner: token.name, template, id })
        }));
        making.await.unwrap_or_else(|_| Err(ending()))
    }

    /// Runs a command in it.
    pub(crate) async fn run(
        &self,
        front: &Front,
        token: &Token,
        run: &RunRequest,
    ) -> Result<Response<Body>, Failure> {
        let bad = |error: &dyn std::error::Error| Failure::bad(error.to_string());
        let run = serde_json::to_vec(run).map_err(|error| bad(&error))?;
        let request = Request::post(format!("/v1/sandboxes/{}/run", self.id));
        let request = request.header(CONTENT_TYPE, "application/json").body(Body::from(run));
        let request = request.map_err(|error| bad(&error))?;
        front.run_counted(token, &self.id, &self.template, request).await
    }
}

impl Drop for OfRequest {
    fn drop(&mut self) {
        let (hosts, id) = (Arc::clone(&self.hosts), self.id.clone());
        let request = Request::delete(format!("/sandboxes/{id}")).header(OWNER, &self.owner);
        let Ok(request) = request.body(Body::empty()) else { return };
        tokio::spawn(async move {
            // A host that does not answer is gone, and the sandbox with it.
            let _ = hosts.forward(id.host(), request).await;
            hosts.note_end(&id);
        });
    }
}
