//! What terminal a command gets.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use kennel_helper::plan::IN_FOREGROUND;
use nix::sys::termios::tcgetattr;

use crate::sys;

/// A pseudoterminal for a command: its controlling terminal, and some or all of its standard streams.
#[derive(Clone, Debug)]
pub struct Pseudoterminal {
    rows: u16,
    columns: u16,
    modes: Vec<u8>,
    streams: [bool; 3],
    in_foreground: bool,
}

impl Pseudoterminal {
    /// A terminal of this size in characters, which is all three standard streams and belongs to the command.
    #[must_use]
    pub fn new(rows: u16, columns: u16) -> Self {
        Self { rows, columns, modes: Vec::new(), streams: [true; 3], in_foreground: true }
    }

    /// Takes over size and modes of a terminal: what keys mean, whether it echoes, and so on.
    ///
    /// # Errors
    /// Errors of tcgetattr(3): `ENOTTY` if it is no terminal.
    pub fn like(terminal: impl AsFd) -> io::Result<Self> {
        let (rows, columns) = sys::window(terminal.as_fd().as_raw_fd())?;
        let modes: libc::termios = tcgetattr(&terminal)?.into();
        let flags = [modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag];
        let mut bytes: Vec<u8> = flags.into_iter().flat_map(u32::to_ne_bytes).collect();
        bytes.push(modes.c_line);
        bytes.extend(modes.c_cc.iter().take(KERNEL_CHARACTERS));
        Ok(Self { modes: bytes, ..Self::new(rows, columns) })
    }

    /// The standard streams that are the terminal: stdin, stdout, stderr. The others stay what they are.
    #[must_use]
    pub fn streams(mut self, streams: [bool; 3]) -> Self {
        self.streams = streams;
        self
    }

    /// Lets the terminal belong to nobody at first. A command that reads from it or sets it is stopped by
    /// SIGTTIN or SIGTTOU, until [`Child::foreground`](crate::command::child::Child::foreground) gives it the
    /// terminal.
    #[must_use]
    pub fn in_background(mut self) -> Self {
        self.in_foreground = false;
        self
    }

    /// Whether a standard stream is the terminal.
    pub(crate) fn is_stream(&self, number: usize) -> bool {
        self.streams.get(number).copied().unwrap_or(false)
    }

    /// As on the wire: `Request::terminal`.
    pub(crate) fn bits(&self) -> u32 {
        let streams = (0..).zip(self.streams).map(|(number, is_terminal)| u32::from(is_terminal) << number);
        streams.sum::<u32>() | if self.in_foreground { IN_FOREGROUND } else { 0 }
    }

    /// Rows in the high, columns in the low 16 bits.
    pub(crate) fn window(&self) -> u32 {
        u32::from(self.rows) << 16 | u32::from(self.columns)
    }

    /// A `struct termios` of the kernel, or nothing.
    pub(crate) fn modes(&self) -> &[u8] {
        &self.modes
    }

    /// What [`bits`](Self::bits), [`window`](Self::window) and [`modes`](Self::modes) say; `None` without a
    /// terminal.
    pub(crate) fn of_wire(bits: u32, window: u32, modes: &[u8]) -> Option<Self> {
        let [low, high] = [window & 0xffff, window >> 16].map(|half| u16::try_from(half).unwrap_or(u16::MAX));
        (bits != 0).then(|| Self {
            modes: modes.to_owned(),
            streams: [0, 1, 2].map(|number| bits >> number & 1 == 1),
            in_foreground: bits & IN_FOREGROUND != 0,
            ..Self::new(high, low)
        })
    }
}

/// Control characters in a `struct termios` of the kernel; the C library has room for more.
const KERNEL_CHARACTERS: usize = 19;
