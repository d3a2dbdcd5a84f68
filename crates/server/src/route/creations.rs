//! Creations that the workers' answers do not tell of yet, and the quotas of tokens over the fleet.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::Problem;
use crate::config::tokens::{Recent, Token, Tokens, prefix_of};
use crate::route::worker::Worker;
use crate::wire::failure::Failure;

/// How long a creation waits for its quota: as at a worker.
const WAIT: Duration = Duration::from_secs(2);

/// How long a worker takes until a sandbox of one command runs.
const SOON: Duration = Duration::from_millis(100);

/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Creations under way.
pub(crate) struct Creations {
    path: Option<PathBuf>,
    tokens: RwLock<Arc<Tokens>>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    begun: Vec<Begun>,
    recent: Recent,
}

struct Begun {
    number: u64,
    /// How workers name the token.
    token: Option<String>,
    worker: Option<Arc<Worker>>,
    /// From when on the answers of the worker tell of it.
    told: Option<Instant>,
}

impl Begun {
    fn is_told(&self) -> bool {
        let worker = self.worker.as_ref().zip(self.told);
        worker.is_some_and(|(worker, told)| !worker.is_alive() || worker.tells_of(told))
    }
}

/// A quota of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quota {
    Sandboxes,
    Rate,
}

impl Quota {
    /// Its word in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Sandboxes => "quota",
            Self::Rate => "rate",
        }
    }
}

impl Creations {
    /// With the quotas of a file of tokens, if there is one.
    pub(crate) fn new(path: Option<PathBuf>) -> Result<Arc<Self>, Problem> {
        let tokens = path.as_deref().map(Tokens::read).transpose()?.unwrap_or_default();
        Ok(Arc::new(Self { path, tokens: RwLock::new(Arc::new(tokens)), inner: Mutex::default() }))
    }

    /// Reads the file again.
    pub(crate) fn read_anew(&self) -> Result<(), Problem> {
        let Some(path) = &self.path else { return Ok(()) };
        let tokens = Tokens::read(path)?;
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a key may be one: without a file of tokens, only the workers know.
    pub(crate) fn may_be(&self, key: Option<&str>) -> bool {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        key.is_some_and(|key| self.path.is_none() || tokens.find(key).is_some())
    }

    /// Begins one, as soon as the token may have one more.
    ///
    /// # Errors
    /// 429 with `Retry-After`, and the quota.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        key: Option<&str>,
        alive: impl Fn() -> Vec<Arc<Worker>>,
    ) -> Result<Creation, (Quota, Failure)> {
        let tokens = Arc::clone(&self.tokens.read().unwrap_or_else(PoisonError::into_inner));
        // A key that nobody knows is the workers' to refuse.
        let token = key.and_then(|key| Some((tokens.find(key)?, prefix_of(key))));
        let end = Instant::now() + WAIT;
        loop {
            let failed = match self
                .try_begin(token.as_ref().map(|(token, prefix)| (*token, prefix.as_str())), &alive)
            {
                Ok(creation) => return Ok(creation),
                Err(failed) => failed,
            };
            if Instant::now() >= end {
                return Err(failed);
            }
            sleep(LOOK).await;
        }
    }

    fn try_begin(
        self: &Arc<Self>,
        token: Option<(&Token, &str)>,
        alive: &impl Fn() -> Vec<Arc<Worker>>,
    ) -> Result<Creation, (Quota, Failure)> {
        let mut inner = self.lock();
        inner.begun.retain(|begun| !begun.is_told());
        if let Some((token, prefix)) = token {
            inner.check(token, prefix, alive)?;
            inner.recent.note(token);
        }
        let number = inner.next;
        inner.next += 1;
        let token = token.map(|(_, prefix)| prefix.to_owned());
        inner.begun.push(Begun { number, token, worker: None, told: None });
        Ok(Creation { creations: Arc::clone(self), number, is_made: false })
    }

    /// For each worker, the sandboxes that it could still make, less those that it has not told of.
    pub(crate) fn rooms(&self, workers: &[&Arc<Worker>]) -> Vec<usize> {
        let mut begun: HashMap<*const Worker, usize> = HashMap::new();
        for one in self.lock().begun.iter().filter(|begun| !begun.is_told()) {
            if let Some(worker) = &one.worker {
                *begun.entry(Arc::as_ptr(worker)).or_default() += 1;
            }
        }
        let room_of = |worker: &&Arc<Worker>| {
            let begun = begun.get(&Arc::as_ptr(worker)).copied().unwrap_or(0);
            worker.with_room(|room| room.room).unwrap_or(0).saturating_sub(begun)
        };
        workers.iter().map(room_of).collect()
    }
}

impl Inner {
    fn check(
        &self,
        token: &Token,
        prefix: &str,
        alive: &impl Fn() -> Vec<Arc<Worker>>,
    ) -> Result<(), (Quota, Failure)> {
        if let Some(most) = token.sandboxes {
            let begun = self.begun.iter().filter(|begun| begun.token.as_deref() == Some(prefix)).count();
            let of_worker = |worker: &Arc<Worker>| {
                worker.with_room(|room| room.tokens.get(prefix).copied()).flatten().unwrap_or(0)
            };
            let running = alive().iter().map(of_worker).fold(0, usize::saturating_add);
            if running.saturating_add(begun) >= most {
                return Err((Quota::Sandboxes, token.has_sandboxes()));
            }
        }
        if self.recent.is_full(token) {
            return Err((Quota::Rate, token.has_creations()));
        }
        Ok(())
    }
}

/// One of them. It counts until it has failed, or a worker tells of it.
pub(crate) struct Creation {
    creations: Arc<Creations>,
    number: u64,
    is_made: bool,
}

impl Creation {
    fn change(&self, change: impl FnOnce(&mut Begun)) {
        let mut inner = self.creations.lock();
        if let Some(begun) = inner.begun.iter_mut().find(|begun| begun.number == self.number) {
            change(begun);
        }
    }

    /// A worker is asked for it. If the answer comes with its end, the worker tells of it before.
    pub(crate) fn at(&self, worker: &Arc<Worker>, ends_with_answer: bool) {
        let told = ends_with_answer.then(|| Instant::now() + SOON);
        self.change(|begun| {
            begun.worker = Some(Arc::clone(worker));
            begun.told = told;
        });
    }

    /// The sandbox is there.
    pub(crate) fn made(mut self) {
        self.is_made = true;
        self.change(|begun| begun.told = Some(Instant::now()));
    }
}

impl Drop for Creation {
    fn drop(&mut self) {
        if !self.is_made {
            self.creations.lock().begun.retain(|begun| begun.number != self.number);
        }
    }
}
