//! Jobs for a fleet of workers, through NATS JetStream (feature `nats`).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use async_nats::header::{HeaderMap, NATS_MESSAGE_ID};
use async_nats::jetstream::kv::Store;
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::error::Error;
use crate::object::Objects;
use crate::run::{Answer, Request, RunOutput, content};
use crate::server::unique;

/// From this size on, in bytes, bodies are objects.
const LARGE: usize = 512 << 10;

/// What a message has beside a body, in bytes: its headers.
const BESIDE: usize = 4 << 10;

/// How often results are looked for of which nobody has told.
const LOOK: Duration = Duration::from_secs(5);

/// How long results are looked for once the time is over.
const LAST: Duration = Duration::from_secs(1);

/// How long a job is sent again while NATS is away.
const TRIES: Duration = Duration::from_secs(60);

/// A command for a fleet, in a sandbox of its own.
#[derive(Clone, Debug)]
pub struct Job {
    id: String,
    request: Request,
}

impl Job {
    /// The program and its arguments.
    pub fn new<A: Into<String>>(words: impl IntoIterator<Item = A>) -> Self {
        Self { id: unique(), request: Request::new(words.into_iter().map(Into::into).collect()) }
    }

    /// Sets the id, instead of one at random: 1 to 128 letters, digits, `-` and `_`. A job whose id has a
    /// result gets that result, and does not run again.
    #[must_use]
    pub fn id(self, id: impl Into<String>) -> Self {
        Self { id: id.into(), ..self }
    }

    /// Sets the template. Default: `base`.
    #[must_use]
    pub fn template(self, name: impl Into<String>) -> Self {
        self.with("template", name.into().into())
    }

    /// Sets a variable of the command's environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.variables.insert(name.into(), value.into());
        self
    }

    /// Sets standard input. Default: none.
    #[must_use]
    pub fn stdin(self, input: impl AsRef<[u8]>) -> Self {
        self.with("stdin", content(input.as_ref()))
    }

    /// Sets the wall time of the command once it runs. Default: a minute.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with("timeout", timeout.as_secs_f64().into())
    }

    /// Adds a file that is there before the command starts, with the directories above it.
    #[must_use]
    pub fn file(mut self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Self {
        self.request.files.push((path.as_ref().to_owned(), contents.as_ref().to_owned()));
        self
    }

    /// Asks for a file that the command writes.
    #[must_use]
    pub fn output_file(mut self, path: impl AsRef<Path>) -> Self {
        self.request.outputs.push(path.as_ref().to_owned());
        self
    }

    fn with(mut self, name: &str, value: Value) -> Self {
        self.request.more.insert(name.to_owned(), value);
        self
    }

    fn body(self) -> Result<Vec<u8>, Error> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=128).contains(&self.id.len()) || !self.id.bytes().all(is_plain) {
            return Err(Error::invalid(&self.id, "no id: 1 to 128 letters, digits, `-` and `_`"));
        }
        Ok(Value::from(self.request.body()?).to_string().into_bytes())
    }
}

/// What became of a job.
#[derive(Debug)]
#[non_exhaustive]
pub struct JobResult {
    /// Its place among the jobs of the call.
    pub index: usize,
    /// Its id.
    pub id: String,
    /// How often it was given to a worker. From 2 on, its command may have run more than once; this is its
    /// one result.
    pub deliveries: u64,
    /// Its output and its report, or why there is none.
    pub output: Result<RunOutput, JobError>,
}

/// Why a job has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// No worker could run it, or one has refused it.
    #[error("the job is dead: {reason}")]
    Dead {
        /// What the last worker has said.
        reason: String,
        /// What `/v1/run` would have answered, if a worker has refused it.
        status: Option<u16>,
        /// Each attempt that is known.
        history: Vec<Attempt>,
    },
    /// Somebody has cancelled it.
    #[error("the job was cancelled")]
    Cancelled,
    /// It had no result in time, and was cancelled.
    #[error("the job has no result in time, and was cancelled")]
    Late,
    /// Its result is none of Kennel.
    #[error("its result cannot be read")]
    Result(#[source] Error),
}

/// One attempt of a job.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Attempt {
    /// Its number, from 1.
    pub delivery: u64,
    /// The name of the worker.
    pub worker: String,
    /// When it began, as RFC 3339.
    pub time: String,
    /// What went wrong. Without it, the worker was not heard of again.
    pub error: Option<String>,
}

