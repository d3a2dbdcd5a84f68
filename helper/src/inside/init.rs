//! PID 1 while the command runs: reaps children, passes signals on, reports the end, and ends every process.

use crate::{
    channel::Channel,
    control::{Order, Report, full},
    kernel::{
        POLLERR, POLLHUP, POLLIN, PollFd, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM,
        SIGTTIN, SIGTTOU,
    },
    payload::Running,
    processes,
    reach::{ALL_PROCESSES, Reach},
    steps::PrivateTmpfs,
    sys::{self, Errno, Fd, Reaped},
    terminal::Terminal,
};

/// How long processes that a command leaves behind may take to end after SIGTERM, in microseconds. Then they
/// are killed.
const MOMENT_US: u64 = 1_000_000;

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

/// A signalfd for SIGCHLD, and for the hangup of a terminal, which the kernel sends to the session's leader
/// alone. Created before the first child, so nothing runs without it.
pub(crate) fn signals() -> Result<Fd, Errno> {
    sys::signal_fd(1u64 << SIGCHLD.wrapping_sub(1) | 1 << SIGHUP.wrapping_sub(1))
}

/// Serves until the command and the processes it may leave behind have ended, or the outside is gone. Returns
/// whether this process may serve another command: it shares its pid namespace, and the command has left
/// nothing. Otherwise the caller exits. If it is PID 1, that kills every process that is left; else the
/// outside orders PID 1 to kill them.
pub(crate) fn serve(
    channel: &Channel,
    (command, reach): (Running, Reach),
    tmpfs: &PrivateTmpfs<'_>,
    (signals, mut terminal): (&Fd, Option<Terminal>),
) -> Result<bool, Errno> {
    let is_reusable = matches!(reach, Reach::Mark(_)) && terminal.is_none();
    let mut usage = Usage::default();
    // The stop that the outside knows of. A command that is stopped and continued without end must not fill
    // the socket.
    let mut told = None;
    let mut is_killed = false;
    loop {
        let [ended, mut spoken] = wait(signals, channel.socket(), -1)?;
        let mut reaping = None;
        if ended {
            if sys::take_signal(signals)? == SIGHUP && terminal.is_some() {
                // The session's leader passes the hangup on, as a shell does. Without a terminal of its own,
                // init is in the session of the caller, which decides for itself what a hangup means.
                let _ = sys::kill(command.pid.wrapping_neg(), SIGHUP);
                let _ = sys::kill(command.pid.wrapping_neg(), SIGCONT);
            }
            let reaped = reap(command.pid, &mut usage);
            // The order to kill comes before the kill by the common init.
            if reaped.status.is_some() {
                is_killed = is_killed || is_ordered_to_kill(channel, signals)?;
                spoken = false;
            }
            reaping = Some(reaped);
        }
        if let Some(Reaping { status, stopped_by, no_child_left }) = reaping {
            if let Some(signal) = stopped_by.filter(|_| terminal.is_some() && told.is_none()) {
                channel.report(&Report::Stopped { signal })?;
                told = Some(signal);
            }
            // A deleted file uses space until the last process that has it open ends.
            match status.map(|status| (status, if status == 0 { full::NONE } else { full_tmpfs(tmpfs) })) {
                Some(end) if is_killed || !command.background => {
                    let killed = match (no_child_left, reach) {
                        (true, _) => 0,
                        // This process is the reaper of all that have the mark. The common init kills them.
                        (false, Reach::Mark(_)) => rest(&mut usage, true),
                        (false, Reach::Namespace) => end_rest(channel, &mut usage, is_killed, signals)?,
                    };
                    // Once the outside reads this, no process of the sandbox can change a file any more.
                    return usage.report(channel, end, (killed, false)).map(|()| false);
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

/// Whether the orders that have arrived are to kill. Nobody else is left to get them: the command has ended.
fn is_ordered_to_kill(channel: &Channel, signals: &Fd) -> Result<bool, Errno> {
    while let [_, true] = wait(signals, channel.socket(), 0)? {
        match channel.order()? {
            Some((Order::Kill {}, _)) => return Ok(true),
            Some(_) => {}
            None => break,
        }
    }
    Ok(false)
}

/// Sleeps until a child ends, or the outside sends an order or is gone, but so many milliseconds at most; -1
/// is no limit.
fn wait(signals: &Fd, socket: &Fd, milliseconds: i32) -> Result<[bool; 2], Errno> {
    let ready = |fd: &Fd| PollFd { fd: fd.number().cast_signed(), events: POLLIN, answered: 0 };
    let mut fds = [ready(signals), ready(socket)];
    sys::poll(&mut fds, milliseconds)?;
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
        // A command without a terminal leads an orphaned process group, and there the kernel discards the
        // terminal's stop signals. So stopping must reach every process.
        Order::Signal { number } if number == SIGSTOP || number == SIGCONT => reach.signal(number),
        Order::Signal { number } => sys::kill(pid.wrapping_neg(), number),
        Order::Kill {} => match reach {
            Reach::Namespace => reach.signal(SIGKILL),
            // The common init does it: another command may stop this process.
            Reach::Mark(_) => Ok(()),
        },
        Order::Foreground { has: 0 } => terminal.map_or(Ok(()), Terminal::take),
        Order::Foreground { .. } => {
            terminal.map_or(Ok(()), |own| own.give(pid, matches!(stop, Some(SIGTTIN | SIGTTOU))))
        }
    };
}

/// Ends every process that the command left behind, and reaps it. Returns how many there were.
fn end_rest(channel: &Channel, usage: &mut Usage, is_killed: bool, signals: &Fd) -> Result<u32, Errno> {
    let asked = if is_killed { None } else { Some(ask_to_end(channel, usage, signals)?) };
    let mut killed = 0u32;
    while sys::kill(ALL_PROCESSES, SIGKILL).is_ok() {
        // One that ends now may be no child yet: its parent ends too.
        killed = killed.saturating_add(rest(usage, false));
    }
    Ok(asked.unwrap_or(killed))
}

/// Asks what is left to end, and waits a moment. Programs remove their locks then. Returns how many processes
/// were asked. An order of the outside cuts the moment short.
fn ask_to_end(channel: &Channel, usage: &mut Usage, signals: &Fd) -> Result<u32, Errno> {
    let mut asked = 0u32;
    // Before they start others that help them to end. It is only for the report.
    let _ = processes::each(|pid| {
        let is_there =
            pid > 1 && sys::open_process(pid as usize).is_ok_and(|process| !sys::has_ended(&process));
        asked = asked.saturating_add(u32::from(is_there));
    });
    let _ = sys::kill(ALL_PROCESSES, SIGTERM);
    // A stopped process takes the signal when it goes on.
    let _ = sys::kill(ALL_PROCESSES, SIGCONT);
    let begun = sys::monotonic_us();
    loop {
        if reap(-1, usage).no_child_left {
            return Ok(asked);
        }
        let left = MOMENT_US.saturating_sub(sys::monotonic_us().saturating_sub(begun)) / 1000;
        if left == 0 {
            return Ok(asked);
        }
        let [ended, spoken] = wait(signals, channel.socket(), left as i32)?;
        if ended {
            sys::take_signal(signals)?;
        }
        if spoken {
            match channel.order()? {
                Some((Order::Kill {}, _)) | None => return Ok(asked),
                Some((Order::Signal { number: SIGHUP | SIGINT | SIGTERM }, _)) => return Ok(asked),
                Some(_) => {}
            }
        }
    }
}

/// Waits for one child, or with `all` for all of them, and reaps what has ended. Returns how many SIGKILL has
/// ended.
fn rest(usage: &mut Usage, all: bool) -> u32 {
    let (mut wait, mut killed) = (true, 0u32);
    // Err: ECHILD
    while let Ok(Some(reaped)) = sys::reap(wait) {
        if !is_stop(reaped.status) {
            usage.add(&reaped);
            killed = killed.saturating_add(u32::from(reaped.status & 0x7f == SIGKILL.cast_signed()));
            wait = all;
        }
    }
    killed
}

/// The number of the first full private file system.
fn full_tmpfs(tmpfs: &PrivateTmpfs<'_>) -> u32 {
    for (number, path) in (0u32..).zip(tmpfs.iter().flatten()) {
        match sys::free_in_tmpfs(path) {
            Ok(Some([0, _])) => return full::word(number, false),
            Ok(Some([_, 0])) => return full::word(number, true),
            _ => {}
        }
    }
    full::NONE
}
