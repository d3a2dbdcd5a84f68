//! Sessions kept ready for one policy, each handed out once.
//!
//! A pool has one workspace. To bind the workspace late, the zygote of a ready session would have to keep a way to the
//! host's tree, which is the thing that its commands must never reach.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::policy::Policy;
use crate::report::error::Error;
use crate::session::Session;
use crate::sys::locked;

/// A stock of ready sessions, for many short-lived agents under the same policy.
///
/// Each session is handed out once and never comes back. The stock is filled up again
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
    /// How many sessions are to be ready.
    wanted: usize,
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    ready: VecDeque<Session>,
    /// How many are being prepared.
    coming: usize,
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
        let mut shelf = Shelf::default();
        for _ in 0..ready {
            shelf.ready.push_back(Session::prepare(policy).await?);
        }
        let stock = Stock { policy: policy.clone(), wanted: ready, shelf: Mutex::new(shelf) };
        Ok(Self { stock: Arc::new(stock) })
    }

    /// An unused session: one in stock, or else one that is prepared now. One whose workspace was replaced or is gone is not
    /// handed out.
    ///
    /// # Errors
    /// Those of [`Session::prepare`], if none was in stock.
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

    /// How many sessions are in stock. Sessions that were killed do not count; whether they stand on what is there still is
    /// looked at by [`checkout`](Self::checkout).
    #[must_use]
    pub fn ready(&self) -> usize {
        self.stock.lock().ready.iter().filter(|session| !session.has_ended()).count()
    }
}

impl Stock {
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        locked(&self.shelf)
    }

    /// The oldest one that a command can be run in.
    fn take(&self) -> Option<Session> {
        // The shelf is not held while one is looked at.
        let next = || self.lock().ready.pop_front();
        std::iter::from_fn(next).find(|session| session.live().takes_commands())
    }

    /// Starts to prepare as many as are missing.
    fn fill_up(stock: &Arc<Self>) {
        let missing = stock.lock().order(stock.wanted);
        let coming: Vec<Coming> = (0..missing).map(|_| Coming::to(stock)).collect();
        for coming in coming {
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

impl Shelf {
    /// How many are missing of so many: from now on these count as coming.
    fn order(&mut self, wanted: usize) -> usize {
        self.ready.retain(|session| !session.has_ended());
        let missing = wanted.saturating_sub(self.ready.len() + self.coming);
        self.coming += missing;
        missing
    }
}

/// A session that was ordered, counted until it is there or given up. Does not keep the pool alive.
struct Coming {
    stock: Weak<Stock>,
    policy: Policy,
}

impl Coming {
    fn to(stock: &Arc<Stock>) -> Self {
        Self { stock: Arc::downgrade(stock), policy: stock.policy.clone() }
    }

    fn arrived(mut self, session: Session) {
        if let Some(stock) = mem::take(&mut self.stock).upgrade() {
            let mut shelf = stock.lock();
            shelf.coming -= 1;
            shelf.ready.push_back(session);
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        if let Some(stock) = self.stock.upgrade() {
            stock.lock().coming -= 1;
        }
    }
}
