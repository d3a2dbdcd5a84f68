//! A policy made ready for this host, once for all commands of a sandbox or session: the compiled plan, in a
//! memfd, and the program that carries it out.

use std::ffi::CStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::{fmt, io};

use kennel_helper::control::{Handed, LONGEST_REQUEST, SCRATCH, section};
use kennel_helper::plan::{Plan, Step};
use kennel_helper::wire::Field;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use zeroize::Zeroizing;

use crate::audit::log::Log;
use crate::audit::trail::{Origin, Trail};
use crate::host::remedy::remedy;
use crate::launch::cgroup::Groups;
use crate::launch::image::Images;
use crate::launch::inside::{Inside, PlannedInit};
use crate::launch::request::RequestBuf;
use crate::network::ask::Ask;
use crate::network::gate::Gate;
use crate::plan::compile::{Compiled, Steps};
use crate::plan::landlock::WITHOUT_FILTER;
use crate::plan::{PlannedStep, Section, layers};
use crate::protect::mount_snapshot::MountChange;
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::report::error::Error;
use crate::report::failure;
use crate::report::shortage::of_call;
use crate::sys::{locked, packet, without_sigxfsz};

/// Everything that a start of the plan needs.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) compiled: Compiled,
    pub(crate) images: Arc<Images>,
    plan: OnceLock<Memfd>,
    /// A one-shot that has been started ahead for the first command. It already has the plan.
    prestarted: Mutex<Option<PlannedInit>>,
    /// Decides about connections through the proxy, if the policy has one.
    gate: Option<Arc<Gate>>,
    log: Option<Arc<Log>>,
    /// What records of its sandboxes name.
    origin: Origin,
    /// The cgroups of one-shots, once the first one has been started.
    groups: Arc<Mutex<Option<Arc<Groups>>>>,
}

impl Prepared {
    /// # Errors
    /// The audit log cannot be opened, or the socket of a foreign proxy is gone.
    pub(crate) fn new(compiled: Compiled, images: Images) -> Result<Self, Error> {
        let gate = compiled.services.proxy.clone().map(Gate::new).transpose()?;
        let gate = gate.map(Arc::new);
        let groups = Arc::default();
        let log = compiled.services.audit.as_ref().map(Log::open).transpose()?.map(Arc::new);
        let (images, prestarted) = (Arc::new(images), Mutex::default());
        let (plan, origin) = (OnceLock::new(), Origin::default());
        Ok(Self { compiled, images, plan, prestarted, gate, log, origin, groups })
    }

    /// The same, for a sandbox that others ask for on behalf of somebody.
    pub(crate) fn with_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// The same policy, compiled again for the present state of the host. Proxy, log and cgroups stay the
    /// same.
    pub(crate) fn recompiled(&self, compiled: Compiled) -> Self {
        Self {
            compiled,
            images: Arc::clone(&self.images),
            plan: OnceLock::new(),
            prestarted: Mutex::default(),
            gate: self.gate.clone(),
            log: self.log.clone(),
            origin: self.origin.clone(),
            groups: Arc::clone(&self.groups),
        }
    }

    /// The audit trail of one sandbox of this policy.
    pub(crate) fn trail(&self) -> Arc<Trail> {
        let root = self.compiled.view.root.as_ref().map(|root| root.words().into());
        Trail::new(self.log.as_ref(), Origin { root, ..self.origin.clone() })
    }

    /// Sets the callback for connections that no list decides. Only the first call counts.
    pub(crate) fn set_ask(&self, ask: Ask) {
        if let Some(gate) = &self.gate {
            gate.set_ask(ask);
        }
    }

    /// The gate of the proxy, if the policy has one.
    pub(crate) fn gate(&self) -> Option<&Arc<Gate>> {
        self.gate.as_ref()
    }

    /// Uses these cgroups, which contain the one-shot started ahead, for later one-shots too.
    pub(crate) fn with_groups(self, groups: Option<Arc<Groups>>) -> Self {
        Self { groups: Arc::new(Mutex::new(groups)), ..self }
    }

    /// The cgroups of one-shots, if the plan has any. The first call makes them.
    pub(crate) fn groups(&self) -> Result<Option<Arc<Groups>>, Error> {
        let Some(plan) = &self.compiled.groups.plan else { return Ok(None) };
        let mut groups = locked(&self.groups);
        if groups.is_none() {
            *groups = Some(Groups::make(plan, &self.images)?);
        }
        Ok(groups.clone())
    }

