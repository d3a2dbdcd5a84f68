//! What the walls of a session stand on in the host's directories, looked at before each command: somebody outside may
//! have replaced a protected file, and its mount with it, or made a repository where none was.

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::host::Host;
use crate::host::caller::Caller;
use crate::launch::inside::CommandHold;
use crate::launch::prepared::OwnSteps;
use crate::plan::compile::Compiled;
use crate::plan::mount_state::{MountChange, MountSnapshot, replaced};
use crate::plan::{Section, compile};
use crate::policy::Policy;
use crate::protect::watch::Watch;
use crate::report::enforcement::{Enforcement, Entry, Protection, State};
use crate::report::error::Error;
use crate::report::overlay_error::OverlayError;
use crate::sys::locked;
use crate::view::inputs::SandboxKind;

/// What compile needs to do its work again.
type Question = (Policy, Host, Caller, SandboxKind);

pub(crate) struct SessionMounts {
    question: Question,
    now: Arc<Mutex<Now>>,
    holds: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Now {
    footing: MountSnapshot,
    watches: Arc<[Watch]>,
    /// What protects the protected paths.
    protection: Option<Entry>,
    /// What is not in force in full, by what lies in the host's directories.
    weaker: Vec<Entry>,
    /// Steps that put up again what the zygote may have lost.
    again: Section,
    /// The same for every worker, once the zygote has.
    own: Option<Arc<OwnSteps>>,
    /// How often it has changed: a worker of another generation is out of date.
    generation: u64,
    /// Whether changes are being committed.
    is_settling: bool,
}

/// Nobody has a command running, and nobody gets one, until this is dropped.
#[derive(Debug)]
pub(crate) struct Settling(Arc<Mutex<Now>>);

impl Drop for Settling {
    fn drop(&mut self) {
        locked(&self.0).is_settling = false;
    }
}

/// What a command comes with that has looked.
pub(crate) struct Entered {
    pub(crate) hold: CommandHold,
    pub(crate) generation: u64,
}

/// What a worker is to be made with.
pub(crate) struct WorkerMounts {
    pub(crate) own: Option<Arc<OwnSteps>>,
    pub(crate) watches: Arc<[Watch]>,
    pub(crate) generation: u64,
}

impl Now {
    fn of(compiled: &Compiled, generation: u64) -> Self {
        Self {
            footing: compiled.ground.clone().unwrap_or_default(),
            watches: Arc::clone(&compiled.watches),
            protection: compiled.enforcement.get(Protection::ProtectedPaths).cloned(),
            weaker: weaker(&compiled.enforcement),
            again: compiled.again.clone(),
            own: None,
            generation,
            is_settling: false,
        }
    }
}

impl SessionMounts {
    pub(crate) fn of(
        compiled: &Compiled,
        (policy, host, caller, shape): (&Policy, Host, Caller, SandboxKind),
    ) -> Self {
        let question = (policy.clone(), host, caller, shape);
        Self { question, now: Arc::new(Mutex::new(Now::of(compiled, 0))), holds: Arc::default() }
    }

    /// Looks whether something has changed; if so, workers get walls that fit what is there now. What a command may
    /// have done is adopted only when none can: with the lock, and no hold, none runs, is about to, or is being undone.
    ///
    /// # Errors
    /// The workspace or a writable grant that was replaced or is gone; those of compile, where what is there now cannot be protected.
    pub(crate) fn enter(&self) -> Result<Entered, Error> {
        let mut now = self.lock();
        if now.is_settling {
            return Err(OverlayError::Committing.into());
        }
        let is_idle = self.holds.load(SeqCst) == 0;
        match now.footing.change(is_idle) {
            MountChange::None => {}
            MountChange::Grant(what, path) => {
                let remedy = "prepare a new session (kennel session stop, then start)";
                return Err(replaced(what, path, remedy));
            }
            MountChange::Some => {
                tracing::info!("something that walls stand on was replaced outside: workers are made anew");
                let generation = now.generation + 1;
                let next = is_idle.then(|| self.compiled_anew(generation)).transpose()?;
                let again = next.as_ref().map_or(&now.again, |next| &next.again);
                // Where nothing is mounted there are no steps, and an empty memfd cannot be mapped.
                let own = (!again.bytes.is_empty()).then(|| OwnSteps::new(again.clone())).transpose();
                let own = own.map_err(Error::io("write the steps of a worker to a memfd"))?.map(Arc::new);
                // From here on nothing fails: what is settled by half would be taken for whole by the next command.
                match next {
                    Some(next) => *now = next,
                    None => now.footing.settle_mounts(),
                }
                (now.own, now.generation) = (own, generation);
            }
        }
        Ok(Entered { hold: CommandHold::new(&self.holds), generation: now.generation })
    }

    /// The walls that fit what is there now.
    fn compiled_anew(&self, generation: u64) -> Result<Now, Error> {
        let (policy, host, caller, shape) = &self.question;
        Ok(Now::of(&compile::compile(policy, host, caller, *shape)?, generation))
    }

    /// Keeps commands away, where none runs.
    pub(crate) fn settle(&self) -> Option<Settling> {
        let mut now = self.lock();
        if now.is_settling || self.holds.load(SeqCst) > 0 {
            return None;
        }
        now.is_settling = true;
        Some(Settling(Arc::clone(&self.now)))
    }

    /// What a worker is to be made with; `narrow` are steps for its command alone.
    pub(crate) fn making(&self, narrow: Option<&Section>) -> io::Result<WorkerMounts> {
        let now = self.lock();
        let own = match (&now.own, narrow) {
            (own, None) => own.clone(),
            (None, Some(narrow)) => Some(Arc::new(OwnSteps::new(narrow.clone())?)),
            (Some(own), Some(narrow)) => Some(Arc::new(OwnSteps::new(own.section.followed_by(narrow))?)),
        };
        Ok(WorkerMounts { own, watches: Arc::clone(&now.watches), generation: now.generation })
    }

    /// Enters what protects the protected paths now, and what became weaker.
    pub(crate) fn report(&self, enforcement: &mut Enforcement) {
        let now = self.lock();
        if let Some(entry) = &now.protection {
            enforcement.set(entry.name, entry.state, entry.detail.clone());
        }
        now.weaker.iter().for_each(|entry| enforcement.weaken(entry.name, &entry.detail));
    }

    /// Whether somebody may have a command running, or one that is not undone yet.
    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(SeqCst) > 0
    }

    pub(crate) fn watches(&self) -> Arc<[Watch]> {
        Arc::clone(&self.lock().watches)
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        locked(&self.now)
    }
}

fn weaker(enforcement: &Enforcement) -> Vec<Entry> {
    let is_weaker = |entry: &&Entry| entry.asked && entry.state == State::Degraded;
    enforcement.protections().iter().filter(is_weaker).cloned().collect()
}
