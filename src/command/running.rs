//! Following one command to its end: what arrives on the control socket, and its time.

use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kennel_helper::control::{Order, Report};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant as Deadline, sleep_until};

use crate::audit::trail::{Exec, Late};
use crate::command::ending::Cause;
use crate::command::explain::Judge;
use crate::command::explain::refused::Refusals;
use crate::command::source::Membership;
use crate::command::stdio::Flood;
use crate::host::cgroups::Setting;
use crate::launch::control::Arrival;
use crate::launch::inside::{Inside, PATIENCE};
use crate::launch::prepared::Prepared;
use crate::network::serving::{Serving, Witness};
use crate::plan::Section;
use crate::policy::limits::Limits;
use crate::protect::recheck;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::sys;

/// How long init may take to end everything after an order, before it is killed itself.
const GRACE: Duration = Duration::from_secs(1);

/// What was asked of a worker.
#[derive(Debug)]
pub(crate) struct CommandSpec {
    pub(crate) program: OsString,
    pub(crate) directory: PathBuf,
    pub(crate) timeout: Option<Duration>,
    /// Bytes of stdout and stderr that are kept.
    pub(crate) caps: [Option<u64>; 2],
    /// All limits that hold for it, whosever they are.
    pub(crate) limits: Limits,
    /// Those of it alone that its cgroup holds.
    pub(crate) settings: Vec<Setting>,
    /// Whether what the command leaves behind lives on.
    pub(crate) background: bool,
    /// Steps of this worker alone.
    pub(crate) narrow: Option<Section>,
    /// What explains its errors, where they shall be.
    pub(crate) judge: Option<Judge>,
}

/// What is needed to follow a command to its end.
#[derive(Debug)]
pub(crate) struct Running {
    /// Its PID 1, since something was waited for. Dropped before `inside`, which may put the same descriptor under watch.
    init: Option<AsyncFd<Arc<OwnedFd>>>,
    pub(crate) inside: AsyncFd<Inside>,
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) asked: CommandSpec,
    pub(crate) enforcement: Enforcement,
    pub(crate) born: Instant,
    has_started: bool,
    pub(crate) killed: Option<Cause>,
    /// By when it is to be gone, once all of it was killed.
    gone_by: Option<Deadline>,
    /// Whether it is not gone although all of it was killed.
    pub(crate) is_stuck: bool,
    /// By what readers of its output tell that it wrote too much, where that ends it.
    flood: Option<Arc<Flood>>,
    /// When init itself is killed because it did not end in time.
    last: Option<Deadline>,
    /// Counts the command as one of its session's.
    membership: Option<Box<dyn Membership>>,
    /// The proxy of a one-shot.
    serving: Option<Serving>,
    /// Follows what the proxy refuses.
    pub(crate) witness: Option<Witness>,
    /// What it leaves in the audit log.
    pub(crate) exec: Exec,
    /// Follows what the filter of system calls refuses.
    pub(crate) refusals: Option<Refusals>,
    pub(crate) span: tracing::Span,
}

impl Running {
    pub(crate) fn new(
        mut inside: Inside,
        prepared: Arc<Prepared>,
        asked: CommandSpec,
        (membership, serving, exec, span): (
            Option<Box<dyn Membership>>,
            Option<Serving>,
            Exec,
            tracing::Span,
        ),
        born: Instant,
    ) -> Result<Self, Error> {
        let enforcement = match &membership {
            Some(membership) => membership.enforcement(),
            None => prepared.compiled.enforcement.clone(),
        };
        inside.set_home();
        let inside =
            sys::watched(inside, Interest::READABLE).map_err(Error::io("watch the control socket"))?;
        let flood = asked.limits.output_ends.then(Arc::default);
        Ok(Self {
            inside,
            init: None,
            asked,
            enforcement,
            prepared,
            born,
            has_started: false,
            killed: None,
            gone_by: None,
            is_stuck: false,
            flood,
            last: None,
            witness: match &membership {
                Some(membership) => membership.witness(),
                None => serving.as_ref().map(Serving::witness),
            },
            refusals: None,
            serving,
            membership,
            exec,
            span,
        })
    }

    /// Who writes down what is known of it after its end.
    pub(crate) fn late(&self) -> Late {
        self.exec.late()
    }

    /// What explains the errors of the command, where they shall be.
    pub(crate) fn judge(&self) -> Option<&Judge> {
        self.asked.judge.as_ref()
    }

    /// Answers in the place of the filter of system calls, and remembers what it refuses.
    ///
    /// # Errors
    /// No room for a thread.
    pub(crate) fn follow(&mut self, listener: OwnedFd) -> Result<(), Error> {
        self.refusals = Some(Refusals::follow(listener).map_err(Error::io("follow what seccomp refuses"))?);
        Ok(())
    }

    /// Whether the program runs, as far as was heard.
    pub(crate) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Whether we ordered its end.
    pub(crate) fn was_killed(&self) -> bool {
        self.killed.is_some()
    }

    /// By what readers of its output tell that it wrote too much, where that ends it.
    pub(crate) fn flood(&self) -> Option<&Arc<Flood>> {
        self.flood.as_ref()
    }

    /// Bytes of stdout and stderr that are kept.
    pub(crate) fn output_caps(&self) -> [Option<u64>; 2] {
        self.asked.caps
    }

