//! Messages on the sockets between outside and inside (`SOCK_SEQPACKET`, one message a packet).
//!
//! A zygote has one socket, and each worker has one. No command ever holds an end.

use core::ffi::CStr;

use crate::wire::{Cursor, Field, Sink, records};

/// Longest message in bytes, except the first message and a request.
pub const LONGEST: usize = 64;

/// Longest first message, in bytes.
pub const LONGEST_ROLE: usize = 1 << 10;

/// Longest message that carries a request, in bytes. A longer request comes in a memfd.
pub const LONGEST_REQUEST: usize = 32 << 10;

/// Scratch space of the inside for a request in a message, in bytes.
pub const SCRATCH: usize = 8 << 10;

/// Most connections that a bridge has at a time.
pub const MOST_CONNECTIONS: u32 = 8192;

/// Path of the proxy's socket, relative to the root of a bridge.
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
    pub const OWN: u32 = 3;
    /// [`Plan::walls`](crate::plan::Plan::walls).
    pub const WALLS: u32 = 4;
    /// [`Plan::payload`](crate::plan::Plan::payload).
    pub const PAYLOAD: u32 = 5;
    /// [`Request::limits`](crate::plan::Request::limits).
    pub const LIMITS: u32 = 6;
    /// The request: see [`request`](super::request) for the index.
    pub const REQUEST: u32 = 7;
    /// Outside of any step: see [`init`](super::init) for the index.
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

/// The word of [`Report::Ended`] for a private file system
/// ([`Step::CheckTmpfs`](crate::plan::Step::CheckTmpfs)) that was full when a command failed.
pub mod full {
    /// No file system was full.
    pub const NONE: u32 = 0;

    /// The file system with the number `room` was full: it lacked inodes or bytes.
    #[must_use]
    pub fn word(room: u32, lacks_inodes: bool) -> u32 {
        room.wrapping_mul(2).wrapping_add(1).wrapping_add(lacks_inodes as u32)
    }

    /// The number of the file system, and whether it lacked inodes.
    #[cfg(not(kennel_inside))]
    #[must_use]
    pub fn read(word: u32) -> Option<(usize, bool)> {
        let word = word.checked_sub(1)?;
        Some(((word / 2) as usize, word % 2 == 1))
    }
}