    /// Kills everything in the cgroups of one-shots and waits until they are removed.
    pub(crate) async fn gone(&self) {
        let groups = locked(&self.groups).take();
        if let Some(groups) = groups {
            groups.gone().await;
        }
    }

    /// Keeps a one-shot that has been started ahead and has its plan.
    pub(crate) fn with_prestarted(self, prestarted: PlannedInit) -> Self {
        Self { prestarted: Mutex::new(Some(prestarted)), ..self }
    }

    /// What has changed about the mounts since the one-shot was started ahead, or else since the policy was
    /// compiled.
    pub(crate) fn mount_change(&self) -> MountChange {
        match (&*locked(&self.prestarted), &self.compiled.mount_snapshot) {
            (Some(prestarted), _) => prestarted.mount_change(),
            (None, Some(snapshot)) => snapshot.change(true, true),
            // No snapshot was taken.
            (None, None) => MountChange::Some,
        }
    }

    /// The one-shot that was started ahead, unless it has been taken.
    pub(crate) fn take_prestarted(&self) -> Option<PlannedInit> {
        locked(&self.prestarted).take()
    }

    /// The plan in a memfd. The first start writes it, while the new process boots.
    pub(crate) fn plan(&self) -> io::Result<&Memfd> {
        if let Some(plan) = self.plan.get() {
            return Ok(plan);
        }
        let Steps { setup, worker, walls, payload, .. } = &self.compiled.steps;
        let [setup, worker, walls, payload] = [setup, worker, walls, payload].map(|section| &*section.bytes);
        let mut bytes = Vec::with_capacity(setup.len() + worker.len() + walls.len() + payload.len() + 64);
        Plan { setup, worker, walls, payload }.put(&mut bytes);
        let plan = Memfd::new(&bytes)?;
        // If another thread was faster, its plan is the same.
        Ok(self.plan.get_or_init(|| plan))
    }

    /// The error for a step that failed inside. `own_steps` are the additional steps of that worker.
    pub(crate) fn step_failed(&self, own_steps: Option<&Section>, failed: FailedStep) -> Error {
        step_failed(self.step(own_steps, failed.section, failed.index), failed)
    }

    /// Records in `enforcement` that an optional step was skipped.
    pub(crate) fn step_skipped(
        &self,
        own_steps: Option<&Section>,
        skipped: FailedStep,
        enforcement: &mut Enforcement,
    ) {
        step_skipped(self.step(own_steps, skipped.section, skipped.index), skipped.errno, enforcement);
    }

    /// The step at `index` of a section.
    pub(crate) fn step<'s>(
        &'s self,
        own_steps: Option<&'s Section>,
        section: u32,
        index: u32,
    ) -> Option<PlannedStep<'s>> {
        let steps = &self.compiled.steps;
        let section = match section {
            section::NAMESPACES => &steps.namespaces,
            section::SETUP => &steps.setup,
            section::WORKER => &steps.worker,
            section::OWN => own_steps?,
            section::WALLS => &steps.walls,
            section::PAYLOAD => &steps.payload,
            _ => return None,
        };
        section.step(index)
    }
}

/// A step that failed or was skipped, as the inside reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedStep {
    /// One of [`section`].
    pub(crate) section: u32,
    pub(crate) index: u32,
    pub(crate) errno: i32,
}

/// The error for a step that failed inside.
pub(crate) fn step_failed(step: Option<PlannedStep<'_>>, failed: FailedStep) -> Error {
    let FailedStep { section, index, errno } = failed;
    let source = io::Error::from_raw_os_error(errno);
    match step {
        Some(PlannedStep { protection, step }) => {
            Error::Step { step: describe(&step), protection, source, remedy: remedy(protection, errno) }
        }
        None if (section, index) == (section::INIT, kennel_helper::control::init::CLONE) => Error::Step {
            step: "start a process in the sandbox".to_owned(),
            protection: Protection::PidNamespace,
            remedy: of_call(&source).map(Into::into),
            source,
        },
        None => Error::Io { what: "carry out the plan inside", source },
    }
}

