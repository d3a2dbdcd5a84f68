//! The user's terminal as a window onto the command's, without a runtime: bytes go both ways as poll(2) says.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
};

use kennel::Terminal;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::terminal::Raw;

/// How long to wait for what the command wrote last, in milliseconds.
const LAST: u16 = 100;

/// Bytes that may have been typed and not been taken.
const AHEAD: usize = 64 << 10;

/// Both terminals: ours raw, the command's by its master side, which never blocks.
pub(crate) struct Window {
    master: File,
    /// What was typed and is not written yet.
    typed: Vec<u8>,
    /// Nobody types any more.
    is_closed: bool,
    /// No process holds the command's side any more.
    is_over: bool,
    _raw: Raw,
}

impl Window {
    pub(crate) fn open(master: OwnedFd) -> io::Result<Self> {
        let raw = Raw::enter()?;
        Ok(Self { master: master.into(), typed: Vec::new(), is_closed: false, is_over: false, _raw: raw })
    }

    /// What to wait on: the command's terminal first, then ours.
    pub(crate) fn watched<'w>(&'w self, stdin: &'w io::Stdin) -> Vec<PollFd<'w>> {
        let write = if self.typed.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT };
        let master = (!self.is_over).then(|| PollFd::new(self.master.as_fd(), PollFlags::POLLIN | write));
        let stdin = self.takes_more().then(|| PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        master.into_iter().chain(stdin).collect()
    }

    fn takes_more(&self) -> bool {
        !self.is_closed && !self.is_over && self.typed.len() < AHEAD
    }

    /// Carries what can be carried, after a wait. `happened` is about what was watched, in that order.
    pub(crate) fn carry(&mut self, happened: &[bool]) -> io::Result<()> {
        let stdin = happened.get(1).copied().unwrap_or(false);
        if happened.first().copied().unwrap_or(false) {
            self.show()?;
            self.type_in();
        }
        if stdin && self.takes_more() {
            let mut bytes = [0; 4096];
            match io::stdin().read(&mut bytes) {
                Ok(0) | Err(_) => self.is_closed = true,
                Ok(count) => self.typed.extend_from_slice(bytes.get(..count).unwrap_or_default()),
            }
            self.type_in();
        }
        Ok(())
    }

    /// Shows what there is; answers whether there was anything.
    fn show(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 8192];
        match self.master.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Ok(0) | Err(_) => {
                self.is_over = true;
                Ok(false)
            }
            Ok(count) => {
                let mut stdout = io::stdout();
                stdout.write_all(bytes.get(..count).unwrap_or_default())?;
                stdout.flush()?;
                Ok(true)
            }
        }
    }

    fn type_in(&mut self) {
        while !self.typed.is_empty() {
            match self.master.write(&self.typed) {
                Ok(count) => drop(self.typed.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The command is gone; so is who could have read it.
                Err(_) => self.typed.clear(),
            }
        }
    }

    /// Makes the command's terminal as large as ours.
    pub(crate) fn resize(&self) -> io::Result<()> {
        let (rows, columns) = Terminal::size(io::stdin())?;
        Terminal::set_size(&self.master, rows, columns)
    }

    /// Shows what the command wrote last, and gives the user's terminal back.
    pub(crate) fn close(mut self) {
        while !self.is_over {
            let mut more = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
            if !matches!(poll(&mut more, PollTimeout::from(LAST)), Ok(1..)) || self.show().is_err() {
                return;
            }
        }
    }
}
