//! A policy made ready for this host, once for all commands of a sandbox or session: the compiled plan, as bytes in a
//! memfd, and the image that carries it out.

mod one_shots;

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, OnceLock},
};

use kennel_helper::{
    control::section,
    plan::{Plan, Step},
    wire::Field,
};
use nix::sys::memfd::{MFdFlags, memfd_create};

pub(crate) use self::one_shots::{OneShots, Question};

use crate::{
    Enforcement, Error, Protection, State,
    audit::{Log, Trail},
    cgroup::Groups,
    compile::{Compiled, Section, WITHOUT_FILTER, footing::Change},
    describe::describe,
    failure,
    host::remedy::{of_call, remedy},
    inside::Inside,
    locked::locked,
    proxy::{Ask, Gate},
    start::Images,
    sys::without_sigxfsz,
};

/// What every start of one plan needs.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) compiled: Compiled,
    pub(crate) images: Arc<Images>,
    plan: OnceLock<Bytes>,
    /// A one-shot that was started ahead, and has its plan, for the first command.
    begun: Mutex<Option<Inside>>,
    /// Who decides what passes the proxy, where there is one.
    gate: Option<Arc<Gate>>,
    log: Option<Arc<Log>>,
    /// Cgroups of one-shots, since one was started.
    groups: Arc<Mutex<Option<Arc<Groups>>>>,
}

impl Prepared {
    /// # Errors
    /// An audit log that cannot be opened.
    pub(crate) fn new(mut compiled: Compiled, images: Images) -> Result<Self, Error> {
        let gate = compiled.network.take().map(Gate::new).transpose()?;
        let gate = gate.map(Arc::new);
        let groups = Arc::default();
        let log = compiled.audit.take().map(|audit| Log::open(&audit)).transpose()?.map(Arc::new);
        let (images, begun) = (Arc::new(images), Mutex::default());
        Ok(Self { compiled, images, plan: OnceLock::new(), begun, gate, log, groups })
    }

    /// The same policy compiled again, for what is there now: with the same proxy, log and cgroups.
    pub(crate) fn anew(&self, compiled: Compiled) -> Self {
        Self {
            compiled,
            images: Arc::clone(&self.images),
            plan: OnceLock::new(),
            begun: Mutex::default(),
            gate: self.gate.clone(),
            log: self.log.clone(),
            groups: Arc::clone(&self.groups),
        }
    }

    /// The trail of one sandbox of this policy.
    pub(crate) fn trail(&self) -> Arc<Trail> {
        Trail::new(self.log.as_ref())
    }

    /// Has somebody decide about what no list of the policy does. The first one stays.
    pub(crate) fn ask(&self, ask: Ask) {
        if let Some(gate) = &self.gate {
            gate.ask(ask);
        }
    }

    /// Who decides what passes the proxy, where there is one.
    pub(crate) fn gate(&self) -> Option<&Arc<Gate>> {
        self.gate.as_ref()
    }

    /// One-shots go on with the cgroups that the one that was started ahead lies in.
    pub(crate) fn grouped(self, groups: Option<Arc<Groups>>) -> Self {
        Self { groups: Arc::new(Mutex::new(groups)), ..self }
    }

    /// The cgroups of one-shots, where there shall be some. Made for the first.
    pub(crate) fn groups(&self) -> Result<Option<Arc<Groups>>, Error> {
        let Some(plan) = &self.compiled.groups.plan else { return Ok(None) };
        let mut groups = locked(&self.groups);
        if groups.is_none() {
            *groups = Some(Groups::make(plan, &self.images)?);
        }
        Ok(groups.clone())
    }

    /// Kills what is in the cgroups of one-shots, and waits until these are removed.
    pub(crate) async fn gone(&self) {
        let groups = locked(&self.groups).take();
        if let Some(groups) = groups {
            groups.gone().await;
        }
    }

    /// What was started ahead, which has its plan.
    pub(crate) fn with_begun(self, begun: Inside) -> Self {
        Self { begun: Mutex::new(Some(begun)), ..self }
    }

    /// What has changed below what was started ahead, if nobody has had it, or since the policy was compiled.
    pub(crate) fn change(&self) -> Change {
        match (&*locked(&self.begun), &self.compiled.ground) {
            (Some(begun), _) => begun.change(),
            (None, Some(ground)) => ground.change(true),
            // Nobody has looked.
            (None, None) => Change::Some,
        }
    }

    /// What was started ahead, if nobody has had it.
    pub(crate) fn take_begun(&self) -> Option<Inside> {
        locked(&self.begun).take()
    }