records! { 'w,
/// The first message: the role of this process, and the steps that it starts with before the plan arrives.
enum Role<'w> {
    /// A one-shot: PID 1 is its only worker. The request follows the plan.
    OneShot { namespaces: &'w [u8] },
    /// The zygote of a session. Orders for workers follow the plan.
    Zygote { namespaces: &'w [u8] },
    /// A bridge to a proxy. It carries out `setup` and `walls` of the plan; a [`BridgeOrder`] follows.
    Bridge { namespaces: &'w [u8] },
    /// A reaper, which removes a cgroup if no other process does. This message carries the descriptor of the
    /// parent directory; `name` is the group in it. No plan and no order follow: the reaper only waits for
    /// the end of the socket.
    Reaper { namespaces: &'w [u8], name: &'w CStr },
}
}

records! { 'w,
/// The second message. A memfd with that many bytes of plan comes with it. If `own` is not zero, a second
/// memfd has that many bytes of steps that a one-shot carries out before the walls.
enum Handover {
    Plan { plan: u32, own: u32 },
}
}

records! { 'w,
/// The next message to a worker: its command. The standard descriptors come with it.
enum Handed<'w> {
    /// The encoded request itself.
    Inline { request: &'w [u8] },
    /// A memfd, the fourth descriptor, with the encoded request and zeroed scratch after it.
    Memfd { request: u32, scratch: u32 },
    /// The command gets a terminal, and the next message is the command. Init has to lead the terminal's
    /// session, so that the command is a job: its parent is in the same session. No descriptor comes with it.
    /// `window` is the size, rows in the high and columns in the low 16 bits; `modes` is a `struct termios`
    /// of the kernel, or empty.
    Terminal { window: u32, modes: &'w [u8] },
}
}

records! { 'w,
/// An order of the outside to a zygote.
enum ZygoteOrder {
    /// Fork a worker. Its socket comes with this message. If `own` is not zero, a memfd follows with that
    /// many bytes of steps to carry out before the walls. If `leaf` is not zero, the directory of its cgroup
    /// comes last. If `shared` is not zero, it takes [`SharedOrder`]s in place of a command.
    Worker { own: u32, leaf: u32, shared: u32 },
    /// Carry out that many bytes of steps in a mount namespace. A socket for the report comes with this
    /// message, then the memfd of the steps, then the mount namespace.
    Remount { steps: u32 },
    /// A signal to every process of the session's commands, which ends in a moment. No socket comes with
    /// this.
    Signal { number: u32 },
}
}

/// The marks of commands that share a pid namespace. A mark is the RLIMIT_RTTIME, in microseconds, of every
/// process of the command: children inherit it, and the filter of commands keeps it. Twelve days and more
/// limit nothing, because commands have no real-time priority.
#[cfg(not(kennel_inside))]
#[must_use]
pub const fn mark(command: u64) -> u64 {
    (1 << 40) + command
}

records! { 'w,
/// An order of the outside to the init that the commands of a session share.
enum SharedOrder {
    /// Fork a worker, and mark it. Its socket comes with this message.
    Worker { mark: u64 },
    /// kill(2) every process with that mark.
    Signal { mark: u64, number: u32 },
    /// SIGKILL to every process with that mark, until none is left, except the process with the PID `spared`,
    /// if that is not zero. Then [`Report::Blocked`], if some are left, on the socket that comes with this
    /// message, and its end.
    Kill { mark: u64, spared: u32 },
}
}

records! { 'w,
/// An order of the outside to a bridge. The outside sends each once, in this order.
enum BridgeOrder {
    /// Accept clients on the listening TCP socket that comes with this message, and connect each to the
    /// proxy: at most `connections` at a time. Ends with the control socket.
    Serve { connections: u32 },
    /// No client is alive any more. Pass on what clients have sent, including those not yet accepted, and
    /// end.
    Finish {},
}
}

records! { 'w,
/// An order of the outside to init while the command runs.
enum Order {
    /// kill(2) the command's process group. Stop and continue signals reach every process.
    Signal { number: u32 },
    /// Every process is killed: report when all have ended. Those with a mark get SIGKILL from the common
    /// init, by a [`SharedOrder::Kill`]; all others from this init.
    Kill {},
    /// tcsetpgrp(3): the terminal belongs to the command (1), whose reads and settings then take effect, or
    /// to nobody (0), and then they stop the command.
    Foreground { has: u32 },
}
}

records! { 'w,
/// An order of the outside to the keeper of a shell. The keeper is a command of the session, and this socket
/// is its stdout. Its first message is its PID, four bytes. What a shell may do decides nothing here: the
/// keeper and the shell are in the same sandbox.
enum ShellOrder<'w> {
    /// Write these lines to the input of the shell. The descriptors that come with this message get the
    /// numbers from [`SHELL_FILES`] on, in the place of the earlier ones.
    Write { lines: &'w [u8] },
    /// Close those descriptors: the call has ended.
    Release {},
    /// SIGINT to the process group of the shell.
    Interrupt {},
    /// SIGKILL to every process that the shell has started since the last message with descriptors, until
    /// none is left. The answer is how many are left, four bytes.
    Kill {},
    /// The answer is how many of those processes there are.
    Count {},
}
}

/// The first number of the descriptors that a [`ShellOrder::Write`] brings.
pub const SHELL_FILES: u32 = 20;

/// The most descriptors of a [`ShellOrder::Write`].
pub const MOST_SHELL_FILES: usize = 4;

/// The longest [`ShellOrder`], in bytes.
pub const LONGEST_SHELL_ORDER: usize = 2 << 10;

records! { 'w,
/// A report of zygote or init to the outside.
enum Report {
    /// A step failed. Nothing of the command ran, and no process of this sandbox or worker is left.
    Failed { section: u32, index: u32, errno: i32 },
    /// An optional step failed; the sandbox goes on without that protection.
    Skipped { section: u32, index: u32, errno: i32 },
    /// execve(2) of the command succeeded.
    Started { asks: u32 },
    /// The master side of the pseudoterminal comes with this message.
    Terminal {},
    /// The command ended, and init is the only process left in the sandbox. `status` is as in wait(2).
    Ended {
        status: i32,
        /// User CPU time of all reaped processes, in microseconds.
        user_us: u64,
        /// System CPU time of all reaped processes, in microseconds.
        system_us: u64,
        /// Largest resident set of a single process, in KiB.
        max_rss_kib: u64,
        /// Processes that outlived the command, and that init ended.
        killed: u32,
        /// Not zero: processes of the command live on.
        left: u32,
        /// See [`full`].
        full: u32,
    },
    /// A worker's init has started. Its pidfd comes with this message. `pid` is its number in its pid
    /// namespace.
    Born { pid: u32 },
    /// The zygote takes orders, the worker takes a command, or the bridge takes connections. The setup took
    /// that many microseconds.
    Ready { took_us: u64 },
    /// The socket of a [`Step::Listen`](crate::plan::Step::Listen) comes with this message.
    Listening { kind: u32, port: u32 },
    /// The root of a worker comes with this message.
    Root {},
    /// The mount namespace of a worker comes with this message. Holding it keeps the mounts alive.
    Mounts {},
    /// The listener of a seccomp filter, which reports refused system calls, comes with this message.
    Refusing {},
    /// The command, which has a terminal, was stopped by that signal. The next such report comes only after
    /// an order.
    Stopped { signal: u32 },
    /// So many processes with the mark of a [`SharedOrder::Kill`] have got SIGKILL and are blocked in the
    /// kernel.
    Blocked { count: u32 },
    /// The directory of a [`Step::HandOutUpper`](crate::plan::Step::HandOutUpper) comes with this message;
    /// `is_root` is that of the step.
    Upper { is_root: u32 },
}
}
