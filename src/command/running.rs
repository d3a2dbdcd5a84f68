//! Follows one command to its end: the reports of its init, its wall time, and its kill.

pub(crate) mod hand_over;

use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kennel_helper::control::{Order, Report};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant as Deadline, sleep_until};

use crate::audit::trail::Exec;
use crate::command::one_shot::OwnNetwork;
use crate::command::running::hand_over::{HandedOver, Taker};
use crate::command::source::{Membership, ReadyInterpreter, ReadyWorker};
use crate::command::tail::ErrorTail;
use crate::explain::context::ExplainContext;
use crate::host::cgroups::CgroupSetting;
use crate::launch::control::Arrival;
use crate::launch::inside::{CommandInit, CommandKey, Inside, Leftover};
use crate::launch::prepared::{FailedStep, Prepared};
use crate::launch::supervisor::refused::Refusals;
use crate::launch::supervisor::{Sink, Supervisor};
use crate::network::namespace::publish::Publishing;
use crate::network::serving::{DenialCursor, Serving};
use crate::plan::Section;
use crate::policy::limits::Limits;
use crate::process::cause::{Cause, Flood};
use crate::protect::recheck;
use crate::report::enforcement::{Enforcement, Entry};
use crate::report::error::Error;
use crate::report::network_failure::NetworkFailure;
use crate::report::observed::Observed;
use crate::report::outcome::Start;
use crate::report::published::PublishedPort;
use crate::sys;

/// When a command that has not started counts as stopped by another one, which may have met its worker while
/// it waited. It is then continued.
const LATE: Duration = Duration::from_millis(250);

/// How long init may take to kill every process after the order. Then Kennel kills init.
const GRACE: Duration = Duration::from_secs(1);

/// How long killed processes may take after that, before the outcome says that they are stuck. On a busy
/// machine some take more than a second.
const STUCK: Duration = Duration::from_secs(5);

/// What the caller asked for, within the limits of the policy.
#[derive(Debug)]
pub(crate) struct CommandSpec {
    pub(crate) program: OsString,
    pub(crate) directory: PathBuf,
    pub(crate) timeout: Option<Duration>,
    /// How many bytes of stdout and of stderr Kennel keeps.
    pub(crate) output_caps: [Option<u64>; 2],
    /// All limits of the command: its own and those of the policy.
    pub(crate) limits: Limits,
    /// What Kennel writes to the cgroup of this command.
    pub(crate) cgroup_settings: Vec<CgroupSetting>,
    /// Steps of the worker that are not in the plan of the policy.
    pub(crate) own_steps: Option<Section>,
    /// How the command's own limits are enforced, for the report.
    pub(crate) limit_entries: Vec<Entry>,
    /// Explains why the command failed, if the policy or the caller asks for that.
    pub(crate) context: Option<Arc<ExplainContext>>,
    /// Whether the policy asks for denials.
    pub(crate) explains: bool,
    /// Whether the caller asks for hints.
    pub(crate) wants_hints: bool,
}

/// Where the command is recorded.
#[derive(Debug)]
pub(crate) struct CommandLog {
    /// Its records in the audit log.
    pub(crate) exec: Exec,
    pub(crate) span: tracing::Span,
}

/// A command that a worker has.
#[derive(Debug)]
pub(crate) struct Running {
    /// The pidfd of init, watched since the first wait. Dropped before `init`, which may watch the same
    /// descriptor.
    pidfd: Option<AsyncFd<Arc<OwnedFd>>>,
    pub(crate) init: AsyncFd<CommandInit>,
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) spec: CommandSpec,
    pub(crate) enforcement: Enforcement,
    pub(crate) started_at: Instant,
    /// How its program was started.
    pub(crate) start: Start,
    /// Whether init has reported that the program runs.
    has_started: bool,
    /// Whether processes of the command live on after its end; `None` until init has reported the end.
    has_left: Option<bool>,
    /// Whether the command has got a terminal.
    has_terminal: bool,
    /// Whether its worker serves no other command: init may have an order that it has not read, or somebody
    /// knows the mark of the command.
    is_last: AtomicBool,
    pub(crate) stop: Stop,
    owner: Owner,
    pub(crate) refusals: RefusalLogs,
    pub(crate) log: CommandLog,
    /// Answers for the seccomp filter, if it is this command's own.
    supervisor: Option<Supervisor>,
}

