//! Signals that this process receives: which it takes, and how it waits for them.

use std::{
    fs::File,
    future::poll_fn,
    io::{self, Read},
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    task::Poll,
};

use kennel::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit_status::of_signal;

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
    Ok(async move { of_signal(signals.next().await) })
}

/// Whether a signal ends this program if it has no command to pass it on to.
pub(crate) fn is_ending(number: i32) -> bool {
    ENDING_SIGNALS.contains(&number)
}
