//! The sandboxes of a host: made, found, watched, and ended. Knows nothing of HTTP but the status of a
//! failure.

pub(crate) mod news;
pub(crate) mod output;
pub(crate) mod paths;
pub(crate) mod prepared;
pub(crate) mod process;
pub(crate) mod ready;
pub(crate) mod record;
pub(crate) mod sandbox;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::{broadcast, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::sandboxes::prepared::Prepared;
use crate::sandboxes::process::{Process, Start};
use crate::sandboxes::ready::{Ready, Wanted};
use crate::sandboxes::record::Place;
use crate::sandboxes::sandbox::{Due, Sandbox};
use crate::wire::StateDirectory;
use crate::wire::failure::{Failure, Reason};
use crate::wire::id::{SandboxId, Seed};
use crate::wire::sandbox::{Making, NewSandbox, News, State, Summary};

/// Ends that are remembered, to tell who asks.
const MOST_ENDS: usize = 20_000;

/// Idempotency keys live that long, and no more than so many.
const KEY_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
const MOST_KEYS: usize = 50_000;

/// How often it is looked whether somebody outside has killed a sandbox, and whether it is used. One that was
/// not used for that long has no ready worker.
const LOOK: Duration = Duration::from_secs(4);

/// How long after a creation the next sandbox is prepared: a first command has ended by then.
const FILL_AFTER: Duration = Duration::from_millis(25);

/// News that a front may be behind.
const NEWS: usize = 4096;

/// Everything that a host has.
#[derive(Debug)]
pub(crate) struct Sandboxes {
    state: StateDirectory,
    worker: String,
    index: u8,
    seed: Seed,
    inner: Mutex<Inner>,
    news: broadcast::Sender<News>,
    /// Fronts that listen to the news.
    fronts: watch::Sender<usize>,
    /// Directories that are just being removed.
    removing: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    sandboxes: HashMap<SandboxId, Arc<Sandbox>>,
    ends: HashMap<SandboxId, Reason>,
    /// Their order.
    ended: VecDeque<SandboxId>,
    /// By owner and key.
    keys: HashMap<(String, String), Key>,
    /// Their order, with the times of their sandboxes.
    keyed: VecDeque<(Instant, (String, String))>,
    ready: Ready,
}

impl Inner {
    /// Forgets idempotency keys that are too old, or too many.
    fn remember(&mut self, key: (String, String)) {
        self.keyed.push_back((Instant::now(), key));
        let is_old = |(time, _): &(Instant, _)| time.elapsed() > KEY_LIFE;
        while self.keyed.len() > MOST_KEYS || self.keyed.front().is_some_and(is_old) {
            let Some((_, key)) = self.keyed.pop_front() else { return };
            self.keys.remove(&key);
        }
    }
}

/// A creation with an idempotency key.
#[derive(Clone, Debug)]
struct Key {
    body: String,
    /// `None` while the sandbox is being made.
    made: watch::Receiver<Option<Result<SandboxId, Failure>>>,
}

impl Sandboxes {
    /// Takes over what an earlier host of this index has paused. What ran there is lost: its files are
    /// removed, and its name is kept for whoever asks.
    pub(crate) fn new(state: StateDirectory, worker: String, index: u8) -> io::Result<Self> {
        let mut inner = Inner::default();
        for record in record::of_host(&state, index)? {
            let place = Place::new(&state, &record.id);
            match record.state {
                State::Paused => {
                    inner.sandboxes.insert(record.id.clone(), Arc::new(Sandbox::paused(place, record)));
                }
                State::Running => {
                    fs::write(state.lost().join(record.id.as_str()), "")?;
                    place.remove()?;
                }
            }
        }
        let (news, fronts) = (broadcast::channel(NEWS).0, watch::channel(0).0);
        let removing = AtomicUsize::new(0);
        let seed = Seed::read(&state.seed())?;
        Ok(Self { state, worker, index, seed, inner: Mutex::new(inner), news, fronts, removing })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches what was taken over from an earlier host.
    pub(crate) fn watch_all(self: &Arc<Self>) {
        let all: Vec<_> = self.lock().sandboxes.values().cloned().collect();
        for sandbox in all {
            tokio::spawn(Arc::clone(self).watch(sandbox));
        }
    }

    /// Makes a sandbox; with an idempotency key, returns the one that was made before.
    pub(crate) async fn create(self: &Arc<Self>, new: NewSandbox) -> Result<Arc<Sandbox>, Failure> {
        let Some((key, body)) = new.idempotency.clone() else { return self.make_for(new).await };
        let place = (new.owner.clone(), key);
        let (tell, made) = watch::channel(None);
        let earlier = match self.lock().keys.entry(place.clone()) {
            Entry::Occupied(earlier) => Some(earlier.get().clone()),
            Entry::Vacant(free) => {
                free.insert(Key { body: body.clone(), made });
                None
            }
        };
        if let Some(mut earlier) = earlier {
            if earlier.body != body {
                let message = "Idempotency-Key: another request with another body had this key";
                return Err(Failure::new(StatusCode::CONFLICT, message));
            }
            let made = earlier.made.wait_for(Option::is_some).await.map_or(None, |made| made.clone());
            let id = made.unwrap_or_else(|| {
                Err(Failure::new(StatusCode::CONFLICT, "the first request was given up"))
            })?;
            return self.find(&id);
        }
        // The client may go away: the sandbox is made nevertheless, so that its next try finds it.
        let host = Arc::clone(self);
        let making = tokio::spawn(async move {
            let made = host.make(new).await;
            let id = made.as_ref().map(|sandbox| sandbox.summary().id).map_err(Failure::clone);
            if id.is_err() {
                host.lock().keys.remove(&place);
            } else {
                host.lock().remember(place);
            }
            tell.send_replace(Some(id));
            made
        });
        making.await.unwrap_or_else(|_| Err(Failure::host_ends()))
    }

    /// Makes a sandbox for a client that has no other way to find it: if the client goes away meanwhile, the
    /// sandbox ends.
    async fn make_for(self: &Arc<Self>, new: NewSandbox) -> Result<Arc<Sandbox>, Failure> {
        let (host, (give, taken)) = (Arc::clone(self), oneshot::channel());
        tokio::spawn(async move {
            let made = host.make(new).await;
            if let Err(Ok(sandbox)) = give.send(made) {
                host.end(&sandbox, Reason::Ended);
            }
        });
        taken.await.unwrap_or_else(|_| Err(Failure::host_ends()))
    }

    async fn make(self: &Arc<Self>, new: NewSandbox) -> Result<Arc<Sandbox>, Failure> {
        let ready = self.lock().ready.take(&new.making);
        let prepared = match ready {
            Some(prepared) => {
                self.fill();
                prepared
            }
            None => self.prepare(&new.making).await?,
        };
        let sandbox = Arc::new(Sandbox::new(prepared, new)?);
        let summary = sandbox.summary();
        self.lock().sandboxes.insert(summary.id.clone(), Arc::clone(&sandbox));
        self.tell(News::Sandbox(summary));
        tokio::spawn(Arc::clone(self).watch(Arc::clone(&sandbox)));
        Ok(sandbox)
    }

    async fn prepare(&self, making: &Making) -> Result<Prepared, Failure> {
        let id = SandboxId::new(&self.worker, self.index).map_err(|error| {
            Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("getrandom: {error}"))
        })?;
        Prepared::new(Place::new(&self.state, &id), id, making).await
    }