/// How Kennel ends the command, if it has to.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    /// Why Kennel ordered the kill; `None` as long as it did not.
    pub(crate) cause: Option<Cause>,
    /// When Kennel kills init, because init has not obeyed the order.
    init_deadline: Option<Deadline>,
    /// When the killed processes must be gone.
    gone_deadline: Option<Deadline>,
    /// What is left of the killed processes after that deadline.
    pub(crate) leftover: Leftover,
    /// Readers of the output report here that the command wrote too much. `None` if the policy lets it write
    /// on.
    flood: Option<Arc<Flood>>,
}

/// The session of a command, or the network of a command without a session.
#[derive(Debug)]
pub(crate) enum Owner {
    Session(Membership),
    OneShot(OwnNetwork),
}

impl Owner {
    fn enforcement(&self, prepared: &Prepared) -> Enforcement {
        match self {
            Self::Session(session) => session.enforcement(),
            Self::OneShot(_) => prepared.compiled.enforcement.clone(),
        }
    }

    fn published(&self) -> Vec<PublishedPort> {
        match self {
            Self::Session(session) => session.published(),
            Self::OneShot(network) => network.published.as_ref().map(Publishing::ports).unwrap_or_default(),
        }
    }

    /// Collects what the proxy refuses from now on. That of a session is served again if it has stopped.
    pub(crate) fn renew_proxy(&self) -> Option<DenialCursor> {
        match self {
            Self::Session(session) => session.renew_proxy(),
            Self::OneShot(network) => network.proxy.as_ref().map(Serving::denial_cursor),
        }
    }

    /// Whether this program ended the session of the command.
    fn has_ended(&self) -> bool {
        matches!(self, Self::Session(session) if session.has_ended())
    }
}

/// What the walls around the command refused while it ran.
#[derive(Debug)]
pub(crate) struct RefusalLogs {
    pub(crate) proxy: Option<DenialCursor>,
}

impl RefusalLogs {
    /// What the proxy could not reach.
    pub(crate) fn network_failures(&self) -> Vec<NetworkFailure> {
        self.proxy.iter().flat_map(DenialCursor::failures).collect()
    }
}

impl Running {
    pub(crate) fn new(
        handed_over: HandedOver,
        prepared: Arc<Prepared>,
        spec: CommandSpec,
        log: CommandLog,
    ) -> Result<Self, Error> {
        let HandedOver { to, owner, refusals, started_at } = handed_over;
        let (init, mut enforcement, start, (reports, listener, own), supervisor) = match to {
            Taker::Worker(worker, start) => {
                let ReadyWorker { init, reports, seccomp_listener, own } = *worker;
                (init, owner.enforcement(&prepared), start, (reports, seccomp_listener, own), None)
            }
            Taker::Interpreter(interpreter) => {
                let ReadyInterpreter { init, enforcement, supervisor, .. } = *interpreter;
                let has_started = vec![Report::Started { asks: 0 }];
                (init, enforcement, Start::Warm, (has_started, None, None), supervisor)
            }
        };
        spec.limit_entries.iter().for_each(|entry| enforcement.put(entry.clone()));
        let mut running = Self {
            pidfd: None,
            init: sys::watched(init, Interest::READABLE).map_err(Error::io("watch the control socket"))?,
            enforcement,
            prepared,
            started_at,
            start,
            has_started: false,
            has_left: None,
            has_terminal: false,
            is_last: AtomicBool::new(false),
            stop: Stop { flood: spec.limits.output_ends.then(Arc::default), ..Stop::default() },
            spec: CommandSpec { own_steps: own.map(|own| own.section.clone()), ..spec },
            refusals,
            owner,
            log,
            supervisor,
        };
        reports.iter().for_each(|report| running.note(report));
        if let Some(listener) = listener {
            running.follow_seccomp(listener)?;
        }
        Ok(running)
    }

    /// Answers for the seccomp filter of the command.
    ///
    /// # Errors
    /// Those of [`Supervisor::follow`].
    pub(crate) fn follow_seccomp(&mut self, listener: OwnedFd) -> Result<(), Error> {
        self.supervisor = Some(Supervisor::follow(listener, &self.prepared.compiled)?);
        Ok(())
    }

    /// What was refused to the command, if the policy asks for that.
    pub(crate) fn refusals(&self) -> Option<&Refusals> {
        match &self.supervisor.as_ref()?.sink {
            Sink::Refusals(refusals) => Some(refusals),
            Sink::Nothing | Sink::Paths(_) => None,
        }
    }

    /// What the command has used, if the policy asks for that.
    pub(crate) fn observed(&self) -> Option<Observed> {
        match &self.supervisor.as_ref()?.sink {
            Sink::Paths(recorder) => Some(recorder.observed()),
            Sink::Nothing | Sink::Refusals(_) => None,
        }
    }

