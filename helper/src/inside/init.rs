//! PID 1 while the command runs: reaps children, passes signals on, reports the end, and ends every process.

use crate::{
    channel::Channel,
    control::{Order, Report, full},
    kernel::{
        ESRCH, POLLERR, POLLHUP, POLLIN, PollFd, SIGCHLD, SIGCONT, SIGHUP, SIGKILL, SIGSTOP, SIGTTIN, SIGTTOU,
    },
    payload::Running,
    reach::Reach,
    steps::Rooms,
    sys::{self, Errno, Fd, Reaped},
    terminal::Terminal,
};

/// Resources that all reaped processes used together.
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

    fn report(
        &self,
        channel: &Channel,
        (status, full): (i32, u32),
        (killed, left): (u32, bool),
    ) -> Result<(), Errno> {
        let &Self { user_us, system_us, max_rss_kib } = self;
        let left = left.into();
        channel.report(&Report::Ended { status, user_us, system_us, max_rss_kib, killed, left, full })
    }
}

/// A signalfd for SIGCHLD, and for the hangup of a terminal, which the kernel sends to the session's leader alone.
/// Created before the first child, so nothing runs without it.
pub(crate) fn signals() -> Result<Fd, Errno> {
    sys::signal_fd(1u64 << SIGCHLD.wrapping_sub(1) | 1 << SIGHUP.wrapping_sub(1))
}

/// Serves until the command and the processes it may leave behind have ended, or the outside is gone. Returns whether
/// this process may serve another command: it shares its pid namespace, and the command has left nothing. Otherwise the
/// caller exits. If it is PID 1, that kills every process that is left; else the outside orders PID 1 to kill
/// them.
pub(crate) fn serve(
    channel: &Channel,
    (command, reach): (Running, Reach),
    rooms: &Rooms<'_>,
    (signals, mut terminal): (&Fd, Option<Terminal>),
) -> Result<bool, Errno> {
    let is_reusable = matches!(reach, Reach::Mark(_)) && terminal.is_none();
    let mut usage = Usage::default();
    // The stop that the outside knows of. A command that is stopped and continued without end must not fill the socket.
    let mut told = None;
    let mut is_killed = false;
    loop {
        let [ended, spoken] = wait(signals, channel.socket())?;
        if ended {
            if sys::take_signal(signals)? == SIGHUP && terminal.is_some() {
                // The session's leader passes the hangup on, as a shell does. Without a terminal of its own, init is in
                // the session of the caller, which decides for itself what a hangup means.
                let _ = sys::kill(command.pid.wrapping_neg(), SIGHUP);
                let _ = sys::kill(command.pid.wrapping_neg(), SIGCONT);
            }
            let Reaping { status, stopped_by, no_child_left } = reap(command.pid, &mut usage);
            if let Some(signal) = stopped_by.filter(|_| terminal.is_some() && told.is_none()) {
                channel.report(&Report::Stopped { signal })?;
                told = Some(signal);
            }
            // A deleted file uses space until the last process that has it open ends.
            match status.map(|status| (status, if status == 0 { full::NONE } else { full_room(rooms) })) {
                Some(end) if is_killed || !command.background => {
                    return finish(channel, end, usage, reach).map(|()| false);
                }
                Some(end) => {
                    // What it leaves behind may have closed the terminal: then its reader sees the end.
                    terminal = None;
                    usage.report(channel, end, (0, !no_child_left))?;
                    if no_child_left {
                        return Ok(is_reusable);
                    }
                }
                None => {}
            }
            if no_child_left {
                return Ok(false);
            }
        }
        if spoken {
            match channel.order()? {
                Some((order, _)) => {
                    is_killed |= matches!(order, Order::Kill {});
                    carry_out(&order, (command.pid, reach), (terminal.as_mut(), told.take()));
                }
                None => return Ok(false),
            }
        }
    }
}

