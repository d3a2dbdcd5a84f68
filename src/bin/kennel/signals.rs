//! Which signals are passed on to the command, and waiting for them.

use std::{fs, io, task::Poll};

use kennel::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that end, stop or inform the command; a terminal sends some of them, a supervisor others.
const PASSED_ON: [i32; 13] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGXCPU,
    libc::SIGXFSZ,
];

/// The signals to pass on. Not among them is what we were started to ignore, by nohup(1) or a shell's `&`: it would not
/// have reached the command without us either.
pub(crate) fn passed_on() -> impl Iterator<Item = i32> {
    let ignored = ignored();
    PASSED_ON.into_iter().filter(move |number| ignored >> (number - 1) & 1 == 0)
}

/// The ignored signals, as proc_pid_status(5) has them: a bit for each, the lowest for signal 1. None where it cannot be
/// read.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The signals that are passed on, from the moment this exists.
pub(crate) struct PassedOn {
    receivers: Vec<(i32, Signal)>,
}

impl PassedOn {
    pub(crate) fn listen() -> Result<Self, Error> {
        let listen = |number| Ok((number, signal(SignalKind::from_raw(number))?));
        let receivers = passed_on().map(listen).collect::<io::Result<_>>();
        let receivers = receivers.map_err(|source| Error::Io { what: "listen for signals", source })?;
        Ok(Self { receivers })
    }

    /// The next signal's number.
    pub(crate) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|cx| {
            let mut each = self.receivers.iter_mut();
            match each.find_map(|(number, receiver)| receiver.poll_recv(cx).is_ready().then_some(*number)) {
                Some(number) => Poll::Ready(number),
                None => Poll::Pending,
            }
        })
        .await
    }
}
