//! `kennel route`: one address for many workers. An id names its worker, so a router holds nothing: each
//! of ten can answer every request, and one that starts again knows all within a second.
//!
//! Knows no sandbox, asks no key, and makes nothing: workers do that.

mod address;
mod create;
mod creations;
mod list;
mod metrics;
mod status;
mod worker;
mod workers;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode};
use axum::response::IntoResponse;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use crate::arguments::Route;
use crate::http::listen::{Answer, Listen, Listener, TlsFiles};
use crate::http::request::{Label, Target, is_envd, named_by_path};
use crate::route::address::Source;
use crate::route::create::{Making, no_worker};
use crate::route::creations::Creations;
use crate::route::metrics::Metrics;
use crate::route::workers::{State, Workers};
use crate::wire::ENVD_PORT;
use crate::wire::failure::{Failure, Reason};
use crate::wire::headers::{SANDBOX_ID, SANDBOX_PORT};
use crate::wire::id::SandboxId;
use crate::wire::room::ROOM;
use crate::{Problem, say};

pub(crate) use status::status;

/// Where it listens, beside a worker on the same machine.
const USUAL_ADDRESS: &str = "127.0.0.1:49984";

/// Connections of clients; more are closed at once.
const CONNECTIONS: usize = 10_000;

/// How long requests may go on after SIGTERM.
const DRAIN: Duration = Duration::from_secs(10);

/// Everything that requests need.
pub(crate) struct Router {
    workers: Arc<Workers>,
    creations: Arc<Creations>,
    metrics: Metrics,
    /// KiB of bodies that may be held at once.
    space: Semaphore,
}

/// All bodies that are held at once, in KiB.
const SPACE: usize = 256 << 10;

/// Runs `kennel route` until it is told to end.
pub(crate) fn route(route: &Route) -> Result<(), Problem> {
    // A stream takes two descriptors. Fewer than there may be are no reason not to start.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(Problem::about("start threads"))?.block_on(run(route))
}

async fn run(route: &Route) -> Result<(), Problem> {
    let (listen, tls) = place(route)?;
    let listener = Listener::bind(&listen, tls.as_ref(), CONNECTIONS).await?;
    let creations = Creations::new(route.tokens.clone())?;
    let workers = Workers::new(sources("--workers", &route.workers)?);
    workers.round().await;
    tokio::spawn(Arc::clone(&workers).watch());
    tokio::spawn(read_tokens_anew(Arc::clone(&creations)));
    greet(&listener.url());
    let router =
        Arc::new(Router { workers, creations, metrics: Metrics::new(), space: Semaphore::new(SPACE) });
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(listener.serve_until(router, stopped));
    until_told(stop, serving).await
}

/// What addresses say, which are values of a flag or an argument.
fn sources(name: &str, texts: &[String]) -> Result<Vec<Source>, Problem> {
    texts.iter().map(|text| text.parse().map_err(|reason| Problem(format!("{name}: {reason}")))).collect()
}

/// Where it listens, and with which certificate.
fn place(route: &Route) -> Result<(Listen, Option<TlsFiles>), Problem> {
    let text = route.listen.as_deref().unwrap_or(USUAL_ADDRESS);
    let listen =
        Listen::parse(text, Path::new("")).map_err(|reason| Problem(format!("--listen: {reason}")))?;
    let tls = route.certificate.clone().zip(route.key.clone());
    let tls = tls.map(|(certificate, key)| TlsFiles { certificate, key });
    match listen.beyond_this_machine() {
        Some(address) if tls.is_none() && !route.insecure => Err(Problem(format!(
            "--listen: {address} is no loopback address, and keys would pass in the clear; \
             name --certificate and --key, or say --insecure behind a proxy with TLS"
        ))),
        _ => Ok((listen, tls)),
    }
}

/// Says where the router is, and what clients of E2B need beside their key.
fn greet(url: &str) {
    let text = format!("# Kennel routes at {url}\nexport E2B_API_URL={url}\nexport E2B_SANDBOX_URL={url}\n");
    // Nobody may want to know.
    let _ = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
}

/// SIGHUP: other quotas.
async fn read_tokens_anew(creations: Arc<Creations>) {
    let Ok(mut hangups) = signal(SignalKind::hangup()) else { return };
    while hangups.recv().await.is_some() {
        if let Err(problem) = creations.read_anew() {
            say(&format!("kennel: {problem}; the tokens are as before"));
        }
    }
}