    /// The plan in a memfd. Written at the first start, while the inside boots.
    pub(crate) fn plan(&self) -> io::Result<&Bytes> {
        if let Some(plan) = self.plan.get() {
            return Ok(plan);
        }
        let Compiled { setup, worker, walls, payload, .. } = &self.compiled;
        let [setup, worker, walls, payload] = [setup, worker, walls, payload].map(|section| &*section.bytes);
        let mut bytes = Vec::with_capacity(setup.len() + worker.len() + walls.len() + payload.len() + 64);
        Plan { setup, worker, walls, payload }.put(&mut bytes);
        let plan = Bytes::new(&bytes)?;
        // Another thread may have been faster; its plan is the same.
        Ok(self.plan.get_or_init(|| plan))
    }

    /// The error for a step that failed inside; `narrow` are the steps of that worker alone.
    pub(crate) fn step_failed(&self, narrow: Option<&Section>, place: (u32, u32), errno: i32) -> Error {
        step_failed(self.step(narrow, place), place, errno)
    }

    /// Enters into `enforcement` that a step was skipped which may be.
    pub(crate) fn step_skipped(
        &self,
        narrow: Option<&Section>,
        place: (u32, u32),
        errno: i32,
        enforcement: &mut Enforcement,
    ) {
        step_skipped(self.step(narrow, place), errno, enforcement);
    }

    /// The step at `place`, section and index, and the protection that it belongs to.
    pub(crate) fn step<'s>(
        &'s self,
        narrow: Option<&'s Section>,
        (section, index): (u32, u32),
    ) -> Option<(Protection, Step<'s>)> {
        let compiled = &self.compiled;
        let section = match section {
            section::NAMESPACES => &compiled.namespaces,
            section::SETUP => &compiled.setup,
            section::WORKER => &compiled.worker,
            section::NARROW => narrow?,
            section::WALLS => &compiled.walls,
            section::PAYLOAD => &compiled.payload,
            _ => return None,
        };
        section.step(index)
    }
}

/// The error for a step that failed inside, at that place of its plan.
pub(crate) fn step_failed(step: Option<(Protection, Step<'_>)>, place: (u32, u32), errno: i32) -> Error {
    let source = io::Error::from_raw_os_error(errno);
    match step {
        Some((protection, step)) => {
            Error::Step { step: describe(&step), protection, source, remedy: remedy(protection, errno) }
        }
        None if place == (section::INIT, kennel_helper::control::init::CLONE) => Error::Step {
            step: "start a process in the sandbox".to_owned(),
            protection: Protection::PidNamespace,
            remedy: of_call(&source).map(str::to_owned),
            source,
        },
        None => Error::Io { what: "carry out the plan inside", source },
    }
}

/// Enters into `enforcement` that a step was skipped which may be.
pub(crate) fn step_skipped(step: Option<(Protection, Step<'_>)>, errno: i32, enforcement: &mut Enforcement) {
    if let Some((protection, step)) = step {
        // What follows a step that was skipped often fails because of that: the first reason is the reason.
        if enforcement.get(protection).is_some_and(|entry| entry.state == State::Off) {
            return;
        }
        let error = io::Error::from_raw_os_error(errno);
        let detail = format!("{}: {}", describe(&step), failure::words(&error));
        tracing::warn!(%protection, %detail, "a protection is off");
        enforcement.set(protection, State::Off, detail);
        if protection == Protection::Seccomp {
            enforcement.weaken(Protection::LandlockNetwork, WITHOUT_FILTER);
        }
    }
}

/// Bytes for the inside, in a memfd.
#[derive(Debug)]
pub(crate) struct Bytes {
    memfd: File,
    pub(crate) length: u32,
}

impl Bytes {
    pub(crate) fn new(bytes: &[u8]) -> io::Result<Self> {
        Self::with_scratch(bytes, 0)
    }

    /// With that much zeroed scratch behind them.
    pub(crate) fn with_scratch(bytes: &[u8], scratch: usize) -> io::Result<Self> {
        let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::ArgumentListTooLong)?;
        let mut memfd = File::from(memfd_create(c"kennel-plan", MFdFlags::MFD_CLOEXEC)?);
        without_sigxfsz(|| {
            memfd.write_all(bytes)?;
            if scratch > 0 {
                let scratch_at = bytes.len().next_multiple_of(size_of::<usize>());
                memfd.set_len((scratch_at + scratch) as u64)?;
            }
            Ok(())
        })?;
        Ok(Self { memfd, length })
    }
}

impl AsFd for Bytes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}
