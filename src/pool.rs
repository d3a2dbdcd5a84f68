//! Sessions kept ready for one policy, each handed out once.
//!
//! A pool has one workspace. To bind the workspace late, the zygote of a ready session would have to keep a way to the
//! host's tree, which is the thing that its commands must never reach.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use crate::{Error, Policy, Session};

/// A stock of ready sessions, for many short-lived agents under the same policy.
///
/// A session is handed out once and never comes back: whoever gets one gets a fresh one. The stock is filled up again
/// in the background, by tasks of the runtime that [`checkout`](Self::checkout) is called in. A clone is the same pool;
/// when the last one is dropped the sessions in stock end, those handed out live on.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::Error> {
/// use kennel::{Policy, Pool, Profile};
///
/// let pool = Pool::fill(&Policy::profile(Profile::ReadOnly, "/srv/repo"), 4).await?;
/// let session = pool.checkout().await?;
/// let out = session.command("git").args(["log", "-1"]).output().await?;
/// println!("{}", String::from_utf8_lossy(&out.stdout));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    stock: Arc<Stock>,
}

#[derive(Debug)]
struct Stock {
    policy: Policy,
    /// How many sessions shall be ready.
    wanted: usize,
    ready: Mutex<VecDeque<Session>>,
    /// How many are being prepared.
    coming: AtomicUsize,
}

impl Pool {
    /// A pool with `ready` sessions in stock.
    ///
    /// # Errors
    /// Those of [`Session::prepare`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn fill(policy: &Policy, ready: usize) -> Result<Self, Error> {
        let stock = Stock {
            policy: policy.clone(),
            wanted: ready,
            ready: Mutex::default(),
            coming: AtomicUsize::new(0),
        };
        for _ in 0..ready {
            let session = Session::prepare(policy).await?;
            stock.lock().push_back(session);
        }
        Ok(Self { stock: Arc::new(stock) })
    }

    /// A session that nobody has used: one in stock, or else one that is prepared now.
    ///
    /// # Errors
    /// Those of [`Session::prepare`], where none was in stock.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn checkout(&self) -> Result<Session, Error> {
        let taken = self.stock.take();
        Stock::fill_up(&self.stock);
        match taken {
            Some(session) => Ok(session),
            None => Session::prepare(&self.stock.policy).await,
        }
    }

    /// How many sessions are in stock.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.stock.lock().len()
    }
}

impl Stock {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Session>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest one that still lives.
    fn take(&self) -> Option<Session> {
        let mut ready = self.lock();
        std::iter::from_fn(|| ready.pop_front()).find(|session| !session.has_ended())
    }

    /// Starts to prepare as many as are missing.
    fn fill_up(stock: &Arc<Self>) {
        let there = stock.lock().len() + stock.coming.load(Relaxed);
        for _ in there..stock.wanted {
            let coming = Coming::one(stock);
            tokio::spawn(async move {
                match Session::prepare(&coming.policy).await {
                    Ok(session) => coming.arrived(session),
                    // Whoever finds the stock empty prepares a session, and gets the error if there still is one.
                    Err(error) => tracing::warn!(error = error.chain(), "no session could be prepared"),
                }
            });
        }
    }
}

/// A session that is being prepared, counted until it is there or given up. Does not keep the pool alive.
struct Coming {
    stock: Weak<Stock>,
    policy: Policy,
}

impl Coming {
    fn one(stock: &Arc<Stock>) -> Self {
        stock.coming.fetch_add(1, Relaxed);
        Self { stock: Arc::downgrade(stock), policy: stock.policy.clone() }
    }

    fn arrived(&self, session: Session) {
        if let Some(stock) = self.stock.upgrade() {
            stock.lock().push_back(session);
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        if let Some(stock) = self.stock.upgrade() {
            stock.coming.fetch_sub(1, Relaxed);
        }
    }
}
