//! The relay between the user's terminal and a command's: keys, output, sizes and signals, for `kennel run`,
//! `kennel exec` and `--as-owner`. Where the command runs is not its affair.

use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    mem,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use kennel::{Error, Pseudoterminal};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, poll},
    sys::signal::{Signal, raise},
};

use super::{
    job::{Job, Orders},
    screen::{Screen, TAKEN_PAUSE},
    typist::{Filter, Typed},
    user_terminal::{UserTerminal, failed},
};
use crate::process::{
    descriptor::{poll_timeout, wait},
    signals::{Signals, is_ending},
};

/// The name of the failed step if stdout does not take the command's output.
const WRITE_OUTPUT: &str = "write to stdout what the command wrote";

/// Output can arrive for a moment after the command ended: wait `FIRST_READ` once, then `NEXT_READ` for each
/// further read. Another process may still hold the terminal and keep writing, so read at most
/// `MAX_LAST_READS` times.
pub(crate) const FIRST_READ: Duration = Duration::from_millis(100);
pub(crate) const NEXT_READ: Duration = Duration::from_millis(10);
pub(crate) const MAX_LAST_READS: u32 = 64;

/// Pause before reading the terminal again while no process has it open; the command may open it again.
pub(crate) const REOPEN_PAUSE: Duration = Duration::from_millis(100);

/// Everything that passes between this process and a command. Dropping it restores the user's terminal.
pub(crate) struct Relay {
    pub(crate) signals: Signals,
    /// `None`: the command has no terminal.
    user: Option<UserSide>,
    /// The master side of the command's terminal, if output is read here. `None` once the user's terminal is
    /// gone, too: closing the master hangs up the command.
    master: Option<File>,
    /// Whether a process had the command's terminal open at the last read. It is the controlling terminal of
    /// the command, which can open it again.
    is_open: bool,
}

/// What a command with a terminal of its own needs of the user's.
struct UserSide {
    /// `None` once the user's terminal is restored.
    job: Option<Job>,
    screen: Screen,
}

impl UserSide {
    fn prepare(user: UserTerminal, filter: Option<Filter>) -> Result<Self, Error> {
        let output = user.output().map_err(failed)?;
        let job = Job::prepare(user, filter)?;
        let screen = Screen::open(output, job.is_raw());
        Ok(Self { job: Some(job), screen })
    }
}

/// What ended a [`Relay::wait`]; nothing if the time was up or only output moved.
pub(crate) struct Woken {
    pub(crate) by_command: bool,
    pub(crate) by_signal: bool,
    pub(crate) by_keys: bool,
}

impl Relay {
    /// Prepares for a command. `filter` passes on what is the command's of the keys.
    ///
    /// # Errors
    /// There is no descriptor or thread left.
    pub(crate) fn prepare(user: Option<UserTerminal>, filter: Option<Filter>) -> Result<Self, Error> {
        let signals = Signals::to_forward()?;
        let user = user.map(|user| UserSide::prepare(user, filter)).transpose()?;
        Ok(Self { signals, user, master: None, is_open: true })
    }

