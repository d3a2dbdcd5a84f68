//! The command as a job of the user's terminal: who may read from the terminal when, and what stops whom.
//!
//! The command never gets a descriptor of the user's terminal. It has a terminal of its own, and Kennel
//! copies between the two. Kennel is the job that the shell knows: it reads keys only in the foreground,
//! stops when the command stops, and continues it. At first the command's terminal belongs to nobody, so the
//! kernel stops a command that reads from it or sets it. Only then, or when typed input waits, does the
//! command get the terminal, and with it what the user types.

use std::{
    fs::File,
    io::Write,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use kennel::{Child, Error, Terminal, client::Client};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill, raise},
        termios::{SpecialCharacterIndices, tcgetattr},
    },
    unistd::{Pid, getpgrp, read, tcgetpgrp},
};

use super::{
    screen::IsRaw,
    typist::{Filter, Typed, Typist},
    user_terminal::{UserTerminal, copy_size, failed, is_in_foreground},
};

/// What a job needs from its command.
pub(crate) trait Orders {
    fn signal(&self, number: i32) -> Result<(), Error>;
    fn foreground(&self, has: bool) -> Result<(), Error>;
}

impl Orders for Child {
    fn signal(&self, number: i32) -> Result<(), Error> {
        let Some(signal) = kennel::Signal::new(number) else { return Ok(()) };
        Child::signal(self, signal).map_err(|source| Error::Io { what: "pass a signal on", source })
    }

    fn foreground(&self, has: bool) -> Result<(), Error> {
        Child::foreground(self, has).map_err(|source| Error::Io { what: "give the terminal away", source })
    }
}

impl Orders for Client {
    fn signal(&self, number: i32) -> Result<(), Error> {
        kennel::Signal::new(number).map_or(Ok(()), |signal| Client::signal(self, signal))
    }

    fn foreground(&self, has: bool) -> Result<(), Error> {
        Client::foreground(self, has)
    }
}

/// A running command on its own terminal. Dropping it restores the user's terminal.
pub(crate) struct Job {
    user: UserTerminal,
    is_raw: IsRaw,
    typist: Typist,
    /// The master side of the command's terminal; `None` once the user's terminal is gone.
    master: Option<File>,
    /// Whether typed input is the command's.
    has_terminal: bool,
    /// Whether a stop of the command that this program has ordered is still to be reported.
    awaits_stop: bool,
    /// Whether this program has sent SIGTSTP to itself.
    has_own_stop: bool,
}

