//! Which signals are passed on to the command, which end us, and waiting for them.

use std::{
    fs,
    future::poll_fn,
    io,
    os::{fd::AsFd, unix::process::ExitStatusExt},
    process::ExitStatus,
    task::Poll,
    time::Duration,
};

use kennel::Error;
use nix::sys::resource::{Resource, getrlimit};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use crate::FAILED;

/// How long a thread that may block stays with nothing to do, where it can be had again.
pub(crate) const IDLE: Duration = Duration::from_secs(10);

/// What the runtime and one sandbox keep open at most.
const NEEDED_DESCRIPTORS: usize = 20;

/// One thread: the runtime only waits. Others, which may block, are let go when they were `idle` for so long.
pub(crate) fn runtime(idle: Duration) -> Result<Runtime, Error> {
    spare_descriptors().map_err(|source| Error::Io { what: "start the runtime", source })?;
    Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(idle)
        .build()
        .map_err(|source| Error::Io { what: "start the runtime", source })
}

/// Changes are committed, and programs loaded, on a thread that may block. It is had before anything runs: the runtime panics
/// where it cannot start one.
pub(crate) async fn have_a_thread() -> Result<(), Error> {
    let failed = |source| Error::Io { what: "start a thread", source };
    let _ = std::thread::Builder::new().spawn(|| ()).map_err(failed)?.join();
    let _ = tokio::task::spawn_blocking(|| ()).await;
    Ok(())
}

/// The runtime panics where descriptors run out while it starts; where there could be too few, that is an error
/// before.
fn spare_descriptors() -> io::Result<()> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < 256 {
        let spare: io::Result<Vec<_>> =
            (0..NEEDED_DESCRIPTORS).map(|_| io::stdin().as_fd().try_clone_to_owned()).collect();
        drop(spare?);
    }
    Ok(())
}

/// Signals that end, stop, continue or inform the command; a terminal sends some of them, a supervisor others. SIGXFSZ is our
/// own: we have it blocked.
const PASSED_ON: [i32; 13] = [
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

/// Signals that mean to end this program, where there is no command to pass them on to.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The signals to pass on. Not among them is what we were started to ignore, by nohup(1) or a shell's `&`: it would not
/// have reached the command without us either.
pub(crate) fn passed_on() -> impl Iterator<Item = i32> {
    not_ignored(PASSED_ON)
}

fn not_ignored<const N: usize>(signals: [i32; N]) -> impl Iterator<Item = i32> {
    let ignored = ignored();
    signals.into_iter().filter(move |number| ignored >> (number - 1) & 1 == 0)
}

/// The ignored signals, as proc_pid_status(5) has them: a bit for each, the lowest for signal 1. None where it cannot be
/// read.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Signals that this process takes itself, from the moment this exists.
pub(crate) struct Signals {
    receivers: Vec<(i32, Signal)>,
    ending: Ending,
}

/// The signals that have come and mean to end us. What comes after one does not undo it, such as the SIGCONT that
/// timeout(1) sends after SIGTERM.
#[derive(Default)]
pub(crate) struct Ending(Vec<i32>);

impl Ending {
    /// Notes a signal that has come.
    pub(crate) fn note(&mut self, number: i32) {
        if means_to_end(number) && !self.has(number) {
            self.0.push(number);
        }
    }

    /// Whether that signal has come, and means to end us.
    pub(crate) fn has(&self, number: i32) -> bool {
        self.0.contains(&number)
    }
}

impl Signals {
    /// Those that are passed on.
    pub(crate) fn to_pass_on() -> Result<Self, Error> {
        Self::listen(passed_on())
    }

    fn listen(numbers: impl Iterator<Item = i32>) -> Result<Self, Error> {
        let listen = |number| Ok((number, signal(SignalKind::from_raw(number))?));
        let receivers = numbers.map(listen).collect::<io::Result<_>>();
        let receivers = receivers.map_err(|source| Error::Io { what: "listen for signals", source })?;
        Ok(Self { receivers, ending: Ending::default() })
    }

    /// The next signal's number.
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

    /// Whether a signal has come that was to end us, and has ended the command.
    pub(crate) fn have_ended(&self, status: ExitStatus) -> bool {
        status.signal().is_some_and(|number| self.ending.has(number))
    }
}

/// Waits for a signal that means to end this program; answers the status that it ends with.
pub(crate) async fn interrupted() -> Result<u8, Error> {
    let number = Signals::listen(not_ignored(ENDING))?.next().await;
    Ok(u8::try_from(128 + number).unwrap_or(FAILED))
}

/// Whether a signal means to end this program, when there is no command left to pass it on to.
pub(crate) fn means_to_end(number: i32) -> bool {
    ENDING.contains(&number)
}