    /// The same in a runtime.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn in_runtime(self) -> Result<Self, Error> {
        Ok(Self { signals: self.signals.in_runtime()?, ..self })
    }

    pub(crate) fn job(&self) -> Option<&Job> {
        self.user.as_ref()?.job.as_ref()
    }

    fn job_mut(&mut self) -> Option<&mut Job> {
        self.user.as_mut()?.job.as_mut()
    }

    /// The terminal that the command gets, if any.
    ///
    /// # Errors
    /// The user's terminal is gone.
    pub(crate) fn pseudoterminal(&self) -> Result<Option<Pseudoterminal>, Error> {
        self.job().map(|job| job.user().pseudoterminal()).transpose()
    }

    /// The signals and the screen, for a wait in a runtime. `None`: the command has no terminal.
    pub(crate) fn parts(&mut self) -> (&mut Signals, Option<&mut Screen>) {
        (&mut self.signals, self.user.as_mut().map(|user| &mut user.screen))
    }

    /// Takes the master side of the command's terminal, whose output somebody else reads.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn begin(&mut self, master: impl AsFd) -> Result<(), Error> {
        self.job_mut().map_or(Ok(()), |job| job.begin(master))
    }

    /// Takes the master side of the command's terminal, and reads its output.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn begin_and_read(&mut self, master: OwnedFd) -> Result<(), Error> {
        self.begin(&master)?;
        self.master = self.user.is_some().then(|| master.into());
        Ok(())
    }

    /// Sleeps until `command` is readable, a signal arrives, the user types or the time `until` comes; copies
    /// output meanwhile.
    ///
    /// # Errors
    /// Those of poll(2).
    pub(crate) fn wait(&mut self, command: &impl AsFd, until: Option<Instant>) -> io::Result<Woken> {
        let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![watched(command.as_fd()), watched(self.signals.as_fd())];
        fds.extend(self.job().and_then(Job::events).map(|events| watched(events.as_fd())));
        let first = fds.len();
        let screen = self.user.as_ref().map(|user| &user.screen);
        let awaited = screen.and_then(Screen::awaited);
        let is_taken = awaited.is_none() && screen.is_some_and(|screen| !screen.has_room());
        fds.extend(awaited.map(|fd| PollFd::new(fd, PollFlags::POLLOUT)));
        // poll(2) always reports a master whose terminal no process has open, so leave it out.
        let reads = screen.is_some_and(Screen::has_room) && self.is_open;
        fds.extend(self.master.iter().filter(|_| reads).map(|master| watched(master.as_fd())));
        let is_shut = self.master.is_some() && !self.is_open;
        let pauses = [is_taken.then_some(TAKEN_PAUSE), is_shut.then_some(REOPEN_PAUSE)];
        let left = until.map(|time| time.saturating_duration_since(Instant::now()));
        match poll(&mut fds, poll_timeout(pauses.into_iter().flatten().chain(left).min())) {
            // No descriptor is ready yet; the caller polls again.
            Err(Errno::EINTR) => {}
            polled => drop(polled?),
        }
        let happened = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let mut happened = fds.iter().take(first).map(happened).collect::<Vec<bool>>().into_iter();
        drop(fds);
        self.copy();
        let mut next = || happened.next().unwrap_or(false);
        Ok(Woken { by_command: next(), by_signal: next(), by_keys: next() })
    }

    /// Copies what is ready.
    fn copy(&mut self) {
        let Some(UserSide { screen, .. }) = &mut self.user else { return };
        screen.flush();
        if let Some(master) = self.master.as_mut().filter(|_| screen.has_room()) {
            self.is_open = show_once(master, screen);
        }
    }

    /// A signal has stopped the command.
    ///
    /// # Errors
    /// The command cannot be reached.
    pub(crate) fn stopped(&mut self, number: i32, command: &impl Orders) -> Result<(), Error> {
        self.job_mut().map_or(Ok(()), |job| job.stopped(number, command))
    }

    /// Obeys what the thread for keys has told.
    pub(crate) fn take_keys(&mut self) {
        while let Some(event) = self.job().and_then(Job::next_event) {
            self.typed(event);
        }
    }

    /// Obeys what the thread for keys tells.
    pub(crate) fn typed(&mut self, event: Typed) {
        let Some(job) = self.job_mut() else { return };
        job.typed(event);
        if event == Typed::Gone {
            self.master = None;
        }
    }

    /// Passes the signals on that have arrived. Returns the one that ends this program while the command
    /// cannot hear of it.
    ///
    /// # Errors
    /// The command cannot be reached.
    pub(crate) fn pass_on(&mut self, command: &impl Orders, is_heard: bool) -> Result<Option<i32>, Error> {
        while let Some(number) = self.signals.take() {
            if is_ending(number) && !is_heard {
                return Ok(Some(number));
            }
            self.received(number, command)?;
        }
        Ok(None)
    }

    /// Obeys a signal that this program received, or passes it on.
    ///
    /// # Errors
    /// The command cannot be reached.
    pub(crate) fn received(&mut self, number: i32, command: &impl Orders) -> Result<(), Error> {
        match (number, self.job_mut()) {
            (_, Some(job)) => job.received(number, command),
            (libc::SIGTSTP, None) => {
                command.signal(libc::SIGSTOP)?;
                // Stop as the shell expects. The SIGCONT that resumes this process is passed on like any
                // other signal.
                let stopped = raise(Signal::SIGSTOP);
                stopped.map_err(|errno| Error::Io { what: "pass a signal on", source: errno.into() })
            }
            (_, None) => command.signal(number),
        }
    }

    /// The command has ended by `signal`. If its output does not appear on a terminal, leaves raw mode now,
    /// so that keys are signals again.
    pub(crate) fn command_ended(&mut self, signal: Option<i32>) {
        if let Some(user) = &mut self.user
            && !user.screen.is_terminal()
        {
            user.job.take().into_iter().for_each(|job| job.end(signal));
        }
    }

    /// Shows the output that is still in transit, after the command has ended by `signal`. If that `is_over`
    /// or a signal that ends this program has ended the command, does not wait for a stdout that nobody
    /// reads.
    ///
    /// # Errors
    /// Those of [`Screen::result`].
    pub(crate) fn show_rest(&mut self, signal: Option<i32>, is_over: bool) -> io::Result<()> {
        self.command_ended(signal);
        let is_over = is_over || signal.is_some_and(|number| self.signals.has(number));
        let Some(UserSide { screen, .. }) = &mut self.user else { return Ok(()) };
        let mut patience = self.signals.patience(is_over);
        screen.drain(&mut patience);
        let mut waits = true;
        for _ in 0..MAX_LAST_READS {
            let Some(master) = &mut self.master else { break };
            let has_more = |time| wait(&*master, PollFlags::POLLIN, Some(time));
            let is_there = has_more(NEXT_READ) || mem::take(&mut waits) && has_more(FIRST_READ);
            if !is_there || !screen.is_whole() || !show_once(master, screen) {
                break;
            }
            screen.drain(&mut patience);
        }
        screen.result()
    }

    /// Restores the user's terminal, after the command has ended by `signal`.
    pub(crate) fn end(&mut self, signal: Option<i32>) {
        let job = self.user.as_mut().and_then(|user| user.job.take());
        job.into_iter().for_each(|job| job.end(signal));
    }
}

/// Shows what a terminal has to read now. Returns whether a process has it open.
fn show_once(master: &mut File, screen: &mut Screen) -> bool {
    let mut bytes = [0; 8192];
    match master.read(&mut bytes) {
        Ok(count @ 1..) => {
            screen.show(bytes.get(..count).unwrap_or_default());
            true
        }
        nothing => nothing.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
    }
}

/// The error if output was not shown. If the command `was_killed`, an unread stdout is no error: the kill is
/// reported instead.
pub(crate) fn unwritten(shown: io::Result<()>, was_killed: bool) -> Option<Error> {
    let source = shown.err().filter(|error| !was_killed || error.kind() != ErrorKind::WouldBlock)?;
    Some(Error::Io { what: WRITE_OUTPUT, source })
}
