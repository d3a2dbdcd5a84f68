//! What the walls of a session stand on in the host's directories, looked at before each command: somebody outside may
//! have replaced a protected file, and its mount with it, or made a repository where none was.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    Enforcement, Entry, Error, Host, Policy, Protection,
    caller::Caller,
    compile::{self, Compiled, Section, Shape, footing::Footing},
    prepared::Bytes,
    watch::Watch,
};

/// What compile needs to do its work again.
type Question = (Policy, Host, Caller, Shape);

pub(super) struct Ground {
    question: Question,
    now: Mutex<Now>,
}

struct Now {
    footing: Footing,
    watches: Arc<[Watch]>,
    /// What protects the protected paths; nothing else can have changed.
    protection: Option<Entry>,
    /// Steps of every worker, once the zygote may have lost mounts.
    again: Option<Arc<Own>>,
}

/// Steps of a worker that are not in the plan.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) section: Section,
    pub(super) bytes: Bytes,
}

impl Own {
    pub(super) fn of(section: Section) -> io::Result<Self> {
        Ok(Self { bytes: Bytes::new(&section.bytes)?, section })
    }
}

impl Now {
    fn of(compiled: &Compiled, again: Option<Arc<Own>>) -> Self {
        Self {
            footing: compiled.footing.clone(),
            watches: Arc::clone(&compiled.watches),
            protection: compiled.enforcement.get(Protection::ProtectedPaths).cloned(),
            again,
        }
    }
}

impl Ground {
    pub(super) fn of(
        compiled: &Compiled,
        (policy, host, caller, shape): (&Policy, Host, Caller, Shape),
    ) -> Self {
        let now = Now::of(compiled, None);
        Self { question: (policy.clone(), host, caller, shape), now: Mutex::new(now) }
    }

    /// Looks whether something has changed; if so, workers get walls that fit what is there now. Answers whether those
    /// that wait are out of date.
    ///
    /// # Errors
    /// Those of compile, where what is there now cannot be protected.
    pub(super) fn look(&self, is_idle: bool) -> Result<bool, Error> {
        let mut now = self.lock();
        if !now.footing.has_changed(is_idle) {
            return Ok(false);
        }
        let (policy, host, caller, shape) = &self.question;
        let compiled = compile::compile(policy, host, caller, *shape)?;
        tracing::info!("something that walls stand on was replaced outside: workers are made anew");
        let again = Own::of(compiled.again.clone());
        let again = again.map_err(Error::io("write the steps of a worker to a memfd"))?;
        *now = Now::of(&compiled, Some(Arc::new(again)));
        Ok(true)
    }

    /// Enters what protects the protected paths now.
    pub(super) fn report(&self, enforcement: &mut Enforcement) {
        if let Some(entry) = &self.lock().protection {
            enforcement.set(entry.name, entry.state, entry.detail.clone());
        }
    }

    /// The steps of a worker that are not in the plan, with `narrow` at their end.
    pub(super) fn steps(&self, narrow: Option<&Section>) -> io::Result<Option<Arc<Own>>> {
        match (&self.lock().again, narrow) {
            (again, None) => Ok(again.clone()),
            (None, Some(narrow)) => Own::of(narrow.clone()).map(Arc::new).map(Some),
            (Some(again), Some(narrow)) => Own::of(again.section.followed_by(narrow)).map(Arc::new).map(Some),
        }
    }

    pub(super) fn watches(&self) -> Arc<[Watch]> {
        Arc::clone(&self.lock().watches)
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
