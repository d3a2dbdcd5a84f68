//! Who may make a sandbox now. What does not fit waits, in turns between tokens, and not for long.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use crate::config::tokens::{Recent, Token};
use crate::front::hosts::Hosts;
use crate::wire::failure::Failure;

/// Memory in use from which no sandbox is made, in percent.
const FULL: u64 = 90;

/// The pause between two looks at what waits.
const LOOK: Duration = Duration::from_millis(10);

/// What limits creations.
pub(crate) struct Admission {
    hosts: Arc<Hosts>,
    /// The most sandboxes that run at once.
    sandboxes: usize,
    /// The most creations that wait.
    queue: usize,
    wait: Duration,
    /// Memory in use, in percent.
    memory: AtomicU64,
    /// Somebody begins to wait.
    comes: Notify,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Creations that have begun, by owner; their sandboxes are not known yet.
    beginning: HashMap<String, usize>,
    recent: Recent,
    /// Whose turn it is, first to last. Each owner with somebody who waits is there once.
    turns: VecDeque<String>,
    waiting: HashMap<String, VecDeque<Waiting>>,
}

struct Waiting {
    token: Token,
    admit: oneshot::Sender<Admitted>,
}

/// Why a creation has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The token has as many sandboxes as it may have.
    Sandboxes,
    /// The token makes sandboxes faster than it may.
    Rate,
    /// The worker has as many as it may have.
    Room,
    /// The worker is short of memory.
    Memory,
    /// Too many wait already.
    Queue,
}

impl Refusal {
    /// Its word in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Sandboxes => "quota",
            Self::Rate => "rate",
            Self::Room => "full",
            Self::Memory => "memory",
            Self::Queue => "queue",
        }
    }

    fn failure(self, token: &Token, sandboxes: usize) -> Failure {
        let full = StatusCode::SERVICE_UNAVAILABLE;
        match self {
            Self::Sandboxes => token.has_sandboxes(),
            Self::Rate => token.has_creations(),
            Self::Room => Failure::later(
                full,
                2,
                format!("{sandboxes} sandboxes run, which is the limit of this worker"),
            ),
            Self::Memory => {
                Failure::later(full, 5, format!("more than {FULL} % of this worker's memory is in use"))
            }
            Self::Queue => Failure::later(full, 2, "too many creations wait already"),
        }
    }
}