/// Workers that take jobs from a queue of NATS: `kennel serve --nats`.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel_client::Error> {
/// use kennel_client::{Fleet, Job};
///
/// let fleet = Fleet::connect("nats://127.0.0.1:4222").await?;
/// let mut results = fleet.map([Job::new(["echo", "a"]), Job::new(["echo", "b"])], None).await?;
/// while let Some(result) = results.next().await {
///     println!("{} {:?}", result.index, result.output.map(|output| output.stdout));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Fleet {
    context: Context,
    prefix: String,
    results: Store,
    cancelled: Store,
    bodies: Objects,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Fleet {
    /// Connects to NATS, and finds the queue `kennel` there. Several servers have commas between them.
    ///
    /// # Errors
    /// [`Error::Unreachable`], also if no worker has made the queue yet.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(url, "kennel", None).await
    }

    /// The same with the prefix of the workers, and with a credentials file of NATS.
    ///
    /// # Errors
    /// Those of [`Fleet::connect`].
    pub async fn connect_with(url: &str, prefix: &str, credentials: Option<&Path>) -> Result<Self, Error> {
        let unreachable =
            |source| Error::Unreachable { server: url.to_owned(), source: std::io::Error::other(source) };
        let mut options = async_nats::ConnectOptions::new();
        if let Some(path) = credentials {
            let with = options.credentials_file(path).await;
            options = with.map_err(|source| Error::Unreachable { server: url.to_owned(), source })?;
        }
        let client = options.connect(url).await.map_err(|error| unreachable(error.to_string()))?;
        let context = jetstream::new(client);
        let missing =
            |what: String| unreachable(format!("{what}; start a worker first: kennel serve --nats URL"));
        let results = context.get_key_value(format!("{prefix}-results")).await;
        let cancelled = context.get_key_value(format!("{prefix}-cancelled")).await;
        let bodies = Objects::open(&context, format!("{prefix}-bodies")).await;
        Ok(Self {
            results: results.map_err(|error| missing(error.to_string()))?,
            cancelled: cancelled.map_err(|error| missing(error.to_string()))?,
            bodies: bodies.map_err(|error| missing(error.to_string()))?,
            context,
            prefix: prefix.to_owned(),
        })
    }

    /// Sends jobs. `timeout` bounds the whole: what has no result then is cancelled.
    ///
    /// # Errors
    /// [`Error::Invalid`] for jobs that cannot be sent, before any is. [`Error::Cut`] if NATS is away for
    /// a minute.
    pub async fn map(
        &self,
        jobs: impl IntoIterator<Item = Job>,
        timeout: Option<Duration>,
    ) -> Result<JobResults, Error> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut bodies = Vec::new();
        let mut left = BTreeMap::new();
        for (index, job) in jobs.into_iter().enumerate() {
            let id = job.id.clone();
            bodies.push((id.clone(), job.body()?));
            if left.insert(id.clone(), index).is_some() {
                return Err(Error::invalid(id, "two jobs have this id"));
            }
        }
        let name = unique();
        let subject = format!("{}.done.{name}", self.prefix);
        let mut told = self.context.client().subscribe(subject).await.map_err(Error::cut)?;
        let (tell, tellings) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(message) = told.next().await {
                let id = String::from_utf8_lossy(&message.payload).into_owned();
                if tell.send(id).is_err() {
                    return;
                }
            }
        });
        // Dropping it cancels what was sent.
        let results = JobResults { fleet: self.clone(), left, tellings, task, until, found: Vec::new() };
        for (id, body) in bodies {
            self.publish(&id, &name, body).await?;
        }
        Ok(results)
    }

    /// Cancels jobs, also those of another program. One that waits is not run, and one that runs is killed.
    ///
    /// # Errors
    /// [`Error::Cut`] if NATS is away.
    pub async fn cancel(&self, ids: impl IntoIterator<Item = impl AsRef<str>>) -> Result<(), Error> {
        for id in ids {
            self.cancelled.put(id, bytes::Bytes::new()).await.map_err(Error::cut)?;
        }
        Ok(())
    }

    /// Publishes a job until NATS has it: to do it again is safe, as it has an id.
    async fn publish(&self, id: &str, name: &str, body: Vec<u8>) -> Result<(), Error> {
        let until = Instant::now() + TRIES;
        loop {
            match self.try_publish(id, name, &body).await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > until => return Err(Error::cut(error)),
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    }

    async fn try_publish(&self, id: &str, name: &str, body: &[u8]) -> Result<(), async_nats::Error> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, id);
        headers.insert("Kennel-Notify", name);
        let mut payload = bytes::Bytes::copy_from_slice(body);
        let room = self.context.client().max_payload().saturating_sub(BESIDE);
        if body.len() > LARGE.min(room) {
            self.bodies.put(format!("job-{id}"), body, room).await?;
            headers.insert("Kennel-Body", "object");
            payload = bytes::Bytes::new();
        }
        let jobs = format!("{}.jobs", self.prefix);
        self.context.publish_with_headers(jobs, headers, payload).await?.await?;
        Ok(())
    }

    /// What became of a job; `None` as long as nobody knows, or NATS is away.
    async fn find(&self, id: &str) -> Option<(Line, Result<Vec<u8>, Error>)> {
        let value = self.results.get(id).await.ok()??;
        let end = value.iter().position(|byte| *byte == b'\n')?;
        let line: Line = serde_json::from_slice(value.get(..end)?).ok()?;
        let Some(object) = &line.object else {
            let rest = value.get(end + 1..)?.to_vec();
            return Some((line, Ok(rest)));
        };
        let answer = self.bodies.read(object).await?;
        Some((line, answer))
    }
}

