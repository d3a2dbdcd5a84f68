//! The front: connections of clients, their keys, and which host a request is for. It holds nothing that its
//! hosts do not have: killed and started again, it finds them.

mod access;
mod admission;
mod ask;
mod audit;
mod control;
mod events;
mod hosts;
#[cfg(feature = "nats")]
pub(crate) mod jobs;
mod memory;
mod metrics;
mod narrow;
mod openapi;
mod orphans;
mod run_code;
mod trace;
pub(crate) mod v1;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::arguments::Serve;
use crate::config::Config;
use crate::config::tokens::{Tokens, only_key, secret};
use crate::e2b::STREAMED;
use crate::front::access::Access;
use crate::front::admission::Admission;
use crate::front::audit::Audit;
use crate::front::events::{Events, OnDrop};
use crate::front::hosts::Hosts;
use crate::front::metrics::Metrics;
use crate::http::listen::{Answer, Listener};
use crate::http::request::{Label, Target, is_envd};
use crate::wire::failure::{Failure, Reason};
use crate::wire::headers::{
    API_KEY, REASON, SANDBOX_ID, SANDBOX_PORT, TO_PORT, TO_SANDBOX, TRAFFIC_TOKEN, text,
};
use crate::wire::id::{SandboxId, Seed};
use crate::wire::room::{ROOM, Room};
use crate::wire::{ENVD_PORT, StateDirectory};
use crate::{Problem, say};

/// Everything that requests need.
pub(crate) struct Front {
    /// For tasks that outlive a request.
    this: Weak<Self>,
    config: Config,
    access: Access,
    hosts: Arc<Hosts>,
    admission: Arc<Admission>,
    audit: Arc<Audit>,
    metrics: Arc<Metrics>,
    draining: AtomicBool,
}

/// Where commands come from beside connections of clients.
pub(crate) trait Source: Sized {
    /// Begins to take them, if the configuration names it.
    async fn begin(front: &Arc<Front>) -> Result<Option<Self>, Problem>;

    /// Ends after the hosts: what has run is told first.
    async fn end(self);
}

/// There is none.
#[cfg(not(feature = "nats"))]
pub(crate) struct NoSource;

#[cfg(not(feature = "nats"))]
impl Source for NoSource {
    async fn begin(_: &Arc<Front>) -> Result<Option<Self>, Problem> {
        Ok(None)
    }

    async fn end(self) {}
}

/// Runs `kennel serve` until it is told to end.
pub(crate) fn serve<S: Source>(serve: &Serve) -> Result<(), Problem> {
    let config = Config::read(serve)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(Problem::about("start threads"))?.block_on(run::<S>(config))
}

async fn run<S: Source>(config: Config) -> Result<(), Problem> {
    let state = config.state.clone();
    prepare(&state).map_err(Problem::about(state.path().display()))?;
    let _lock = lock(&state)?;
    let seed = secret(&state.seed()).map(Seed::new).map_err(Problem::about(state.seed().display()))?;
    let key = state.path().join("key");
    let (tokens, key) = match &config.tokens {
        Some(path) => (Tokens::read(path)?, None),
        None => {
            let key = only_key(&key).map_err(Problem::about(key.display()))?;
            (Tokens::of_key(&key), Some(key))
        }
    };
    let audit = Audit::open(config.audit.as_deref()).map_err(Problem::about("the audit log"))?;
    let (audit, metrics) = (Arc::new(audit), Metrics::new());
    let listener = Listener::bind(&config.listen, config.tls.as_ref(), config.connections).await?;
    let hosts = {
        let (audit, metrics) = (Arc::clone(&audit), Arc::clone(&metrics));
        let on_end = move |summary: &_, reason| {
            audit.ended(summary, reason);
            metrics.ended(reason);
        };
        Hosts::start(&config, on_end).await?
    };
    let admission = Admission::new(Arc::clone(&hosts), config.sandboxes, config.queue, config.admit_wait);
    tokio::spawn(Arc::clone(&admission).admit_waiting());
    greet(&listener, key.as_deref());
    let access = Access::new(tokens, seed);
    let draining = AtomicBool::new(false);
    let front = Arc::new_cyclic(|this| {
        let this = Weak::clone(this);
        Front { this, config, access, hosts, admission, audit, metrics, draining }
    });
    tokio::spawn(listener.serve(Arc::clone(&front)));
    tokio::spawn(Arc::clone(&front).read_tokens_anew());
    tokio::spawn(memory::watch(Arc::clone(&front)));
    tokio::spawn(orphans::reap());
    let source = S::begin(&front).await?;
    front.until_told().await?;
    front.hosts.end().await;
    if let Some(source) = source {
        source.end().await;
    }
    Ok(())
}