/// Sleeps until a child ends, or the outside sends an order or is gone.
fn wait(signals: &Fd, socket: &Fd) -> Result<[bool; 2], Errno> {
    let ready = |fd: &Fd| PollFd { fd: fd.number().cast_signed(), events: POLLIN, answered: 0 };
    let mut fds = [ready(signals), ready(socket)];
    sys::poll(&mut fds)?;
    Ok(fds.map(|fd| fd.answered & (POLLIN | POLLHUP | POLLERR) != 0))
}

/// The result of reaping.
struct Reaping {
    /// The command's status, if it was reaped.
    status: Option<i32>,
    /// The signal that stopped the command.
    stopped_by: Option<u32>,
    no_child_left: bool,
}

/// Reaps every child that has ended.
fn reap(pid: i32, usage: &mut Usage) -> Reaping {
    let (mut status, mut stopped_by) = (None, None);
    loop {
        match sys::reap(false) {
            Ok(Some(reaped)) => {
                if is_stop(reaped.status) {
                    if reaped.pid == pid {
                        stopped_by = Some(reaped.status.cast_unsigned() >> 8 & 0xff);
                    }
                    continue;
                }
                usage.add(&reaped);
                if reaped.pid == pid {
                    status = Some(reaped.status);
                }
            }
            Ok(None) => return Reaping { status, stopped_by, no_child_left: false },
            // ECHILD
            Err(_) => return Reaping { status, stopped_by, no_child_left: true },
        }
    }
}

/// WIFSTOPPED of wait(2).
fn is_stop(status: i32) -> bool {
    status & 0xff == 0x7f
}

/// Carries out an order. Ignores a missing receiver: init reports its end next.
fn carry_out(
    order: &Order,
    (pid, reach): (i32, Reach),
    (terminal, stop): (Option<&mut Terminal>, Option<u32>),
) {
    let _ = match *order {
        // A command without a terminal leads an orphaned process group, and there the kernel discards the terminal's
        // stop signals. So stopping must reach every process.
        Order::Signal { number } if number == SIGSTOP || number == SIGCONT => reach.signal(number),
        Order::Signal { number } => sys::kill(pid.wrapping_neg(), number),
        Order::Kill {} => reach.signal(SIGKILL),
        Order::Foreground { has: 0 } => terminal.map_or(Ok(()), Terminal::take),
        Order::Foreground { .. } => {
            terminal.map_or(Ok(()), |own| own.give(pid, matches!(stop, Some(SIGTTIN | SIGTTOU))))
        }
    };
}

/// Kills every process that the command left behind, then reports. Once the outside reads the report, no
/// process of the sandbox can change a file any more.
fn finish(channel: &Channel, end: (i32, u32), mut usage: Usage, reach: Reach) -> Result<(), Errno> {
    let mut killed = 0u32;
    loop {
        match reach.signal(SIGKILL) {
            Ok(()) => {}
            Err(Errno(ESRCH)) => break,
            // A command may have taken descriptors or memory from a worker that it can see. The outside learns that this
            // process has ended, and orders the common init to kill.
            Err(_) => return Ok(()),
        }
        let mut wait = true;
        while let Ok(Some(reaped)) = sys::reap(wait) {
            if is_stop(reaped.status) {
                continue;
            }
            usage.add(&reaped);
            killed = killed.saturating_add(u32::from(reaped.status & 0x7f == SIGKILL.cast_signed()));
            wait = false;
        }
    }
    usage.report(channel, end, (killed, false))
}

/// The number of the first full private file system.
fn full_room(rooms: &Rooms<'_>) -> u32 {
    for (number, path) in (0u32..).zip(rooms.iter().flatten()) {
        match sys::tmpfs_room(path) {
            Ok(Some([0, _])) => return full::word(number, false),
            Ok(Some([_, 0])) => return full::word(number, true),
            _ => {}
        }
    }
    full::NONE
}
