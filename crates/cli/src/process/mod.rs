//! What this process needs for its own work: a runtime, a spare thread, and signals.

pub(crate) mod beside;
pub(crate) mod descriptor;

use std::{
    fs::File,
    future::poll_fn,
    io,
    io::Read,
    os::{fd::AsFd, unix::process::ExitStatusExt},
    process::{ExitCode, ExitStatus},
    task::Poll,
    time::Duration,
};

use kennel::Error;
use nix::{
    sys::{
        prctl::set_dumpable,
        resource::{Resource, getrlimit},
    },
    unistd::{Pid, getpid},
};
use signal_hook::low_level::emulate_default_handler;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use crate::FAILED;

/// How long an idle blocking thread stays if the runtime can start another one later.
pub(crate) const IDLE_THREAD: Duration = Duration::from_secs(10);

/// Most descriptors that the runtime and one sandbox keep open.
const NEEDED_DESCRIPTORS: usize = 20;

/// Builds a runtime with one thread, which only waits. Blocking threads end after `idle` without work.
pub(crate) fn runtime(idle: Duration) -> Result<Runtime, Error> {
    check_free_descriptors().map_err(|source| Error::Io { what: "start the runtime", source })?;
    Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(idle)
        .build()
        .map_err(|source| Error::Io { what: "start the runtime", source })
}

/// Starts the blocking thread that commits changes and loads programs before any command runs: the runtime
/// panics if it cannot start one later.
pub(crate) async fn start_blocking_thread() -> Result<(), Error> {
    let failed = |source| Error::Io { what: "start a thread", source };
    let _ = std::thread::Builder::new().spawn(|| ()).map_err(failed)?.join();
    let _ = tokio::task::spawn_blocking(|| ()).await;
    Ok(())
}

/// Fails if there are too few free descriptors: the runtime panics if it runs out of them while it starts.
fn check_free_descriptors() -> io::Result<()> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < 256 {
        let spare: io::Result<Vec<_>> =
            (0..NEEDED_DESCRIPTORS).map(|_| io::stdin().as_fd().try_clone_to_owned()).collect();
        drop(spare?);
    }
    Ok(())
}

/// Ends this program as the command ended, so that a shell, make(1) or a supervisor sees the same: with
/// `code`, or by `signal` if that is what `code` stands for. Call it last: nothing is cleaned up after that.
pub(crate) fn end(code: u8, signal: Option<i32>) -> ExitCode {
    let is_meant = |number: &i32| 128 + number == i32::from(code);
    // The kernel sends PID 1 of a container no signal that would end it.
    if let Some(number) = signal.filter(is_meant).filter(|_| getpid() != Pid::from_raw(1)) {
        // If the command left a core file, one of this program would hide it.
        let _ = set_dumpable(false);
        // It knows no real-time signals. Those become a status.
        let _ = emulate_default_handler(number);
    }
    code.into()
}

/// Signals that end, stop, continue or inform the command; terminals and supervisors send them. SIGXFSZ is
/// missing because Kennel blocks it for itself.
const FORWARDED: [i32; 13] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGCONT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGXCPU,
];

/// Signals that end this program if it has no command to pass them on to.
const ENDING_SIGNALS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The signals to pass on. It skips signals that this process inherited as ignored, from nohup(1) or a
/// shell's `&`: without Kennel they would not have reached the command either.
pub(crate) fn forwarded() -> impl Iterator<Item = i32> {
    not_ignored(FORWARDED)
}

fn not_ignored<const N: usize>(signals: [i32; N]) -> impl Iterator<Item = i32> {
    let ignored = ignored();
    signals.into_iter().filter(move |number| ignored >> (number - 1) & 1 == 0)
}

/// The ignored signals as a bit mask, lowest bit for signal 1; see proc_pid_status(5). Returns 0 if it cannot
/// read them.
fn ignored() -> u64 {
    // The file does not tell its size. Without room for it, it would be read in small pieces.
    let mut status = String::with_capacity(4096);
    let _ = File::open("/proc/self/status").map(|file| file.take(u64::MAX).read_to_string(&mut status));
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Receivers for signals. This process handles the signals itself from the moment this value exists.
pub(crate) struct Signals {
    receivers: Vec<(i32, Signal)>,
    ending: Ending,
}

/// The ending signals that arrived. A later signal does not undo them, such as the SIGCONT that timeout(1)
/// sends after SIGTERM.
#[derive(Default)]
pub(crate) struct Ending(Vec<i32>);

impl Ending {
    /// Records a signal that arrived, if it ends this program.
    pub(crate) fn note(&mut self, number: i32) {
        if is_ending(number) && !self.has(number) {
            self.0.push(number);
        }
    }

    /// Whether this ending signal arrived.
    pub(crate) fn has(&self, number: i32) -> bool {
        self.0.contains(&number)
    }
}

impl Signals {
    /// Listens for the signals to pass on.
    pub(crate) fn to_forward() -> Result<Self, Error> {
        Self::listen(forwarded())
    }

    fn listen(numbers: impl Iterator<Item = i32>) -> Result<Self, Error> {
        let listen = |number| Ok((number, signal(SignalKind::from_raw(number))?));
        let receivers = numbers.map(listen).collect::<io::Result<_>>();
        let receivers = receivers.map_err(|source| Error::Io { what: "listen for signals", source })?;
        Ok(Self { receivers, ending: Ending::default() })
    }

    /// Waits for the next signal and returns its number.
    pub(crate) async fn next(&mut self) -> i32 {
        let number = poll_fn(|cx| {
            let mut each = self.receivers.iter_mut();
            match each.find_map(|(number, receiver)| receiver.poll_recv(cx).is_ready().then_some(*number)) {
                Some(number) => Poll::Ready(number),
                None => Poll::Pending,
            }
        })
        .await;
        self.ending.note(number);
        number
    }

    /// Whether an ending signal arrived and killed the command.
    pub(crate) fn killed(&self, status: ExitStatus) -> bool {
        status.signal().is_some_and(|number| self.ending.has(number))
    }
}

/// Waits for a signal that ends this program. Returns the exit status for it.
pub(crate) async fn interrupted() -> Result<u8, Error> {
    Ok(interruption()?.await)
}

/// As [`interrupted`], and a signal that comes before the first poll counts.
pub(crate) fn interruption() -> Result<impl Future<Output = u8>, Error> {
    let mut signals = Signals::listen(not_ignored(ENDING_SIGNALS))?;
    Ok(async move { u8::try_from(128 + signals.next().await).unwrap_or(FAILED) })
}

/// Whether a signal ends this program if it has no command to pass it on to.
pub(crate) fn is_ending(number: i32) -> bool {
    ENDING_SIGNALS.contains(&number)
}
