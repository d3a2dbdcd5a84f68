//! Messages between a client and a listening session (`SOCK_SEQPACKET`, one message a packet).
//!
//! A connection serves one purpose: one command with its signals and its end, or one question. If the client
//! goes away, the session ends the command.

use core::ffi::CStr;

use crate::wire::{Cursor, Field, List, Sink, records};

/// Longest packet from a client, in bytes; a longer call comes in a memfd.
pub const LONGEST_ASK: usize = 32 << 10;

/// Longest packet to a client, in bytes.
pub const LONGEST_ANSWER: usize = 16 << 10;

/// `lines` of [`Ask::Logs`] for everything that is kept.
#[cfg(not(kennel_inside))]
pub const ALL_LINES: u64 = u64::MAX;

/// The version of this protocol: first in each call and question. It reveals a client of another version.
pub const VERSION: u32 = 0x4b4e_4335;

records! { 'w,
/// What a client sends to the session.
enum Ask {
    /// Run a command. The call's bytes follow in the packet; stdin, stdout and stderr come with it.
    1 = Inline { length: u32 },
    /// As `Inline`, with the call in a memfd, the fourth descriptor.
    2 = Memfd { length: u32 },
    /// A signal for the command.
    3 = Signal { number: u32 },
    /// The terminal belongs to the command (1) or to nobody (0).
    6 = Foreground { has: u32 },
    /// End the session. The session closes the connection once it is gone.
    5 = Stop {},
    /// Run a snippet in a shell. The bytes of a call follow: its arguments are the name of the shell and the
    /// snippet, and it has no variables. The standard descriptors come with it.
    20 = Shell { length: u32 },
    /// As `Shell`, with the call in a memfd, the fourth descriptor.
    21 = ShellMemfd { length: u32 },
    /// Run a command that stays. Its call is in a memfd that comes with it. A second descriptor is its log
    /// file.
    11 = Detach { length: u32 },
    /// Send what a detached command has written, from its last `lines` lines on, and if `follow` is nonzero,
    /// what it writes.
    12 = Logs { id: u32, follow: u32, lines: u64 },
    /// Send a signal to a detached command.
    13 = Kill { id: u32, signal: u32 },
    /// Wait for the end of a detached command; with a report if `report` is nonzero.
    14 = Wait { id: u32, report: u32 },
    /// A question, in JSON: it follows in the packet, or if nothing follows, it is in a memfd that comes with
    /// this message.
    50 = Question { version: u32, length: u32 },
    /// Move the file into place that was written after a question.
    51 = Keep {},
}
}

records! { 'w,
/// What the session sends to a client.
enum Answer<'w> {
    /// The master side of the command's terminal comes with this message.
    1 = Terminal {},
    /// The command ended, or could not be started.
    2 = Ended {
        /// The exit status of the client.
        code: u32,
        /// The signal that ended the command, if `code` stands for one; else 0.
        signal: u32,
        /// Length of the report, JSON in a memfd that comes with this message; 0 if the client asked for
        /// none.
        report: u32,
        /// Lines for stderr.
        message: &'w [u8],
    },
    /// The command, which has a terminal, was stopped by that signal.
    4 = Stopped { signal: u32 },
    /// The command ended, or could not be started, and the session has collected its output. The bytes of
    /// stdout, of stderr and of the report follow in the packet, or if nothing follows, they are in a memfd
    /// that comes with this message.
    5 = Collected {
        /// As in `Ended`.
        code: u32,
        /// As in `Ended`.
        signal: u32,
        /// Length of the report.
        report: u32,
        /// Length of what the command wrote to stdout, as far as it is kept.
        stdout: u32,
        /// The same for stderr.
        stderr: u32,
        /// Lines for stderr.
        message: &'w [u8],
    },
    /// The command stays, and has this number.
    11 = Detached { id: u32 },
    /// What a detached command wrote to that stream.
    12 = Output { stream: u32, bytes: &'w [u8] },
    /// That many bytes of its output came here, and are not kept any more.
    13 = Dropped { count: u64 },
    /// The answer to a question, in JSON, as for `Question`.
    50 = Reply { length: u32 },
}
}

