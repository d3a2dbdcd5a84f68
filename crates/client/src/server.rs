//! A server, and calls to it: deadlines, what may be tried again, and answers that are no answers.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use crate::connect::{Address, Connector};
use crate::error::{Error, Loss};
use crate::run::Run;
use crate::sandbox::Sandbox;
use crate::session::Session;

/// The longest call that is no command, unless the caller says otherwise.
const DEADLINE: Duration = Duration::from_secs(60);

/// How long a server may be away, unless the caller says otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// The first pause before another attempt, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// The longest refusal, in bytes.
const LONGEST_REFUSAL: usize = 64 << 10;

/// What the server says of a sandbox that is not there.
pub(crate) const GONE: &str = "The sandbox was not found";

/// A machine that runs `kennel serve`. A clone shares its connections.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel_client::Error> {
/// use kennel_client::Server;
///
/// let server = Server::new("https://sandboxes.example:8443")?.token("e2b_…");
/// let session = server.sandbox().template("python").create().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Server {
    client: Client<Connector, Full<Bytes>>,
    address: Address,
    /// What URIs begin with.
    base: String,
    token: String,
    deadline: Duration,
    patience: Duration,
}

/// The token is a secret.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Server {
    /// A server at `http+unix:///PATH`, `http://HOST:PORT` or `https://HOST:PORT`, as `kennel serve` prints
    /// it. Nothing is sent yet.
    ///
    /// With `http://`, tokens and files pass in the clear.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another form.
    pub fn new(url: &str) -> Result<Self, Error> {
        let (address, base) = Address::parse(url)?;
        let client = client(&address);
        let token = String::new();
        Ok(Self { client, address, base, token, deadline: DEADLINE, patience: PATIENCE })
    }

    /// Sets the key of this client: of `tokens.toml`, or the one that the server prints.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = token.into();
        self
    }

    /// Trusts these certificate authorities besides those of the system, in PEM form.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is none.
    pub fn certificates(mut self, pem: &[u8]) -> Result<Self, Error> {
        self.address.trust(pem)?;
        self.client = client(&self.address);
        Ok(self)
    }

    /// Sets the longest time of a call, with all attempts: [`Error::Deadline`]. Default: a minute, which
    /// large files may need more than. Commands have their own [`timeout`](crate::Command::timeout), and only
    /// their start counts here.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets how long calls try again while nobody listens at the address, as during a restart, and creations
    /// while there is no room. Default: ten seconds.
    ///
    /// A request that the server may have got is not sent twice, except for a creation, which has a key by
    /// which the server knows it again, and for what kills a command or ends a session.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// A new sandbox, once it is [created](Sandbox::create).
    pub fn sandbox(&self) -> Sandbox {
        Sandbox::new(self.clone())
    }

    /// The session with this [id](Session::id). Dropping it does not end it.
    ///
    /// # Errors
    /// [`Error::SessionLost`] if it is gone, or belongs to another token.
    pub async fn attach(&self, id: &str) -> Result<Session, Error> {
        Session::attach(self.clone(), id).await
    }

    /// One command in a sandbox of its own, with its files in and out, as one request.
    pub fn run(&self, program: impl Into<String>) -> Run {
        Run::new(self.clone(), program.into())
    }

    /// A call for control routes.
    pub(crate) fn call(&self, method: Method, path: &str) -> Call {
        Call::new(method, path).header("x-api-key", &self.token)
    }

    /// Asks, and reads the answer.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, call: Call, most: usize) -> Result<T, Error> {
        let answer = self.read(call, most).await?;
        serde_json::from_slice(&answer)
            .map_err(|_| Error::protocol("an answer is not the JSON that it should be"))
    }

    /// Asks, and reads the bytes of the answer.
    pub(crate) async fn read(&self, call: Call, most: usize) -> Result<Bytes, Error> {
        let whole = async { body(self.send(call).await?.into_body(), most).await };
        timeout(self.deadline, whole).await.map_err(|_| self.late())?
    }

    /// Asks, and returns as soon as the answer begins.
    pub(crate) async fn open(&self, call: Call) -> Result<Response<Incoming>, Error> {
        timeout(self.deadline, self.send(call)).await.map_err(|_| self.late())?
    }

    pub(crate) fn late(&self) -> Error {
        Error::Deadline { after: self.deadline }
    }

    pub(crate) fn longest(&self) -> Duration {
        self.deadline
    }

    /// Sends a request until the server has it. Refusals are errors.
    async fn send(&self, call: Call) -> Result<Response<Incoming>, Error> {
        let begun = Instant::now();
        let [mut pause, longest] = PAUSES;
        let may_repeat = call.may_repeat;
        let request = call.request(&self.base)?;
        loop {
            let (error, wait) = match self.client.request(request.clone()).await {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) => match refusal(response).await {
                    error @ Error::Refused { status: 429 | 503, retry_after: Some(wait), .. }
                        if may_repeat =>
                    {
                        (error, wait.max(pause))
                    }
                    error @ Error::Cut { .. } if may_repeat => (error, pause),
                    error => return Err(error),
                },
                Err(error) => match self.failed(error) {
                    (error, true) => (error, pause),
                    (error @ Error::Cut { .. }, _) if may_repeat => (error, pause),
                    (error, _) => return Err(error),
                },
            };
            if wait > self.patience.saturating_sub(begun.elapsed()) {
                return Err(error);
            }
            sleep(wait).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Why no answer came, and whether another attempt may help.
    fn failed(&self, error: legacy::Error) -> (Error, bool) {
        if !error.is_connect() {
            return (Error::cut(error), false);
        }
        let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<io::Error>());
        let (kind, words) =
            cause.map_or((io::ErrorKind::Other, String::new()), |cause| (cause.kind(), cause.to_string()));
        // A certificate stays as it is.
        let is_final = matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::PermissionDenied);
        let source = io::Error::new(kind, words);
        (Error::Unreachable { server: self.base.clone(), source }, !is_final)
    }
}

