//! Copies what the user types to the command's terminal, on a thread of its own, and only while it is told
//! to.

use std::{
    fs::File,
    io::{self, PipeReader, PipeWriter, Read, Write, pipe},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use kennel::Error;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, poll},
    sys::termios::tcgetattr,
};

use super::user_terminal::is_in_foreground;
use crate::process::{descriptor::poll_timeout, start_thread, thread_error};

/// How long typed input may wait before the command is asked whether it waits for it.
const UNREAD: Duration = Duration::from_millis(100);

/// How long the command has to answer.
const ANSWER: Duration = Duration::from_millis(50);

/// Pause before looking again at input that belongs to somebody else.
const PAUSE: Duration = Duration::from_millis(200);

/// What the thread tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    /// The user has typed something that nobody reads.
    Ahead,
    /// A moment later the command has not asked for it.
    NotWanted,
    /// The user's terminal is gone.
    Gone,
}

const AHEAD: u8 = 0;
const NOT_WANTED: u8 = 1;
const GONE: u8 = 2;

impl Typed {
    /// What a byte of [`Typist::events`] means.
    pub(crate) fn of_byte(byte: u8) -> Self {
        match byte {
            AHEAD => Self::Ahead,
            NOT_WANTED => Self::NotWanted,
            _ => Self::Gone,
        }
    }
}

/// Passes on what is the command's of typed bytes.
pub(crate) type Filter = Box<dyn Fn(Vec<u8>) -> Vec<u8> + Send>;

/// The handle of the thread. Dropping it ends the thread, which closes its copy of the command's terminal.
pub(crate) struct Typist {
    shared: Arc<Shared>,
    begin: Sender<File>,
    /// Wakes the thread.
    wake: PipeWriter,
    /// Bytes for [`Typed::of_byte`].
    events: OwnedFd,
}

struct Shared {
    /// Whether typed input is the command's.
    is_open: AtomicBool,
    /// Whether the user typed one of the keys that interrupt.
    has_interrupted: AtomicBool,
    interrupts: [u8; 2],
}

impl Typist {
    /// Starts the thread. Call this before the command runs, which could use up all threads.
    ///
    /// # Errors
    /// The system cannot start a thread or make a pipe.
    pub(crate) fn start(from: File, filter: Option<Filter>, interrupts: [u8; 2]) -> Result<Self, Error> {
        let (is_open, has_interrupted) = Default::default();
        let shared = Arc::new(Shared { is_open, has_interrupted, interrupts });
        let (begin, begins) = channel();
        let (woken, wake) = pipe().map_err(thread_error)?;
        let (events, tells) = pipe().map_err(thread_error)?;
        fcntl(&events, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| thread_error(errno.into()))?;
        let state = Arc::clone(&shared);
        let types = move || {
            if let Ok(to) = begins.recv() {
                let mut typing = Typing { from, to, state, woken, tells, filter, bytes: Vec::new() };
                if typing.until_over() {
                    let _ = typing.tells.write(&[GONE]);
                }
            }
        };
        start_thread(types).map_err(thread_error)?;
        Ok(Self { shared, begin, wake, events: events.into() })
    }

    /// Takes the master side of the command's terminal.
    pub(crate) fn begin(&self, to: File) {
        // The thread waits for this message.
        let _ = self.begin.send(to);
    }

    /// Readable when there is something to tell. A read does not wait.
    pub(crate) fn events(&self) -> &OwnedFd {
        &self.events
    }

    /// Lets typed input through, or not.
    pub(crate) fn set_open(&mut self, is_open: bool) {
        self.shared.is_open.store(is_open, Relaxed);
        // The pipe is full only of unread wake-ups, and one is enough.
        let _ = self.wake.write(&[0]);
    }

    /// Whether the user typed one of the keys that interrupt.
    pub(crate) fn has_interrupted(&self) -> bool {
        self.shared.has_interrupted.load(Relaxed)
    }
}

