//! Messages on the control socket (`SOCK_SEQPACKET`, one message a packet).
//!
//! Only the outside and PID 1 hold an end of it; the payload never does.

use crate::wire::{Cursor, Field, Sink, records};

/// Longest message in either direction, in bytes.
pub const LONGEST: usize = 64;

/// Section numbers of [`Report::Failed`] and [`Report::Skipped`].
pub mod section {
    /// [`Plan::setup`](crate::plan::Plan::setup).
    pub const SETUP: u32 = 0;
    /// [`Plan::payload`](crate::plan::Plan::payload).
    pub const PAYLOAD: u32 = 1;
    /// The request: see [`request`](super::request) for the index.
    pub const REQUEST: u32 = 2;
    /// Outside any step: the plan could not be read, or init could not run.
    pub const INIT: u32 = 3;
}

/// Indexes of [`section::REQUEST`].
pub mod request {
    /// chdir(2) to the working directory.
    pub const CWD: u32 = 0;
    /// execve(2) of the program.
    pub const EXEC: u32 = 1;
    /// Opening the pseudoterminal.
    pub const TERMINAL: u32 = 2;
}

records! { 'w,
/// What the outside tells init.
enum Order {
    /// kill(2) the command's process group; stop and continue reach every process.
    1 = Signal { number: u32 },
    /// End every process, then report.
    2 = Kill {},
}
}

records! { 'w,
/// What init tells the outside.
enum Report {
    /// A step failed; nothing of the command ran and everything is gone.
    1 = Failed { section: u32, index: u32, errno: i32 },
    /// An optional step failed; the sandbox goes on without that protection.
    2 = Skipped { section: u32, index: u32, errno: i32 },
    /// execve(2) of the command succeeded.
    3 = Started {},
    /// The master side of the pseudoterminal comes with this message.
    4 = Terminal {},
    /// The command ended and no process of the sandbox is left but init. `status` is as wait(2) gives it.
    5 = Ended {
        status: i32,
        /// User CPU time of all reaped processes, in microseconds.
        user_us: u64,
        /// System CPU time of all reaped processes, in microseconds.
        system_us: u64,
        /// Largest resident set of any one process, in KiB.
        max_rss_kib: u64,
        /// Processes that were still alive when the command ended and were killed.
        killed: u32,
    },
}
}
