//! The zygote: PID 1 of a session. It forks workers on orders, and never runs a user's program.

use crate::{
    Fault,
    channel::{self, Channel},
    control::{ZygoteOrder, section},
    kernel::{ENOSYS, EPROTO, SIGCONT},
    live,
    plan::Plan,
    reach::ALL_PROCESSES,
    steps::{self, State},
    sys::{self, Errno, Fd},
    worker,
};

/// Forks workers until the outside is gone. The caller then exits, which kills every process that is left.
pub(crate) fn serve(
    channel: &Channel,
    plan: &Plan<'_>,
    (begun, file_mask): (u64, usize),
) -> Result<(), Fault> {
    // The kernel reaps ended workers: they have reported everything to the outside themselves.
    sys::ignore_children().map_err(Fault::init)?;
    channel.ready(begun).map_err(Fault::init)?;
    while let Some((order, descriptors)) = channel.order().map_err(Fault::init)? {
        let [socket, second, third] = descriptors;
        match (order, socket) {
            (ZygoteOrder::Worker { own, leaf, shared }, Some(socket)) => {
                let (steps, leaf) = match (own, leaf) {
                    (0, 0) => (None, None),
                    (0, _) => (None, second),
                    _ => (second, third),
                };
                fork(&socket, plan, (steps, own), leaf.as_ref(), (file_mask, shared != 0));
            }
            (ZygoteOrder::Remount { steps }, Some(socket)) => remount(&socket, (second, steps), third),
            (ZygoteOrder::Signal { number }, _) => signal(number),
            (_, None) => return Err(Fault::init(Errno(EPROTO))),
        }
    }
    Ok(())
}

/// Sends every process of the commands a signal, and lets those that are stopped go on. Kennel's own block
/// SIGTERM and SIGHUP.
fn signal(number: u32) {
    for number in [number, SIGCONT] {
        // Nobody may be there.
        let _ = sys::kill(ALL_PROCESSES, number);
    }
}

/// Mounts in another namespace, by a child: this process stays in its own.
fn remount(socket: &Fd, (steps, length): (Option<Fd>, u32), namespace: Option<Fd>) {
    match sys::fork() {
        Ok(None) => {
            let begun = sys::monotonic_us();
            let steps = channel::mapped(steps, length);
            let entered = namespace.ok_or(Errno(EPROTO)).and_then(|namespace| sys::enter_mounts(&namespace));
            let Ok(channel) = Channel::adopt(socket) else { sys::exit(1) };
            live(&channel, |channel| {
                entered.map_err(Fault::init)?;
                let mut state = State::default();
                state.enter_root().map_err(Fault::init)?;
                steps::carry_out(steps.map_err(Fault::init)?, section::OWN, &mut state, channel)?;
                channel.ready(begun).map_err(Fault::init)
            })
        }
        Ok(Some(_)) => {}
        Err(errno) => Channel::refuse(socket, errno),
    }
}

/// Forks one worker. Failures are reported on the worker's own socket; the session continues.
fn fork(socket: &Fd, plan: &Plan<'_>, own: (Option<Fd>, u32), leaf: Option<&Fd>, how: (usize, bool)) {
    let refused = |errno| Channel::refuse(socket, errno);
    match sys::fork_into_new_pid_namespace(leaf) {
        Ok(None) => begin(socket, plan, own, how),
        Ok(Some(_)) => {}
        // A seccomp filter around this process may hide clone3. Then the worker enters its cgroup itself.
        Err(Errno(ENOSYS)) => match sys::fork_into_new_pid_namespace(None) {
            Ok(None) => match leaf.map_or(Ok(()), sys::enter_cgroup) {
                Ok(()) => begin(socket, plan, own, how),
                Err(errno) => {
                    refused(errno);
                    sys::exit(1)
                }
            },
            Ok(Some(_)) => {}
            Err(errno) => refused(errno),
        },
        Err(errno) => refused(errno),
    }
}

/// Runs a worker, in the process that was just forked.
fn begin(
    socket: &Fd,
    plan: &Plan<'_>,
    (steps, length): (Option<Fd>, u32),
    (file_mask, is_shared): (usize, bool),
) -> ! {
    let begun = sys::monotonic_us();
    // Before the memfd is closed with the other descriptors.
    let own = channel::mapped(steps, length);
    let Ok(channel) = Channel::adopt(socket) else { sys::exit(1) };
    live(&channel, |channel| {
        worker::forked(channel, plan, own.map_err(Fault::init)?, (begun, file_mask), is_shared)
    })
}
