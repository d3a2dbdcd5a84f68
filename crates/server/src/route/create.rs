//! Where a sandbox is made: of two workers drawn at random, at the one with more room.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use crate::config::template::USUAL_TEMPLATE;
use crate::http::request::{MOST_CONTROL, MOST_RUN, body_of, key};
use crate::route::Router;
use crate::route::creations::Creation;
use crate::route::worker::{NoAnswer, Worker};
use crate::wire::failure::Failure;
use crate::wire::headers::{IDEMPOTENCY_KEY, text};
use crate::wire::room::Room;

/// How long the body of a creation may take.
const BODY: Duration = Duration::from_secs(60);

/// Workers that are asked for one sandbox.
const ATTEMPTS: usize = 3;

/// A request that makes a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Making {
    /// One that stays.
    Sandbox,
    /// One for a command.
    Run,
    /// One for a piece of code.
    Code,
}

/// What a worker must have.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Template(String),
    Language(String),
}

impl Wanted {
    fn is_in(&self, room: &Room) -> bool {
        match self {
            Self::Template(name) => room.templates.contains(name),
            Self::Language(name) => room.languages.contains(name),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Names {
    #[serde(rename = "templateID")]
    template_id: Option<String>,
    template: Option<String>,
    language: Option<String>,
}

impl Making {
    pub(crate) fn of(method: &Method, path: &str) -> Option<Self> {
        match path {
            "/sandboxes" | "/v2/sandboxes" if method == Method::POST => Some(Self::Sandbox),
            "/v1/run" if method == Method::POST => Some(Self::Run),
            "/run_code" | "/v2/run_code" if method == Method::POST => Some(Self::Code),
            _ => None,
        }
    }

    /// The longest body.
    fn most(self) -> usize {
        if self == Self::Sandbox { MOST_CONTROL } else { MOST_RUN }
    }

    /// A body that says nothing clear is the worker's to refuse.
    fn wanted(self, body: &[u8]) -> Wanted {
        let names: Names = serde_json::from_slice(body).unwrap_or_default();
        let template = match self {
            Self::Sandbox => names.template_id,
            Self::Run => names.template,
            Self::Code => return Wanted::Language(names.language.unwrap_or_default()),
        };
        Wanted::Template(template.unwrap_or_else(|| USUAL_TEMPLATE.to_owned()))
    }
}

/// A worker that may make it.
struct Candidate {
    worker: Arc<Worker>,
    name: String,
    room: usize,
}

impl Router {
    /// Passes a creation on to a worker that has what it needs.
    pub(crate) async fn create(
        &self,
        making: Making,
        request: Request<Body>,
    ) -> Result<Response<Body>, Failure> {
        let (parts, body) = request.into_parts();
        let key = key(&parts.headers);
        if !self.creations.may_be(key.as_deref()) {
            return Err(Failure::new(StatusCode::UNAUTHORIZED, "X-API-KEY is missing, or no token has it"));
        }
        let (body, _space) = self.body(&parts, body, making.most()).await?;
        let begun = self.creations.begin(key.as_deref(), || self.workers.alive());
        let creation = begun.await.map_err(|(quota, failure)| {
            self.metrics.refused(quota.as_str());
            failure
        })?;
        let idempotency = text(&parts.headers, IDEMPOTENCY_KEY).map(ToOwned::to_owned);
        let order = self.order(&making.wanted(&body), idempotency.as_deref())?;
        let has_key = making == Making::Sandbox && idempotency.is_some();
        let attempt = Attempt { router: self, making, parts, body, has_key };
        attempt.at(&order, creation).await
    }

    /// The whole body of a creation, and its part of the space for all.
    async fn body(
        &self,
        parts: &Parts,
        body: Body,
        most: usize,
    ) -> Result<(Bytes, SemaphorePermit<'_>), Failure> {
        let named = text(&parts.headers, CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok());
        let kib = named.unwrap_or(most).min(most) / 1024 + 1;
        let space = self.space.acquire_many(u32::try_from(kib).unwrap_or(u32::MAX)).await;
        let space = space.map_err(|_| no_worker())?;
        let body = timeout(BODY, body_of(body, most)).await;
        let late = || Failure::new(StatusCode::REQUEST_TIMEOUT, "the body took more than a minute");
        Ok((body.unwrap_or_else(|_| Err(late()))?, space))
    }

    /// The workers to ask, first to last.
    fn order(&self, wanted: &Wanted, idempotency: Option<&str>) -> Result<Vec<Arc<Worker>>, Failure> {
        let alive = self.workers.alive();
        let has = |worker: &&Arc<Worker>| worker.with_room(|room| wanted.is_in(room)).unwrap_or(false);
        let takes = |worker: &&Arc<Worker>| worker.with_room(|room| !room.draining).unwrap_or(false);
        let found: Vec<_> = alive.iter().filter(has).filter(takes).collect();
        if !found.is_empty() {
            let of = |(worker, room): (&Arc<Worker>, usize)| Candidate {
                worker: Arc::clone(worker),
                name: worker.with_room(|room| room.name.clone()).unwrap_or_default(),
                room,
            };
            let rooms = self.creations.rooms(&found);
            let candidates = found.into_iter().zip(rooms).map(of).collect();
            return Ok(match idempotency {
                Some(key) => by_key(candidates, key),
                None => by_room(candidates, random),
            });
        }
        // Whoever answers says why: that it drains, or which templates there are.
        let other = alive.iter().find(has).or_else(|| alive.iter().find(takes)).or(alive.first());
        other.map(|worker| vec![Arc::clone(worker)]).ok_or_else(no_worker)
    }
}

/// No worker is there.
pub(crate) fn no_worker() -> Failure {
    Failure::later(StatusCode::SERVICE_UNAVAILABLE, 1, "no worker answers just now")
}

/// One creation, at one worker after another.
struct Attempt<'a> {
    router: &'a Router,
    making: Making,
    parts: Parts,
    body: Bytes,
    /// Whether twice is as good as once.
    has_key: bool,
}

impl Attempt<'_> {
    async fn at(&self, order: &[Arc<Worker>], creation: Creation) -> Result<Response<Body>, Failure> {
        let mut refused = None;
        for (number, worker) in order.iter().enumerate() {
            if number > 0 {
                self.router.metrics.retried();
            }
            creation.at(worker, self.making != Making::Sandbox);
            match self.ask(worker).await {
                Err(NoAnswer::Broken(_)) if self.has_key => return self.again(worker, creation).await,
                Ok(response) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {
                    worker.note_full();
                    refused = Some(Ok(response));
                }
                Ok(response) => {
                    if response.status() == StatusCode::CREATED {
                        creation.made();
                    }
                    return Ok(response);
                }
                Err(NoAnswer::Refused(cause)) => {
                    worker.note_full();
                    refused = refused.or(Some(Err(worker.failure(NoAnswer::Refused(cause)))));
                }
                Err(NoAnswer::Broken(cause)) => {
                    let failure = worker.failure(NoAnswer::Broken(cause));
                    return Err(Failure::new(StatusCode::BAD_GATEWAY, failure.message));
                }
                Err(NoAnswer::Bad(failure)) => return Err(failure),
            }
        }
        self.router.metrics.refused("full");
        refused.unwrap_or_else(|| Err(no_worker()))
    }

    /// Asks the worker once more that may have made it, and nobody else.
    async fn again(&self, worker: &Worker, creation: Creation) -> Result<Response<Body>, Failure> {
        self.router.metrics.retried();
        let response = self.ask(worker).await.map_err(|error| worker.failure(error))?;
        if response.status() == StatusCode::CREATED {
            creation.made();
        }
        Ok(response)
    }

    async fn ask(&self, worker: &Worker) -> Result<Response<Body>, NoAnswer> {
        let request = Request::from_parts(self.parts.clone(), Body::from(self.body.clone()));
        worker.ask_once(request).await
    }
}

/// Two drawn at random, the one with more room first, and one more. If none has room, one of them says so.
fn by_room(candidates: Vec<Candidate>, random: impl Fn() -> usize) -> Vec<Arc<Worker>> {
    let (mut with, mut without): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|candidate| candidate.room > 0);
    if with.is_empty() {
        let chosen = random() % without.len().max(1);
        return without.drain(..).skip(chosen).take(1).map(|candidate| candidate.worker).collect();
    }
    let mut order = Vec::new();
    while order.len() < ATTEMPTS && !with.is_empty() {
        order.push(with.swap_remove(random() % with.len()));
    }
    if let [one, other, ..] = order.as_mut_slice()
        && one.room < other.room
    {
        std::mem::swap(one, other);
    }
    order.into_iter().map(|candidate| candidate.worker).collect()
}

