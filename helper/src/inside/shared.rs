//! The init of commands that share their processes, mounts and IPC: PID 1 for all of them. It has the walls
//! that they share, forks a worker for each, and ends what a worker can no longer end. It never runs a user's
//! program.

use crate::{
    Fault,
    channel::Channel,
    control::{Report, SharedOrder},
    kernel::{EPROTO, PR_SET_CHILD_SUBREAPER, RLIMIT_RTTIME, SIGCONT, SIGKILL, SIGSTOP},
    live,
    payload::Payload,
    plan::Plan,
    processes::{self, Looks},
    reach::{ALL_PROCESSES, Found, Marked, Reach},
    steps::{PrivateTmpfs, State},
    sys::{self, Errno, Fd},
    worker::{self, Born},
};

/// How often to look for processes that are left: about a second. On a busy machine many killed processes
/// take a part of it. A process that is still there then is blocked in the kernel, and dies once that call
/// ends.
const TRIES: u32 = 150;

/// So many looks are a millisecond apart, later ones ten.
const HASTY_TRIES: u32 = 50;

/// So many looks in a row have to find no new process.
const QUIET: u32 = 2;

/// A look that finds more new processes than this has met a storm: they are born faster than they are found.
const FEW: u32 = 16;

/// So many looks in a row that find new processes have met one, too. Processes of other commands that come
/// and go make one look uncertain, seldom several.
const RACES: u32 = 4;

/// Forks workers until the outside is gone. The caller then exits, which kills every process that is left.
pub(crate) fn serve(
    channel: &Channel,
    plan: &Plan<'_>,
    tmpfs: &PrivateTmpfs<'_>,
    born: Born,
) -> Result<(), Fault> {
    // The kernel reaps ended workers, and what killed workers leave.
    sys::ignore_children().map_err(Fault::init)?;
    channel.ready(born.at).map_err(Fault::init)?;
    while let Some((order, [socket, ..])) = channel.order().map_err(Fault::init)? {
        match order {
            SharedOrder::Worker { mark } => {
                let socket = socket.ok_or(Fault::init(Errno(EPROTO)))?;
                match sys::fork() {
                    Ok(None) => begin(&socket, plan, tmpfs, mark, born.file_mask),
                    Ok(Some(pid)) => hand_out(&socket, pid),
                    Err(errno) => Channel::refuse(&socket, errno),
                }
            }
            SharedOrder::Kill { mark, spared } => {
                let count = end(mark, spared);
                if let Some(socket) = socket.filter(|_| count > 0) {
                    let _ = Channel::report_on(&socket, &Report::Blocked { count }, None);
                }
            }
            SharedOrder::Signal { mark, number } => {
                // Nobody waits for an answer.
                let _ = Reach::Mark(mark).signal(number);
            }
        }
    }
    Ok(())
}

/// Kills every process with the mark, except `spared`. Returns how many are left: they are blocked in the
/// kernel. With `spared`, those that die count as gone, because that process waits for them.
///
/// A storm forks faster than one process looks, and leaves it little of the processor. kill(2) of all
/// processes is atomic: no fork slips past it. So first everything stops, for as long as it takes to kill
/// what has the mark. If that does not help, because the storm sends SIGCONT, everything in this pid
/// namespace is killed. One fast chain of forks is a storm too: each process has ended before its turn.
fn end(mark: u64, spared: u32) -> u32 {
    let marked = Marked { mark, spared: spared as usize };
    // From this tick on a process counts as new. `settled` is the first tick whose looks prove that none is
    // left.
    let (mut since, mut settled) = (sys::boot_ticks(), 0);
    let (mut races, mut quiet, mut stops) = (0u32, 0u32, 0u32);
    let (mut looks, mut left) = (Looks::default(), 0);
    for tries in 0..TRIES {
        // An init that cannot even look has too few descriptors, which a command can do to it.
        let Found { new, dying } =
            marked.signal(SIGKILL, since, &mut looks).unwrap_or(Found { new: u32::MAX, dying: 0 });
        left = new.saturating_add(dying);
        if new == 0 {
            (quiet, races) = (quiet.saturating_add(1), 0);
            if quiet >= QUIET && (left == 0 || spared != 0) && sys::boot_ticks() >= settled {
                left = 0;
                break;
            }
        } else {
            (quiet, races) = (0, races.saturating_add(1));
            if new > FEW || races >= RACES {
                let signal = if stops < 2 { SIGSTOP } else { SIGKILL };
                let _ = sys::kill(ALL_PROCESSES, signal);
                (races, stops) = (0, stops.saturating_add(1));
                since = sys::boot_ticks().saturating_add(1);
                settled = since.saturating_add(1);
            }
        }
        if left > 0 || settled > 0 {
            sys::sleep(if tries < HASTY_TRIES { 1 } else { 10 });
        }
    }
    if stops > 1 || stops == 1 && go_on().is_err() {
        let _ = sys::kill(ALL_PROCESSES, SIGCONT);
    }
    left
}

/// Continues what [`end`] has stopped once, the last PIDs first: a parent, such as a shell or the worker of a
/// command with a terminal, does not see that a child was stopped. What somebody else had stopped stays so.
fn go_on() -> Result<(), Errno> {
    processes::each_backwards(|pid| {
        if !processes::is_stopped_twice(pid) {
            // It may have been killed.
            let _ = sys::kill(pid, SIGCONT);
        }
    })
}

/// Hands the outside a pidfd of a worker. The worker does not do it itself: another command may stop it
/// before it has done anything, and the outside could not kill it then.
fn hand_out(socket: &Fd, pid: i32) {
    match sys::open_process(pid.unsigned_abs() as usize) {
        Ok(worker) => {
            // The outside may have closed the socket already.
            let _ = Channel::report_on(socket, &Report::Born { pid: pid.unsigned_abs() }, Some(&worker));
        }
        Err(errno) => Channel::refuse(socket, errno),
    }
}

/// Runs a worker, in the process that was just forked.
fn begin(socket: &Fd, plan: &Plan<'_>, tmpfs: &PrivateTmpfs<'_>, mark: u64, file_mask: usize) -> ! {
    let begun = sys::monotonic_us();
    let Ok(channel) = Channel::adopt(socket) else { sys::exit(1) };
    live(&channel, |channel| {
        // What a command leaves behind becomes a child of its worker.
        sys::prctl(PR_SET_CHILD_SUBREAPER, 1)
            .and_then(|()| sys::limit(RLIMIT_RTTIME, mark, mark))
            .and_then(|()| sys::keep_children())
            .map_err(Fault::init)?;
        let state = State::with_tmpfs(tmpfs);
        worker::command(channel, plan, Payload { state, file_mask, begun: Some(begun) }, Reach::Mark(mark))
    })
}