    /// Whether init has reported that the program runs.
    pub(crate) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Records whether processes of the command live on.
    pub(crate) fn leaves(&mut self, has_left: bool) {
        self.has_left = Some(has_left);
    }

    /// The published ports of its sandbox.
    pub(crate) fn published(&self) -> Vec<PublishedPort> {
        self.owner.published()
    }

    /// What the proxy refuses from now on belongs to another call.
    pub(crate) fn renew_denial_cursor(&mut self) {
        self.refusals.proxy = self.owner.renew_proxy();
    }

    /// Whether Kennel ordered the kill.
    pub(crate) fn was_killed(&self) -> bool {
        self.stop.cause.is_some()
    }

    /// What looks for errors in the output, if the caller asks for hints.
    pub(crate) fn tail(&self) -> Option<ErrorTail> {
        self.spec
            .context
            .as_ref()
            .filter(|_| self.spec.wants_hints)
            .map(|context| ErrorTail::new(Arc::clone(context)))
    }

    /// Where readers of the output report that the command wrote too much. `None` if the policy lets it write
    /// on.
    pub(crate) fn flood(&self) -> Option<&Arc<Flood>> {
        self.stop.flood.as_ref()
    }

    pub(crate) fn signal(&self, number: u32) -> io::Result<()> {
        self.is_last.store(true, Relaxed);
        self.init.get_ref().order(&Order::Signal { number })
    }

    pub(crate) fn foreground(&self, has: bool) -> io::Result<()> {
        self.is_last.store(true, Relaxed);
        self.init.get_ref().order(&Order::Foreground { has: has.into() })
    }

    /// The error for an end that init did not report.
    pub(crate) fn lost(&self) -> Error {
        match self.stop.leftover {
            _ if self.owner.has_ended() => Error::SessionEnded,
            Leftover::None => Error::Lost,
            Leftover::Stuck | Leftover::Unknown => Error::StillRuns,
        }
    }

    /// Whether the end of its session has ended it: all commands got SIGTERM, and SIGHUP after it. A shell
    /// reports such a signal as status 128 + signal.
    pub(crate) fn ended_with_session(&self, status: ExitStatus) -> bool {
        let signal = status.signal().or(status.code().map(|code| code - 128));
        let is_by_session = matches!(signal, Some(libc::SIGTERM | libc::SIGHUP | libc::SIGKILL));
        is_by_session && !self.was_killed() && self.owner.has_ended()
    }

    /// Undoes changes of watched paths, and only logs them: no outcome will report them.
    pub(crate) fn undo_and_log(&mut self) {
        recheck::log(&self.init.get_mut().undo());
    }

    /// Waits for the next message of init. Meanwhile it kills the command if its time is up or it writes too
    /// much.
    pub(crate) async fn next(&mut self) -> Result<Arrival, Error> {
        let wall_time = self.deadline();
        let can_be_late = !self.has_started && self.init.get_ref().is_marked();
        let mut late = can_be_late.then(|| Deadline::now() + LATE);
        let arrival = loop {
            tokio::select! {
                biased;
                arrival = self.init.async_io(Interest::READABLE, |init| init.receive()) => break arrival,
                () = until(wall_time), if !self.was_killed() => {
                    self.kill(Cause::TimedOut).map_err(Error::io("order the end of the sandbox"))?;
                }
                cause = flooded(self.stop.flood.as_deref()), if !self.was_killed() => {
                    self.kill(cause).map_err(Error::io("order the end of the sandbox"))?;
                }
                () = until(late) => {
                    self.init.get_ref().go_on();
                    late = Some(Deadline::now() + LATE);
                }
                () = until(self.stop.init_deadline), if self.was_killed() => {
                    let _ = self.init.get_ref().kill();
                    self.stop.init_deadline = None;
                }
                () = init_ended(&mut self.pidfd, self.init.get_ref()) => break self.init.get_ref().last_message(),
            }
        };
        let arrival = arrival.map_err(Error::io("read the control socket"))?;
        if matches!(arrival, Arrival::Closed) {
            self.wait_until_gone().await;
        }
        Ok(arrival)
    }

    /// Waits for the other processes: init closes its descriptors before the kernel kills them.
    async fn wait_until_gone(&mut self) {
        // The caller may drop this future and wait again. The deadline stays.
        let deadline = *self.stop.gone_deadline.get_or_insert_with(|| Deadline::now() + STUCK);
        self.stop.leftover = self.init.get_ref().gone_by(deadline).await;
    }

    fn deadline(&self) -> Option<Deadline> {
        self.spec.timeout.and_then(|timeout| self.started_at.checked_add(timeout)).map(Deadline::from_std)
    }

