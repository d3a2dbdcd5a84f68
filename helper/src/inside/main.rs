//! The program that runs inside the sandbox. It carries plans out and decides nothing.
//!
//! It is freestanding: no allocator, no panic, no text, no library. It starts as PID 1 of new user and pid
//! namespaces, with the control socket as descriptor 0 and every signal blocked.
#![no_std]
#![no_main]
#![deny(unsafe_code, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
#![deny(clippy::multiple_unsafe_ops_per_block, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod arch;
mod attempts;
mod bridge;
mod channel;
#[path = "../control.rs"]
mod control;
mod digits;
mod directory;
mod init;
mod kernel;
mod mounts;
mod payload;
#[path = "../plan.rs"]
#[expect(dead_code, reason = "shared with the outside, which uses all of it")]
mod plan;
mod processes;
mod reach;
mod reaper;
mod shared;
mod shell;
mod steps;
mod sys;
mod terminal;
#[path = "../wire.rs"]
mod wire;
mod worker;
mod zygote;

use channel::Channel;
use control::{LONGEST_ROLE, Report, Role, section};
use kernel::EPROTO;
use plan::Plan;
use sys::{Errno, Fd};
use wire::{Cursor, Field};

/// The entry point, with the stack as execve(2) left it. PID 1 gets a name and no argument. With arguments
/// the image runs as an ordinary program.
extern "C" fn run(stack: *const usize) -> ! {
    #[expect(unsafe_code, reason = "the stack of program start has no other type")]
    // SAFETY: `_start` passes the stack pointer that the kernel gave it.
    let arguments = unsafe { sys::Arguments::at(stack) };
    match arguments.get(1) {
        None => {}
        Some(name) if name == c"shell" => shell::run(&arguments),
        Some(_) => attempts::run(&arguments),
    }
    match Channel::adopt(Fd::INHERITED) {
        Ok(channel) => live(&channel, confine),
        Err(errno) => {
            // If this fails too, there is nobody left to tell.
            let _ = Channel::report_on(Fd::INHERITED, &Fault::init(errno).report(), None);
            sys::exit(1)
        }
    }
}

/// Runs `what` and exits. Reports a fault to the outside.
fn live(channel: &Channel, what: impl FnOnce(&Channel) -> Result<(), Fault>) -> ! {
    let code = match what(channel) {
        Ok(()) => 0,
        Err(fault) => {
            // If this fails too, the exit alone ends every process.
            let _ = channel.report(&fault.report());
            1
        }
    };
    sys::exit(code)
}

/// Runs one sandbox: sets up the shared part, then acts as its only worker or forks workers. Also runs a
/// bridge or a reaper. The outside compiles the plan during the first steps.
fn confine(channel: &Channel) -> Result<(), Fault> {
    let begun = sys::monotonic_us();
    sys::signal_mask(u64::MAX).map_err(Fault::init)?;
    sys::default_signals().map_err(Fault::init)?;
    let file_mask = sys::file_mask(0);
    let mut state = steps::State::default();
    let mut buffer = [0; LONGEST_ROLE];
    let (role, directory) = channel.receive_role(&mut buffer).map_err(Fault::init)?;
    let (Role::OneShot { namespaces }
    | Role::Zygote { namespaces }
    | Role::Bridge { namespaces }
    | Role::Reaper { namespaces, .. }) = role;
    steps::carry_out(namespaces, section::NAMESPACES, &mut state, channel)?;
    if let Role::Reaper { name, .. } = role {
        return reaper::serve(channel, &directory.ok_or(Fault::init(Errno(EPROTO)))?, name);
    }
    let (bytes, own) = channel.receive_plan().map_err(Fault::init)?;
    let plan = Plan::take(&mut Cursor::new(bytes)).ok_or(Fault::init(Errno(EPROTO)))?;
    steps::carry_out(plan.setup, section::SETUP, &mut state, channel)?;
    match role {
        Role::OneShot { .. } => worker::serve(channel, &plan, own, (state, file_mask)),
        Role::Zygote { .. } => zygote::serve(channel, &plan, (begun, file_mask)),
        Role::Bridge { .. } => bridge::serve(channel, &plan, state, begun),
        Role::Reaper { .. } => Ok(()),
    }
}

/// What failed, and where in the plan.
#[derive(Clone, Copy)]
struct Fault {
    section: u32,
    index: u32,
    errno: Errno,
}

impl Fault {
    /// A fault outside any step.
    fn init(errno: Errno) -> Self {
        Self { section: section::INIT, index: control::init::RUN, errno }
    }

    /// clone(2) of a worker or a payload failed.
    fn clone(errno: Errno) -> Self {
        Self { section: section::INIT, index: control::init::CLONE, errno }
    }

    /// A fault in the command's request.
    fn request(index: u32, errno: Errno) -> Self {
        Self { section: section::REQUEST, index, errno }
    }

    fn report(self) -> Report {
        Report::Failed { section: self.section, index: self.index, errno: self.errno.0 }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: scripts/inside-is-freestanding proves that nothing refers to it. The sandbox would end,
    // not run unconfined.
    sys::exit(2)
}