fn client(address: &Address) -> Client<Connector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).build(Connector(address.clone()))
}

/// A request before it is sent.
pub(crate) struct Call {
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    /// Twice is as good as once.
    may_repeat: bool,
}

impl Call {
    pub(crate) fn new(method: Method, path: &str) -> Self {
        Self { method, path: path.to_owned(), headers: Vec::new(), body: Bytes::new(), may_repeat: false }
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub(crate) fn body(mut self, kind: &'static str, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self.header(CONTENT_TYPE.as_str(), kind)
    }

    pub(crate) fn json(self, body: &serde_json::Value) -> Self {
        self.body("application/json", body.to_string())
    }

    /// Gives it a key of its own, by which the server knows it again.
    pub(crate) fn with_key(self) -> Self {
        self.header("idempotency-key", &unique()).idempotent()
    }

    /// Says that twice is as good as once.
    pub(crate) fn idempotent(mut self) -> Self {
        self.may_repeat = true;
        self
    }

    fn request(self, base: &str) -> Result<Request<Full<Bytes>>, Error> {
        let mut request = Request::builder().method(self.method).uri(format!("{base}{}", self.path));
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let wrong = |_| Error::invalid("the token or the id", "no header of HTTP can carry it");
        request.body(Full::new(self.body)).map_err(wrong)
    }
}

/// A word that nobody else has: 128 bits of the standard library's random keys.
pub(crate) fn unique() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1))
}

/// Bytes of a file's path or an id, as part of a URI.
pub(crate) fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
        encoded
    })
}

/// A body of at most so many bytes.
async fn body(body: Incoming, most: usize) -> Result<Bytes, Error> {
    match Limited::new(body, most).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(Error::TooLarge { what: "the answer", most: most as u64 })
        }
        Err(error) => Err(Error::cut(error)),
    }
}

/// What an answer says that is no success.
async fn refusal(response: Response<Incoming>) -> Error {
    #[derive(Deserialize)]
    struct Words {
        message: String,
    }
    let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let (status, reason) = (response.status().as_u16(), text("x-kennel-reason").map(str::to_owned));
    let retry_after = text(RETRY_AFTER.as_str()).and_then(|seconds| seconds.parse().ok());
    let retry_after = retry_after.map(Duration::from_secs);
    let body = match body(response.into_body(), LONGEST_REFUSAL).await {
        Ok(body) => body,
        Err(error) => return error,
    };
    let words = serde_json::from_slice(&body).map(|words: Words| words.message);
    let is_gone = |words: &String| match status {
        // A file that is not there is 404 as well, and a proxy without its server 502.
        404 => words.starts_with("sandbox ") && words.ends_with(" was not found"),
        502 => words == GONE,
        _ => false,
    };
    if matches!(status, 404 | 502) && reason.is_some() || words.as_ref().is_ok_and(is_gone) {
        return Error::SessionLost { reason: Loss::of(reason.as_deref()) };
    }
    let message =
        words.map_or_else(|_| format!("the server answers with status {status}"), |words| harmless(&words));
    Error::Refused { status, message, retry_after }
}

/// The words of a server on one line, so that they can be printed.
pub(crate) fn harmless(words: &str) -> String {
    words.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}