    /// Orders init to kill every process. The first cause counts.
    pub(crate) fn kill(&mut self, cause: Cause) -> io::Result<()> {
        if self.stop.cause.is_none() {
            self.stop.cause = Some(cause);
            self.stop.init_deadline = Some(Deadline::now() + GRACE);
        }
        match self.init.get_ref().order_kill() {
            // The socket is full: init does not read its orders, or reads them too slowly.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = self.init.get_ref().kill();
                Ok(())
            }
            ordered => ordered,
        }
    }

    /// Records a report that does not end the command.
    pub(crate) fn note(&mut self, report: &Report) {
        match *report {
            Report::Started { .. } => {
                self.has_started = true;
                // The kernel allows one listener for each task. In some containers, an outer filter has it.
                if self.spec.explains && self.refusals().is_none() {
                    tracing::warn!(parent: &self.log.span, "what seccomp refuses cannot be followed here");
                }
            }
            Report::Ready { took_us } => {
                if let Owner::Session(session) = &self.owner {
                    session.refilled(took_us);
                }
            }
            Report::Skipped { section, index, errno } => {
                let own_steps = self.spec.own_steps.as_ref();
                let skipped = FailedStep { section, index, errno };
                self.prepared.step_skipped(own_steps, skipped, &mut self.enforcement);
            }
            _ => {}
        }
    }

    /// Waits until the proxy and the published ports have sent on what the command wrote. After a kill, it
    /// waits for nothing.
    pub(crate) async fn drain(&mut self) {
        if self.was_killed() {
            return;
        }
        let Owner::OneShot(network) = &mut self.owner else { return };
        if let Some(proxy) = &mut network.proxy {
            proxy.drain().await;
        }
        if let Some(published) = &mut network.published {
            published.drain().await;
        }
    }

    /// Lets init of a one-shot begin to end. The kernel lets it wait there several times, when it takes down
    /// mounts, and this program uses the time. Without this, its wake-up for the report would come first.
    pub(crate) fn let_init_end(&self) {
        if matches!(self.owner, Owner::OneShot(_)) {
            std::thread::yield_now();
        }
    }

    /// Whether its worker waits for another command, if it can serve several.
    fn is_free(&self) -> bool {
        let has_listener = self.spec.explains || self.refusals().is_some();
        let is_at_rest = !self.was_killed() && !self.is_last.load(Relaxed);
        self.has_left == Some(false) && is_at_rest && !self.has_terminal && !has_listener
    }

    /// Lets its worker serve no other command, and returns what tells its processes from those of others.
    pub(crate) fn claim_worker(&mut self) -> Option<CommandKey> {
        *self.is_last.get_mut() = true;
        self.init.get_ref().key()
    }

    /// Records that the command has got a terminal.
    pub(crate) fn note_terminal(&mut self) {
        self.has_terminal = true;
    }

    /// Lets go of the sandbox after init has reported the end. Background processes of a session live on.
    pub(crate) fn release(mut self) {
        drop(self.pidfd.take());
        let is_free = self.is_free();
        let init = self.init.into_inner();
        match &self.owner {
            // A process is left that may still change a protected path, for example one in a system call.
            // Dropping `init` waits for it, undoes its changes once more and only then gives up the hold on
            // the session. Without the hold, the next command would take a file that appears there for the
            // user's own.
            _ if self.stop.leftover != Leftover::None => {}
            Owner::Session(session) if self.has_left == Some(true) => session.keep(init),
            Owner::Session(session) if is_free && init.is_marked() => session.give_back(init),
            _ => init.over(),
        }
    }
}

/// Sleeps until `deadline`; forever without one.
pub(crate) async fn until(deadline: Option<Deadline>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Waits until init has ended; forever if its pidfd cannot be watched. The first poll registers the pidfd.
/// `next` polls this last, so the registration costs no time before the command works.
async fn init_ended(watched: &mut Option<AsyncFd<Arc<OwnedFd>>>, init: &Inside) {
    if watched.is_none() {
        let pidfd = init.pidfd().map(Arc::clone);
        *watched = pidfd.and_then(|pidfd| sys::watched(pidfd, Interest::READABLE).ok());
    }
    match watched {
        Some(pidfd) if pidfd.readable().await.is_ok() => {}
        _ => pending().await,
    }
}

/// Waits until the command has written too much; forever if the policy lets it write on.
pub(crate) async fn flooded(flood: Option<&Flood>) -> Cause {
    match flood {
        Some(flood) => flood.wait().await,
        None => pending().await,
    }
}
