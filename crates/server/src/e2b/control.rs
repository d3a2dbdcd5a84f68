//! Control routes: a sandbox is made, described, renewed, paused, resumed and ended. The front names the
//! owner, and sends creations in its own form, with the template that it has resolved.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::e2b::call::{Owner, read};
use crate::sandboxes::Sandboxes;
use crate::sandboxes::sandbox::Sandbox;
use crate::wire::failure::{Failure, Reason};
use crate::wire::id::SandboxId;
use crate::wire::sandbox::{NewSandbox, News, Summary, now, time};
use crate::wire::{ENVD_VERSION, MOST_SECONDS};

/// The life of a sandbox whose client names none, in seconds: as E2B's.
pub(crate) const USUAL_SECONDS: u64 = 300;

/// How far the two looks at processors are apart.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

pub(crate) fn routes() -> Router<Arc<Sandboxes>> {
    Router::new()
        .route("/sandboxes", post(create))
        .route("/sandboxes/{id}", get(detail).delete(end))
        .route("/sandboxes/{id}/timeout", post(renew))
        .route("/sandboxes/{id}/connect", post(connect))
        .route("/v2/sandboxes/{id}/connect", post(connect))
        .route("/sandboxes/{id}/pause", post(pause))
        .route("/sandboxes/{id}/metrics", get(metrics))
}

async fn create(
    State(host): State<Arc<Sandboxes>>,
    Json(new): Json<NewSandbox>,
) -> Result<Response, Failure> {
    let sandbox = host.create(new).await?;
    Ok((StatusCode::CREATED, Json(made(&host, &sandbox))).into_response())
}

/// What a client needs to use a sandbox.
fn made(host: &Sandboxes, sandbox: &Sandbox) -> Value {
    let record = sandbox.record();
    let traffic = (!record.new.making.public_ports).then(|| host.seed().traffic_token(&record.id));
    json!({
        "templateID": record.new.making.template,
        "alias": record.new.making.template,
        "sandboxID": record.id,
        "clientID": record.id.worker(),
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": host.seed().token(&record.id),
        "trafficAccessToken": traffic,
        "domain": record.new.domain,
    })
}

/// What lists say about a sandbox.
pub(crate) fn listed(summary: &Summary, machine: &Machine) -> Value {
    json!({
        "templateID": summary.template,
        "alias": summary.template,
        "sandboxID": summary.id,
        "clientID": summary.id.worker(),
        "startedAt": time(summary.started),
        "endAt": time(summary.deadline),
        "envdVersion": ENVD_VERSION,
        "cpuCount": machine.processors,
        "memoryMB": summary.memory.unwrap_or(machine.memory) >> 20,
        "diskSizeMB": 0,
        "metadata": summary.metadata,
        "state": summary.state,
    })
}

async fn detail(
    State(host): State<Arc<Sandboxes>>,
    Owner(owner): Owner,
    Path(id): Path<SandboxId>,
) -> Result<Json<Value>, Failure> {
    let sandbox = host.of_owner(&id, &owner)?;
    let mut detail = listed(&sandbox.summary(), &Machine::look());
    let (disk, made) = (Disk::look(host.state().path()), made(&host, &sandbox));
    if let (Some(detail), Value::Object(made)) = (detail.as_object_mut(), made) {
        detail.insert("diskSizeMB".into(), (disk.total >> 20).into());
        detail.extend(made);
    }
    Ok(Json(detail))
}

