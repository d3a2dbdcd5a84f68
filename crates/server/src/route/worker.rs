//! One worker at one address: asked for its room, and asked to answer requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use tokio::time::{Instant, timeout};

use crate::http::forward::{at, client_builder, forward};
use crate::http::listen::Place;
use crate::route::address::{Address, Connector};
use crate::route::workers::{GONE, Seen, State};
use crate::wire::failure::Failure;
use crate::wire::id::is_worker_name;
use crate::wire::room::{ROOM, Room};

/// How long a worker may take to say what room it has.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// The longest answer about room, in bytes.
const MOST_ROOM: usize = 1 << 20;

/// What URIs say in the place of a host: each client has one worker.
const AUTHORITY: &str = "worker";

/// The connections to one worker.
pub(crate) type WorkerClient = Client<Connector, Body>;

pub(crate) fn client(address: Address) -> WorkerClient {
    client_builder().build(Connector(address))
}

/// A worker at an address.
pub(crate) struct Worker {
    address: Address,
    client: WorkerClient,
    said: Mutex<Said>,
}

#[derive(Default)]
struct Said {
    room: Option<Room>,
    /// When the last answer came.
    heard: Option<Instant>,
    /// When the question was put that it answered.
    asked: Option<Instant>,
    /// Why it has not answered since.
    trouble: Option<String>,
    /// Why it is not used.
    refused: Option<String>,
}

/// Why a worker has not answered.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// No connection: it has not got the request.
    Refused(String),
    /// It broke off. Nobody knows what it has done.
    Broken(String),
    /// The request cannot be sent to anybody.
    Bad(Failure),
}

impl Worker {
    pub(crate) fn new(address: Address) -> Arc<Self> {
        let client = client(address.clone());
        Arc::new(Self { address, client, said: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Asks what room it has, and notes the answer.
    pub(crate) async fn ask_room(&self) {
        let asked = Instant::now();
        let answer = timeout(PATIENCE, get_room(&self.client)).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")));
        let answer = answer.and_then(|body| read_room(&body));
        let mut said = self.lock();
        match answer {
            Ok(room) => {
                said.room = Some(room);
                said.heard = Some(Instant::now());
                said.asked = Some(asked);
                said.trouble = None;
            }
            Err(trouble) => said.trouble = Some(trouble),
        }
    }

    /// Passes a request on, and both directions after an upgrade.
    pub(crate) async fn forward(&self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let ask = |request| async { self.ask(request).await.map_err(|error| self.failure(error)) };
        forward(request, ask).await
    }

    /// Asks it for an answer without an upgrade, with a body that is whole.
    pub(crate) async fn ask_once(&self, mut request: Request<Body>) -> Result<Response<Body>, NoAnswer> {
        request.extensions_mut().remove::<Place>();
        for of_connection in [CONNECTION, UPGRADE, CONTENT_LENGTH, TRANSFER_ENCODING] {
            request.headers_mut().remove(of_connection);
        }
        let mut response = self.ask(request).await?;
        response.headers_mut().remove(CONNECTION);
        Ok(response.map(Body::new))
    }

    /// Asks it.
    pub(crate) async fn ask(&self, mut request: Request<Body>) -> Result<Response<Incoming>, NoAnswer> {
        *request.uri_mut() = at(AUTHORITY, request.uri()).map_err(NoAnswer::Bad)?;
        self.client.request(request).await.map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            let words = format!("{error}: {cause}");
            if error.is_connect() { NoAnswer::Refused(words) } else { NoAnswer::Broken(words) }
        })
    }

    /// What a client is told. It never says that a sandbox is gone: this worker may just be starting again.
    pub(crate) fn failure(&self, error: NoAnswer) -> Failure {
        let name = self.identity().map_or_else(|| self.address.to_string(), |(name, _)| name);
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        match error {
            NoAnswer::Refused(cause) => {
                Failure::later(unavailable, 1, format!("worker {name} does not answer just now: {cause}"))
            }
            NoAnswer::Broken(cause) => {
                let message = format!("worker {name} broke off, and may have done what was asked: {cause}");
                Failure::new(unavailable, message)
            }
            NoAnswer::Bad(failure) => failure,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.lock().heard.is_some_and(|heard| heard.elapsed() < GONE)
    }

    /// Its name, and which one of that name it is.
    pub(crate) fn identity(&self) -> Option<(String, String)> {
        self.lock().room.as_ref().map(|room| (room.name.clone(), room.instance.clone()))
    }

    /// What it said last.
    pub(crate) fn room(&self) -> Option<Room> {
        self.lock().room.clone()
    }

    /// Calls a function with what it said last.
    pub(crate) fn with_room<T>(&self, call: impl FnOnce(&Room) -> T) -> Option<T> {
        self.lock().room.as_ref().map(call)
    }

    /// It has refused a creation: it has no room until it says otherwise.
    pub(crate) fn note_full(&self) {
        if let Some(room) = &mut self.lock().room {
            room.room = 0;
        }
    }

    /// Whether its last answer tells of what was so at that time.
    pub(crate) fn tells_of(&self, time: Instant) -> bool {
        self.lock().asked.is_some_and(|asked| asked > time)
    }

    /// It has its name alone.
    pub(crate) fn accept(&self) {
        self.lock().refused = None;
    }

    /// Another one has its name. Returns whether that is news.
    pub(crate) fn refuse(&self, reason: &str) -> bool {
        self.lock().refused.replace(reason.to_owned()).is_none()
    }

    pub(crate) fn seen(&self) -> Seen {
        let (is_alive, said) = (self.is_alive(), self.lock());
        let (state, reason) = match (is_alive, &said.refused) {
            (false, _) => (State::Silent, said.trouble.clone()),
            (true, Some(reason)) => (State::Refused, Some(reason.clone())),
            (true, None) => (State::Alive, None),
        };
        Seen { url: self.address.to_string(), state, reason, room: said.room.clone() }
    }
}

/// The body of an answer to `GET /room`, which may be long, late, or something else.
pub(crate) async fn get_room(client: &WorkerClient) -> Result<Vec<u8>, String> {
    let request = Request::get(format!("http://{AUTHORITY}{ROOM}")).header(HOST, AUTHORITY);
    let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
    let response = client.request(request).await.map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        cause.unwrap_or_else(|| error.to_string())
    })?;
    if response.status() != StatusCode::OK {
        return Err(format!("{ROOM} answers with {}: no worker of this version is there", response.status()));
    }
    let body = to_bytes(Body::new(response.into_body()), MOST_ROOM).await;
    body.map(Into::into).map_err(|_| format!("{ROOM}: more than {MOST_ROOM} bytes, or cut off"))
}

/// Reads what a worker says about itself.
pub(crate) fn read_room(body: &[u8]) -> Result<Room, String> {
    let no_worker = |reason: &str| format!("{ROOM} does not answer as a worker does: {reason}");
    let room: Room = serde_json::from_slice(body).map_err(|error| no_worker(&error.to_string()))?;
    let is_plain = |text: &str| text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_worker_name(&room.name) {
        return Err(no_worker("its name is no label of a domain"));
    }
    if !is_plain(&room.instance) || !is_plain(&room.version) {
        return Err(no_worker("its instance or version is no word"));
    }
    Ok(room)
}
