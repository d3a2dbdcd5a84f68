//! Keeps sessions ready for one policy and hands each out once.
//!
//! A pool has one workspace. To choose the workspace later, the zygote of a ready session would need a
//! descriptor into the host's file system, which its commands must never reach.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::policy::Policy;
use crate::report::error::Error;
use crate::session::Session;
use crate::sys::locked;

/// A stock of ready sessions, for many short-lived agents under the same policy.
///
/// The pool hands out each session once and never takes it back. Tasks in the runtime of
/// [`checkout`](Self::checkout) fill the stock up again. A clone is the same pool. Dropping the last clone
/// ends the sessions in stock; sessions that were handed out live on.
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
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    ready: VecDeque<Session>,
    /// How many sessions are being prepared.
    coming: usize,
}

impl Pool {
    /// Makes a pool with `ready` sessions in stock.
    ///
    /// # Errors
    /// As for [`Session::prepare`].
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

    /// Takes a session from the stock, or prepares one if the stock is empty. Never returns a session whose
    /// workspace was replaced or removed.
    ///
    /// # Errors
    /// As for [`Session::prepare`], if the stock was empty.
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

    /// How many sessions are in stock. Killed sessions do not count. Only [`checkout`](Self::checkout) checks
    /// whether the workspace was replaced.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.stock.lock().ready.iter().filter(|session| !session.has_ended()).count()
    }
}

impl Stock {
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        locked(&self.shelf)
    }

    /// The oldest session that can run a command.
    fn take(&self) -> Option<Session> {
        // The lock is free while a session is checked.
        let next = || self.lock().ready.pop_front();
        std::iter::from_fn(next).find(|session| session.live().zygote().takes_commands())
    }

    /// Starts to prepare the missing sessions.
    fn fill_up(stock: &Arc<Self>) {
        let missing = stock.lock().order(stock.wanted);
        let coming: Vec<Coming> = (0..missing).map(|_| Coming::new(stock)).collect();
        for coming in coming {
            tokio::spawn(async move {
                match Session::prepare(&coming.policy).await {
                    Ok(session) => coming.arrived(session),
                    // A caller that finds the stock empty prepares a session itself and gets the error then.
                    Err(error) => tracing::warn!(error = error.chain(), "no session could be prepared"),
                }
            });
        }
    }
}

impl Shelf {
    /// How many sessions are missing. They count as coming from now on.
    fn order(&mut self, wanted: usize) -> usize {
        self.ready.retain(|session| !session.has_ended());
        let missing = wanted.saturating_sub(self.ready.len() + self.coming);
        self.coming += missing;
        missing
    }
}

/// An ordered session, counted until it arrives or fails. It does not keep the pool alive.
struct Coming {
    stock: Weak<Stock>,
    policy: Policy,
}

impl Coming {
    fn new(stock: &Arc<Stock>) -> Self {
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
