//! Where the output of a command's terminal appears: the user's terminal, or the file that is stdout. Nothing
//! here waits for a reader, except at the end.

use std::{
    fs::File,
    io::{self, ErrorKind, IsTerminal, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, TryLockError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use nix::poll::PollFlags;
use tokio::{net::unix::pipe, time::sleep};

use crate::process::descriptor::{not_read, reopen_nonblocking, wait, write_patiently, write_while};

/// How long to wait at the end for a terminal that takes nothing.
const STALL_LIMIT: Duration = Duration::from_secs(5);

/// Pause before looking again at a screen that somebody else has.
pub(super) const TAKEN_PAUSE: Duration = Duration::from_millis(20);

/// Bytes per write to a terminal that cannot be opened without blocking. It takes them at once if it takes
/// any.
const PIECE: usize = 1024;

/// Who holds this lock has the terminal's screen: the command's output waits meanwhile.
pub(crate) static SCREEN: Mutex<()> = Mutex::new(());

/// The screen, if nobody has it.
fn free_screen() -> Option<MutexGuard<'static, ()>> {
    match SCREEN.try_lock() {
        Ok(screen) => Some(screen),
        Err(TryLockError::Poisoned(screen)) => Some(screen.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Whether the user's terminal shows bytes as they are. While it processes output itself, the command's
/// terminal has done so already.
#[derive(Clone)]
pub(crate) struct IsRaw(pub(super) Arc<AtomicBool>);

impl IsRaw {
    /// What to write to the user's terminal: it makes line ends itself.
    fn without_returns(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if !self.0.load(Relaxed) {
            let mut next = bytes.iter().skip(1).copied().chain([0]).collect::<Vec<u8>>().into_iter();
            bytes.retain(|&byte| next.next() != Some(b'\n') || byte != b'\r');
        }
        bytes
    }
}

/// The place of the output, and what it has not taken yet.
pub(crate) struct Screen {
    to: File,
    is_terminal: bool,
    /// Whether a write may wait for a reader: the terminal cannot be opened again.
    may_block: bool,
    is_raw: IsRaw,
    output: Vec<u8>,
    /// The error that stopped output.
    failed: Option<io::Error>,
}

impl Screen {
    pub(super) fn open(to: OwnedFd, is_raw: IsRaw) -> Self {
        let is_terminal = to.is_terminal();
        let opened = reopen_nonblocking(to.as_fd(), to.as_raw_fd());
        let may_block = opened.is_none();
        let to = opened.unwrap_or_else(|| to.into());
        Self { to, is_terminal, may_block, is_raw, output: Vec::new(), failed: None }
    }

    /// Whether the output appears on a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Whether it has taken everything.
    pub(crate) fn has_room(&self) -> bool {
        self.output.is_empty()
    }

    /// The descriptor to wait for, if it has not taken everything, and nobody else has the screen.
    pub(super) fn awaited(&self) -> Option<BorrowedFd<'_>> {
        (!self.has_room() && free_screen().is_some()).then(|| self.to.as_fd())
    }

    /// Waits until it may take more.
    pub(crate) async fn has_changed(&self) {
        let copy = self.awaited().and_then(|fd| fd.try_clone_to_owned().ok());
        // tokio waits for a terminal as for a pipe. It cannot wait for a regular file, which needs no wait.
        let watched = copy.and_then(|fd| pipe::Sender::from_owned_fd_unchecked(fd).ok());
        match watched {
            Some(watched) => drop(watched.writable().await),
            None => sleep(TAKEN_PAUSE).await,
        }
    }

    /// Takes output, and shows what can be shown at once.
    pub(crate) fn show(&mut self, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.output.extend(if self.is_terminal { self.is_raw.without_returns(bytes) } else { bytes });
        self.flush();
    }

    /// Shows what can be shown at once.
    pub(crate) fn flush(&mut self) {
        let Some(_screen) = free_screen() else { return };
        while self.failed.is_none() && !self.output.is_empty() {
            match self.write() {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.failed = Some(error),
            }
        }
        // Discard output that stdout refused: the command would block if it were not read.
        self.output.clear();
    }

    fn write(&self) -> io::Result<usize> {
        if !self.may_block {
            return (&self.to).write(&self.output);
        }
        if !wait(&self.to, PollFlags::POLLOUT, Some(Duration::ZERO)) {
            return Err(ErrorKind::WouldBlock.into());
        }
        (&self.to).write(self.output.get(..PIECE).unwrap_or(&self.output))
    }

    /// Shows everything, now that the command has ended. Gives up on a terminal that takes nothing for some
    /// seconds. For any other stdout, `patience` returns how long to wait before the next call, or `None` to
    /// give up.
    pub(crate) fn drain(&mut self, mut patience: impl FnMut() -> Option<Duration>) {
        let written = match (&self.failed, self.is_terminal) {
            _ if self.output.is_empty() => return,
            (Some(_), _) => Ok(()),
            (None, false) => write_while(&self.to, &self.output, |_| patience()),
            (None, true) => {
                let begun = Instant::now();
                let mut screen = free_screen();
                while screen.is_none() && begun.elapsed() < STALL_LIMIT {
                    thread::sleep(TAKEN_PAUSE);
                    screen = free_screen();
                }
                let shown = screen.map(|_screen| write_patiently(&self.to, &self.output, STALL_LIMIT));
                shown.unwrap_or_else(|| Err(not_read()))
            }
        };
        self.output.clear();
        if let Err(error) = written {
            self.failed = Some(error);
        }
    }

    /// Whether it still takes output.
    pub(crate) fn is_whole(&self) -> bool {
        self.failed.is_none()
    }

    /// Whether everything was shown.
    ///
    /// # Errors
    /// stdout did not take all output: `WouldBlock` if nobody reads it. A reader that closed stdout is no
    /// error.
    pub(crate) fn result(&mut self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}