/// The line of an outcome.
#[derive(Deserialize)]
struct Line {
    outcome: String,
    deliveries: u64,
    object: Option<String>,
    error: Option<String>,
    status: Option<u16>,
    #[serde(default)]
    history: Vec<Attempt>,
}

impl Line {
    fn output(self, answer: Result<Vec<u8>, Error>) -> Result<RunOutput, JobError> {
        match self.outcome.as_str() {
            "done" => {
                let parse = |answer: Vec<u8>| {
                    serde_json::from_slice::<Answer>(&answer)
                        .map_err(|_| Error::protocol("a result that is no answer of /v1/run"))
                };
                answer.and_then(parse).and_then(Answer::output).map_err(JobError::Result)
            }
            "cancelled" => Err(JobError::Cancelled),
            _ => {
                let reason = self.error.unwrap_or_default();
                Err(JobError::Dead { reason, status: self.status, history: self.history })
            }
        }
    }
}

/// Results of [`Fleet::map`], as they are ready. Dropping it cancels the jobs that are left.
pub struct JobResults {
    fleet: Fleet,
    /// Those without a result, with their places.
    left: BTreeMap<String, usize>,
    tellings: mpsc::UnboundedReceiver<String>,
    task: JoinHandle<()>,
    until: Option<Instant>,
    /// Results that nobody has taken yet.
    found: Vec<JobResult>,
}

impl std::fmt::Debug for JobResults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobResults").field("left", &self.left.len()).finish_non_exhaustive()
    }
}

impl JobResults {
    /// The next one. `None` after the last.
    pub async fn next(&mut self) -> Option<JobResult> {
        loop {
            if let Some(found) = self.found.pop() {
                return Some(found);
            }
            if self.left.is_empty() {
                return None;
            }
            let Some(until) = self.until else {
                self.hear().await;
                continue;
            };
            // NATS may be away, and each look would wait for it.
            if timeout_at(until, self.hear()).await.is_err() {
                // Who asks late gets what is there.
                let _ = timeout(LAST, self.look_for_all()).await;
                self.give_up();
            }
        }
    }

    /// Waits until somebody tells of a result, or looks for all.
    async fn hear(&mut self) {
        match timeout(LOOK, self.tellings.recv()).await {
            Ok(Some(id)) => self.look(&id).await,
            _ => self.look_for_all().await,
        }
    }

    async fn look_for_all(&mut self) {
        for id in self.left.keys().cloned().collect::<Vec<_>>() {
            self.look(&id).await;
        }
    }

    async fn look(&mut self, id: &str) {
        if self.left.contains_key(id)
            && let Some((line, answer)) = self.fleet.find(id).await
            && let Some(index) = self.left.remove(id)
        {
            let deliveries = line.deliveries;
            self.found.push(JobResult { index, id: id.to_owned(), deliveries, output: line.output(answer) });
        }
    }

    /// The time is over.
    fn give_up(&mut self) {
        self.cancel_left();
        for (id, index) in std::mem::take(&mut self.left) {
            self.found.push(JobResult { index, id, deliveries: 0, output: Err(JobError::Late) });
        }
    }

    fn cancel_left(&self) {
        let (fleet, ids) = (self.fleet.clone(), self.left.keys().cloned().collect::<Vec<_>>());
        if let (false, Ok(runtime)) = (ids.is_empty(), tokio::runtime::Handle::try_current()) {
            // Without NATS nobody can be told; each job has its timeout.
            runtime.spawn(async move { fleet.cancel(ids).await });
        }
    }
}

impl Drop for JobResults {
    fn drop(&mut self) {
        self.task.abort();
        self.cancel_left();
    }
}
