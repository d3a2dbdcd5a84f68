//! Shows what the command writes to its terminal on the user's with poll(2), without an async runtime.

use std::{
    fs::File,
    io::{self, ErrorKind, IsTerminal, Read, Write},
    mem,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags};

use crate::{
    process::descriptor::{reopen_nonblocking, wait, write_patiently, write_while},
    terminal::{FIRST_READ, IsRaw, MAX_LAST_READS, NEXT_READ, REOPEN_PAUSE},
};

/// How long to wait at the end for a terminal that takes nothing.
const STALL_LIMIT: Duration = Duration::from_secs(5);

/// The user's terminal, and the master side of the command's terminal, which never blocks.
pub(crate) struct Window {
    /// `None` once the user's terminal is gone: closing the master hangs up the command.
    master: Option<File>,
    /// Whether a process had the command's terminal open at the last read. It is the controlling terminal of
    /// the command, which can open it again.
    is_open: bool,
    /// Non-blocking: signals are passed on even if nobody reads it.
    screen: File,
    is_raw: IsRaw,
    /// The error that stopped output.
    failed: Option<io::Error>,
    /// Output not yet written to the user's terminal.
    output: Vec<u8>,
}

impl Window {
    pub(crate) fn open(master: OwnedFd, screen: OwnedFd, is_raw: IsRaw) -> Self {
        let opened = reopen_nonblocking(screen.as_fd(), &format!("/proc/self/fd/{}", screen.as_raw_fd()));
        let screen = opened.unwrap_or_else(|| screen.into());
        Self { master: Some(master.into()), is_open: true, screen, is_raw, failed: None, output: Vec::new() }
    }

    /// The descriptors to poll.
    pub(crate) fn watched(&self) -> Vec<PollFd<'_>> {
        let screen = (!self.output.is_empty()).then_some((self.screen.as_fd(), PollFlags::POLLOUT));
        // poll(2) always reports a master whose terminal no process has open, so leave it out.
        let open = self.master.iter().filter(|_| self.is_open && self.output.is_empty());
        let open = open.map(|file| (file.as_fd(), PollFlags::POLLIN));
        screen.into_iter().chain(open).map(|(fd, flags)| PollFd::new(fd, flags)).collect()
    }

    /// Whether the output appears on a terminal.
    pub(crate) fn is_on_terminal(&self) -> bool {
        self.screen.is_terminal()
    }

    /// How long to poll at most.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let is_shut = self.master.is_some() && !self.is_open;
        is_shut.then_some(REOPEN_PAUSE)
    }

    /// Copies what is ready.
    pub(crate) fn copy(&mut self) {
        self.flush();
        if self.output.is_empty() {
            self.show();
        }
    }

    /// The user's terminal is gone.
    pub(crate) fn hang_up(&mut self) {
        self.master = None;
    }

    /// Reads output and writes as much as stdout takes.
    fn show(&mut self) {
        let mut bytes = [0; 8192];
        let Some(master) = &mut self.master else { return };
        match master.read(&mut bytes) {
            Ok(count @ 1..) => {
                self.is_open = true;
                let read = bytes.get(..count).unwrap_or_default().to_vec();
                self.output = if self.screen.is_terminal() { self.is_raw.shown(read) } else { read };
            }
            nothing => self.is_open = nothing.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        }
        self.flush();
    }

    fn flush(&mut self) {
        while self.failed.is_none() && !self.output.is_empty() {
            match self.screen.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.failed = Some(error),
            }
        }
        // Discard output that stdout refused: the command would block if it were not read.
        self.output.clear();
    }

    /// Shows the remaining output. If stdout is not a terminal, `patience`
    /// returns how long to wait before the next call, or `None` to give up.
    ///
    /// # Errors
    /// stdout did not take all output: `WouldBlock` if nobody reads it. A reader that closed stdout is no
    /// error.
    pub(crate) fn close(mut self, mut patience: impl FnMut() -> Option<Duration>) -> io::Result<()> {
        let is_terminal = self.screen.is_terminal();
        let mut write_all = |window: &mut Self| {
            let written = if is_terminal {
                write_patiently(&window.screen, &window.output, STALL_LIMIT)
            } else {
                write_while(&window.screen, &window.output, |_| patience())
            };
            window.output.clear();
            if let Err(error) = written {
                window.failed = Some(error);
            }
        };
        write_all(&mut self);
        let mut waits = true;
        for _ in 0..MAX_LAST_READS {
            let Some(master) = &self.master else { break };
            let has_more = |time| wait(master, PollFlags::POLLIN, Some(time));
            let is_there = has_more(NEXT_READ) || mem::take(&mut waits) && has_more(FIRST_READ);
            if self.failed.is_some() || !is_there {
                break;
            }
            self.show();
            if !self.is_open {
                break;
            }
            write_all(&mut self);
        }
        match self.failed.take() {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}