/// Records in `enforcement` that an optional step was skipped.
pub(crate) fn step_skipped(step: Option<PlannedStep<'_>>, errno: i32, enforcement: &mut Enforcement) {
    if let Some(PlannedStep { protection, step }) = step {
        // The mode of a directory that commands share: another command had just closed the way to it.
        if matches!(step, Step::SetMode { .. }) || layers::note_skipped(&step, errno, enforcement) {
            return;
        }
        // A skipped step often makes later ones fail. Keep the first reason.
        if enforcement.get(protection).is_some_and(|entry| entry.state == State::Off) {
            return;
        }
        let error = io::Error::from_raw_os_error(errno);
        let detail = format!("{}: {}", describe(&step), failure::words(&error));
        tracing::warn!(%protection, %detail, "a protection is off");
        enforcement.turn_off(protection, detail);
        if protection == Protection::Seccomp {
            enforcement.weaken(Protection::LandlockNetwork, WITHOUT_FILTER);
        }
    }
}

/// Bytes for a process inside, in a memfd: memfd_create(2).
#[derive(Debug)]
pub(crate) struct Memfd {
    memfd: File,
    pub(crate) length: u32,
}

impl Memfd {
    pub(crate) fn new(bytes: &[u8]) -> io::Result<Self> {
        Self::with_scratch(bytes, 0)
    }

    /// With `scratch` zero bytes behind them.
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

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}

// Steps in words, for the message about a failed step. They contain the paths of the user.

/// A step in words.
pub(crate) fn describe(step: &Step<'_>) -> String {
    match *step {
        Step::Write { path, .. } => format!("write {}", text(path)),
        Step::Unshare { flags } => format!("new {} namespace", namespace(flags)),
        Step::Separate {} => "separate mounts from the host".to_owned(),
        Step::Hostname { .. } => "set the host name".to_owned(),
        Step::LoopbackUp {} => "bring the loopback device up".to_owned(),
        Step::NewRoot { .. } => "mount a tmpfs for the root".to_owned(),
        Step::MakeDir { path, .. } => format!("make directory {}", target(path)),
        Step::Symlink { path, .. } => format!("make link {}", target(path)),
        Step::MakeFile { path, .. } => format!("make file {}", target(path)),
        Step::Bind { source, target: at, .. } => format!("bind {} at {}", text(source), target(at)),
        Step::Mount { kind, target: at, .. } => format!("mount {} at {}", text(kind), target(at)),
        Step::Cover { target: at, .. } => format!("cover {}", target(at)),
        Step::BindOwn { source, target: at } => {
            format!("bind {} of the sandbox at {}", target(source), target(at))
        }
        Step::SetMode { path, .. } => format!("set the mode of {}", target(path)),
        Step::MakeMountPoint { path } => format!("make mount point {}", target(path)),
        Step::Whiteout { path } => format!("hide {}", target(path)),
        Step::Merge { target: at, .. } => format!("merge {} with the sandbox's own files", target(at)),
        Step::PivotRoot {} => "make the new root the root".to_owned(),
        Step::SetAttributes { target: at, .. } => format!("make {} read-only", target(at)),
        Step::LandlockRuleset { .. } => "make a Landlock ruleset".to_owned(),
        Step::LandlockRule { path, .. } => format!("allow {} in Landlock", target(path)),
        Step::LandlockRestrict {} => "restrict by Landlock".to_owned(),
        Step::Prctl { option, .. } => format!("set process attribute {option}"),
        Step::DropCapabilities { .. } => "drop capabilities".to_owned(),
        Step::DropBoundingSet {} => "empty the bounding set".to_owned(),
        Step::NewKeyring {} => "make a session keyring".to_owned(),
        Step::Limit { resource, soft, .. } => format!("limit {} to {soft}", limit(resource)),
        Step::Seccomp { .. } | Step::SeccompAsking { .. } => "install the seccomp filter".to_owned(),
        Step::EnterRoot {} => "enter the root".to_owned(),
        Step::Move { from, to, .. } => format!("move {} to {}", target(from), target(to)),
        Step::Detach { target: at } => format!("unmount {}", target(at)),
        Step::MountAgain { target: at, .. } => {
            format!("mount {} again, which was replaced outside", target(at))
        }
        Step::CheckTmpfs { path } => format!("look for free space at {}", target(path)),
        Step::Forgo { path } => format!("go without {}", target(path)),
        Step::LoopbackAddress { .. } => "add an address to loopback".to_owned(),
        Step::LandlockPort { port, .. } => format!("add the Landlock rule for port {port}"),
        Step::ListenEverywhere { port: 0 } => "make a socket for published ports".to_owned(),
        Step::Listen { port, .. } | Step::ListenEverywhere { port } => {
            format!("listen on port {port} of the sandbox")
        }
        Step::HandOutUpper { .. } => "hand out the changes".to_owned(),
        Step::Layer { lower, .. } => format!("put a layer over {}", text(lower.path)),
        Step::ShowLayered { target: at, .. } => format!("show a layer at {}", target(at)),
        Step::DetachLayers {} => "unmount the layers".to_owned(),
        Step::Root { .. } => "mount the layers of the root".to_owned(),
        Step::MakeMissing { parent, name, .. } => {
            format!("make {} in {} of the root", text(name), target(parent))
        }
        Step::Pin { target: at, .. } => format!("pin {}", target(at)),
        Step::Ordinary { .. } => "set the ordinary scheduling priority".to_owned(),
        Step::DropCapability { capability } => format!("drop capability {capability}"),
        Step::SetEffective { capability, has: 0 } => format!("put capability {capability} aside"),
        Step::SetEffective { capability, .. } => format!("use capability {capability}"),
        Step::HandOut {} => "hand out the view".to_owned(),
        Step::NewSession {} => "start a session".to_owned(),
    }
}

