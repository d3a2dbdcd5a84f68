//! One worker of a session until it has its command, and how many are kept ready.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use kennel_helper::control::Report;
use nix::errno::Errno;
use procfs::{Current, MemoryPressure};

use crate::command::source::ReadyWorker;
use crate::launch::control::Arrival;
use crate::launch::inside::{CommandHold, Inside, OrderedInit, WaitingInit};
use crate::launch::prepared::{FailedStep, OwnSteps, Prepared};
use crate::network::namespace::SOCKETS_HANDED_OUT;
use crate::protect::watch::Watch;
use crate::report::error::Error;
use crate::session::log::stats::Counts;
use crate::session::mount_state::WorkerMounts;

/// A worker without a command, with what it has reported so far.
#[derive(Debug)]
pub(crate) struct Worker {
    life: Life,
    own: Option<Arc<OwnSteps>>,
    /// Paths to check after its command. If it never gets one, nobody checks them.
    watches: Arc<[Watch]>,
    generation: u64,
    is_ready: bool,
    /// Reports of skipped steps.
    skipped: Vec<Report>,
    /// Why it did not get ready. If it was ordered for one command, that command gets the error.
    failed: Option<FailedStep>,
    /// Its root and its mount namespace, if its steps send them.
    root: Option<OwnedFd>,
    mounts: Option<OwnedFd>,
    /// Sockets of its network namespace, if its steps send them.
    sockets: Vec<OwnedFd>,
    /// The listener of its seccomp filter.
    seccomp_listener: Option<OwnedFd>,
}

/// Its init, as far as Kennel has hold of it.
#[derive(Debug)]
enum Life {
    Ordered(OrderedInit),
    Waiting(WaitingInit),
    /// It was given up: a descriptor was lost, because this program had no room for it.
    Lost,
}

impl Worker {
    /// A worker that the zygote will fork, or the common init.
    pub(crate) fn ordered(init: OrderedInit, mounts: WorkerMounts) -> Self {
        Self::new(Life::Ordered(init), mounts)
    }

    /// A worker that has served a command, and will be ready for another one.
    pub(crate) fn returned(init: WaitingInit, mounts: WorkerMounts) -> Self {
        Self::new(Life::Waiting(init), mounts)
    }

    fn new(life: Life, mounts: WorkerMounts) -> Self {
        Self {
            life,
            own: mounts.own,
            watches: mounts.watches,
            generation: mounts.generation,
            is_ready: false,
            skipped: Vec::new(),
            failed: None,
            root: None,
            mounts: None,
            sockets: Vec::new(),
            seccomp_listener: None,
        }
    }

