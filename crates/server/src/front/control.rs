//! Control routes at the front: creations are checked, narrowed and admitted, lists come from what hosts have
//! told, and what is about one sandbox goes to its host.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use axum::response::IntoResponse;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::config::template::{Template, USUAL_TEMPLATE};
use crate::config::tokens::Token;
use crate::e2b::control::{Machine, NO_MEMORY, USUAL_SECONDS, listed};
use crate::front::Front;
use crate::front::narrow::{NetworkRequest, narrow};
use crate::front::run_code::run_code;
use crate::http::request::{MOST_CONTROL, body_of, parameters};
use crate::wire::failure::{Failure, Reason};
use crate::wire::headers::{IDEMPOTENCY_KEY, NEXT_TOKEN, OWNER};
use crate::wire::id::{SandboxId, hex};
use crate::wire::page::{PAGE, Place, order};
use crate::wire::sandbox::{Making, NewSandbox, State, Summary, now};

/// Bytes of a sandbox's metadata, which lists have.
const MOST_METADATA: usize = 64 << 10;

/// Bytes of a sandbox's variables.
const MOST_VARIABLES: usize = 256 << 10;

/// A creation, as E2B's clients send it. Other keys are ignored: clients add some.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateRequest {
    #[serde(rename = "templateID")]
    template: Option<String>,
    timeout: Option<u64>,
    #[serde(default)]
    auto_pause: bool,
    auto_pause_memory: Option<bool>,
    /// The one key that clients send in this spelling.
    #[serde(rename = "allow_internet_access", alias = "allowInternetAccess")]
    allow_internet_access: Option<bool>,
    #[serde(default)]
    network: NetworkRequest,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    mcp: Option<serde_json::Value>,
    iam: Option<serde_json::Value>,
    volume_mounts: Option<Vec<serde_json::Value>>,
}

impl Front {
    /// A request for a control route.
    pub(crate) async fn control(&self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let token = self.access.token(request.headers()).inspect_err(|failure| {
            self.audit.refused(request.uri().path(), &failure.message);
        })?;
        let path = request.uri().path().to_owned();
        let words: Vec<_> = path.split('/').skip(1).collect();
        let words = match words[..] {
            ["v2", first, ..] if first != "v1" => words.get(1..).unwrap_or_default(),
            _ => &words,
        };
        match (request.method(), words) {
            (&Method::POST, ["sandboxes"]) => self.create(&token, request).await,
            (&Method::GET, ["sandboxes"]) => self.list(&token, request.uri()),
            (_, ["sandboxes", id] | ["sandboxes", id, "timeout" | "connect" | "pause" | "metrics"]) => {
                self.about_sandbox(&token, id, request).await
            }
            (_, ["sandboxes", _, "snapshots" | "fork" | "resume" | "network" | "refreshes" | "logs"]) => {
                Err(Failure::not_done(
                    "snapshots, forks, logs and changes of the network of a sandbox are not served",
                ))
            }
            (_, ["templates" | "volumes" | "secrets" | "snapshots" | "builds", ..]) => {
                Err(Failure::not_done(
                    "templates are made in serve.toml; volumes, secrets and snapshots are not served",
                ))
            }
            (&Method::POST, ["run_code"]) => run_code(self, &token, request).await,
            (_, ["v1", words @ ..]) => self.own(&token, words, request).await,
            _ => Err(Failure::no_route()),
        }
    }

    async fn create(&self, token: &Token, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let (parts, body) = request.into_parts();
        let body = body_of(body, MOST_CONTROL).await?;
        let new = self.asked(token, &parts.headers, &body)?;
        self.make_admitted(token, &new).await.map(|(_, response)| response)
    }

    /// Makes a sandbox as soon as there is room: its id, and the answer of its host.
    pub(crate) async fn make_admitted(
        &self,
        token: &Token,
        new: &NewSandbox,
    ) -> Result<(SandboxId, Response<Body>), Failure> {
        let begun = Instant::now();
        self.takes_more()?;
        let template = &new.making.template;
        let admitted = self.admission.admit(token).await.map_err(|(refusal, failure)| {
            self.metrics.refused(refusal.as_str());
            self.audit.refused("create", &failure.message);
            failure
        })?;
        // It may have waited long.
        self.takes_more()?;
        let key = new.idempotency.as_ref().map(|(key, _)| first_bytes(&format!("{}:{key}", token.name)));
        let response = self.make(new, key).await?;
        let (parts, body) = response.into_parts();
        let is_lost = |_| Failure::gone(Some(Reason::SessionLost));
        let body = to_bytes(body, MOST_CONTROL).await.map_err(|error| is_lost(error.to_string()))?;
        if parts.status != StatusCode::CREATED {
            self.metrics.refused("failed");
            return Err(Failure::of_answer(parts.status, &body));
        }
        let made: Made = serde_json::from_slice(&body).map_err(|error| is_lost(error.to_string()))?;
        self.audit.created(&made.id, &token.name, template);
        self.metrics.created(template, begun.elapsed());
        self.hosts.note(Summary {
            id: made.id.clone(),
            owner: new.owner.clone(),
            template: template.clone(),
            metadata: new.metadata.clone(),
            state: State::Running,
            started: now(),
            deadline: now().saturating_add(new.life_ms),
            public_ports: new.making.public_ports,
            memory: None,
        });
        drop(admitted);
        Ok((made.id, Response::from_parts(parts, Body::from(body))))
    }