async fn end(
    State(host): State<Arc<Sandboxes>>,
    Owner(owner): Owner,
    Path(id): Path<SandboxId>,
) -> Result<StatusCode, Failure> {
    let sandbox = host.of_owner(&id, &owner)?;
    host.end(&sandbox, Reason::Ended);
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct Life {
    /// Seconds from now.
    timeout: Option<u64>,
}

impl Life {
    fn milliseconds(&self) -> u64 {
        self.timeout.unwrap_or(USUAL_SECONDS).min(MOST_SECONDS) * 1000
    }
}

async fn renew(
    State(host): State<Arc<Sandboxes>>,
    Owner(owner): Owner,
    Path(id): Path<SandboxId>,
    body: Bytes,
) -> Result<StatusCode, Failure> {
    let sandbox = host.of_owner(&id, &owner)?;
    sandbox.renew(read::<Life>(&body)?.milliseconds(), false)?;
    host.tell(News::Sandbox(sandbox.summary()));
    Ok(StatusCode::NO_CONTENT)
}

/// Running: a later deadline counts. Paused: it runs again.
async fn connect(
    State(host): State<Arc<Sandboxes>>,
    Owner(owner): Owner,
    Path(id): Path<SandboxId>,
    body: Bytes,
) -> Result<Response, Failure> {
    let sandbox = host.of_owner(&id, &owner)?;
    let life = read::<Life>(&body)?.milliseconds();
    let status = if sandbox.resume(life).await? {
        StatusCode::CREATED
    } else {
        sandbox.renew(life, true)?;
        StatusCode::OK
    };
    host.tell(News::Sandbox(sandbox.summary()));
    Ok((status, Json(made(&host, &sandbox))).into_response())
}

#[derive(Debug, Deserialize)]
struct Pause {
    /// Whether what is in memory is to come back, too.
    memory: Option<bool>,
}

async fn pause(
    State(host): State<Arc<Sandboxes>>,
    Owner(owner): Owner,
    Path(id): Path<SandboxId>,
    body: Bytes,
) -> Result<StatusCode, Failure> {
    let sandbox = host.of_owner(&id, &owner)?;
    if read::<Pause>(&body)?.memory != Some(false) {
        return Err(Failure::not_done(NO_MEMORY));
    }
    sandbox.pause().await?;
    host.tell(News::Sandbox(sandbox.summary()));
    Ok(StatusCode::NO_CONTENT)
}

/// Why a pause is refused that would keep processes.
pub(crate) const NO_MEMORY: &str =
    "memory: processes cannot be kept over a pause; with memory = false the files are kept";

async fn metrics(
    State(host): State<Arc<Sandboxes>>,
    Owner(owner): Owner,
    Path(id): Path<SandboxId>,
) -> Result<Json<Value>, Failure> {
    let sandbox = host.of_owner(&id, &owner)?;
    let session = sandbox.session()?;
    let look = || async {
        let found = session.processes().await?;
        let used: Duration = found.processes.iter().map(|process| process.cpu).sum();
        Ok::<_, Failure>((used, found.processes.iter().map(|process| process.memory).sum::<u64>()))
    };
    let (before, _) = look().await?;
    sleep(BETWEEN_LOOKS).await;
    let (after, memory) = look().await?;
    let used = after.saturating_sub(before).as_secs_f64() / BETWEEN_LOOKS.as_secs_f64();
    let (machine, disk) = (Machine::look(), Disk::look(host.state().path()));
    let now = now();
    Ok(Json(json!([{
        "timestamp": time(now),
        "timestampUnix": now / 1000,
        "cpuCount": machine.processors,
        "cpuUsedPct": used * 100.0,
        "memUsed": memory,
        "memTotal": sandbox.summary().memory.unwrap_or(machine.memory),
        "memCache": 0,
        "diskUsed": disk.used,
        "diskTotal": disk.total,
    }])))
}

/// What the sandboxes of a machine share.
pub(crate) struct Machine {
    processors: usize,
    /// Bytes.
    memory: u64,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, Into::into);
        Self { processors, memory: crate::wire::memory::total() }
    }
}

/// The file system of the state directory, in bytes.
struct Disk {
    used: u64,
    total: u64,
}

impl Disk {
    fn look(path: &std::path::Path) -> Self {
        let Ok(found) = nix::sys::statvfs::statvfs(path) else { return Self { used: 0, total: 0 } };
        let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
        let total = bytes(found.blocks());
        Self { used: total.saturating_sub(bytes(found.blocks_free())), total }
    }
}
