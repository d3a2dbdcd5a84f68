//! Shows what the command writes to its terminal on the user's.

pub(crate) mod job;
pub(crate) mod progress;
pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod typist;
pub(crate) mod user_terminal;
pub(crate) mod window;

use std::{
    io::{self, IsTerminal},
    mem,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use kennel::{Error, Terminal};
use nix::fcntl::{FcntlArg, fcntl};
use tokio::{
    io::AsyncReadExt,
    sync::{
        mpsc::{Receiver, Sender, channel},
        oneshot,
    },
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::process::descriptor::{not_read, write_all};

/// Bytes per write to the user's terminal. Progress is counted in these pieces.
const PIECE: usize = 1024;

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

/// The end waits for a terminal that takes nothing until it is silent for `MAX_STALLS` periods in a row.
const STALL_PERIOD: Duration = Duration::from_secs(1);
const MAX_STALLS: u32 = 5;

/// How long the end waits for a stdout that is not a terminal, once a signal ends this program.
pub(crate) const HURRIED_PATIENCE: Duration = Duration::from_secs(1);

pub(crate) fn thread_error(source: io::Error) -> Error {
    Error::Io { what: "start a thread", source }
}

/// Who holds this lock has the terminal's screen: the command's output waits meanwhile.
pub(crate) static SCREEN: Mutex<()> = Mutex::new(());

/// Whether the user's terminal shows bytes as they are. While it processes output itself, the command's
/// terminal has done so already.
#[derive(Clone)]
pub(crate) struct IsRaw(pub(crate) Arc<AtomicBool>);

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

/// Writes to the user's terminal on its own thread: a write blocks if nobody reads the terminal.
pub(crate) struct Screen {
    bytes: Sender<Vec<u8>>,
    is_terminal: bool,
    /// Bytes written so far.
    shown: Arc<AtomicU64>,
    /// The thread's result, once it ended.
    end: oneshot::Receiver<io::Result<()>>,
}

impl Screen {
    /// Starts the thread. Call this before the command runs.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn open(to: OwnedFd, is_raw: IsRaw) -> Result<Self, Error> {
        let is_terminal = to.is_terminal();
        let (bytes, receiver) = channel::<Vec<u8>>(4);
        let (ended, end) = oneshot::channel();
        let shown = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&shown);
        let writes = move || {
            let _ = ended.send(write_from(receiver, &to, &is_raw, &count));
        };
        thread::Builder::new().spawn(writes).map_err(thread_error)?;
        Ok(Self { bytes, is_terminal, shown, end })
    }
}

fn write_from(
    mut receiver: Receiver<Vec<u8>>,
    to: &OwnedFd,
    is_raw: &IsRaw,
    shown: &AtomicU64,
) -> io::Result<()> {
    let is_terminal = to.is_terminal();
    while let Some(bytes) = receiver.blocking_recv() {
        let bytes = if is_terminal { is_raw.shown(bytes) } else { bytes };
        for piece in bytes.chunks(PIECE) {
            let _screen = SCREEN.lock().unwrap_or_else(PoisonError::into_inner);
            write_all(to, piece)?;
            shown.fetch_add(piece.len() as u64, Relaxed);
        }
    }
    Ok(())
}

/// Copies the command's output to the screen.
pub(crate) struct Showing {
    copying: JoinHandle<io::Result<()>>,
    is_terminal: bool,
    shown: Arc<AtomicU64>,
    ended: oneshot::Sender<()>,
}

impl Showing {
    pub(crate) fn start(from: Terminal, to: Screen) -> Self {
        let shown = Arc::clone(&to.shown);
        let is_terminal = to.is_terminal;
        let (ended, end) = oneshot::channel();
        Self { copying: tokio::spawn(show(from, to, end)), is_terminal, shown, ended }
    }

    /// Whether the output appears on a terminal.
    pub(crate) fn is_on_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Stops copying and closes the command's terminal.
    pub(crate) fn abort(&self) {
        self.copying.abort();
    }