fn text(path: &CStr) -> impl fmt::Display {
    path.to_string_lossy()
}

/// Targets are relative to the new root in the plan; messages show them as absolute paths.
fn target(path: &CStr) -> String {
    match path.to_bytes() {
        b"." => "/".to_owned(),
        _ => format!("/{}", path.to_string_lossy()),
    }
}

fn namespace(flags: u32) -> &'static str {
    match flags.cast_signed() {
        libc::CLONE_NEWNS => "mount",
        libc::CLONE_NEWIPC => "ipc",
        libc::CLONE_NEWUTS => "uts",
        libc::CLONE_NEWNET => "network",
        libc::CLONE_NEWCGROUP => "cgroup",
        _ => "unknown",
    }
}

fn limit(resource: u32) -> &'static str {
    match resource {
        libc::RLIMIT_CORE => "core file size",
        libc::RLIMIT_CPU => "cpu time",
        libc::RLIMIT_DATA => "memory",
        libc::RLIMIT_FSIZE => "file size",
        libc::RLIMIT_NOFILE => "open files",
        libc::RLIMIT_NPROC => "processes",
        _ => "a resource",
    }
}

// One command: a message to a waiting worker.

/// Sends a command and its standard descriptors to a worker. A request too long for one message goes into a
/// memfd.
pub(crate) fn send_request(
    worker: &Inside,
    request: &RequestBuf,
    stdio: [BorrowedFd<'_>; 3],
) -> io::Result<()> {
    if let Some(terminal) = request.terminal() {
        let mut message = Vec::new();
        Handed::Terminal { window: terminal.window(), modes: terminal.modes() }.put(&mut message);
        worker.send(&message, [])?;
    }
    let (request, scratch) = request.encode();
    // Room for the message number and the length. Zeroized like the request, which may contain secrets.
    let mut message = Zeroizing::new(Vec::with_capacity(request.len() + 16));
    Handed::Inline { request: &request }.put(&mut *message);
    if message.len() <= LONGEST_REQUEST && scratch <= SCRATCH {
        return worker.send(&message, stdio);
    }
    let bytes = Memfd::with_scratch(&request, scratch)?;
    let scratch = u32::try_from(scratch).map_err(|_| io::ErrorKind::ArgumentListTooLong)?;
    message.clear();
    Handed::Memfd { request: bytes.length, scratch }.put(&mut *message);
    let [input, output, error] = stdio;
    worker.send(&message, [input, output, error, bytes.as_fd()])
}

/// Sends a command and its standard descriptors to an interpreter that has agreed to become it.
pub(crate) fn send_to_interpreter(
    link: impl AsFd,
    request: &RequestBuf,
    stdio: [BorrowedFd<'_>; 3],
) -> io::Result<()> {
    let bytes = Memfd::new(&request.words())?;
    let [input, output, error] = stdio;
    match packet::send(link, b"!", &[input, output, error, bytes.as_fd()]) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(Errno::EPIPE.into()),
        sent => sent,
    }
}

/// Additional steps of one worker, which are not in the plan.
#[derive(Debug)]
pub(crate) struct OwnSteps {
    pub(crate) section: Section,
    pub(crate) bytes: Memfd,
}

impl OwnSteps {
    pub(crate) fn new(section: Section) -> io::Result<Self> {
        Ok(Self { bytes: Memfd::new(&section.bytes)?, section })
    }
}
