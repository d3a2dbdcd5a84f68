//! A worker: everything that one command does not share with others. It serves one command and is gone.

use crate::{
    Fault,
    channel::Channel,
    control::{Report, section},
    init,
    payload::{self, Payload},
    plan::Plan,
    steps::{self, State},
    sys::{self, Errno, Fd},
};

/// A worker that the zygote forked, in a pid namespace of its own: PID 1 of it.
pub(crate) fn forked<'p>(
    channel: &'p Channel,
    plan: &Plan<'p>,
    narrow: &'p [u8],
    (begun, file_mask): (u64, usize),
) -> Result<(), Fault> {
    born(channel).map_err(Fault::init)?;
    let mut state = State::default();
    steps::carry_out(plan.worker, section::WORKER, &mut state, channel)?;
    steps::carry_out(narrow, section::NARROW, &mut state, channel)?;
    confined(channel, plan, Payload { state, file_mask, begun: Some(begun) })
}

/// PID 1 of a one-shot, which is its own worker: its namespaces and mounts are fresh as they are.
pub(crate) fn serve<'p>(
    channel: &'p Channel,
    plan: &Plan<'p>,
    narrow: &'p [u8],
    (mut state, file_mask): (State<'p>, usize),
) -> Result<(), Fault> {
    steps::carry_out(narrow, section::NARROW, &mut state, channel)?;
    confined(channel, plan, Payload { state, file_mask, begun: None })
}

/// Puts the walls up, starts the payload, and sees it to its end.
fn confined<'p>(channel: &'p Channel, plan: &Plan<'p>, mut payload: Payload<'p>) -> Result<(), Fault> {
    steps::carry_out(plan.walls, section::WALLS, &mut payload.state, channel)?;
    let rooms = payload.state.rooms;
    let signals = init::signals().map_err(Fault::init)?;
    let Some(running) = payload::start(plan.payload, payload, channel)? else { return Ok(()) };
    channel.report(&Report::Started {}).map_err(Fault::init)?;
    init::serve(channel, running, &rooms, &signals).map_err(Fault::init)
}

/// Undoes what the zygote set for itself, and gives the outside a hold on this process.
fn born(channel: &Channel) -> Result<(), Errno> {
    sys::keep_children()?;
    let myself: Fd = sys::open_process(1)?;
    channel.report_with(&Report::Born {}, Some(&myself))
}