    pub(crate) fn signal(&self, number: u32) -> io::Result<()> {
        self.inside.get_ref().order(&Order::Signal { number })
    }

    /// The error for an end that nobody told.
    pub(crate) fn lost(&self) -> Error {
        let ended = self.membership.as_ref().is_some_and(|membership| membership.session_has_ended());
        if ended { Error::SessionEnded } else { Error::Lost }
    }

    /// Undoes what was done to watched paths where no outcome is left to say so.
    pub(crate) fn undo_unheard(&mut self) {
        recheck::log(&self.inside.get_mut().undo());
    }

    /// The next arrival; when the time is up meanwhile, everything is killed and its end awaited.
    pub(crate) async fn next(&mut self) -> Result<Arrival, Error> {
        let deadline = self.deadline();
        let arrival = loop {
            tokio::select! {
                biased;
                arrival = self.inside.async_io(Interest::READABLE, Inside::receive) => break arrival,
                () = until(deadline), if self.killed.is_none() => {
                    self.kill(Cause::TimedOut).map_err(Error::io("order the end of the sandbox"))?;
                }
                () = flooded(self.flood.as_deref()), if self.killed.is_none() => {
                    let cause = self.flood.as_ref().and_then(|flood| flood.cause());
                    if let Some(cause) = cause {
                        self.kill(cause).map_err(Error::io("order the end of the sandbox"))?;
                    }
                }
                () = until(self.last), if self.killed.is_some() => {
                    let _ = self.inside.get_ref().kill();
                    self.last = None;
                }
                () = ended(&mut self.init, self.inside.get_ref()) => break self.inside.get_ref().last_message(),
            }
        };
        let arrival = arrival.map_err(Error::io("read the control socket"))?;
        if matches!(arrival, Arrival::Closed) {
            // Init closes its descriptors before it takes the other processes with it.
            // Whoever waits for the command may be called away, and come back.
            let last = *self.gone_by.get_or_insert_with(|| Deadline::now() + PATIENCE);
            self.is_stuck = !self.inside.get_ref().gone_by(last).await;
        }
        Ok(arrival)
    }

    fn deadline(&self) -> Option<Deadline> {
        self.asked.timeout.and_then(|timeout| self.born.checked_add(timeout)).map(Deadline::from_std)
    }

    pub(crate) fn kill(&mut self, cause: Cause) -> io::Result<()> {
        if self.killed.is_none() {
            self.killed = Some(cause);
            self.last = Some(Deadline::now() + GRACE);
        }
        match self.inside.get_ref().order(&Order::Kill {}) {
            // Init is not read from any more, or too slowly.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = self.inside.get_ref().kill();
                Ok(())
            }
            ordered => ordered,
        }
    }

    /// A report that does not end anything.
    pub(crate) fn note(&mut self, report: &Report) {
        match *report {
            Report::Started {} => {
                self.has_started = true;
                // Another filter may have taken the place of the one who asks, as in some containers.
                if self.asked.judge.is_some() && self.refusals.is_none() {
                    tracing::warn!(parent: &self.span, "what seccomp refuses cannot be followed here");
                }
            }
            Report::Ready { took_us } => {
                if let Some(membership) = &self.membership {
                    membership.refilled(took_us);
                }
            }
            Report::Skipped { section, index, errno } => {
                let narrow = self.asked.narrow.as_ref();
                self.prepared.step_skipped(narrow, (section, index), errno, &mut self.enforcement);
            }
            _ => {}
        }
    }

    /// Waits until what the command sent has left, where it ended by itself.
    pub(crate) async fn drain(&mut self) {
        if let Some(serving) = self.serving.as_mut().filter(|_| self.killed.is_none()) {
            serving.drain().await;
        }
    }

    /// Lets go once init has told the end. What the command may leave behind lives on as long as its session.
    pub(crate) fn release(mut self) {
        drop(self.init.take());
        let mut inside = self.inside.into_inner();
        match &self.membership {
            // A call that it is stuck in may yet change what is protected. Dropped as it is, it is undone once more when it is
            // gone, and keeps its hold until then: without that, the next command would take what appears for the user's.
            _ if self.is_stuck => {}
            Some(membership) if self.asked.background => membership.keep(inside),
            _ => inside.set_over(),
        }
    }
}

// What is waited for while a command runs, besides what init says.

/// Sleeps until `deadline`; forever where there is none.
pub(crate) async fn until(deadline: Option<Deadline>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Waits until init has ended; forever where that cannot be watched. Put under watch last, when all else is waited for: that is
/// done while the command works.
pub(crate) async fn ended(init: &mut Option<AsyncFd<Arc<OwnedFd>>>, inside: &Inside) {
    if init.is_none() {
        let pidfd = inside.pidfd().map(Arc::clone);
        *init = pidfd.and_then(|pidfd| sys::watched(pidfd, Interest::READABLE).ok());
    }
    match init {
        Some(init) if init.readable().await.is_ok() => {}
        _ => pending().await,
    }
}

/// Waits until the command has written too much; forever where that does not end it.
pub(crate) async fn flooded(flood: Option<&Flood>) {
    match flood {
        Some(flood) => flood.wait().await,
        None => pending().await,
    }
}
