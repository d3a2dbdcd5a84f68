//! The leader: starts Kennel as the owner on streams of its own, and tells the relay when that stops and
//! ends.
//!
//! It stays root, so the owner can neither trace nor signal it. It knows nothing of the command, and reads
//! nothing but the relay's orders.

use std::{
    env,
    fs::File,
    io::{self, IsTerminal, Read, Write},
    os::{
        fd::AsFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode},
};

use kennel::{
    Error,
    internal::{inherited_descriptor, leave_session_keyring},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl::set_pdeathsig,
        signal::{SigSet, Signal, kill},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, getpgrp, getpid, getppid, setsid, tcsetpgrp},
};

use super::step::Step;
use crate::descriptor::close_inherited;

/// What the relay orders, and a number: a signal, or whether Kennel gets the terminal.
pub(super) const SIGNAL: u8 = 0;
pub(super) const FOREGROUND: u8 = 1;

/// What the leader tells, and a number: a signal, or the exit status.
pub(super) const STOPPED: u8 = 0;
pub(super) const EXITED: u8 = 1;
pub(super) const KILLED: u8 = 2;
/// It has obeyed an order.
pub(super) const DONE: u8 = 3;

/// Runs the leader to the end of Kennel.
pub(super) fn lead(step: &Step, socket: i32) -> Result<ExitCode, Error> {
    lead_from(step, socket).map_err(|source| Error::Io { what: "start Kennel as the owner", source })
}

fn lead_from(step: &Step, socket: i32) -> io::Result<ExitCode> {
    let named = format!("/proc/self/fd/{socket}");
    // A copy that closes on execve(2). The number itself closes below, as everything that was inherited.
    let relay = inherited_descriptor(named).ok_or(Errno::EBADF)??;
    let relay = UnixStream::from(relay);
    close_inherited()?;
    end_with(step.parent)?;
    leave_session_keyring()?;
    setsid()?;
    let terminal = controlling_terminal()?;
    // A hangup reaches the leader of a session alone, as it would a shell. Nothing else may end or stop this
    // process.
    SigSet::all().thread_block()?;
    let signals: SigSet = [Signal::SIGCHLD, Signal::SIGHUP].into_iter().collect();
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let next = Step { socket: None, parent: getpid().as_raw(), ..step.clone() };
    let mut command = Command::new("/proc/self/exe");
    command.arg0(env::args_os().next().unwrap_or_else(|| "kennel".into())).args(next.words());
    let child = command.process_group(0).spawn()?;
    let owner = Pid::from_raw(child.id().cast_signed());
    // The relay sees the end of a stream when the owner has closed it.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    let mut leader = Leader { relay, signals, terminal, owner, ordered_stop: false };
    while leader.serves()? {}
    Ok(ExitCode::SUCCESS)
}

/// Ends this process with the process that started it.
pub(super) fn end_with(parent: i32) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    match getppid().as_raw() == parent {
        true => Ok(()),
        false => Err(io::Error::other("the process that started it has ended")),
    }
}

/// Makes the terminal on a standard stream that of this session. Opening it does that.
fn controlling_terminal() -> io::Result<Option<File>> {
    let streams = [io::stdin().is_terminal(), io::stdout().is_terminal(), io::stderr().is_terminal()];
    let Some(number) = streams.iter().position(|is_terminal| *is_terminal) else { return Ok(None) };
    File::options().read(true).write(true).open(format!("/proc/self/fd/{number}")).map(Some)
}

struct Leader {
    relay: UnixStream,
    signals: SignalFd,
    terminal: Option<File>,
    /// Kennel as the owner.
    owner: Pid,
    /// Whether the next stop is one that the relay has ordered.
    ordered_stop: bool,
}

impl Leader {
    /// Waits for the relay and the owner. Returns whether there is more to do.
    fn serves(&mut self) -> io::Result<bool> {
        let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = [watched(self.relay.as_fd()), watched(self.signals.as_fd())];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => return Ok(true),
            polled => polled?,
        };
        let [by_relay, by_signal] = fds.map(|fd| fd.revents().is_some_and(|events| !events.is_empty()));
        if by_signal {
            while let Some(signal) = self.signals.read_signal()? {
                if signal.ssi_signo.cast_signed() == libc::SIGHUP {
                    self.send(libc::SIGHUP);
                    self.send(libc::SIGCONT);
                }
            }
            if !self.looks_after_owner()? {
                return Ok(false);
            }
        }
        if by_relay {
            self.obeys()?;
        }
        Ok(true)
    }

    /// Tells the relay what became of the owner's process. Returns whether it still exists.
    fn looks_after_owner(&mut self) -> io::Result<bool> {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        loop {
            let (what, number) = match waitpid(self.owner, Some(flags))? {
                WaitStatus::Stopped(_, signal) => (STOPPED, self.stop_as_told(signal)),
                WaitStatus::Exited(_, code) => (EXITED, code),
                WaitStatus::Signaled(_, signal, _) => (KILLED, signal as i32),
                _ => return Ok(true),
            };
            self.relay.write_all(&[what, u8::try_from(number).unwrap_or(u8::MAX)])?;
            if what != STOPPED {
                return Ok(false);
            }
        }
    }

    /// Kennel stops itself by SIGSTOP after the key for SIGTSTP, which was for the whole job.
    fn stop_as_told(&mut self, signal: Signal) -> i32 {
        match signal {
            Signal::SIGSTOP if !std::mem::take(&mut self.ordered_stop) => libc::SIGTSTP,
            signal => signal as i32,
        }
    }

    fn obeys(&mut self) -> io::Result<()> {
        let mut order = [0; 2];
        if self.relay.read_exact(&mut order).is_err() {
            self.send(libc::SIGKILL);
            return Err(io::Error::other("the relay is gone"));
        }
        match order {
            [SIGNAL, number] => match i32::from(number) {
                // Kennel stops its command first.
                libc::SIGSTOP => {
                    self.ordered_stop = true;
                    self.send(libc::SIGTSTP);
                }
                number => self.send(number),
            },
            [_, has] => {
                let group = if has != 0 { self.owner } else { getpgrp() };
                // The terminal may have hung up.
                let _ = self.terminal.as_ref().map(|terminal| tcsetpgrp(terminal, group));
            }
        }
        self.relay.write_all(&[DONE, 0])
    }

    /// A process that has ended is no error.
    fn send(&self, number: i32) {
        let _ = Signal::try_from(number).map(|signal| kill(self.owner, signal));
    }
}
