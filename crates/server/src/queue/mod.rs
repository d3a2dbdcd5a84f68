//! Jobs from NATS JetStream: bodies of `/v1/run` without a client that waits. A worker takes a job only when
//! there is room, stores its one result, and only then acknowledges it.
//!
//! The result is stored under the job's id if there is none yet. So whatever is delivered twice, by a worker
//! that died, was cut off or was slow, has one result. An acknowledgement only tidies up. Nothing here
//! decides about sandboxes: that is the front.

mod attempts;
mod cancelled;
mod janitor;
mod jobs;
mod kept;
mod objects;
mod places;
mod results;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::Message;
use async_nats::{Client, ConnectOptions, Event};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::config::nats::Nats;
use crate::front::{Front, Source};
use crate::queue::cancelled::Cancelled;
use crate::queue::jobs::Job;
use crate::queue::kept::Kept;
use crate::queue::places::Places;
use crate::{Problem, say};

/// How long one request for jobs waits for some.
const PULL: Duration = Duration::from_secs(3);

/// The pause after something did not work.
const AGAIN: Duration = Duration::from_secs(1);

/// The pause between two looks for room, or for the end.
const LOOK: Duration = Duration::from_millis(20);

/// How long results may take to be stored when the server ends. Then they go to the disk.
const END: Duration = Duration::from_secs(10);

/// What NATS says when something fails. It is not looked into: it is tried again.
type Trouble = async_nats::Error;

/// The worker of a queue.
pub(crate) struct Queue(Arc<Worker>);

/// What all jobs of this worker share.
struct Worker {
    front: Arc<Front>,
    nats: Nats,
    client: Client,
    /// One for each job at once.
    room: Arc<Semaphore>,
    /// Jobs whose outcomes are not yet stored or kept.
    in_hand: AtomicUsize,
    cancelled: Cancelled,
    kept: Kept,
    /// There is a new connection: requests of the old one are not answered any more.
    connected: Arc<Notify>,
}

impl Source for Queue {
    async fn begin(front: &Arc<Front>) -> Result<Option<Self>, Problem> {
        let Some(nats) = front.nats().cloned() else { return Ok(None) };
        if front.job_token(&nats).is_none() {
            let name = nats.token.as_deref().unwrap_or_default();
            return Err(Problem(format!(
                "nats.token: {name:?} is no token; name one of the file of tokens, without a file none"
            )));
        }
        let connected = Arc::new(Notify::new());
        let client = connect(&nats, front.worker_name(), Arc::clone(&connected)).await?;
        let kept = Kept::open(front.state().kept_results()).map_err(Problem::about("kept results"))?;
        let worker = Arc::new(Worker {
            front: Arc::clone(front),
            room: Arc::new(Semaphore::new(nats.jobs)),
            nats,
            client,
            in_hand: AtomicUsize::new(0),
            cancelled: Cancelled::default(),
            kept,
            connected,
        });
        worker.note_kept();
        tokio::spawn(Arc::clone(&worker).serve());
        Ok(Some(Self(worker)))
    }

    async fn end(self) {
        let is_idle = async {
            while self.0.in_hand.load(Ordering::Relaxed) > 0 || !self.0.kept.is_empty() {
                sleep(LOOK).await;
            }
        };
        // What is not stored by then is stored by the next server of this state directory.
        let _ = timeout(END, is_idle).await;
        self.0.kept.write_all();
        let _ = timeout(AGAIN, self.0.client.flush()).await;
    }
}

/// A connection that comes back by itself. The server need not be there yet.
async fn connect(nats: &Nats, name: &str, connected: Arc<Notify>) -> Result<Client, Problem> {
    let mut options = ConnectOptions::new();
    if let Some(path) = &nats.credentials {
        options = options.credentials_file(path).await.map_err(Problem::about(path.display()))?;
    }
    if let Some(path) = &nats.token_file {
        let token = std::fs::read_to_string(path).map_err(Problem::about(path.display()))?;
        options = options.token(token.trim().to_owned());
    }
    if let Some(path) = &nats.ca {
        options = options.add_root_certificates(path.clone());
    }
    let told = move |event| {
        match event {
            Event::Connected => connected.notify_waiters(),
            Event::Disconnected => say("kennel: NATS is gone; running jobs go on"),
            Event::ClientError(error) => say(&format!("kennel: NATS: {error}")),
            Event::ServerError(error) => say(&format!("kennel: NATS: {error}")),
            _ => {}
        }
        async {}
    };
    let options = options
        .name(format!("kennel {name}"))
        .retry_on_initial_connect()
        .reconnect_delay_callback(|attempts| AGAIN.min(Duration::from_millis(50 * attempts as u64)))
        .event_callback(told);
    options.connect(nats.url.as_str()).await.map_err(Problem::about(format!("nats.url: {}", nats.url)))
}