/// Waits for SIGTERM or ^C, and then until no request is under way, their time is over, or a second one
/// comes.
async fn until_told(stop: watch::Sender<bool>, serving: tokio::task::JoinHandle<()>) -> Result<(), Problem> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Problem::about("SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Problem::about("SIGINT"))?;
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    stop.send_replace(true);
    tokio::select! {
        _ = serving => {}
        () = sleep(DRAIN) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn name_sandbox(request: &mut Request<Body>, id: &SandboxId, port: u16) {
    // An id is a word of letters and digits.
    let Ok(name) = HeaderValue::from_str(id.as_str()) else { return };
    request.headers_mut().insert(SANDBOX_ID, name);
    request.headers_mut().insert(SANDBOX_PORT, port.into());
}

impl Answer for Router {
    async fn answer(self: Arc<Self>, mut request: Request<Body>) -> Response<Body> {
        let answer = match Target::find(&request, Label::first) {
            // A worker whose domain is another one would take it for a route of its own.
            Target::Sandbox(_, ENVD_PORT) if !is_envd(request.uri().path()) => Err(Failure::no_route()),
            Target::Sandbox(id, port) => {
                self.metrics.passed("sandbox");
                // By this, the worker takes it for the same sandbox and port.
                name_sandbox(&mut request, &id, port);
                self.pass_to(&id, request, || Failure::gone(Some(Reason::SessionLost))).await
            }
            Target::Unknown => Err(Failure::gone(None)),
            // Boxed, as each open stream keeps what the largest answer takes.
            Target::Own => Box::pin(self.control(request)).await,
        };
        answer.unwrap_or_else(Failure::into_response)
    }
}

impl Router {
    async fn control(&self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let (method, path) = (request.method(), request.uri().path());
        match path {
            "/healthz" => return Ok(StatusCode::OK.into_response()),
            "/readyz" => return Ok(self.is_ready().into_response()),
            "/metrics" => return Ok(self.numbers().into_response()),
            ROOM => return Ok(Json(json!({ "workers": self.workers.seen() })).into_response()),
            _ if path.starts_with("/v1/blobs/") => {
                let message =
                    "blobs belong to one worker, and a router has many: send the bytes in the request";
                return Err(Failure::not_done(message));
            }
            _ => {}
        }
        if let Some(making) = Making::of(method, path) {
            self.metrics.passed("create");
            return self.create(making, request).await;
        }
        if method == Method::GET && matches!(path, "/sandboxes" | "/v2/sandboxes") {
            self.metrics.passed("list");
            return self.list(request).await;
        }
        self.metrics.passed("control");
        if let Some(named) = named_by_path(request.uri()) {
            let id: SandboxId = named.parse().map_err(|_| Failure::unknown(named, None))?;
            let lost = || Failure::unknown(id.as_str(), Some(Reason::SessionLost));
            return self.pass_to(&id, request, lost).await;
        }
        let worker = self.workers.alive().into_iter().next().ok_or_else(no_worker)?;
        worker.forward(request).await
    }

    /// Passes a request on to the worker of a sandbox. `lost` is the answer if it is gone.
    async fn pass_to(
        &self,
        id: &SandboxId,
        request: Request<Body>,
        lost: impl FnOnce() -> Failure,
    ) -> Result<Response<Body>, Failure> {
        match self.workers.find(id.worker()).await {
            Some(worker) => worker.forward(request).await,
            None if self.workers.is_new() => Err(no_worker()),
            None => {
                self.metrics.refused("lost");
                Err(lost())
            }
        }
    }

    /// Whether a sandbox could be made.
    fn is_ready(&self) -> StatusCode {
        let has_room = |room: &crate::wire::room::Room| !room.draining && room.room > 0;
        let mut alive = self.workers.alive().into_iter();
        let ready = alive.any(|worker| worker.with_room(has_room).unwrap_or(false));
        if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    }

    fn numbers(&self) -> String {
        let rooms: Vec<_> = self.workers.alive().iter().filter_map(|worker| worker.room()).collect();
        let seen = self.workers.seen();
        let count = |state| seen.iter().filter(|seen| seen.state == state).count();
        self.metrics
            .text(&rooms, [State::Alive, State::Silent, State::Refused].map(|state| (state, count(state))))
    }
}