    /// Whether it waits for a command, and Kennel can kill it.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready && self.is_born()
    }

    /// Whether its pidfd has arrived.
    fn is_born(&self) -> bool {
        matches!(self.life, Life::Waiting(_))
    }

    /// # Errors
    /// It was given up.
    fn inside(&self) -> Result<&Inside, Error> {
        match &self.life {
            Life::Ordered(init) => Ok(init),
            Life::Waiting(init) => Ok(init),
            Life::Lost => Err(no_hold()),
        }
    }

    /// Sets the paths to check after its command. A worker with shared mounts may have waited while others
    /// ran.
    pub(crate) fn watch(&mut self, watches: Arc<[Watch]>) {
        self.watches = watches;
    }

    /// The generation of the mounts that it was ordered with.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Hands a worker that was born to a command. The worker keeps `hold` until it has ended and was undone.
    pub(crate) fn into_ready(self, hold: CommandHold) -> Result<ReadyWorker, Error> {
        let Life::Waiting(init) = self.life else { return Err(no_hold()) };
        Ok(ReadyWorker {
            init: init.begin(hold, &self.watches),
            reports: self.skipped,
            seccomp_listener: self.seccomp_listener,
            own: self.own,
        })
    }

    /// Processes its messages. Waits until it is born, unless `fail_fast`.
    pub(crate) async fn wait_until_born(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
        fail_fast: bool,
    ) -> Result<(), Error> {
        loop {
            self.process_pending(prepared, counts)?;
            if self.is_born() || fail_fast {
                return Ok(());
            }
            self.process_next(prepared, counts).await?;
        }
    }

    /// Waits until it has sent its root and its mount namespace.
    pub(crate) async fn wait_for_view(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
    ) -> Result<(OwnedFd, OwnedFd), Error> {
        loop {
            if let Some(root) = self.root.take_if(|_| self.mounts.is_some())
                && let Some(mounts) = self.mounts.take()
            {
                return Ok((root, mounts));
            }
            self.process_next(prepared, counts).await?;
        }
    }

    /// Waits until it has carried out its steps.
    pub(crate) async fn wait_until_ready(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
    ) -> Result<(), Error> {
        while !self.is_ready {
            self.process_next(prepared, counts).await?;
        }
        Ok(())
    }

    /// Makes it the common init of the commands. Returns what it reported about steps that it skipped, too.
    pub(crate) fn into_common_init(self) -> Result<(WaitingInit, Vec<Report>), Error> {
        match self.life {
            Life::Waiting(init) => Ok((init, self.skipped)),
            Life::Ordered(_) | Life::Lost => Err(no_hold()),
        }
    }

    /// Adds reports of steps that its common init skipped.
    pub(crate) fn add_skipped(&mut self, skipped: &[Report]) {
        self.skipped.extend_from_slice(skipped);
    }

    /// Waits until it has sent the sockets that make others.
    pub(crate) async fn wait_for_sockets(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
    ) -> Result<[OwnedFd; SOCKETS_HANDED_OUT], Error> {
        loop {
            match std::mem::take(&mut self.sockets).try_into() {
                Ok(sockets) => return Ok(sockets),
                Err(sockets) => self.sockets = sockets,
            }
            self.process_next(prepared, counts).await?;
        }
    }

    /// Waits for its next message, and processes it.
    async fn process_next(&mut self, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        let arrival = self.inside()?.next().await;
        self.process(arrival.map_err(Error::io("read the socket of a worker"))?, prepared, counts)
    }

    /// Processes the messages that have arrived, without waiting.
    pub(crate) fn process_pending(&mut self, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        loop {
            if let Some(failed) = self.failed {
                return Err(self.step_error(prepared, failed));
            }
            match self.inside()?.receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                arrival => self.process(
                    arrival.map_err(Error::io("read the socket of a worker"))?,
                    prepared,
                    counts,
                )?,
            }
        }
    }

    fn process(&mut self, arrival: Arrival, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        match arrival {
            Arrival::Born(pidfd, pid) => {
                self.life = match std::mem::replace(&mut self.life, Life::Lost) {
                    Life::Ordered(init) => Life::Waiting(init.born(pidfd, pid)),
                    life => life,
                }
            }
            Arrival::Report(Report::Ready { took_us }) => {
                self.is_ready = true;
                counts.refilled(took_us);
            }
            Arrival::Report(Report::Failed { section, index, errno }) => {
                // The worker takes no command any more. It may still be there for a moment.
                let failed = FailedStep { section, index, errno };
                self.failed = Some(failed);
                return Err(self.step_error(prepared, failed));
            }
            Arrival::Closed => return Err(Error::Lost),
            Arrival::Report(report @ Report::Skipped { .. }) => self.skipped.push(report),
            Arrival::Root(root) => self.root = Some(root),
            Arrival::Mounts(mounts) => self.mounts = Some(mounts),
            Arrival::Listening(listening) => self.sockets.push(listening.socket),
            Arrival::Report(Report::Root {} | Report::Mounts {} | Report::Listening { .. }) => {
                return Err(Error::no_descriptor());
            }
            Arrival::Refusing(listener) => self.seccomp_listener = Some(listener),
            // Without the pidfd nobody could kill it. Without the listener nobody would answer its filter.
            Arrival::Report(Report::Born { .. } | Report::Refusing {}) => self.life = Life::Lost,
            Arrival::Report(_) | Arrival::Started(_) | Arrival::Terminal(_) => {}
            Arrival::Upper(_) | Arrival::RootUpper(_) => {}
        }
        Ok(())
    }

    fn step_error(&self, prepared: &Prepared, step: FailedStep) -> Error {
        let own = self.own.as_ref().map(|own| &own.section);
        prepared.step_failed(own, step)
    }
}

/// The error of a worker that could not send a descriptor.
fn no_hold() -> Error {
    Error::io("take hold of a worker")(Errno::EMFILE.into())
}

/// How often a command tries again while somebody outside replaces files.
pub(crate) const MOST_TRIES: u32 = 5;

/// Whether a step failed because somebody was just replacing its file.
pub(crate) fn is_replaced(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
}

/// How long a reading of the memory pressure is valid, in milliseconds.
const PRESSURE_VALID_MS: u64 = 1000;

/// The memory pressure from which on memory is short: the percentage of the last ten seconds in which some
/// task waited for memory (`avg10` of `/proc/pressure/memory`).
const SHORT_MEMORY: f32 = 10.0;

/// How many workers to keep ready: as many as the caller asked for, but half as many while memory is short.
#[derive(Debug)]
pub(crate) struct ReadyWorkers {
    wanted: usize,
    begun: Instant,
    /// When to read the pressure again, in milliseconds since `begun`.
    due_ms: AtomicU64,
    is_short: AtomicBool,
}

impl ReadyWorkers {
    pub(crate) fn new(wanted: usize) -> Self {
        Self { wanted, begun: Instant::now(), due_ms: AtomicU64::new(0), is_short: AtomicBool::new(false) }
    }

    /// How many workers shall be ready now.
    pub(crate) fn target(&self) -> usize {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now >= self.due_ms.load(Relaxed) {
            self.due_ms.store(now.saturating_add(PRESSURE_VALID_MS), Relaxed);
            // Without pressure information (CONFIG_PSI), memory never counts as short.
            let pressure = MemoryPressure::current().map_or(0.0, |pressure| pressure.some.avg10);
            self.is_short.store(pressure >= SHORT_MEMORY, Relaxed);
        }
        reduced(self.wanted, self.is_short.load(Relaxed))
    }
}

fn reduced(wanted: usize, is_short: bool) -> usize {
    if is_short { wanted / 2 } else { wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_workers_are_kept_while_memory_is_short() {
        assert_eq!([reduced(4, false), reduced(4, true), reduced(1, true), reduced(0, false)], [4, 2, 0, 0]);
    }

    #[test]
    fn the_pressure_is_not_read_for_every_command() {
        let workers = ReadyWorkers::new(3);
        workers.target();
        workers.is_short.store(true, Relaxed);
        assert_eq!(workers.target(), 1, "the reading of less than a second ago is still valid");
    }
}