    /// Refuses a creation while the worker is ending.
    fn takes_more(&self) -> Result<(), Failure> {
        if !self.is_draining() {
            return Ok(());
        }
        let message = "the worker is ending: ask another one";
        Err(Failure::later(StatusCode::SERVICE_UNAVAILABLE, 5, message))
    }

    /// Asks hosts to make it. One that has just died is not asked again.
    async fn make(&self, new: &NewSandbox, key: Option<u64>) -> Result<Response<Body>, Failure> {
        let body = serde_json::to_vec(new).map_err(|error| Failure::bad(error.to_string()))?;
        let mut left = 2;
        loop {
            let none =
                || Failure::later(StatusCode::SERVICE_UNAVAILABLE, 1, "no host of this worker runs just now");
            let chosen = self.hosts.choose(key).ok_or_else(none)?;
            let request = Request::post("/sandboxes").header(CONTENT_TYPE, "application/json");
            let request =
                request.body(Body::from(body.clone())).map_err(|error| Failure::bad(error.to_string()))?;
            match self.hosts.forward(chosen.host, request).await {
                Ok(response) => return Ok(response),
                Err(_) if left > 0 => {
                    left -= 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(_) => return Err(none()),
            }
        }
    }

    /// What a host is asked to make: the template, narrowed by the request.
    fn asked(&self, token: &Token, headers: &HeaderMap, body: &[u8]) -> Result<NewSandbox, Failure> {
        let request: CreateRequest =
            serde_json::from_slice(body).map_err(|error| Failure::bad(format!("the body: {error}")))?;
        for (key, is_there) in [
            ("mcp", request.mcp.as_ref().is_some_and(|mcp| !mcp.is_null())),
            ("iam", request.iam.is_some()),
            ("volumeMounts", request.volume_mounts.is_some_and(|mounts| !mounts.is_empty())),
        ] {
            if is_there {
                return Err(Failure::not_done(format!("{key}: not served")));
            }
        }
        let name = request.template.as_deref().unwrap_or(USUAL_TEMPLATE);
        let template = self.template(token, name)?;
        let longest = Longest::of(token, name, template);
        let usual = Duration::from_secs(USUAL_SECONDS).min(longest.time);
        let life = request.timeout.map_or(usual, Duration::from_secs);
        longest.check(life)?;
        if request.auto_pause && request.auto_pause_memory != Some(false) {
            return Err(Failure::not_done(format!("autoPause: {NO_MEMORY}: autoPauseMemory = false")));
        }
        check_size("metadata", request.metadata.as_ref(), MOST_METADATA)?;
        check_size("envVars", request.env_vars.as_ref(), MOST_VARIABLES)?;
        let mut policy = template.policy.clone();
        narrow(&mut policy, name, request.allow_internet_access, &request.network)?;
        let idempotency = match headers.get(IDEMPOTENCY_KEY) {
            Some(key) => {
                Some((idempotency_key(key.to_str().unwrap_or_default())?, hex(&Sha256::digest(body))))
            }
            None => None,
        };
        Ok(NewSandbox {
            metadata: request.metadata.unwrap_or_default(),
            variables: request.env_vars.unwrap_or_default(),
            longest_ms: milliseconds(longest.time),
            pauses: request.auto_pause,
            idempotency,
            ..self.new_sandbox(token, template.making(name, policy), life)
        })
    }

    /// A sandbox with nothing but a template and a life.
    pub(crate) fn new_sandbox(&self, token: &Token, making: Making, life: Duration) -> NewSandbox {
        NewSandbox {
            owner: token.name.clone(),
            making,
            metadata: BTreeMap::new(),
            variables: BTreeMap::new(),
            life_ms: milliseconds(life),
            longest_ms: milliseconds(life),
            pauses: false,
            domain: self.config.domain.clone(),
            idempotency: None,
        }
    }

    /// A template that this token may use.
    pub(crate) fn template(&self, token: &Token, name: &str) -> Result<&Template, Failure> {
        let template = self.config.templates.get(name).ok_or_else(|| {
            let usable = self.config.templates.keys().filter(|name| token.may_use(name));
            let usable: Vec<_> = usable.map(String::as_str).collect();
            let message =
                format!("template {name:?} is not there; this token may use: {}", usable.join(", "));
            Failure::new(StatusCode::NOT_FOUND, message)
        })?;
        if !token.may_use(name) {
            let message = format!("template {name}: token {} may not use it", token.name);
            return Err(Failure::new(StatusCode::FORBIDDEN, message));
        }
        Ok(template)
    }

    fn list(&self, token: &Token, uri: &Uri) -> Result<Response<Body>, Failure> {
        let query = parameters(uri.query().unwrap_or_default());
        let all = |name: &'static str| {
            query.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
        };
        let one = |name| all(name).next();
        let states: Vec<_> = all("state").flat_map(|states| states.split(',')).collect();
        // Clients encode each name and each value, then the pairs, and then the query.
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let wanted = all("metadata").flat_map(parameters);
        let wanted: Vec<_> = wanted.map(|(name, value)| (decoded(&name), decoded(&value))).collect();
        let limit = one("limit").map_or(Ok(PAGE), |text| {
            text.parse::<usize>().map_err(|_| Failure::bad(format!("limit: {text:?} is no number")))
        })?;
        let after = one("nextToken").map(|text| {
            text.parse::<Place>().map_err(|_| Failure::bad(format!("nextToken: {text:?} is of no page")))
        });
        let (limit, after) = (limit.clamp(1, PAGE), after.transpose()?);
        let is_rising = one("order") == Some("asc");
        let mut found = self.hosts.of_owner(&token.name);
        found.retain(|summary| {
            let state = if summary.state == State::Running { "running" } else { "paused" };
            (states.is_empty() || states.contains(&state))
                && wanted.iter().all(|(name, value)| summary.metadata.get(name) == Some(value))
                && one("template").is_none_or(|template| template == summary.template)
        });
        found.sort_by(|one, other| order(&one.place(), &other.place(), is_rising));
        let is_before = |summary: &Summary| {
            after.as_ref().is_some_and(|after| order(&summary.place(), after, is_rising).is_le())
        };
        let rest = found.get(found.partition_point(is_before)..).unwrap_or_default();
        let page = rest.get(..limit.min(rest.len())).unwrap_or_default();
        let machine = Machine::look();
        let listed: Vec<_> = page.iter().map(|summary| listed(summary, &machine)).collect();
        let mut response = axum::Json(listed).into_response();
        let next = page.last().filter(|_| page.len() < rest.len());
        let next = next.and_then(|last| HeaderValue::from_str(&last.place().to_string()).ok());
        next.into_iter().for_each(|next| {
            response.headers_mut().insert(NEXT_TOKEN, next);
        });
        Ok(response)
    }