/// The directories of the state, closed to others.
fn prepare(state: &StateDirectory) -> io::Result<()> {
    for directory in [state.path().to_owned(), state.sandboxes(), state.lost(), state.hosts()] {
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        // Somebody may have made it before, with a seed that he knows.
        let found = fs::symlink_metadata(&directory)?;
        let is_ours = found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0;
        if !is_ours {
            let directory = directory.display();
            return Err(io::Error::other(format!(
                "{directory} must be a directory of this user, which nobody else may write to"
            )));
        }
    }
    forget_lost(state)
}

/// Forgets sandboxes that were lost more than a day ago.
fn forget_lost(state: &StateDirectory) -> io::Result<()> {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    for entry in fs::read_dir(state.lost())? {
        let entry = entry?;
        let age = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
        if age > DAY {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// One front uses a state directory.
fn lock(state: &StateDirectory) -> Result<Flock<File>, Problem> {
    let path = state.front_lock();
    let open = OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(Problem::about(path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
        let directory = state.path().display();
        Problem(format!(
            "{directory}: another server uses it; end that one, or name another directory with --state"
        ))
    })
}

/// Says where the server is, and what clients of E2B need.
fn greet(listener: &Listener, key: Option<&str>) {
    use std::io::Write;
    let url = listener.url();
    let mut text = format!("# Kennel serves at {url}\n");
    if let Some(key) = key {
        text = format!(
            "{text}export E2B_API_URL={url}\nexport E2B_SANDBOX_URL={url}\nexport E2B_API_KEY={key}\n"
        );
    }
    // Nobody may want to know.
    let _ = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
}

impl Answer for Front {
    async fn answer(self: Arc<Self>, request: Request<Body>) -> Response<Body> {
        let trace = trace::of(request.headers());
        trace::within(trace, self.answer_to(request)).await
    }
}

impl Front {
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    async fn answer_to(&self, request: Request<Body>) -> Response<Body> {
        let answer = match (self.target(&request), request.uri().path()) {
            (Target::Sandbox(id, port), _) => self.sandbox(&id, port, request).await,
            (Target::Unknown, _) => Err(Failure::gone(None)),
            (Target::Own, "/v1/openapi.json") => Ok(openapi::answer()),
            (Target::Own, "/healthz") => Ok(StatusCode::OK.into_response()),
            (Target::Own, "/readyz") => Ok(self.is_ready().into_response()),
            (Target::Own, ROOM) => Ok(Json(self.room()).into_response()),
            (Target::Own, "/metrics") => Ok(self.numbers().into_response()),
            (Target::Own, _) => self.control(request).await,
        };
        answer.unwrap_or_else(Failure::into_response)
    }

    /// What a request is for.
    fn target(&self, request: &Request<Body>) -> Target {
        let label = |host: &str| Label::below(self.config.domain.as_deref()?, host);
        match Target::find(request, label) {
            Target::Sandbox(id, _) if !self.is_ours(&id) => Target::Unknown,
            target => target,
        }
    }

    /// An id of this worker.
    pub(crate) fn id(&self, text: &str) -> Option<SandboxId> {
        text.parse().ok().filter(|id| self.is_ours(id))
    }

    fn is_ours(&self, id: &SandboxId) -> bool {
        id.worker() == self.config.name && self.hosts.has(id.host())
    }

    /// A request for a port of a sandbox; the port of E2B's daemon is for its files and commands.
    async fn sandbox(
        &self,
        id: &SandboxId,
        port: u16,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Failure> {
        let begun = Instant::now();
        let path = request.uri().path();
        let (is_envd, is_route) = (port == ENVD_PORT, is_envd(path));
        let known = self.hosts.find(id);
        let is_public = known.as_ref().is_some_and(|summary| summary.public_ports);
        let checked = match is_envd {
            // Clients ask for it without a token, to see whether a sandbox is there.
            true if path == "/health" => Ok(()),
            true => self.access.check_envd(id, request.method(), request.uri(), request.headers()),
            false if is_public => Ok(()),
            false => self.access.check_traffic(id, request.headers()),
        };
        checked.inspect_err(|failure| self.audit.refused(&format!("{id}{path}"), &failure.message))?;
        if is_envd && !is_route {
            // Its host has others, which the token of a sandbox does not open.
            return Err(Failure::no_route());
        }
        let is_start = is_envd && path == "/process.Process/Start";
        if is_start {
            self.may_start(id, known.as_ref().map(|summary| summary.owner.as_str()))?;
        }
        let name = HeaderValue::from_str(id.as_str()).map_err(|_| Failure::gone(None))?;
        let headers = request.headers_mut();
        headers.insert(TO_SANDBOX, name);
        headers.insert(TO_PORT, port.into());
        for ours in [SANDBOX_ID, SANDBOX_PORT, TRAFFIC_TOKEN] {
            headers.remove(ours);
        }
        // A server in the sandbox may have keys of its own.
        if text(headers, API_KEY).is_some_and(|key| self.access.tokens().find(key).is_some()) {
            headers.remove(API_KEY);
        }
        let response = self.hosts.forward(id.host(), request).await;
        let response = response.unwrap_or_else(Failure::into_response);
        let response = self.with_reason(response, id);
        let is_stream = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == STREAMED);
        if !is_stream {
            return Ok(response);
        }
        let (metrics, template) = (Arc::clone(&self.metrics), known.map(|summary| summary.template));
        let over = OnDrop::new(move || {
            template
                .filter(|_| is_start)
                .into_iter()
                .for_each(|template| metrics.command(&template, begun.elapsed()));
        });
        Ok(response.map(|body| Body::new(Events::new(body, over))))
    }

    /// Whether the owner may have one more command.
    pub(crate) fn may_start(&self, id: &SandboxId, owner: Option<&str>) -> Result<(), Failure> {
        self.audit.command(id, owner);
        let tokens = self.access.tokens();
        let Some(token) = owner.and_then(|owner| tokens.named(owner)) else { return Ok(()) };
        match token.commands.filter(|most| self.hosts.commands(&token.name) >= *most) {
            Some(most) => {
                let message = format!("token {}: {most} commands run, which is its limit", token.name);
                Err(Failure::later(StatusCode::TOO_MANY_REQUESTS, 1, message))
            }
            None => Ok(()),
        }
    }

    /// Adds why a sandbox is not there, where its host cannot know.
    fn with_reason(&self, mut response: Response<Body>, id: &SandboxId) -> Response<Body> {
        let is_gone = matches!(response.status(), StatusCode::BAD_GATEWAY | StatusCode::NOT_FOUND);
        if is_gone && !response.headers().contains_key(REASON) {
            let lost = self.hosts.lost(id);
            lost.into_iter().for_each(|reason: Reason| {
                response.headers_mut().insert(REASON, HeaderValue::from_static(reason.as_str()));
            });
        }
        response
    }

    fn is_ready(&self) -> StatusCode {
        let ready = !self.is_draining() && self.admission.room() > 0;
        if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    }

    /// What a router wants to know.
    fn room(&self) -> Room {
        let by_owner = self.hosts.running_by_owner();
        let tokens = self.access.tokens();
        let tokens =
            tokens.prefixes().filter_map(|(prefix, token)| Some((prefix, *by_owner.get(&token.name)?)));
        Room {
            name: self.config.name.clone(),
            instance: self.access.instance(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            templates: self.config.templates.keys().cloned().collect(),
            languages: self.config.languages.keys().cloned().collect(),
            room: self.admission.room(),
            running: by_owner.values().sum(),
            waiting: self.admission.waiting(),
            draining: self.is_draining(),
            tokens: tokens.collect(),
        }
    }

    fn numbers(&self) -> String {
        self.metrics.text(self.hosts.running(None), self.config.sandboxes, self.admission.waiting())
    }

    /// SIGHUP: other tokens.
    async fn read_tokens_anew(self: Arc<Self>) {
        let Ok(mut hangups) = signal(SignalKind::hangup()) else { return };
        while hangups.recv().await.is_some() {
            let Some(path) = &self.config.tokens else { continue };
            match Tokens::read(path) {
                Ok(tokens) => self.access.replace(tokens),
                Err(problem) => say(&format!("kennel: {problem}; the tokens are as before")),
            }
        }
    }

    /// Waits for SIGTERM or ^C, and then until nothing runs any more, its time is over, or a second one
    /// comes.
    async fn until_told(&self) -> Result<(), Problem> {
        let mut terminate = signal(SignalKind::terminate()).map_err(Problem::about("SIGTERM"))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Problem::about("SIGINT"))?;
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        self.draining.store(true, Ordering::Relaxed);
        let running = self.hosts.running(None);
        if running > 0 {
            say(&format!(
                "kennel: waits for {running} of its sandboxes; none is made any more, and a second signal ends them"
            ));
        }
        let empty = async {
            while self.hosts.running(None) > 0 || self.admission.has_begun() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            () = empty => {}
            () = sleep(self.config.drain) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    }
}
