//! PID 1 once the command runs: reaps, passes signals on, reports the end, and takes everything with it.

use crate::{
    channel::Channel,
    control::{Order, Report},
    kernel::{POLLERR, POLLHUP, POLLIN, PollFd, SIGCHLD, SIGCONT, SIGKILL, SIGSTOP},
    sys::{self, Errno, Fd, Reaped},
};

/// Every process of the namespace but init.
const EVERYONE: i32 = -1;

/// What all reaped processes used together.
#[derive(Default)]
struct Usage {
    user_us: u64,
    system_us: u64,
    max_rss_kib: u64,
}

impl Usage {
    fn add(&mut self, reaped: &Reaped) {
        let us = |seconds: u64, rest: u64| seconds.saturating_mul(1_000_000).saturating_add(rest);
        let usage = &reaped.usage;
        self.user_us = self.user_us.saturating_add(us(usage.user_s, usage.user_us));
        self.system_us = self.system_us.saturating_add(us(usage.system_s, usage.system_us));
        self.max_rss_kib = self.max_rss_kib.max(usage.max_rss_kib);
    }
}

/// Serves until the command `pid` ends or the outside is gone. Returning means exit, which kills whoever is left.
pub(crate) fn serve(channel: &Channel, pid: i32) -> Result<(), Errno> {
    let signals = sys::signal_fd(1u64 << (SIGCHLD.wrapping_sub(1)))?;
    let mut usage = Usage::default();
    loop {
        let [ended, spoken] = wait(&signals, channel.socket())?;
        if ended {
            sys::take_signal(&signals)?;
            if let Some(status) = reap(pid, &mut usage) {
                return finish(channel, status, usage);
            }
        }
        if spoken {
            match channel.order()? {
                Some(order) => obey(&order, pid),
                None => return Ok(()),
            }
        }
    }
}

/// Sleeps until a child has ended or the outside has spoken or is gone.
fn wait(signals: &Fd, socket: &Fd) -> Result<[bool; 2], Errno> {
    let ready = |fd: &Fd| PollFd { fd: fd.number().cast_signed(), events: POLLIN, answered: 0 };
    let mut fds = [ready(signals), ready(socket)];
    sys::poll(&mut fds)?;
    Ok(fds.map(|fd| fd.answered & (POLLIN | POLLHUP | POLLERR) != 0))
}

/// Reaps all that have ended; answers the command's status when it is among them.
fn reap(pid: i32, usage: &mut Usage) -> Option<i32> {
    let mut status = None;
    // ECHILD, when nobody is left, ends it like "none has ended".
    while let Ok(Some(reaped)) = sys::reap(false) {
        usage.add(&reaped);
        if reaped.pid == pid {
            status = Some(reaped.status);
        }
    }
    status
}

/// A signal whose receiver is already gone is no error: its end is about to be reported.
fn obey(order: &Order, pid: i32) {
    let _ = match *order {
        // The command leads an orphaned process group, where the kernel discards the terminal's stop signals;
        // stopping has to reach everyone to stop anything.
        Order::Signal { number } if number == SIGSTOP || number == SIGCONT => sys::kill(EVERYONE, number),
        Order::Signal { number } => sys::kill(pid.wrapping_neg(), number),
        Order::Kill {} => sys::kill(EVERYONE, SIGKILL),
    };
}

/// Ends every process that the command left behind, then reports: when the outside hears of the end, nothing
/// of the sandbox can touch a file any more.
fn finish(channel: &Channel, status: i32, mut usage: Usage) -> Result<(), Errno> {
    let mut killed = 0u32;
    while sys::kill(EVERYONE, SIGKILL).is_ok() {
        let mut wait = true;
        while let Ok(Some(reaped)) = sys::reap(wait) {
            usage.add(&reaped);
            killed = killed.saturating_add(u32::from(reaped.status & 0x7f == SIGKILL.cast_signed()));
            wait = false;
        }
    }
    let Usage { user_us, system_us, max_rss_kib } = usage;
    channel.report(&Report::Ended { status, user_us, system_us, max_rss_kib, killed })
}
