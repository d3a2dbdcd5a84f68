//! Copies between the user's terminal and the command's terminal with poll(2), without an async runtime.

use std::{
    fs::File,
    io::{self, ErrorKind, IsTerminal, Read, Write},
    mem,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags};

use crate::{
    descriptor::{reopen_nonblocking, wait, write_patiently, write_while},
    terminal::{FIRST_READ, MAX_LAST_READS, NEXT_READ, REOPEN_PAUSE, Raw, copy_size, is_gone},
};

/// How long to wait at the end for a terminal that takes nothing.
const STALL_LIMIT: Duration = Duration::from_secs(5);

/// Most typed bytes to buffer before the command reads them.
const MAX_TYPED: usize = 64 << 10;

/// The user's terminal in raw mode, and the master side of the command's terminal, which never blocks.
pub(crate) struct Window {
    /// `None` once the user's terminal is gone: closing the master hangs up the command.
    master: Option<File>,
    /// Whether a process had the command's terminal open at the last read. It is the controlling terminal of
    /// the command, which can open it again.
    is_open: bool,
    /// Non-blocking stdout: signals are passed on even if nobody reads it.
    screen: File,
    /// The error that stopped output.
    failed: Option<io::Error>,
    /// Typed bytes not yet written to the command.
    typed: Vec<u8>,
    /// Output not yet written to stdout.
    output: Vec<u8>,
    raw: Option<Raw>,
}

impl Window {
    pub(crate) fn open(master: OwnedFd) -> io::Result<Self> {
        let screen = reopen_nonblocking(io::stdout(), "/proc/self/fd/1");
        let blocking = || io::stdout().as_fd().try_clone_to_owned().map(File::from);
        let screen = screen.map_or_else(blocking, Ok)?;
        Ok(Self {
            master: Some(master.into()),
            is_open: true,
            screen,
            failed: None,
            typed: Vec::new(),
            output: Vec::new(),
            raw: Some(Raw::enter()?),
        })
    }

    /// The descriptors to poll. Standard input comes first.
    pub(crate) fn watched<'w>(&'w self, typing: &'w io::Stdin) -> Vec<PollFd<'w>> {
        let when = |wanted: bool, flags| if wanted { flags } else { PollFlags::empty() };
        let stdin = when(self.has_room(), PollFlags::POLLIN);
        let typed = when(!self.typed.is_empty(), PollFlags::POLLOUT);
        let master = when(self.output.is_empty(), PollFlags::POLLIN) | typed;
        let screen = when(!self.output.is_empty(), PollFlags::POLLOUT);
        let ours = [(typing.as_fd(), stdin), (self.screen.as_fd(), screen)];
        // poll(2) always reports a master whose terminal no process has open, so leave it out.
        let open = self.master.iter().filter(|_| self.is_open);
        ours.into_iter()
            .chain(open.map(|file| (file.as_fd(), master)))
            .filter(|(_, flags)| !flags.is_empty())
            .map(|(fd, flags)| PollFd::new(fd, flags))
            .collect()
    }

    /// How long to poll at most.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let is_shut = self.master.is_some() && !self.is_open;
        is_shut.then_some(REOPEN_PAUSE)
    }

    fn has_room(&self) -> bool {
        self.master.is_some() && self.typed.len() < MAX_TYPED
    }

    /// Copies what is ready. `happened` has a flag for each descriptor of [`watched`](Self::watched), in that
    /// order.
    pub(crate) fn copy(&mut self, happened: &[bool]) {
        let is_typed = self.has_room() && happened.first().copied().unwrap_or(false);
        self.flush();
        if self.output.is_empty() {
            self.show();
        }
        self.type_in();
        if is_typed {
            let mut bytes = [0; 4096];
            match io::stdin().read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(0) if !is_gone() => {}
                Ok(0) | Err(_) => self.master = None,
                Ok(count) => self.typed.extend_from_slice(bytes.get(..count).unwrap_or_default()),
            }
            self.type_in();
        }
    }

    /// Reads output and writes as much as stdout takes.
    fn show(&mut self) {
        let mut bytes = [0; 8192];
        let Some(master) = &mut self.master else { return };
        match master.read(&mut bytes) {
            Ok(count @ 1..) => {
                self.is_open = true;
                self.output.extend_from_slice(bytes.get(..count).unwrap_or_default());
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

    fn type_in(&mut self) {
        let Some(master) = &mut self.master else { return };
        while !self.typed.is_empty() {
            match master.write(&self.typed) {
                Ok(count) => drop(self.typed.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The command is gone, and nobody will read the input.
                Err(_) => self.typed.clear(),
            }
        }
    }

    /// Gives the command's terminal the size of the user's terminal.
    pub(crate) fn resize(&self) -> io::Result<()> {
        self.master.as_ref().map_or(Ok(()), copy_size)
    }

    /// Restores the user's terminal while this process is stopped.
    pub(crate) fn restore(&self) {
        self.raw.iter().for_each(Raw::restore);
    }

    /// Enters raw mode again when this process continues.
    pub(crate) fn reenter(&self) -> io::Result<()> {
        self.raw.as_ref().zip(self.master.as_ref()).map_or(Ok(()), |(raw, master)| raw.reenter(master))
    }

    /// Shows the remaining output and restores the user's terminal. If stdout is not a terminal, `patience`
    /// returns how long to wait before the next call, or `None` to give up.
    ///
    /// # Errors
    /// stdout did not take all output: `WouldBlock` if nobody reads it. A reader that closed stdout is no
    /// error.
    pub(crate) fn close(mut self, mut patience: impl FnMut() -> Option<Duration>) -> io::Result<()> {
        let is_terminal = self.screen.is_terminal();
        // If stdout is not a terminal, leave raw mode now, so that keys are signals again.
        self.raw = self.raw.take().filter(|_| is_terminal);
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