/// The state of the thread.
struct Typing {
    from: File,
    to: File,
    state: Arc<Shared>,
    woken: PipeReader,
    tells: PipeWriter,
    filter: Option<Filter>,
    /// Typed, but not yet written to the command.
    bytes: Vec<u8>,
}

impl Typing {
    /// Returns true once the user's terminal is gone, and false once nobody needs this thread any more.
    fn until_over(&mut self) -> bool {
        // When input arrived that is not the command's.
        let mut unread: Option<Instant> = None;
        let mut pause = None;
        loop {
            let is_open = self.state.is_open.load(Relaxed);
            let (from, to) = match (is_open, self.bytes.is_empty()) {
                (true, false) => (PollFlags::empty(), PollFlags::POLLOUT),
                (true, true) => (PollFlags::POLLIN, PollFlags::empty()),
                // poll(2) would report the same input again and again.
                (false, _) if pause.is_some() => (PollFlags::empty(), PollFlags::empty()),
                (false, _) => (PollFlags::POLLIN, PollFlags::empty()),
            };
            let Ok([woken, has_input, has_room]) = self.wait(from, to, pause.take()) else { return false };
            if woken && !self.take_wake_up() {
                return false;
            }
            if self.state.is_open.load(Relaxed) != is_open {
                unread = None;
                continue;
            }
            if is_open && has_room {
                self.write();
            } else if is_open && has_input {
                if !self.read() {
                    return true;
                }
            } else if has_input {
                if tcgetattr(&self.from).is_err() {
                    return true;
                }
                let since = *unread.get_or_insert_with(Instant::now);
                pause = Some(PAUSE);
                if !is_in_foreground(&self.from) {
                    unread = None;
                } else if since.elapsed() >= UNREAD {
                    let _ = self.tells.write(&[AHEAD]);
                    thread::sleep(ANSWER);
                    let _ = self.tells.write(&[NOT_WANTED]);
                } else {
                    pause = Some(UNREAD);
                }
            } else if from.contains(PollFlags::POLLIN) {
                unread = None;
            }
        }
    }

    /// Polls the wake-up pipe, the user's terminal and the command's.
    fn wait(&self, from: PollFlags, to: PollFlags, pause: Option<Duration>) -> io::Result<[bool; 3]> {
        let mut fds = vec![PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        // poll(2) always reports a hangup, so leave out what is not wanted.
        if !from.is_empty() {
            fds.push(PollFd::new(self.from.as_fd(), from));
        }
        if !to.is_empty() {
            fds.push(PollFd::new(self.to.as_fd(), to));
        }
        match poll(&mut fds, poll_timeout(pause)) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok([false; 3]),
            Err(errno) => return Err(errno.into()),
        }
        let happened = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let mut happened = fds.iter().map(happened);
        let mut next = |is_there: bool| is_there && happened.next().unwrap_or(false);
        Ok([next(true), next(!from.is_empty()), next(!to.is_empty())])
    }

    /// Returns whether the handle still exists.
    fn take_wake_up(&mut self) -> bool {
        matches!(self.woken.read(&mut [0; 64]), Ok(1..))
    }

    /// Returns whether the user's terminal still exists.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match self.from.read(&mut bytes) {
            Ok(count @ 1..) => {
                let typed = bytes.get(..count).unwrap_or_default();
                if typed.iter().any(|byte| self.state.interrupts.contains(byte)) {
                    self.state.has_interrupted.store(true, Relaxed);
                }
                let typed = typed.to_vec();
                self.bytes = match &self.filter {
                    Some(filter) => filter(typed),
                    None => typed,
                };
                true
            }
            // Another process that shares the terminal can set modes in which a read returns nothing.
            Ok(_) => tcgetattr(&self.from).is_ok(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(_) => {
                // In the background, and it cannot be stopped: there is no input.
                thread::sleep(PAUSE);
                tcgetattr(&self.from).is_ok()
            }
        }
    }

    fn write(&mut self) {
        match self.to.write(&self.bytes) {
            Ok(count) => drop(self.bytes.drain(..count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // No process has the command's terminal open.
            Err(_) => self.bytes.clear(),
        }
    }
}