    pub(crate) async fn about_sandbox(
        &self,
        token: &Token,
        id: &str,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Failure> {
        let id = self.id(id).ok_or_else(|| Failure::unknown(id, None))?;
        let owner = token.name.parse().map_err(|_| Failure::bad("the token's name is no header"))?;
        request.headers_mut().insert(OWNER, owner);
        let is_end = request.method() == Method::DELETE;
        let response = match self.hosts.forward(id.host(), request).await {
            Err(failure) if failure.status == StatusCode::BAD_GATEWAY => {
                self.hosts.without_host(&id).into_response()
            }
            Err(failure) => return Err(failure),
            Ok(response) => response,
        };
        if is_end && response.status() == StatusCode::NO_CONTENT {
            // Its host tells that, too, but perhaps only after the client has asked for a list.
            self.hosts.note_end(&id);
        }
        Ok(self.with_reason(response, &id))
    }
}

/// Refuses what the front and its host would have to hold for as long as the sandbox lives.
fn check_size(key: &str, map: Option<&BTreeMap<String, String>>, most: usize) -> Result<(), Failure> {
    // Each entry takes memory beside its bytes.
    let size: usize = map.into_iter().flatten().map(|(name, value)| 64 + name.len() + value.len()).sum();
    if size <= most {
        return Ok(());
    }
    Err(Failure::bad(format!("{key}: {size} bytes with 64 for each entry, and {most} are the most")))
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The longest life that a client may ask for, and whose limit that is.
pub(crate) struct Longest {
    pub(crate) time: Duration,
    whose: String,
}

impl Longest {
    pub(crate) fn of(token: &Token, name: &str, template: &Template) -> Self {
        match token.life.filter(|life| *life < template.life) {
            Some(time) => Self { time, whose: format!("token {}", token.name) },
            None => Self { time: template.life, whose: format!("template {name}") },
        }
    }

    pub(crate) fn check(&self, life: Duration) -> Result<(), Failure> {
        if life <= self.time {
            return Ok(());
        }
        let (life, longest) = (life.as_secs_f64(), self.time.as_secs_f64());
        Err(Failure::bad(format!(
            "timeout: {life} s is longer than {longest} s, the limit of {}",
            self.whose
        )))
    }
}

/// What the front needs to know of a host's answer.
#[derive(Deserialize)]
struct Made {
    #[serde(rename = "sandboxID")]
    id: SandboxId,
}

fn idempotency_key(key: &str) -> Result<String, Failure> {
    let good = |byte: u8| byte.is_ascii_graphic();
    if (1..=255).contains(&key.len()) && key.bytes().all(good) {
        return Ok(key.to_owned());
    }
    Err(Failure::bad("Idempotency-Key: 1 to 255 letters, digits or signs are expected"))
}

/// A number of a text that is the same in every process.
fn first_bytes(text: &str) -> u64 {
    let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