/// The same one first for the same key, as long as it is there, whoever else comes or goes.
fn by_key(mut candidates: Vec<Candidate>, key: &str) -> Vec<Arc<Worker>> {
    candidates.sort_by_cached_key(|candidate| {
        let weight: [u8; 32] = Sha256::digest(format!("{key}\0{}", candidate.name).as_bytes()).into();
        std::cmp::Reverse(weight)
    });
    candidates.into_iter().take(ATTEMPTS).map(|candidate| candidate.worker).collect()
}

fn random() -> usize {
    let mut bytes = [0; 4];
    // Without random bytes, the first is as good as any.
    let _ = getrandom::fill(&mut bytes);
    u32::from_ne_bytes(bytes) as usize
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::route::address::Address;

    fn candidates(rooms: &[usize]) -> Vec<Candidate> {
        let candidate = |(place, room): (usize, &usize)| Candidate {
            worker: Worker::new(Address::Tcp(format!("w{place}"), 1)),
            name: format!("w{place}"),
            room: *room,
        };
        rooms.iter().enumerate().map(candidate).collect()
    }

    fn names(order: &[Arc<Worker>]) -> Vec<String> {
        order.iter().map(|worker| worker.address().to_string()).collect()
    }

    /// Draws the first, always.
    fn first() -> usize {
        0
    }

    #[tokio::test]
    async fn the_one_of_two_with_more_room_comes_first() {
        let order = names(&by_room(candidates(&[1, 5, 0, 9]), first));
        assert_eq!(order, ["http://w3:1", "http://w0:1", "http://w1:1"].map(ToOwned::to_owned));
        let next = Cell::new(0);
        let rising = || next.replace(next.get() + 1);
        assert_eq!(names(&by_room(candidates(&[1, 5]), rising))[0], "http://w1:1");
    }

    #[tokio::test]
    async fn where_none_has_room_one_is_asked() {
        assert_eq!(names(&by_room(candidates(&[0, 0, 0]), || 4)), ["http://w1:1"]);
    }

    #[tokio::test]
    async fn a_key_has_its_worker_whoever_comes_or_goes() {
        for key in ["a", "b", "c", "d"] {
            let all = names(&by_key(candidates(&[0, 1, 2, 3]), key));
            let fewer: Vec<_> = candidates(&[0, 1, 2, 3])
                .into_iter()
                .filter(|one| format!("http://{}:1", one.name) != all[1])
                .collect();
            assert_eq!(names(&by_key(fewer, key))[0], all[0], "{key}");
        }
        let firsts: std::collections::BTreeSet<_> =
            (0..64).map(|key| names(&by_key(candidates(&[1; 4]), &key.to_string())).remove(0)).collect();
        assert_eq!(firsts.len(), 4, "keys spread");
    }

    #[test]
    fn a_body_names_its_template_or_language() {
        let template = |name: &str| Wanted::Template(name.to_owned());
        assert_eq!(Making::Sandbox.wanted(br#"{"templateID": "a", "template": "b"}"#), template("a"));
        assert_eq!(Making::Run.wanted(br#"{"template": "b"}"#), template("b"));
        assert_eq!(Making::Run.wanted(b"{}"), template("base"));
        assert_eq!(Making::Sandbox.wanted(b"rubbish"), template("base"));
        assert_eq!(Making::Code.wanted(br#"{"language": "cpp"}"#), Wanted::Language("cpp".to_owned()));
    }
}
