//! A worker: everything that one command does not share with others. It serves one command and ends; if
//! commands share their processes, it serves the next one too.

use crate::{
    Fault,
    channel::Channel,
    control::{Report, request, section},
    init,
    payload::{self, Payload, Started},
    plan::Plan,
    reach::Reach,
    shared,
    steps::{self, State},
    sys::{self, Errno, Fd},
    terminal::Terminal,
};

/// Runs a worker that the zygote forked, as PID 1 of its own pid namespace.
pub(crate) fn forked<'p>(
    channel: &'p Channel,
    plan: &Plan<'p>,
    own: &'p [u8],
    (begun, file_mask): (u64, usize),
    is_shared: bool,
) -> Result<(), Fault> {
    born(channel).map_err(Fault::init)?;
    let mut state = State::default();
    steps::carry_out(plan.worker, section::WORKER, &mut state, channel)?;
    steps::carry_out(own, section::OWN, &mut state, channel)?;
    steps::carry_out(plan.walls, section::WALLS, &mut state, channel)?;
    if is_shared {
        return shared::serve(channel, plan, &state.tmpfs, (begun, file_mask));
    }
    command(channel, plan, Payload { state, file_mask, begun: Some(begun) }, Reach::Namespace)
}

/// Runs the only worker of a one-shot, as PID 1. Its namespaces and mounts are still fresh.
pub(crate) fn serve<'p>(
    channel: &'p Channel,
    plan: &Plan<'p>,
    own: &'p [u8],
    (mut state, file_mask): (State<'p>, usize),
) -> Result<(), Fault> {
    steps::carry_out(own, section::OWN, &mut state, channel)?;
    steps::carry_out(plan.walls, section::WALLS, &mut state, channel)?;
    command(channel, plan, Payload { state, file_mask, begun: None }, Reach::Namespace)
}

/// Starts the payload, and serves it to its end. A worker that shares its pid namespace then waits for the
/// next command.
pub(crate) fn command<'p>(
    channel: &'p Channel,
    plan: &Plan<'p>,
    mut payload: Payload<'p>,
    reach: Reach,
) -> Result<(), Fault> {
    let tmpfs = payload.state.tmpfs;
    let signals = init::signals().map_err(Fault::init)?;
    loop {
        let (running, terminal) = match payload::start(plan.payload, &mut payload, channel, None)? {
            Started::Nothing => return Ok(()),
            Started::Running(running) => (running, None),
            Started::Terminal(wish) => {
                let refused = |errno| Fault::request(request::TERMINAL, errno);
                let terminal = Terminal::open(&wish, channel).map_err(refused)?;
                payload.state.has_terminal = true;
                match payload::start(plan.payload, &mut payload, channel, Some(&terminal))? {
                    Started::Running(running) => (running, Some(terminal)),
                    Started::Terminal(_) | Started::Nothing => return Ok(()),
                }
            }
        };
        let listener = payload.state.listener.take();
        let started = Report::Started { asks: listener.is_some().into() };
        channel.report_with(&started, listener.as_ref()).map_err(Fault::init)?;
        drop(listener);
        let is_free = init::serve(channel, (running, reach), &tmpfs, (&signals, terminal));
        if !is_free.map_err(Fault::init)? {
            return Ok(());
        }
        payload.begun = Some(sys::monotonic_us());
    }
}

/// Resets what the parent set for itself, and hands the outside a pidfd of this process.
fn born(channel: &Channel) -> Result<(), Errno> {
    sys::keep_children()?;
    let myself: Fd = sys::open_process(sys::own_pid())?;
    channel.report_with(&Report::Born { pid: sys::own_pid() as u32 }, Some(&myself))
}