    /// Keeps so many sandboxes of these templates prepared.
    pub(crate) fn want_ready(self: &Arc<Self>, wanted: Vec<Wanted>) {
        let unwanted = self.lock().ready.want(wanted);
        unwanted.into_iter().for_each(|prepared| self.remove(prepared.end()));
        self.fill();
    }

    /// Prepares what is missing, one after the other, beside everything else. Whoever has just taken one gets
    /// the processors for a first command.
    fn fill(self: &Arc<Self>) {
        let host = Arc::clone(self);
        tokio::spawn(async move {
            sleep(FILL_AFTER).await;
            loop {
                let missing = host.lock().ready.missing();
                let Some(making) = missing else { return };
                // A template that cannot be prepared says so to the client that asks for it.
                let prepared = host.prepare(&making).await.ok();
                let has_failed = prepared.is_none();
                let unwanted = host.lock().ready.add(&making, prepared);
                unwanted.into_iter().for_each(|prepared| host.remove(prepared.end()));
                if has_failed {
                    return;
                }
            }
        });
    }

    /// Removes the files of a sandbox that has ended.
    fn remove(self: &Arc<Self>, place: Place) {
        let host = Arc::clone(self);
        self.removing.fetch_add(1, Ordering::Relaxed);
        spawn_blocking(move || {
            // The next host of this index finds what is left.
            let _ = place.remove();
            host.removing.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// A sandbox that is there.
    pub(crate) fn find(&self, id: &SandboxId) -> Result<Arc<Sandbox>, Failure> {
        let inner = self.lock();
        inner.sandboxes.get(id).cloned().ok_or_else(|| Failure::gone(inner.ends.get(id).copied()))
    }

    /// A sandbox of this owner.
    pub(crate) fn of_owner(&self, id: &SandboxId, owner: &str) -> Result<Arc<Sandbox>, Failure> {
        let inner = self.lock();
        let found = inner.sandboxes.get(id).filter(|sandbox| sandbox.summary().owner == owner);
        found.cloned().ok_or_else(|| Failure::unknown(id.as_str(), inner.ends.get(id).copied()))
    }

    /// Starts a command, and tells the fronts of its begin and its end. The inner error is the command's own.
    pub(crate) async fn start(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        start: Start,
    ) -> Result<Result<Arc<Process>, kennel::Error>, Failure> {
        let owner = sandbox.summary().owner;
        let over = {
            let (host, owner) = (Arc::clone(self), owner.clone());
            move || host.tell(News::Commands { owner, change: -1 })
        };
        let started = sandbox.start(start, over).await?;
        if started.is_ok() {
            self.tell(News::Commands { owner, change: 1 });
        }
        Ok(started)
    }

    /// Ends a sandbox, removes its files, and remembers why.
    pub(crate) fn end(self: &Arc<Self>, sandbox: &Arc<Sandbox>, reason: Reason) {
        sandbox.end(reason);
        let id = sandbox.summary().id;
        {
            let mut inner = self.lock();
            if inner.sandboxes.remove(&id).is_none() {
                return;
            }
            inner.ends.insert(id.clone(), reason);
            inner.ended.push_back(id.clone());
            if inner.ended.len() > MOST_ENDS {
                let oldest = inner.ended.pop_front();
                oldest.into_iter().for_each(|oldest| {
                    inner.ends.remove(&oldest);
                });
            }
        }
        self.tell(News::Ended { id, reason });
        self.remove(sandbox.place.clone());
    }

    /// The sandbox that uses the most memory, and how many bytes.
    pub(crate) async fn largest(&self) -> Option<(SandboxId, u64)> {
        let all: Vec<_> = self.lock().sandboxes.values().cloned().collect();
        let mut largest = None;
        for sandbox in all {
            let Ok(session) = sandbox.session() else { continue };
            let Ok(found) = session.processes().await else { continue };
            let bytes = found.processes.iter().map(|process| process.memory).sum();
            if largest.as_ref().is_none_or(|(_, most)| *most < bytes) {
                largest = Some((sandbox.summary().id, bytes));
            }
        }
        largest
    }

    /// Keeps the deadline of a sandbox.
    async fn watch(self: Arc<Self>, sandbox: Arc<Sandbox>) {
        loop {
            let changed = sandbox.changed.notified();
            match sandbox.due() {
                Due::Gone => return,
                Due::End(reason) => return self.end(&sandbox, reason),
                Due::Pause => {
                    if sandbox.pause().await.is_err() {
                        // The disk is full, perhaps: then its time is over.
                        return self.end(&sandbox, Reason::Expired);
                    }
                    self.tell(News::Sandbox(sandbox.summary()));
                }
                Due::Later(time) => {
                    tokio::select! {
                        () = sleep(time.min(LOOK)) => sandbox.rest(LOOK),
                        () = changed => {}
                    }
                }
            }
        }
    }

    /// Tells the fronts.
    pub(crate) fn tell(&self, news: News) {
        // Without a front nobody needs to know; one that comes is told everything.
        let _ = self.news.send(news);
    }

    /// What there is, and what follows. Nothing is missed between the two.
    pub(crate) fn listen(self: &Arc<Self>) -> Listening {
        let inner = self.lock();
        let news = self.news.subscribe();
        let mut commands = BTreeMap::new();
        for sandbox in inner.sandboxes.values() {
            let running = i64::try_from(sandbox.running().len()).unwrap_or(i64::MAX);
            *commands.entry(sandbox.summary().owner).or_insert(0) += running;
        }
        let all = inner.sandboxes.values().map(|sandbox| sandbox.summary()).collect();
        self.fronts.send_modify(|fronts| *fronts += 1);
        Listening { all, commands, news, front: Front(Arc::clone(self)) }
    }

    /// Returns when no front has listened for that long.
    pub(crate) async fn without_front(&self, patience: Duration) {
        let mut fronts = self.fronts.subscribe();
        loop {
            let comes = fronts.wait_for(|fronts| *fronts > 0);
            if tokio::time::timeout(patience, comes).await.is_err() {
                return;
            }
            // This host has the sender.
            let _ = fronts.wait_for(|fronts| *fronts == 0).await;
        }
    }

    /// Ends all that run, and waits until their files are gone. Paused ones stay.
    pub(crate) async fn end_all(self: &Arc<Self>) {
        self.want_ready(Vec::new());
        let all: Vec<_> = self.lock().sandboxes.values().cloned().collect();
        for sandbox in all {
            if sandbox.summary().state == State::Running {
                self.end(&sandbox, Reason::Ended);
            }
        }
        while self.removing.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn state(&self) -> &StateDirectory {
        &self.state
    }

    /// From which tokens are computed.
    pub(crate) fn seed(&self) -> &Seed {
        &self.seed
    }
}

/// What a front is told.
pub(crate) struct Listening {
    pub(crate) all: Vec<Summary>,
    /// Commands that run, by owner.
    pub(crate) commands: BTreeMap<String, i64>,
    /// What changes from now on.
    pub(crate) news: broadcast::Receiver<News>,
    pub(crate) front: Front,
}

/// A front that listens. Dropping it says that it is gone.
#[derive(Debug)]
pub(crate) struct Front(Arc<Sandboxes>);

impl Drop for Front {
    fn drop(&mut self) {
        self.0.fronts.send_modify(|fronts| *fronts -= 1);
    }
}