/// How to run a command, besides its arguments and environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner<'w> {
    /// Working directory in the sandbox; empty for the session's own.
    pub cwd: &'w CStr,
    /// Wall-clock limit in milliseconds; 0 for that of the session's policy.
    pub timeout_ms: u64,
    /// The standard descriptors that are a new pseudoterminal, as in [`Request`](crate::plan::Request).
    pub terminal: u32,
    /// Window size of that terminal, rows in the high and columns in the low 16 bits.
    pub window: u32,
    /// Modes of that terminal, as in [`Handed::Terminal`](crate::control::Handed).
    pub modes: &'w [u8],
    /// Bits: [`WANTS_REPORT`], [`IS_QUIET`], [`COLLECTS`], [`UNMARKED`], [`NAMES_VARIABLES`], [`AS_DATA`],
    /// [`KEEPS`], [`COLD`].
    pub report: u32,
}

/// Bit of [`Manner::report`]: the client wants a report.
#[cfg(not(kennel_inside))]
pub const WANTS_REPORT: u32 = 1;

/// Bit of [`Manner::report`]: the client wants errors, but no remarks.
#[cfg(not(kennel_inside))]
pub const IS_QUIET: u32 = 2;

/// Bit of [`Manner::report`]: the session collects the output, and the client sends stdin only.
#[cfg(not(kennel_inside))]
pub const COLLECTS: u32 = 4;

/// Bit of [`Manner::report`]: no line of Kennel's follows output that a cap cuts.
#[cfg(not(kennel_inside))]
pub const UNMARKED: u32 = 8;

/// Bit of [`Manner::report`]: the caller has named each variable, so one that the session keeps as it is is
/// an error.
#[cfg(not(kennel_inside))]
pub const NAMES_VARIABLES: u32 = 16;

/// Bit of [`Manner::report`]: remedies are data, in the report and in each line of the message, which is JSON
/// then.
#[cfg(not(kennel_inside))]
pub const AS_DATA: u32 = 32;

/// Bit of [`Manner::report`], beside [`COLLECTS`]: the connection serves another request after this one. The
/// client sends nothing else until it has the last answer.
#[cfg(not(kennel_inside))]
pub const KEEPS: u32 = 64;

/// Bit of [`Manner::report`]: no interpreter that waits becomes the command; it is executed.
#[cfg(not(kennel_inside))]
pub const COLD: u32 = 128;

impl<'w> Field<'w> for Manner<'w> {
    fn take(cursor: &mut Cursor<'w>) -> Option<Self> {
        (u32::take(cursor)? == VERSION).then_some(())?;
        Some(Self {
            cwd: Field::take(cursor)?,
            timeout_ms: Field::take(cursor)?,
            terminal: Field::take(cursor)?,
            window: Field::take(cursor)?,
            modes: Field::take(cursor)?,
            report: Field::take(cursor)?,
        })
    }

    fn put(&self, out: &mut impl Sink) {
        VERSION.put(out);
        self.cwd.put(out);
        self.timeout_ms.put(out);
        self.terminal.put(out);
        self.window.put(out);
        self.modes.put(out);
        self.report.put(out);
    }
}

/// A command that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'w> {
    /// How to run it.
    pub manner: Manner<'w>,
    /// Program and arguments.
    pub arguments: List<'w>,
    /// `NAME=value` strings, which override the session's own.
    pub environment: List<'w>,
}

impl<'w> Field<'w> for Call<'w> {
    fn take(cursor: &mut Cursor<'w>) -> Option<Self> {
        Some(Self {
            manner: Field::take(cursor)?,
            arguments: Field::take(cursor)?,
            environment: Field::take(cursor)?,
        })
    }

    fn put(&self, out: &mut impl Sink) {
        self.manner.put(out);
        self.arguments.put(out);
        self.environment.put(out);
    }
}