impl Worker {
    /// Takes jobs until the server ends.
    async fn serve(self: Arc<Self>) {
        let Some(places) = self.places().await else { return };
        let places = Arc::new(places);
        tokio::spawn(Arc::clone(&self).store_kept(Arc::clone(&places)));
        tokio::spawn(Arc::clone(&self).watch_cancelled(Arc::clone(&places)));
        tokio::spawn(Arc::clone(&self).watch_lost(Arc::clone(&places)));
        while !self.front.is_draining() {
            if let Err(trouble) = self.pull(&places).await {
                say(&format!("kennel: jobs of NATS: {trouble}; trying again"));
                sleep(AGAIN).await;
                // A server that has lost its files has none of them any more.
                if let Err(trouble) = Places::open(&self.client, &self.nats).await {
                    say(&format!("kennel: NATS: {trouble}"));
                }
            }
        }
    }

    /// The streams and buckets, made as soon as NATS can be reached. `None` if the server ends before.
    async fn places(&self) -> Option<Places> {
        let mut is_told = false;
        while !self.front.is_draining() {
            match Places::open(&self.client, &self.nats).await {
                Ok(places) => return Some(places),
                Err(trouble) if !is_told => {
                    is_told = true;
                    say(&format!("kennel: NATS at {}: {trouble}; trying on", self.nats.url));
                }
                Err(_) => {}
            }
            sleep(AGAIN).await;
        }
        None
    }

    /// Asks for as many jobs as there is room for, and begins them.
    async fn pull(self: &Arc<Self>, places: &Arc<Places>) -> Result<(), Trouble> {
        let mut permits = self.permits().await;
        if permits.is_empty() {
            return Ok(());
        }
        let connected = self.connected.notified();
        tokio::pin!(connected);
        let batch = places.consumer.batch().max_messages(permits.len()).expires(PULL);
        let mut batch = batch.messages().await?;
        loop {
            let next = tokio::select! {
                next = batch.next() => next,
                // What has come already is taken; no more comes.
                () = &mut connected => {
                    while let Some(Some(message)) = batch.next().now_or_never() {
                        self.begin(message?, &mut permits, places);
                    }
                    None
                }
            };
            let Some(message) = next else { return Ok(()) };
            self.begin(message?, &mut permits, places);
        }
    }

    /// Waits until there is room for a job: a permit for each. None once the server ends.
    async fn permits(&self) -> Vec<OwnedSemaphorePermit> {
        let first = Arc::clone(&self.room).acquire_owned().await;
        let mut permits: Vec<_> = first.into_iter().collect();
        while !self.front.is_draining() {
            let token = self.front.job_token(&self.nats);
            let room = token.map_or(0, |token| self.front.room_for(&token));
            if room > 0 {
                while permits.len() < room
                    && let Ok(permit) = Arc::clone(&self.room).try_acquire_owned()
                {
                    permits.push(permit);
                }
                return permits;
            }
            sleep(LOOK).await;
        }
        Vec::new()
    }

    /// Begins a job in a task of its own.
    fn begin(
        self: &Arc<Self>,
        message: Message,
        permits: &mut Vec<OwnedSemaphorePermit>,
        places: &Arc<Places>,
    ) {
        let permit = permits.pop();
        let hand = InHand::new(self);
        let (worker, places) = (Arc::clone(self), Arc::clone(places));
        tokio::spawn(async move {
            // A message without a subject to answer is no job.
            if let Some(job) = Job::of(message, &worker.nats.prefix) {
                worker.work(&places, &job).await;
            }
            drop((permit, hand));
        });
    }
}

/// Counts a job whose outcome is not yet stored or kept.
struct InHand(Arc<Worker>);

impl InHand {
    fn new(worker: &Arc<Worker>) -> Self {
        worker.in_hand.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(worker))
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        self.0.in_hand.fetch_sub(1, Ordering::Relaxed);
    }
}
