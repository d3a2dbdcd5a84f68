//! Messages on the sockets between outside and inside (`SOCK_SEQPACKET`, one message a packet).
//!
//! A session's zygote has one, each worker has one. No command ever holds an end.

use core::ffi::CStr;

use crate::wire::{Cursor, Field, Sink, records};

/// Longest message in either direction but a request, in bytes.
pub const LONGEST: usize = 64;

/// Longest first message, in bytes.
pub const LONGEST_ROLE: usize = 1 << 10;

/// Longest message that carries a request itself, in bytes; a longer request comes in a memfd.
pub const LONGEST_REQUEST: usize = 32 << 10;

/// Scratch that the inside has for a request that comes in a message, in bytes.
pub const SCRATCH: usize = 8 << 10;

/// More connections than that no bridge has at a time.
pub const MOST_CONNECTIONS: u32 = 8192;

/// Where the root of a bridge has the proxy's socket, relative to it.
pub const PROXY: &CStr = c"proxy";

/// Section numbers of [`Report::Failed`] and [`Report::Skipped`].
pub mod section {
    /// The steps that came with the [`Role`](super::Role).
    pub const NAMESPACES: u32 = 0;
    /// [`Plan::setup`](crate::plan::Plan::setup).
    pub const SETUP: u32 = 1;
    /// [`Plan::worker`](crate::plan::Plan::worker).
    pub const WORKER: u32 = 2;
    /// The steps that came with [`ZygoteOrder::Worker`](super::ZygoteOrder::Worker).
    pub const NARROW: u32 = 3;
    /// [`Plan::walls`](crate::plan::Plan::walls).
    pub const WALLS: u32 = 4;
    /// [`Plan::payload`](crate::plan::Plan::payload).
    pub const PAYLOAD: u32 = 5;
    /// [`Request::limits`](crate::plan::Request::limits).
    pub const LIMITS: u32 = 6;
    /// The request: see [`request`](super::request) for the index.
    pub const REQUEST: u32 = 7;
    /// Outside any step: see [`init`](super::init) for the index.
    pub const INIT: u32 = 8;
}

/// Indexes of [`section::INIT`].
pub mod init {
    /// The plan could not be read, or init could not run.
    pub const RUN: u32 = 0;
    /// clone(2) of a worker or of the payload.
    pub const CLONE: u32 = 1;
}

/// Indexes of [`section::REQUEST`].
pub mod request {
    /// chdir(2) to the working directory.
    pub const CWD: u32 = 0;
    /// execve(2) of the program.
    pub const EXEC: u32 = 1;
    /// Opening the pseudoterminal.
    pub const TERMINAL: u32 = 2;
    /// The request could not be read.
    pub const READ: u32 = 3;
}

/// [`Report::Ended`]'s word for a private file system ([`Step::Room`](crate::plan::Step::Room)) in which nothing was left
/// when a command failed.
pub mod full {
    /// None of them was full.
    pub const NONE: u32 = 0;

    /// The room of that number; it lacked inodes, or bytes.
    #[must_use]
    pub fn word(room: u32, lacks_inodes: bool) -> u32 {
        room.wrapping_mul(2).wrapping_add(1).wrapping_add(lacks_inodes as u32)
    }

    /// The number of the room, and whether it lacked inodes.
    #[cfg(not(kennel_inside))]
    #[must_use]
    pub fn read(word: u32) -> Option<(usize, bool)> {
        let word = word.checked_sub(1)?;
        Some(((word / 2) as usize, word % 2 == 1))
    }
}

records! { 'w,
/// The first message: what PID 1 shall be, and the steps to begin with, which are known before the plan is.
enum Role<'w> {
    /// Its own and only worker: a one-shot. After the plan comes the request.
    1 = OneShot { namespaces: &'w [u8] },
    /// The zygote of a session: after the plan come orders for workers.
    2 = Zygote { namespaces: &'w [u8] },
    /// A bridge to a proxy: after the plan, of which it carries out `setup` and `walls`, comes a [`BridgeOrder`].
    3 = Bridge { namespaces: &'w [u8] },
    /// Who takes cgroups away when nobody else does. The directory that they lie in comes with this message; `name` is
    /// that of the group, in it. No plan follows, and no order: the end of the socket is all there is to wait for.
    4 = Reaper { namespaces: &'w [u8], name: &'w CStr },
}
}

records! { 'w,
/// The second message. The plan comes with it, as a memfd of that many bytes; where `narrow` is not zero, a second
/// memfd has that many bytes of steps for a one-shot to carry out before the walls.
enum Handover {
    1 = Plan { plan: u32, narrow: u32 },
}
}

records! { 'w,
/// What follows for a worker: its command. The standard descriptors come with it.
enum Handed<'w> {
    /// The encoded request itself.
    1 = Inline { request: &'w [u8] },
    /// A memfd, the fourth descriptor: the encoded request, and behind it zeroed scratch.
    2 = Memfd { request: u32, scratch: u32 },
}
}

records! { 'w,
/// What the outside tells the zygote.
enum ZygoteOrder {
    /// Fork a worker. Its socket comes with this message; where `narrow` is not zero also a memfd with that many
    /// bytes of steps to carry out before the walls; where `leaf` is not zero, last, the directory of its cgroup.
    1 = Worker { narrow: u32, leaf: u32 },
}
}

records! { 'w,
/// What the outside tells a bridge: each once, in this order.
enum BridgeOrder {
    /// Connect whoever connects to the listening TCP socket that comes with this message to the proxy, that many at a
    /// time. Ends with the control socket.
    1 = Serve { connections: u32 },
    /// No client lives any more: pass on what they have sent, those that wait to be let in among them, and end.
    2 = Finish {},
}
}

records! { 'w,
/// What the outside tells init once the command runs.
enum Order {
    /// kill(2) the command's process group; stop and continue reach every process.
    1 = Signal { number: u32 },
    /// End every process, then report.
    2 = Kill {},
}
}

records! { 'w,
/// What zygote and init tell the outside.
enum Report {
    /// A step failed; nothing of the command ran and everything of this sandbox or worker is gone.
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
        /// See [`full`].
        full: u32,
    },
    /// A worker's init has begun; its pidfd comes with this message.
    6 = Born {},
    /// The zygote takes orders, the worker takes a command, or the bridge takes connections: everything before was done, in
    /// that many microseconds.
    7 = Ready { took_us: u64 },
    /// The socket of a [`Step::Listen`](crate::plan::Step::Listen) comes with this message.
    8 = Listening { kind: u32, port: u32 },
    /// The root of a worker comes with this message.
    9 = Root {},
    /// The mount namespace of a worker comes with this message: whoever holds it keeps the mounts.
    10 = Mounts {},
    /// The descriptor by which a filter of system calls tells what it refuses comes with this message.
    12 = Refusing {},
    /// The directory of a [`Step::HandOutUpper`](crate::plan::Step::HandOutUpper) comes with this message.
    20 = Upper {},
}
}
