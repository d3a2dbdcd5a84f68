//! Checks before each command whether the host's files still match the mounts of a session. Somebody outside
//! may have replaced a protected file, and with it its mount, or created a new repository.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard};
use std::{fs, io};

use crate::command::source::Entered;
use crate::host::Host;
use crate::host::caller::Caller;
use crate::launch::inside::CommandHold;
use crate::launch::prepared::OwnSteps;
use crate::mount_snapshot::{MountChange, MountSnapshot, replaced};
use crate::plan::compile::Compiled;
use crate::plan::{Section, compile};
use crate::policy::Policy;
use crate::protect::watch::{self, Watch};
use crate::report::denial::shown;
use crate::report::enforcement::{Enforcement, Entry, Note, Protection, State};
use crate::report::error::Error;
use crate::report::error::overlay::OverlayError;
use crate::report::failure;
use crate::report::remedy::{Remedy, SettingKey, remedy};
use crate::sys::locked;
use crate::view::inputs::SandboxKind;

/// What helps if a session cannot show what is there now.
fn new_session() -> Remedy {
    remedy!["prepare a new session (", SettingKey::StopSession, ", then start)"]
}

/// What a plan is compiled from, to compile it again.
pub(crate) struct CompileInputs {
    pub(crate) policy: Policy,
    pub(crate) host: Host,
    pub(crate) caller: Caller,
    pub(crate) kind: SandboxKind,
}

impl CompileInputs {
    pub(crate) fn compile(&self) -> Result<Compiled, Error> {
        compile::compile(&self.policy, &self.host, &self.caller, self.kind)
    }
}

pub(crate) struct SessionMounts {
    pub(crate) inputs: Arc<CompileInputs>,
    current: Arc<Mutex<Current>>,
    /// How many commands and file calls run.
    holds: Arc<AtomicUsize>,
}

/// The mounts that fit the host's files now.
#[derive(Debug)]
struct Current {
    snapshot: MountSnapshot,
    watches: Arc<[Watch]>,
    /// What the plan would enforce.
    enforcement: Enforcement,
    /// Steps that mount again what the zygote may have lost.
    remount: Section,
    /// The same steps for every worker, after the first change.
    own: Option<Arc<OwnSteps>>,
    /// How often something has changed. A worker of an older generation is out of date.
    generation: u64,
    /// A path of the profile that was replaced.
    outdated: Option<PathBuf>,
    /// Whether the changes of an overlay are committed, so that no command may start.
    is_settling: bool,
    /// How many files were kept at watched paths when this was made.
    kept: u64,
    /// Whether commands ran when this was made. Then the watches before are still among these.
    is_provisional: bool,
}

/// No command runs, and none can start, until this is dropped.
#[derive(Debug)]
pub(crate) struct Settling(Arc<Mutex<Current>>);

impl Drop for Settling {
    fn drop(&mut self) {
        locked(&self.0).is_settling = false;
    }
}

/// What a new worker needs.
pub(crate) struct WorkerMounts {
    pub(crate) own: Option<Arc<OwnSteps>>,
    pub(crate) watches: Arc<[Watch]>,
    pub(crate) generation: u64,
}

impl Current {
    fn new(compiled: &Compiled, generation: u64) -> Self {
        Self {
            snapshot: compiled.mount_snapshot.clone().unwrap_or_default(),
            watches: Arc::clone(&compiled.watches),
            enforcement: compiled.enforcement.clone(),
            remount: compiled.repair_mounts.clone(),
            own: None,
            generation,
            outdated: None,
            is_settling: false,
            kept: watch::kept_so_far(),
            is_provisional: false,
        }
    }
}

impl SessionMounts {
    pub(crate) fn new(compiled: &Compiled, inputs: Arc<CompileInputs>) -> Self {
        Self { inputs, current: Arc::new(Mutex::new(Current::new(compiled, 0))), holds: Arc::default() }
    }

