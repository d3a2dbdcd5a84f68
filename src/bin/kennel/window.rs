//! The user's terminal as a window onto the command's, without a runtime: bytes go both ways as poll(2) says.

use std::{
    fs::File,
    io::{self, ErrorKind, IsTerminal, Read, Write},
    mem,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags};

use crate::{
    descriptor::{unblocked, wait, write_patiently, write_while},
    terminal::{AGAIN, LAST, MOMENT, MOST_LAST, Raw, fit, is_gone},
};

/// How long our terminal may take nothing of that.
const STALL: Duration = Duration::from_secs(5);

/// Bytes that may have been typed and not been taken.
const AHEAD: usize = 64 << 10;

/// Both terminals: ours raw, the command's by its master side, which never blocks.
pub(crate) struct Window {
    /// None once our terminal is gone: to let go of it hangs the command up.
    master: Option<File>,
    /// Whether a process had the command's side open when it was read last. The command may open it again: it is its
    /// controlling terminal all the same.
    is_open: bool,
    /// Our stdout, which does not block: nobody may read it, and signals are passed on all the same.
    screen: File,
    /// Why it takes no more.
    failed: Option<io::Error>,
    /// What was typed and is not written yet.
    typed: Vec<u8>,
    /// What the command wrote and is not shown yet.
    unseen: Vec<u8>,
    raw: Option<Raw>,
}

impl Window {
    pub(crate) fn open(master: OwnedFd) -> io::Result<Self> {
        let screen = unblocked(io::stdout(), "/proc/self/fd/1");
        let blocking = || io::stdout().as_fd().try_clone_to_owned().map(File::from);
        let screen = screen.map_or_else(blocking, Ok)?;
        Ok(Self {
            master: Some(master.into()),
            is_open: true,
            screen,
            failed: None,
            typed: Vec::new(),
            unseen: Vec::new(),
            raw: Some(Raw::enter()?),
        })
    }

    /// What to wait on: what is typed first.
    pub(crate) fn watched<'w>(&'w self, typing: &'w io::Stdin) -> Vec<PollFd<'w>> {
        let when = |wanted: bool, flags| if wanted { flags } else { PollFlags::empty() };
        let stdin = when(self.takes_more(), PollFlags::POLLIN);
        let typed = when(!self.typed.is_empty(), PollFlags::POLLOUT);
        let master = when(self.unseen.is_empty(), PollFlags::POLLIN) | typed;
        let screen = when(!self.unseen.is_empty(), PollFlags::POLLOUT);
        let ours = [(typing.as_fd(), stdin), (self.screen.as_fd(), screen)];
        // A master whose other side nobody has open would wake us also for nothing that we wait for.
        let open = self.master.iter().filter(|_| self.is_open);
        ours.into_iter()
            .chain(open.map(|file| (file.as_fd(), master)))
            .filter(|(_, flags)| !flags.is_empty())
            .map(|(fd, flags)| PollFd::new(fd, flags))
            .collect()
    }

    /// How long to wait at most.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let is_shut = self.master.is_some() && !self.is_open;
        is_shut.then_some(AGAIN)
    }

    fn takes_more(&self) -> bool {
        self.master.is_some() && self.typed.len() < AHEAD
    }

    /// Carries what can be carried, after a wait. `happened` is about what was watched, in that order.
    pub(crate) fn carry(&mut self, happened: &[bool]) {
        let is_typed = self.takes_more() && happened.first().copied().unwrap_or(false);
        self.paint();
        if self.unseen.is_empty() {
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

    /// Shows what there is, as far as our terminal takes it.
    fn show(&mut self) {
        let mut bytes = [0; 8192];
        let Some(master) = &mut self.master else { return };
        match master.read(&mut bytes) {
            Ok(count @ 1..) => {
                self.is_open = true;
                self.unseen.extend_from_slice(bytes.get(..count).unwrap_or_default());
            }
            nothing => self.is_open = nothing.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        }
        self.paint();
    }

    fn paint(&mut self) {
        while self.failed.is_none() && !self.unseen.is_empty() {
            match self.screen.write(&self.unseen) {
                Ok(count) => drop(self.unseen.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.failed = Some(error),
            }
        }
        // It is read all the same, or the command would wait for that.
        self.unseen.clear();
    }

    fn type_in(&mut self) {
        let Some(master) = &mut self.master else { return };
        while !self.typed.is_empty() {
            match master.write(&self.typed) {
                Ok(count) => drop(self.typed.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The command is gone; so is who could have read it.
                Err(_) => self.typed.clear(),
            }
        }
    }

    /// Makes the command's terminal as large as ours.
    pub(crate) fn resize(&self) -> io::Result<()> {
        self.master.as_ref().map_or(Ok(()), fit)
    }

    /// Gives the user's terminal back for as long as we are stopped.
    pub(crate) fn leave(&self) {
        self.raw.iter().for_each(Raw::leave);
    }

    /// Takes it once more when we are continued.
    pub(crate) fn again(&self) -> io::Result<()> {
        self.raw.as_ref().zip(self.master.as_ref()).map_or(Ok(()), |(raw, master)| raw.again(master))
    }

    /// Shows what the command wrote last, and gives the user's terminal back. A stdout that is no terminal is waited for as
    /// long as `patience` answers how much longer to wait before it is asked again.
    ///
    /// # Errors
    /// Our stdout did not take all of it: `WouldBlock` where nobody reads it. That its reader has gone is none.
    pub(crate) fn close(mut self, mut patience: impl FnMut() -> Option<Duration>) -> io::Result<()> {
        let is_terminal = self.screen.is_terminal();
        // Elsewhere ours need not be raw any more, and its keys are signals again.
        self.raw = self.raw.take().filter(|_| is_terminal);
        let mut write_all = |window: &mut Self| {
            let written = if is_terminal {
                write_patiently(&window.screen, &window.unseen, STALL)
            } else {
                write_while(&window.screen, &window.unseen, |_| patience())
            };
            window.unseen.clear();
            if let Err(error) = written {
                window.failed = Some(error);
            }
        };
        write_all(&mut self);
        let mut waits = true;
        for _ in 0..MOST_LAST {
            let Some(master) = &self.master else { break };
            let has_more = |time| wait(master, PollFlags::POLLIN, Some(time));
            let is_there = has_more(MOMENT) || mem::take(&mut waits) && has_more(LAST);
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
