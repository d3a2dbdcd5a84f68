//! The command as a job of the user's terminal: who may read from the terminal when, and what stops whom.
//!
//! The command never gets a descriptor of the user's terminal. It has a terminal of its own, and Kennel copies between
//! the two. Kennel is the job that the shell knows: it reads keys only in the foreground, stops when the command
//! stops, and continues it. At first the command's terminal belongs to nobody, so the kernel stops a command that
//! reads from it or sets it. Only then, or when typed input waits, does the command get the terminal, and with it what
//! the user types.

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use kennel::{Child, Client, Error, Pseudoterminal, Terminal};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    sys::{
        signal::{Signal, kill, raise},
        stat::fstat,
        termios::{OutputFlags, SetArg, SpecialCharacterIndices, Termios, cfmakeraw, tcgetattr, tcsetattr},
    },
    unistd::{Pid, getpgrp, read, tcgetpgrp},
};

use crate::{
    terminal::copy_size,
    typist::{Filter, Typed, Typist},
};

/// What a job needs from its command.
pub(crate) trait Orders {
    fn signal(&self, number: i32) -> Result<(), Error>;
    fn foreground(&self, has: bool) -> Result<(), Error>;
}

impl Orders for Child {
    fn signal(&self, number: i32) -> Result<(), Error> {
        Child::signal(self, number).map_err(|source| Error::Io { what: "pass a signal on", source })
    }

    fn foreground(&self, has: bool) -> Result<(), Error> {
        Child::foreground(self, has).map_err(|source| Error::Io { what: "give the terminal away", source })
    }
}

impl Orders for Client {
    fn signal(&self, number: i32) -> Result<(), Error> {
        Client::signal(self, number)
    }

    fn foreground(&self, has: bool) -> Result<(), Error> {
        Client::foreground(self, has)
    }
}

/// Whether this process may read from the terminal. A terminal that is not its controlling terminal has no foreground
/// for it, and everybody may.
pub(crate) fn is_in_foreground(terminal: impl AsFd) -> bool {
    match tcgetpgrp(terminal) {
        Ok(group) => group == getpgrp(),
        Err(errno) => errno == Errno::ENOTTY,
    }
}

/// The terminal that this program's standard descriptors are.
pub(crate) struct UserTerminal {
    /// Where keys are read.
    input: File,
    /// Where the command's output is shown.
    output: OwnedFd,
    /// The standard descriptors that become the command's terminal.
    streams: [bool; 3],
    /// Whether others write to the terminal meanwhile, or could: a pipeline, or output that Kennel reads.
    is_shared: bool,
    /// Its modes before the command had it. In the background they are those with which the shell reads its line.
    before: Termios,
    /// Whether the command owns its terminal from the start.
    is_at_once: bool,
}

impl UserTerminal {
    /// The terminal behind the standard descriptors, or `None` if there is none. Descriptors that are `piped` do not go
    /// to the command anyway.
    ///
    /// # Errors
    /// The terminal cannot be asked for its modes.
    pub(crate) fn find(piped: [bool; 3]) -> Result<Option<Self>, Error> {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let all = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        let is_terminal = all.map(|fd| fd.is_terminal());
        let candidates = all.into_iter().zip(is_terminal).zip(piped);
        let mut own = candidates.filter(|((_, is_terminal), piped)| *is_terminal && !piped);
        let Some(((first, _), _)) = own.next() else { return Ok(None) };
        Self::behind(all, is_terminal, piped, first).map(Some).map_err(failed)
    }

    fn behind(
        all: [BorrowedFd<'_>; 3],
        is_terminal: [bool; 3],
        piped: [bool; 3],
        first: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let device = |fd: BorrowedFd<'_>| fstat(fd).map(|it| it.st_rdev);
        let wanted = device(first)?;
        let mut streams = [false; 3];
        for (((stream, fd), is_terminal), piped) in streams.iter_mut().zip(all).zip(is_terminal).zip(piped) {
            *stream = is_terminal && !piped && device(fd)? == wanted;
        }
        let own = || all.into_iter().zip(streams).filter(|(_, is_own)| *is_own).map(|(fd, _)| fd);
        let access = |fd: &BorrowedFd<'_>| fcntl(fd, FcntlArg::F_GETFL).unwrap_or(0) & libc::O_ACCMODE;
        let readable = own().find(|fd| access(fd) != libc::O_WRONLY).unwrap_or(first);
        // The one for output comes first.
        let writable = own().rfind(|fd| access(fd) != libc::O_RDONLY).unwrap_or(first);
        let [_, stdout, stderr] = streams;
        let [_, stdout_shows, stderr_shows] = is_terminal;
        Ok(Self {
            before: tcgetattr(first)?,
            input: for_keys(readable)?,
            output: writable.try_clone_to_owned()?,
            streams,
            is_shared: !stdout || !stdout_shows || stderr_shows && !stderr,
            is_at_once: false,
        })
    }

    /// The terminal on stdin, for `--tty`: the command's terminal is all three standard descriptors.
    ///
    /// # Errors
    /// Standard input is not a terminal, or is open for writing only.
    pub(crate) fn whole() -> Result<Self, Error> {
        crate::terminal::check_stdin()?;
        let make = || {
            Ok(Self {
                before: tcgetattr(io::stdin())?,
                input: for_keys(io::stdin().as_fd())?,
                output: io::stdout().as_fd().try_clone_to_owned()?,
                streams: [true; 3],
                is_shared: false,
                is_at_once: is_in_foreground(io::stdin()),
            })
        };
        make().map_err(failed)
    }

    /// The terminal that the command gets.
    ///
    /// # Errors
    /// The user's terminal is gone.
    pub(crate) fn pseudoterminal(&self) -> Result<Pseudoterminal, Error> {
        let terminal = if is_in_foreground(&self.input) {
            Pseudoterminal::like(&self.input).map_err(failed)?
        } else {
            let (rows, columns) = Terminal::size(&self.input).map_err(failed)?;
            Pseudoterminal::new(rows, columns)
        };
        let terminal = terminal.streams(self.streams);
        Ok(if self.is_at_once { terminal } else { terminal.in_background() })
    }

    /// Where the command's output is shown.
    pub(crate) fn output(&self) -> io::Result<OwnedFd> {
        self.output.try_clone()
    }

    /// Whether its modes before the command had it make no two characters of a line end.
    fn shows_bytes_as_they_are(&self) -> bool {
        !self.before.output_flags.contains(OutputFlags::OPOST | OutputFlags::ONLCR)
    }

    fn set_raw(&self) {
        let mut raw = self.before.clone();
        cfmakeraw(&mut raw);
        if self.is_shared {
            raw.output_flags = self.before.output_flags;
        }
        // The terminal may be gone.
        let _ = tcsetattr(&self.input, SetArg::TCSANOW, &raw);
    }

    fn restore(&self) {
        // TCSADRAIN would block if nobody reads the terminal.
        let _ = tcsetattr(&self.input, SetArg::TCSANOW, &self.before);
    }
}

/// The error of a terminal that cannot be used.
pub(crate) fn failed(source: io::Error) -> Error {
    Error::Io { what: "use the terminal", source }
}

/// Opens a terminal again for reading, so that a read never waits; a copy if that is not possible.
fn for_keys(fd: BorrowedFd<'_>) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    match File::options().read(true).custom_flags(flags).open(path) {
        Ok(opened) => Ok(opened),
        Err(_) => Ok(fd.try_clone_to_owned()?.into()),
    }
}

