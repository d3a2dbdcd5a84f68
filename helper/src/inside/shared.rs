//! The init of commands that share their processes, mounts and IPC: PID 1 for all of them. It has the walls that they
//! share, forks a worker for each, and ends what a worker can no longer end. It never runs a user's program.

use crate::{
    Fault,
    channel::Channel,
    control::{Report, SharedOrder},
    kernel::{EPROTO, ESRCH, PR_SET_CHILD_SUBREAPER, RLIMIT_RTTIME, SIGKILL},
    live,
    payload::Payload,
    plan::Plan,
    reach::Reach,
    steps::{Rooms, State},
    sys::{self, Errno, Fd},
    worker,
};

/// How often to look for processes that are left, once a millisecond. A process that is still there then is blocked in
/// the kernel, and dies once that call ends.
const TRIES: u32 = 100;

/// Forks workers until the outside is gone. The caller then exits, which kills every process that is left.
pub(crate) fn serve(
    channel: &Channel,
    plan: &Plan<'_>,
    rooms: &Rooms<'_>,
    (begun, file_mask): (u64, usize),
) -> Result<(), Fault> {
    // The kernel reaps ended workers, and what killed workers leave.
    sys::ignore_children().map_err(Fault::init)?;
    channel.ready(begun).map_err(Fault::init)?;
    while let Some((order, [socket, ..])) = channel.order().map_err(Fault::init)? {
        match order {
            SharedOrder::Worker { mark } => {
                let socket = socket.ok_or(Fault::init(Errno(EPROTO)))?;
                match sys::fork() {
                    Ok(None) => begin(&socket, plan, rooms, (mark, file_mask)),
                    Ok(Some(pid)) => hand_out(&socket, pid),
                    Err(errno) => Channel::refuse(&socket, errno),
                }
            }
            SharedOrder::Signal { mark, number: SIGKILL } => {
                for _ in 0..TRIES {
                    // Every other error may pass: then there may still be one.
                    if Reach::Mark(mark).signal(SIGKILL) == Err(Errno(ESRCH)) {
                        break;
                    }
                    sys::sleep(1);
                }
                // The outside waits until this end is closed.
                drop(socket);
            }
            SharedOrder::Signal { mark, number } => {
                // Nobody waits for an answer.
                let _ = Reach::Mark(mark).signal(number);
            }
        }
    }
    Ok(())
}

/// Hands the outside a pidfd of a worker. The worker does not do it itself: another command may stop it before it has
/// done anything, and the outside could not kill it then.
fn hand_out(socket: &Fd, pid: i32) {
    match sys::open_process(pid.unsigned_abs() as usize) {
        Ok(worker) => {
            // The outside may have closed the socket already.
            let _ = Channel::report_on(socket, &Report::Born {}, Some(&worker));
        }
        Err(errno) => Channel::refuse(socket, errno),
    }
}

/// Runs a worker, in the process that was just forked.
fn begin(socket: &Fd, plan: &Plan<'_>, rooms: &Rooms<'_>, (mark, file_mask): (u64, usize)) -> ! {
    let begun = sys::monotonic_us();
    let Ok(channel) = Channel::adopt(socket) else { sys::exit(1) };
    live(&channel, |channel| {
        // What a command leaves behind becomes a child of its worker.
        sys::prctl(PR_SET_CHILD_SUBREAPER, 1)
            .and_then(|()| sys::limit(RLIMIT_RTTIME, mark, mark))
            .and_then(|()| sys::keep_children())
            .map_err(Fault::init)?;
        let state = State::with_rooms(rooms);
        worker::command(channel, plan, Payload { state, file_mask, begun: Some(begun) }, Reach::Mark(mark))
    })
}