impl Job {
    /// Starts the thread for keys, of which `filter` passes on what is the command's. Call this before the
    /// command runs.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn prepare(user: UserTerminal, filter: Option<Filter>) -> Result<Self, Error> {
        let characters = [SpecialCharacterIndices::VINTR, SpecialCharacterIndices::VQUIT];
        let interrupts =
            characters.map(|at| user.before.control_chars.get(at as usize).copied().unwrap_or(0));
        let is_raw = IsRaw(Arc::new(AtomicBool::new(user.shows_bytes_as_they_are())));
        let typist = Typist::start(user.input.try_clone().map_err(failed)?, filter, interrupts)?;
        Ok(Self {
            user,
            is_raw,
            typist,
            master: None,
            has_terminal: false,
            awaits_stop: false,
            has_own_stop: false,
        })
    }

    /// Readable when the thread for keys tells something; `None` once that has ended.
    pub(crate) fn events(&self) -> Option<&OwnedFd> {
        self.master.is_some().then(|| self.typist.events())
    }

    /// What the thread for keys tells, if it tells something.
    pub(crate) fn next_event(&self) -> Option<Typed> {
        let mut byte = [0];
        let count = read(self.events()?, &mut byte).ok()?;
        let [byte] = byte;
        Some(if count == 0 { Typed::Gone } else { Typed::of_byte(byte) })
    }

    pub(crate) fn user(&self) -> &UserTerminal {
        &self.user
    }

    pub(crate) fn is_raw(&self) -> IsRaw {
        self.is_raw.clone()
    }

    /// Takes the master side of the command's terminal.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn begin(&mut self, master: impl AsFd) -> Result<(), Error> {
        let copy = || master.as_fd().try_clone_to_owned().map(File::from).map_err(failed);
        self.typist.begin(copy()?);
        self.master = Some(copy()?);
        if self.user.is_at_once {
            self.take_keys();
        }
        Ok(())
    }

    fn take_keys(&mut self) {
        if !std::mem::replace(&mut self.has_terminal, true)
            && let Ok(modes) = tcgetattr(&self.user.input)
        {
            self.user.before = modes;
        }
        // In this order, output at this moment may keep a carriage return too many, which nobody sees, but
        // loses none.
        if !self.user.is_shared {
            self.is_raw.0.store(true, Relaxed);
        }
        self.user.set_raw();
        self.typist.set_open(true);
    }

    /// Leaves the keys to the shell.
    fn leave_keys(&mut self) {
        if !self.has_terminal {
            return;
        }
        self.has_terminal = false;
        self.typist.set_open(false);
        self.user.restore();
        self.is_raw.0.store(self.user.shows_bytes_as_they_are(), Relaxed);
    }

    /// Obeys a signal that this program received, or passes it on.
    ///
    /// # Errors
    /// The command cannot be reached.
    pub(crate) fn received(&mut self, number: i32, command: &impl Orders) -> Result<(), Error> {
        match number {
            libc::SIGTSTP if std::mem::take(&mut self.has_own_stop) => Ok(()),
            libc::SIGTSTP => {
                self.awaits_stop = true;
                command.signal(libc::SIGSTOP)?;
                self.stop(Signal::SIGSTOP, command)
            }
            libc::SIGCONT => {
                if self.has_terminal && !is_in_foreground(&self.user.input) {
                    self.leave_keys();
                    command.foreground(false)?;
                } else if self.has_terminal {
                    // The shell has set its own modes meanwhile.
                    self.user.set_raw();
                }
                self.resize()?;
                command.signal(number)
            }
            libc::SIGWINCH => {
                self.resize()?;
                // The kernel tells only the owner of the terminal.
                if self.has_terminal { Ok(()) } else { command.signal(number) }
            }
            _ => command.signal(number),
        }
    }

    fn resize(&self) -> Result<(), Error> {
        let sized = self.master.as_ref().map_or(Ok(()), |master| copy_size(&self.user.input, master));
        sized.map_err(failed)
    }

    /// A signal has stopped the command.
    ///
    /// # Errors
    /// The command cannot be reached.
    pub(crate) fn stopped(&mut self, number: i32, command: &impl Orders) -> Result<(), Error> {
        let was_ordered = std::mem::take(&mut self.awaits_stop);
        match number {
            libc::SIGTTIN | libc::SIGTTOU => {
                if self.may_read() {
                    return self.give(command);
                }
                // Nobody can continue this job, so the kernel does not stop it. Reading would fail.
                command.foreground(true)?;
                if number == libc::SIGTTIN {
                    self.type_end();
                }
                command.signal(libc::SIGCONT)
            }
            libc::SIGSTOP if was_ordered => Ok(()),
            libc::SIGTSTP => self.stop(Signal::SIGTSTP, command),
            _ => self.stop(Signal::SIGSTOP, command),
        }
    }

    /// The user has typed something that nobody reads. It is the shell's, unless the command waits for it
    /// with poll(2). An end of input shows that: the command wakes up, reads, and the kernel stops it before
    /// it gets anything. If it sleeps on, or has been stopped, the end of input is discarded.
    pub(crate) fn typed(&mut self, event: Typed) {
        let is_asked = !self.has_terminal && is_in_foreground(&self.user.input);
        match event {
            Typed::Ahead if is_asked => self.type_end(),
            Typed::NotWanted if !self.has_terminal => self.discard(),
            Typed::Gone => self.hang_up(),
            _ => {}
        }
    }

    /// Types the key that ends input.
    fn type_end(&mut self) {
        let Some(master) = &mut self.master else { return };
        let Ok(modes) = tcgetattr(&*master) else { return };
        let end = modes.control_chars.get(SpecialCharacterIndices::VEOF as usize);
        // No process may have the terminal open.
        let _ = end.map(|&end| master.write(&[end]));
    }

    fn discard(&self) {
        // No process may have the terminal open.
        let _ = self.master.as_ref().map(Terminal::discard_typed);
    }

    /// Continues the command with the terminal. Until that is done, keys are this program's own: one that
    /// stops or interrupts would reach nobody on the command's terminal, and SIGCONT discards a stop that has
    /// just been typed.
    fn give(&mut self, command: &impl Orders) -> Result<(), Error> {
        self.discard();
        command.foreground(true)?;
        command.signal(libc::SIGCONT)?;
        self.take_keys();
        Ok(())
    }

    /// Does what the command did: it reads, though nothing. In the background the kernel stops this whole
    /// process group until the user continues it in the foreground. Returns false if nobody can, which the
    /// kernel tells by an error.
    fn may_read(&self) -> bool {
        loop {
            match read(&self.user.input, &mut []) {
                Err(Errno::EINTR) => {}
                Err(Errno::EIO) => return false,
                _ => return true,
            }
        }
    }

    /// Stops this program as the command was stopped, and afterwards continues the command. With SIGTSTP the
    /// key was for the whole job.
    fn stop(&mut self, signal: Signal, command: &impl Orders) -> Result<(), Error> {
        let had_terminal = self.has_terminal;
        let is_job = tcgetpgrp(&self.user.input) == Ok(getpgrp());
        self.leave_keys();
        command.foreground(false)?;
        let stopped = if signal == Signal::SIGTSTP && is_job {
            self.has_own_stop = true;
            kill(Pid::from_raw(0), signal).and_then(|()| raise(Signal::SIGSTOP))
        } else {
            raise(Signal::SIGSTOP)
        };
        stopped.map_err(|errno| Error::Io { what: "stop", source: errno.into() })?;
        if had_terminal && is_in_foreground(&self.user.input) {
            return self.give(command);
        }
        command.signal(libc::SIGCONT)
    }

    /// The user's terminal is gone: lets the command's hang up.
    fn hang_up(&mut self) {
        self.master = None;
    }

    /// The command has ended by `signal`. If the user has typed the key for that signal, it was for the whole
    /// job: a script around Kennel ends too. Restores the user's terminal.
    pub(crate) fn end(mut self, signal: Option<i32>) {
        let is_job = self.has_terminal && tcgetpgrp(&self.user.input) == Ok(getpgrp());
        self.leave_keys();
        let interrupt = signal.filter(|&number| matches!(number, libc::SIGINT | libc::SIGQUIT));
        if let Some(number) = interrupt.filter(|_| is_job && self.typist.has_interrupted())
            && let Ok(signal) = Signal::try_from(number)
        {
            let _ = kill(Pid::from_raw(0), signal);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.leave_keys();
    }
}