impl Admission {
    pub(crate) fn new(hosts: Arc<Hosts>, sandboxes: usize, queue: usize, wait: Duration) -> Arc<Self> {
        let (memory, comes, inner) = (AtomicU64::new(0), Notify::new(), Mutex::default());
        Arc::new(Self { hosts, sandboxes, queue, wait, memory, comes, inner })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the token may make a sandbox.
    ///
    /// # Errors
    /// 429 or 503 with `Retry-After`, and what it was that did not fit.
    pub(crate) async fn admit(self: &Arc<Self>, token: &Token) -> Result<Admitted, (Refusal, Failure)> {
        let failed = |refusal: Refusal| (refusal, refusal.failure(token, self.sandboxes));
        let admitted = {
            let mut inner = self.lock();
            if inner.turns.is_empty() && self.check(&inner, token).is_ok() {
                return Ok(self.begin(&mut inner, token));
            }
            if inner.waiting.values().map(VecDeque::len).sum::<usize>() >= self.queue {
                return Err(failed(Refusal::Queue));
            }
            let (admit, admitted) = oneshot::channel();
            let waiting = Waiting { token: token.clone(), admit };
            inner.waiting.entry(token.name.clone()).or_default().push_back(waiting);
            if !inner.turns.contains(&token.name) {
                inner.turns.push_back(token.name.clone());
            }
            self.comes.notify_one();
            admitted
        };
        match timeout(self.wait, admitted).await {
            Ok(Ok(admitted)) => Ok(admitted),
            _ => {
                let reason = self.check(&self.lock(), token).err();
                Err(failed(reason.unwrap_or(Refusal::Room)))
            }
        }
    }

    /// What keeps the token from making a sandbox now.
    fn check(&self, inner: &Inner, token: &Token) -> Result<(), Refusal> {
        let beginning = inner.beginning.get(&token.name).copied().unwrap_or(0);
        if token.sandboxes.is_some_and(|most| self.hosts.running(Some(&token.name)) + beginning >= most) {
            return Err(Refusal::Sandboxes);
        }
        if inner.recent.is_full(token) {
            return Err(Refusal::Rate);
        }
        if self.hosts.running(None) + inner.beginning.values().sum::<usize>() >= self.sandboxes {
            return Err(Refusal::Room);
        }
        if self.is_short_of_memory() {
            return Err(Refusal::Memory);
        }
        Ok(())
    }

    fn begin(self: &Arc<Self>, inner: &mut Inner, token: &Token) -> Admitted {
        *inner.beginning.entry(token.name.clone()).or_insert(0) += 1;
        inner.recent.note(token);
        Admitted { admission: Arc::clone(self), owner: token.name.clone() }
    }

    /// Admits those who wait, in turns, for ever.
    pub(crate) async fn admit_waiting(self: Arc<Self>) {
        loop {
            let (comes, changed) = (self.comes.notified(), self.hosts.changed.notified());
            let is_empty = self.lock().turns.is_empty();
            if is_empty {
                comes.await;
            } else {
                self.take_turns();
                // What a second or the memory refuses is looked at again.
                tokio::select! { () = changed => {}, () = sleep(LOOK) => {} }
            }
        }
    }

    /// One turn for each owner, and again while somebody is admitted.
    fn take_turns(self: &Arc<Self>) {
        // Dropping one takes the lock.
        let mut given_up = Vec::new();
        let mut inner = self.lock();
        let mut without_luck = 0;
        while without_luck < inner.turns.len() {
            let Some(owner) = inner.turns.pop_front() else { break };
            let waiting = inner.waiting.entry(owner.clone()).or_default();
            waiting.retain(|waiting| !waiting.admit.is_closed());
            let Some(token) = waiting.front().map(|waiting| waiting.token.clone()) else {
                inner.waiting.remove(&owner);
                continue;
            };
            if self.check(&inner, &token).is_err() {
                without_luck += 1;
            } else if let Some(first) = inner.waiting.get_mut(&owner).and_then(VecDeque::pop_front) {
                without_luck = 0;
                let admitted = self.begin(&mut inner, &token);
                given_up.extend(first.admit.send(admitted).err());
            }
            inner.turns.push_back(owner);
        }
        drop(inner);
        drop(given_up);
    }

    /// How many more sandboxes the token could have now. Those that wait come first.
    #[cfg(feature = "nats")]
    pub(crate) fn room_for(&self, token: &Token) -> usize {
        let inner = self.lock();
        if !inner.turns.is_empty() {
            return 0;
        }
        let beginning = inner.beginning.get(&token.name).copied().unwrap_or(0);
        drop(inner);
        let running = || self.hosts.running(Some(&token.name)) + beginning;
        let of_token = token.sandboxes.map_or(usize::MAX, |most| most.saturating_sub(running()));
        self.room().min(of_token)
    }

    /// The memory in use from now on, in percent.
    pub(crate) fn note_memory(&self, percent: u64) {
        self.memory.store(percent, Ordering::Relaxed);
    }

    fn is_short_of_memory(&self) -> bool {
        self.memory.load(Ordering::Relaxed) >= FULL
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.values().map(VecDeque::len).sum()
    }

    /// Whether a creation is under way.
    pub(crate) fn has_begun(&self) -> bool {
        !self.lock().beginning.is_empty()
    }

    /// How many sandboxes could still be made.
    pub(crate) fn room(&self) -> usize {
        if self.is_short_of_memory() {
            return 0;
        }
        let beginning: usize = self.lock().beginning.values().sum();
        self.sandboxes.saturating_sub(self.hosts.running(None) + beginning)
    }
}

impl Inner {
    fn end(&mut self, owner: &str) {
        if let Some(count) = self.beginning.get_mut(owner) {
            *count -= 1;
            if *count == 0 {
                self.beginning.remove(owner);
            }
        }
    }
}

/// A creation that has begun. It counts until its sandbox is known, or it has failed.
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    owner: String,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.lock().end(&self.owner);
    }
}
