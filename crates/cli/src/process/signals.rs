//! Signals that this process receives: which it takes, and how it waits for them, with poll(2) or in a
//! runtime.

use std::{
    collections::VecDeque,
    future::pending,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{net::UnixStream, process::ExitStatusExt},
    },
    process::ExitStatus,
    time::{Duration, Instant},
};

use kennel::Error;
use nix::sys::signal::{Signal, raise};
use signal_hook::iterator::{backend::SignalDelivery, exfiltrator::SignalOnly};

use super::{exit_status::of_signal, system};

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

/// How long the end waits for the reader of stdout, once a signal ends this program.
const HURRIED_PATIENCE: Duration = Duration::from_secs(1);

/// How often the end looks for such a signal.
const LOOK: Duration = Duration::from_millis(100);

/// The signals of a list, without those that this process inherited as ignored, from nohup(1) or a shell's
/// `&`: without Kennel they would not have reached the command either.
fn not_ignored(signals: &[i32]) -> Vec<i32> {
    let ignored = system::ignored_signals();
    signals.iter().copied().filter(|number| ignored >> (number - 1) & 1 == 0).collect()
}

/// The signals that arrive. This process handles them itself from the moment this value exists. Its
/// descriptor is readable when some have arrived; then take them all.
pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    /// The same descriptor in a runtime.
    watched: Option<tokio::net::UnixStream>,
    /// Those that arrived together and are not taken yet, in the order of `FORWARDED`.
    arrived: VecDeque<i32>,
    /// The ending signals that arrived. A later signal does not undo them, such as the SIGCONT that
    /// timeout(1) sends after SIGTERM.
    ending: Vec<i32>,
}

impl Signals {
    /// Listens for the signals to pass on.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn to_forward() -> Result<Self, Error> {
        Self::listen(&FORWARDED).map_err(unheard)
    }

    fn listen(numbers: &[i32]) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, not_ignored(numbers))?;
        Ok(Self { delivery, watched: None, arrived: VecDeque::new(), ending: Vec::new() })
    }

    /// Lets [`next`](Self::next) wait in this runtime.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn in_runtime(self) -> Result<Self, Error> {
        let watch = || {
            let copy = self.delivery.get_read().try_clone()?;
            copy.set_nonblocking(true)?;
            tokio::net::UnixStream::from_std(copy)
        };
        Ok(Self { watched: Some(watch().map_err(unheard)?), ..self })
    }

    /// The next signal that has arrived. Does not wait.
    pub(crate) fn take(&mut self) -> Option<i32> {
        if self.arrived.is_empty() {
            self.arrived.extend(self.delivery.pending());
            let place = |number: &i32| FORWARDED.iter().position(|known| known == number);
            self.arrived.make_contiguous().sort_by_key(place);
        }
        let number = self.arrived.pop_front()?;
        if is_ending(number) && !self.ending.contains(&number) {
            self.ending.push(number);
        }
        Some(number)
    }

    /// Waits for the next signal, [in a runtime](Self::in_runtime).
    pub(crate) async fn next(&mut self) -> i32 {
        loop {
            if let Some(number) = self.take() {
                return number;
            }
            let Some(watched) = &self.watched else { return pending().await };
            let _ = watched.readable().await;
            // What woke this says nothing of which signals there are.
            while watched.try_read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        }
    }

    /// Whether an ending signal arrived and killed the command.
    pub(crate) fn killed(&self, status: ExitStatus) -> bool {
        status.signal().is_some_and(|number| self.has(number))
    }

    /// Whether this ending signal arrived.
    pub(crate) fn has(&self, number: i32) -> bool {
        self.ending.contains(&number)
    }

    /// Waits for a signal that ends this program, now that no command is left. Returns at once if such a
    /// signal ended the command.
    pub(crate) async fn ending(&mut self, status: ExitStatus) {
        while !self.killed(status) {
            let number = self.next().await;
            if ends_alone(number) {
                return;
            }
        }
    }

    /// Returns how long the end may still wait for the reader of stdout, before it asks again. After a signal
    /// that ends this program it allows one more second; the second starts now if `is_over`.
    pub(crate) fn patience(&mut self, is_over: bool) -> impl FnMut() -> Option<Duration> {
        let mut hurried = is_over.then(Instant::now);
        move || {
            while hurried.is_none()
                && let Some(number) = self.take()
            {
                hurried = ends_alone(number).then(Instant::now);
            }
            match hurried {
                Some(since) => HURRIED_PATIENCE.checked_sub(since.elapsed()).map(|left| left.min(LOOK)),
                None => Some(LOOK),
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

fn unheard(source: io::Error) -> Error {
    Error::Io { what: "listen for signals", source }
}

/// Obeys a signal while no command is left to receive it. Returns whether it ends this program.
fn ends_alone(number: i32) -> bool {
    if number == libc::SIGTSTP {
        let _ = raise(Signal::SIGSTOP);
    }
    is_ending(number)
}

/// Waits for a signal that ends this program. Returns the exit status for it.
pub(crate) async fn interrupted() -> Result<u8, Error> {
    Ok(interruption()?.await)
}

/// As [`interrupted`], and a signal that comes before the first poll counts.
pub(crate) fn interruption() -> Result<impl Future<Output = u8>, Error> {
    let mut signals = Signals::listen(&ENDING_SIGNALS).map_err(unheard)?.in_runtime()?;
    Ok(async move { of_signal(signals.next().await) })
}

/// Whether a signal ends this program if it has no command to pass it on to.
pub(crate) fn is_ending(number: i32) -> bool {
    ENDING_SIGNALS.contains(&number)
}