/// Whether the user's terminal shows bytes as they are. While it processes output itself, the command's terminal
/// has done so already.
#[derive(Clone)]
pub(crate) struct IsRaw(Arc<AtomicBool>);

impl IsRaw {
    /// What to write to the user's terminal: it makes line ends itself.
    pub(crate) fn shown(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if !self.0.load(Relaxed) {
            let mut next = bytes.iter().skip(1).copied().chain([0]).collect::<Vec<u8>>().into_iter();
            bytes.retain(|&byte| next.next() != Some(b'\n') || byte != b'\r');
        }
        bytes
    }
}

/// A running command on its own terminal. Dropping it restores the user's terminal.
pub(crate) struct Job {
    user: UserTerminal,
    is_raw: IsRaw,
    pub(crate) typist: Typist,
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
    /// Starts the thread for keys, of which `filter` passes on what is the command's. Call this before the command runs.
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

    /// What the thread for keys tells.
    pub(crate) fn next_event(&self) -> Option<Typed> {
        let mut byte = [0];
        let count = read(self.typist.events(), &mut byte).ok()?;
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
        self.user.set_raw();
        if !self.user.is_shared {
            self.is_raw.0.store(true, Relaxed);
        }
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
                    self.give(command)?;
                } else {
                    // Nobody can continue this job, so the kernel does not stop it. Reading would fail.
                    command.foreground(true)?;
                    if number == libc::SIGTTIN {
                        self.type_end();
                    }
                }
                command.signal(libc::SIGCONT)
            }
            libc::SIGSTOP if was_ordered => Ok(()),
            libc::SIGTSTP => self.stop(Signal::SIGTSTP, command),
            _ => self.stop(Signal::SIGSTOP, command),
        }
    }

    /// The user has typed something that nobody reads. It is the shell's, unless the command waits for it with poll(2).
    /// An end of input shows that: the command wakes up, reads, and the kernel stops it before it gets anything. If it
    /// sleeps on, or has been stopped, the end of input is discarded.
    pub(crate) fn typed(&mut self, event: Typed) {
        let is_asked = !self.has_terminal && is_in_foreground(&self.user.input);
        match event {
            Typed::Ahead if is_asked => self.type_end(),
            Typed::NotWanted if !self.has_terminal => self.discard(),
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

    fn give(&mut self, command: &impl Orders) -> Result<(), Error> {
        self.discard();
        self.take_keys();
        command.foreground(true)
    }

    /// Does what the command did: it reads, though nothing. In the background the kernel stops this whole process group
    /// until the user continues it in the foreground. Returns false if nobody can, which the kernel tells by an error.
    fn may_read(&self) -> bool {
        loop {
            match read(&self.user.input, &mut []) {
                Err(Errno::EINTR) => {}
                Err(Errno::EIO) => return false,
                _ => return true,
            }
        }
    }

    /// Stops this program as the command was stopped, and afterwards continues the command. With SIGTSTP the key was
    /// for the whole job.
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
            self.give(command)?;
        }
        command.signal(libc::SIGCONT)
    }

    /// Forgets a SIGTSTP of its own, which never arrived.
    pub(crate) fn forget_own_stop(&mut self) {
        self.has_own_stop = false;
    }

    /// The user's terminal is gone: lets the command's hang up.
    pub(crate) fn hang_up(&mut self) {
        self.master = None;
    }

    /// The command has ended by `signal`. If the user has typed the key for that signal, it was for the whole job: a
    /// script around Kennel ends too. Restores the user's terminal.
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