    /// Waits until all output is shown, after the command ended. Gives up on a terminal that takes nothing
    /// for some seconds. For any other stdout it gives up one second after `hurry` is ready.
    ///
    /// # Errors
    /// stdout did not take all output: `WouldBlock` if nobody reads it. A reader that closed stdout is no
    /// error.
    pub(crate) async fn finish(self, hurry: impl Future<Output = ()>) -> io::Result<()> {
        let Self { mut copying, is_terminal, shown, ended } = self;
        let _ = ended.send(());
        let patience = async {
            if is_terminal {
                stalled(&shown).await;
            } else {
                hurry.await;
                sleep(HURRIED_PATIENCE).await;
            }
        };
        let copied = tokio::select! {
            biased;
            copied = &mut copying => copied,
            () = patience => return Err(not_read()),
        };
        match copied {
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}

/// Waits until the screen makes no more progress.
async fn stalled(shown: &AtomicU64) {
    let mut stalls = 0;
    while stalls < MAX_STALLS {
        let before = shown.load(Relaxed);
        sleep(STALL_PERIOD).await;
        stalls = if shown.load(Relaxed) == before { stalls + 1 } else { 0 };
    }
}

/// Checks that standard input is a readable terminal.
///
/// # Errors
/// Standard input is not a terminal, or is open for writing only.
pub(crate) fn check_stdin() -> Result<(), Error> {
    Terminal::size(io::stdin()).map_err(no_terminal)?;
    let access =
        fcntl(io::stdin(), FcntlArg::F_GETFL).map_err(|errno| no_terminal(errno.into()))? & libc::O_ACCMODE;
    if access == libc::O_WRONLY {
        let reason = "needs a readable standard input; this terminal is open only for writing";
        return Err(Error::Io { what: "--tty", source: io::Error::other(reason) });
    }
    Ok(())
}

/// The error of `--tty` without a terminal. The message leaves out `ENOTTY`, which would repeat it.
pub(crate) fn no_terminal(source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::ENOTTY) => {
            Error::Io { what: "--tty", source: io::Error::other("needs a terminal as standard input") }
        }
        _ => Error::Io { what: "--tty needs a terminal as standard input", source },
    }
}

/// The error if output was not shown. If the command `was_killed`, an unread stdout is no error: the kill is
/// reported instead.
pub(crate) fn unwritten(shown: io::Result<()>, was_killed: bool) -> Option<Error> {
    let source = shown.err().filter(|error| !was_killed || error.kind() != io::ErrorKind::WouldBlock)?;
    Some(Error::Io { what: WRITE_OUTPUT, source })
}

async fn show(mut from: Terminal, to: Screen, mut end: oneshot::Receiver<()>) -> io::Result<()> {
    let mut buffer = [0u8; 8192];
    loop {
        let read = tokio::select! {
            biased;
            _ = &mut end => break,
            read = from.read(&mut buffer) => read,
        };
        match read {
            // Keep reading even if the screen failed, so that the command does not block.
            Ok(count @ 1..) => {
                let _ = to.bytes.send(buffer[..count].to_vec()).await;
            }
            // No process has the terminal open now.
            _ if timeout(REOPEN_PAUSE, &mut end).await.is_ok() => break,
            _ => {}
        }
    }
    let mut waits = true;
    for _ in 0..MAX_LAST_READS {
        let read = match timeout(NEXT_READ, from.read(&mut buffer)).await {
            Err(_) if mem::take(&mut waits) => timeout(FIRST_READ, from.read(&mut buffer)).await,
            read => read,
        };
        let Ok(Ok(count @ 1..)) = read else { break };
        let _ = to.bytes.send(buffer[..count].to_vec()).await;
    }
    drop(to.bytes);
    to.end.await.unwrap_or(Ok(()))
}

/// Gives the command's terminal the size of the user's terminal, unless that is gone.
///
/// # Errors
/// Those of [`Terminal::set_size`].
pub(crate) fn copy_size(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let size = Terminal::size(from);
    size.map_or(Ok(()), |(rows, columns)| Terminal::set_size(to, rows, columns))
}
