//! The workers: where they are, what each said last about its room, and who has which name. Nothing here
//! outlives the router, and everything is learned again within a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::route::address::{Address, Source};
use crate::route::worker::{PATIENCE, Worker};
use crate::say;
use crate::wire::room::Room;

/// From the beginning of one round of questions to that of the next.
const ROUND: Duration = Duration::from_secs(1);

/// The shortest time between two rounds, when somebody cannot wait.
const HURRY: Duration = Duration::from_millis(250);

/// From one look for the addresses of a name to the next.
const LOOK: Duration = Duration::from_secs(5);

/// After that long without an answer, a worker is gone.
pub(crate) const GONE: Duration = Duration::from_secs(5);

/// All workers.
pub(crate) struct Workers {
    sources: Vec<Source>,
    known: RwLock<Known>,
    begun: Instant,
    /// Somebody wants the next round now.
    hurry: Notify,
    /// How many rounds have ended that began with a look for addresses.
    rounds: watch::Sender<u64>,
    looked: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Known {
    /// Each address once.
    workers: Vec<Arc<Worker>>,
    /// Names without addresses.
    lost_names: Vec<Seen>,
    /// Who has which name.
    by_name: BTreeMap<String, Arc<Worker>>,
}

/// Whether a worker is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Alive,
    /// It has not answered for too long, or never.
    Silent,
    /// Another one has its name.
    Refused,
}

impl State {
    /// Its word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Silent => "silent",
            Self::Refused => "refused",
        }
    }
}

/// A worker, as a router sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) url: String,
    pub(crate) state: State,
    /// Why it is not used.
    pub(crate) reason: Option<String>,
    /// What it said last.
    #[serde(flatten)]
    pub(crate) room: Option<Room>,
}

impl Seen {
    /// Nothing has answered there.
    pub(crate) fn silent(url: String, reason: String) -> Self {
        Self { url, state: State::Silent, reason: Some(reason), room: None }
    }
}

impl Workers {
    pub(crate) fn new(sources: Vec<Source>) -> Arc<Self> {
        let (known, hurry, rounds) = (RwLock::default(), Notify::new(), watch::channel(0).0);
        Arc::new(Self { sources, known, begun: Instant::now(), hurry, rounds, looked: Mutex::default() })
    }

    /// Asks all workers for ever.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            let begun = Instant::now();
            self.round().await;
            let pause = async {
                self.hurry.notified().await;
                sleep(HURRY).await;
                *self.looked() = None;
            };
            tokio::select! { () = sleep_until(begun + ROUND) => {}, () = pause => {} }
        }
    }

    fn looked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks all workers once.
    pub(crate) async fn round(&self) {
        let looks = self.looked().is_none_or(|looked| looked.elapsed() >= LOOK);
        if looks {
            *self.looked() = Some(Instant::now());
            self.look_for_addresses().await;
        }
        let workers = self.all();
        join_all(workers.iter().map(|worker| worker.ask_room())).await;
        self.settle_names();
        if looks {
            self.rounds.send_modify(|rounds| *rounds += 1);
        }
    }

    /// Those that are no address of a name any more go when they are silent: one that drains may have left
    /// its name, and still has sandboxes.
    async fn look_for_addresses(&self) {
        let found = join_all(self.sources.iter().map(Source::addresses)).await;
        let lost_names = self.sources.iter().zip(&found).filter_map(|(source, found)| {
            let error = found.as_ref().err()?;
            Some(Seen::silent(source.to_string(), format!("its addresses: {error}")))
        });
        let lost_names: Vec<_> = lost_names.collect();
        let mut addresses: Vec<Address> = Vec::new();
        for address in found.into_iter().flatten().flatten() {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut known.workers);
        let has = |address: &Address| before.iter().any(|worker| worker.address() == address);
        let new: Vec<_> = addresses.iter().filter(|address| !has(address)).cloned().collect();
        let stays = |worker: &Arc<Worker>| {
            !lost_names.is_empty() || addresses.contains(worker.address()) || worker.is_alive()
        };
        known.workers = before.into_iter().filter(stays).collect();
        known.lost_names = lost_names;
        known.workers.extend(new.into_iter().map(Worker::new));
    }

    /// Who has a name keeps it while it lives. The same worker at two addresses is one.
    fn settle_names(&self) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut known.by_name);
        let mut by_name: BTreeMap<String, (String, Arc<Worker>)> = BTreeMap::new();
        let has_kept = |(name, worker): &(&String, &Arc<Worker>)| {
            worker.identity().is_some_and(|(found, _)| found == **name)
        };
        let first = before.iter().filter(has_kept).map(|(_, worker)| worker);
        for worker in first.chain(&known.workers).filter(|worker| worker.is_alive()) {
            let Some((name, instance)) = worker.identity() else { continue };
            let Some((of_holder, holder)) = by_name.get(&name) else {
                worker.accept();
                by_name.insert(name, (instance, Arc::clone(worker)));
                continue;
            };
            if *of_holder == instance {
                worker.accept();
            } else {
                let taken = holder.address();
                let reason = format!("worker {name} is at {taken}: give each worker a `name` of its own");
                if worker.refuse(&reason) {
                    say(&format!("kennel: {} is not used: {reason}", worker.address()));
                }
            }
        }
        known.by_name = by_name.into_iter().map(|(name, (_, worker))| (name, worker)).collect();
    }

    fn all(&self) -> Vec<Arc<Worker>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).workers.clone()
    }

    /// Those that are used, in the order of their names.
    pub(crate) fn alive(&self) -> Vec<Arc<Worker>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_name.values().filter(|worker| worker.is_alive()).cloned().collect()
    }

    fn named(&self, name: &str) -> Option<Arc<Worker>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let holder = known.by_name.get(name)?;
        if holder.is_alive() {
            return Some(Arc::clone(holder));
        }
        // It may have another address.
        let identity = holder.identity();
        known.workers.iter().find(|worker| worker.is_alive() && worker.identity() == identity).cloned()
    }

    /// Whether a worker of this name has been there, and is silent now.
    fn is_gone(&self, name: &str) -> bool {
        let has_name = |worker: &Arc<Worker>| {
            !worker.is_alive() && worker.identity().is_some_and(|(found, _)| found == name)
        };
        self.all().iter().any(has_name)
    }

    /// The worker of this name. For one that is new here, all are asked at once: another router may have
    /// found it before.
    pub(crate) async fn find(&self, name: &str) -> Option<Arc<Worker>> {
        if let Some(worker) = self.named(name) {
            return Some(worker);
        }
        if !self.is_gone(name) {
            self.next_round().await;
        }
        self.named(name)
    }

    /// Waits for a round that begins now, or later.
    async fn next_round(&self) {
        let mut rounds = self.rounds.subscribe();
        let now = *rounds.borrow_and_update();
        self.hurry.notify_one();
        let ends = rounds.wait_for(|rounds| *rounds > now);
        let _ = timeout(PATIENCE + 3 * ROUND, ends).await;
    }

    /// Whether a worker that is not known may just not have answered yet.
    pub(crate) fn is_new(&self) -> bool {
        let workers = self.all();
        let silent = workers.is_empty() || workers.iter().any(|worker| worker.room().is_none());
        silent && self.begun.elapsed() < GONE
    }

    /// All of them, for people.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let mut seen: Vec<_> = self.all().iter().map(|worker| worker.seen()).collect();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        seen.extend(known.lost_names.iter().cloned());
        seen
    }
}