    /// Checks whether something has changed. If so, new workers get mounts that fit the host's files now.
    ///
    /// Paths that commands may modify are compared only when no command is running. With the lock and no
    /// hold, no command runs, starts or is being undone. What a command made, and Kennel kept and told, is
    /// protected at once all the same: such as the configuration of a new repository.
    ///
    /// # Errors
    /// The workspace or a grant was replaced or removed; a compile error, because the new files cannot be
    /// protected.
    pub(crate) fn enter(&self) -> Result<Entered, Error> {
        // Before the look at the files: what is kept later counts the next time.
        let kept = watch::kept_so_far();
        let mut current = self.lock();
        if current.is_settling {
            return Err(OverlayError::Committing.into());
        }
        let is_idle = self.holds.load(SeqCst) == 0;
        let has_kept = current.kept != kept && current.watches.iter().any(Watch::has_kept);
        if !has_kept {
            current.kept = kept;
        }
        let change = match current.snapshot.change(is_idle, false) {
            MountChange::None if has_kept || (is_idle && current.is_provisional) => MountChange::Some,
            change => change,
        };
        match change {
            MountChange::None => {}
            MountChange::Grant(what, path) => return Err(replaced(what, path, new_session())),
            MountChange::Source(what, path) => return Err(outdated(what, path)),
            MountChange::Some => {
                tracing::info!(
                    "somebody outside replaced a mounted or protected file: the session makes new workers"
                );
                let generation = current.generation + 1;
                let next = match is_idle {
                    true => Some(self.recompile(generation)?),
                    false if has_kept => self.recompile_beside(&current, generation),
                    false => None,
                };
                let remount = next.as_ref().map_or(&current.remount, |next| &next.remount);
                // Without mounts there are no steps, and an empty memfd cannot be mapped.
                let own = (!remount.bytes.is_empty()).then(|| OwnSteps::new(remount.clone())).transpose();
                let own = own.map_err(Error::io("write the steps of a worker to a memfd"))?.map(Arc::new);
                // Nothing fails from here on. The next command would take a half-done update for a complete
                // one.
                match next {
                    Some(next) => *current = next,
                    None => current.snapshot.record_mount_points(),
                }
                current.kept = kept;
                (current.own, current.generation) = (own, generation);
            }
        }
        current.outdated = current.snapshot.outdated_offer().map(Path::to_owned);
        let hold = CommandHold::new(&self.holds);
        Ok(Entered { hold, generation: current.generation })
    }

    /// Compiles the policy again, against the host's files now.
    fn recompile(&self, generation: u64) -> Result<Current, Error> {
        Ok(Current::new(&self.inputs.compile()?, generation))
    }

    /// The same while commands run, which may change anything meanwhile. So the watches of before stay: what
    /// they find is undone after each command. `None` if the files of now cannot be protected; the next
    /// command without others tells why.
    fn recompile_beside(&self, current: &Current, generation: u64) -> Option<Current> {
        let mut next = self.recompile(generation).inspect_err(|error| {
            tracing::warn!(error = failure::chain(error), "what a command made is not protected yet");
        });
        if let Ok(next) = &mut next {
            let mut watches = next.watches.to_vec();
            watches.extend_from_slice(&current.watches);
            Watch::dedup(&mut watches);
            (next.watches, next.is_provisional) = (watches.into(), true);
        }
        next.ok()
    }

    /// Keeps commands from starting; `None` if one runs.
    pub(crate) fn settle(&self) -> Option<Settling> {
        let mut current = self.lock();
        if current.is_settling || self.holds.load(SeqCst) > 0 {
            return None;
        }
        current.is_settling = true;
        Some(Settling(Arc::clone(&self.current)))
    }

    /// What a new worker needs. `own_steps` are steps for its command alone.
    pub(crate) fn for_worker(&self, own_steps: Option<&Section>) -> io::Result<WorkerMounts> {
        let current = self.lock();
        let own = match (&current.own, own_steps) {
            (own, None) => own.clone(),
            (None, Some(steps)) => Some(Arc::new(OwnSteps::new(steps.clone())?)),
            (Some(own), Some(steps)) => Some(Arc::new(OwnSteps::new(own.section.followed_by(steps))?)),
        };
        Ok(WorkerMounts { own, watches: Arc::clone(&current.watches), generation: current.generation })
    }

    /// Adds to what the zygote has set up: how protected paths are protected now, which protections became
    /// weaker, and the notes of now. The notes of the set-up stay.
    pub(crate) fn report(&self, set_up: &mut Enforcement) {
        let current = self.lock();
        let now = &current.enforcement;
        if let Some(entry) = now.get(Protection::ProtectedPaths) {
            set_up.put(entry.clone());
        }
        let is_weaker = |entry: &&Entry| entry.asked && entry.state == State::Degraded;
        now.protections().iter().filter(is_weaker).for_each(|entry| set_up.weaken(entry.name, &entry.detail));
        set_up.add_notes(now.notes().iter().cloned());
        set_up.add_notes(current.outdated.iter().map(|path| {
            let text = "was replaced outside; commands see what was there before";
            Note::new(&shown(path), text, Some(new_session()))
        }));
    }

    /// Whether a command may run, or has ended and is not undone yet.
    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(SeqCst) > 0
    }

    /// Whether a commit goes on.
    pub(crate) fn is_committing(&self) -> bool {
        self.lock().is_settling
    }

    pub(crate) fn watches(&self) -> Arc<[Watch]> {
        Arc::clone(&self.lock().watches)
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        locked(&self.current)
    }
}

/// The error for a path that was mounted once, and has another file now, or none.
fn outdated(what: &'static str, path: PathBuf) -> Error {
    match fs::symlink_metadata(&path) {
        Ok(_) => replaced(what, path, new_session()),
        Err(source) => {
            let remedy =
                remedy!["it was there when the session began: have it there again, or ", new_session()];
            Error::Grant { what, path, source, remedy: Some(remedy) }
        }
    }
}
