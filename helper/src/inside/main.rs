//! The program that lives inside the sandbox. It carries plans out and decides nothing.
//!
//! Freestanding: no allocator, no panic, no text, no library. It starts as PID 1 of new user and pid
//! namespaces, with the control socket as descriptor 0 and every signal blocked.
#![no_std]
#![no_main]
#![deny(unsafe_code, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
#![deny(clippy::multiple_unsafe_ops_per_block, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod arch;
mod attempts;
mod channel;
#[path = "../control.rs"]
mod control;
mod init;
mod kernel;
mod mounts;
mod payload;
#[path = "../plan.rs"]
#[expect(dead_code, reason = "shared with the outside, which uses all of it")]
mod plan;
mod steps;
mod sys;
mod terminal;
#[path = "../wire.rs"]
mod wire;

use channel::Channel;
use control::{Report, section};
use kernel::EPROTO;
use plan::{Plan, Request};
use sys::Errno;
use wire::{Cursor, Field};

/// Where program start arrives, with the stack as execve(2) left it. PID 1 has a name and no argument; with
/// arguments the image is an ordinary program.
extern "C" fn run(stack: *const usize) -> ! {
    #[expect(unsafe_code, reason = "the stack of program start has no other type")]
    // SAFETY: `_start` passes the stack pointer that the kernel gave it.
    let arguments = unsafe { sys::Arguments::at(stack) };
    if arguments.count() > 1 {
        attempts::run(&arguments)
    }
    let Ok(channel) = Channel::adopt() else { sys::exit(1) };
    let code = match confine(&channel) {
        Ok(()) => 0,
        Err(fault) => {
            // Nobody is left to tell when this fails too: the exit alone ends the sandbox.
            let _ = channel.report(&fault.report());
            1
        }
    };
    sys::exit(code)
}

/// The life of one sandbox: receive the plan, build the walls, start the command, wait for its end.
fn confine(channel: &Channel) -> Result<(), Fault> {
    sys::signal_mask(u64::MAX).map_err(Fault::init)?;
    sys::default_signals().map_err(Fault::init)?;
    let file_mask = sys::file_mask(0);
    let (bytes, scratch) = channel.receive_plan().map_err(Fault::init)?;
    let plan = Plan::take(&mut Cursor::new(bytes)).ok_or(Fault::init(Errno(EPROTO)))?;
    let request = Request::take(&mut Cursor::new(plan.request)).ok_or(Fault::init(Errno(EPROTO)))?;
    let mut state = steps::State::default();
    steps::carry_out(plan.setup, section::SETUP, &mut state, channel)?;
    let pid = payload::start(plan.payload, &request, scratch, (state, file_mask), channel)?;
    channel.report(&Report::Started {}).map_err(Fault::init)?;
    init::serve(channel, pid).map_err(Fault::init)
}

/// What went wrong, and where in the plan.
#[derive(Clone, Copy)]
struct Fault {
    section: u32,
    index: u32,
    errno: Errno,
}

impl Fault {
    /// A fault outside any step.
    fn init(errno: Errno) -> Self {
        Self { section: section::INIT, index: 0, errno }
    }

    fn report(self) -> Report {
        Report::Failed { section: self.section, index: self.index, errno: self.errno.0 }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: scripts/check proves that nothing refers to it. The sandbox would end, not run unconfined.
    sys::exit(2)
}
