//! The user's terminal while a command runs on its own: raw mode, typed input, shown output.

use std::{
    io::{self, IsTerminal},
    mem,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use kennel::{Error, Terminal};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    poll::PollFlags,
    sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr},
    unistd::read,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{
        mpsc::{Receiver, Sender, channel},
        oneshot,
    },
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::descriptor::{not_read, wait, write_all};

/// Bytes per write to the user's terminal. Progress is counted in these pieces.
const PIECE: usize = 1024;

/// The name of the failed step if stdout does not take the command's output.
const WRITE_OUTPUT: &str = "write to stdout what the command wrote";

/// Output can arrive for a moment after the command ended: wait `FIRST_READ` once, then `NEXT_READ` for each further
/// read. Another process may still hold the terminal and keep writing, so read at most `MAX_LAST_READS` times.
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

/// Reads typed input on its own thread, because a blocked read of a terminal cannot be cancelled. The thread
/// starts before the command, which could use up all threads, and reads only once [`Keyboard::typed`] asks.
pub(crate) struct Keyboard {
    begin: SyncSender<()>,
    typed: Receiver<Vec<u8>>,
}

impl Keyboard {
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn start() -> Result<Self, Error> {
        let (begin, begins) = sync_channel(1);
        let (sender, typed) = channel(16);
        let reads = move || {
            if begins.recv().is_ok() {
                read_into(&sender);
            }
        };
        thread::Builder::new().spawn(reads).map_err(thread_error)?;
        Ok(Self { begin, typed })
    }

    /// Starts reading, and returns the receiver of typed bytes.
    pub(crate) fn typed(self) -> Receiver<Vec<u8>> {
        // The thread waits for this message.
        let _ = self.begin.send(());
        self.typed
    }
}

fn read_into(sender: &Sender<Vec<u8>>) {
    let mut buffer = [0u8; 4096];
    loop {
        match read(io::stdin(), &mut buffer) {
            Ok(count @ 1..) => {
                if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
            // Another process that shares the terminal made it non-blocking.
            Err(Errno::EAGAIN) => {
                wait(io::stdin(), PollFlags::POLLIN, None);
            }
            Err(Errno::EINTR) => {}
            Ok(0) if !is_gone() => {
                wait(io::stdin(), PollFlags::POLLIN, None);
            }
            Ok(_) | Err(_) => return,
        }
    }
}

/// Whether the terminal is gone, after a read that returned nothing. No key causes that in raw mode, but
/// another process that shares the terminal can change its mode.
pub(crate) fn is_gone() -> bool {
    tcgetattr(io::stdin()).is_err()
}

/// Copies typed input to the command until the user's terminal is gone.
pub(crate) async fn type_in(mut typed: Receiver<Vec<u8>>, mut to: Terminal) {
    while let Some(bytes) = typed.recv().await {
        // A process may open the command's terminal again, so ignore errors.
        let _ = to.write_all(&bytes).await;
    }
}

/// Who holds this lock has the terminal's screen: the command's output waits meanwhile.
pub(crate) static SCREEN: Mutex<()> = Mutex::new(());

/// Writes to stdout on its own thread: a write blocks if nobody reads the terminal.
pub(crate) struct Screen {
    bytes: Sender<Vec<u8>>,
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
    pub(crate) fn open() -> Result<Self, Error> {
        let (bytes, receiver) = channel::<Vec<u8>>(4);
        let (ended, end) = oneshot::channel();
        let shown = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&shown);
        let writes = move || {
            let _ = ended.send(write_from(receiver, &count));
        };
        thread::Builder::new().spawn(writes).map_err(thread_error)?;
        Ok(Self { bytes, shown, end })
    }
}

fn write_from(mut receiver: Receiver<Vec<u8>>, shown: &AtomicU64) -> io::Result<()> {
    while let Some(bytes) = receiver.blocking_recv() {
        for piece in bytes.chunks(PIECE) {
            let _screen = SCREEN.lock().unwrap_or_else(PoisonError::into_inner);
            write_all(io::stdout(), piece)?;
            shown.fetch_add(piece.len() as u64, Relaxed);
        }
    }
    Ok(())
}

/// Copies the command's output to the screen.
pub(crate) struct Showing {
    copying: JoinHandle<io::Result<()>>,
    shown: Arc<AtomicU64>,
    ended: oneshot::Sender<()>,
}

impl Showing {
    pub(crate) fn start(from: Terminal, to: Screen) -> Self {
        let shown = Arc::clone(&to.shown);
        let (ended, end) = oneshot::channel();
        Self { copying: tokio::spawn(show(from, to, end)), shown, ended }
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
        let Self { mut copying, shown, ended } = self;
        let _ = ended.send(());
        let patience = async {
            if io::stdout().is_terminal() {
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

/// Rows and columns of standard input, if it is a readable terminal.
///
/// # Errors
/// Standard input is not a terminal, or is open for writing only.
pub(crate) fn size() -> Result<(u16, u16), Error> {
    let size = Terminal::size(io::stdin()).map_err(no_terminal)?;
    let access =
        fcntl(io::stdin(), FcntlArg::F_GETFL).map_err(|errno| no_terminal(errno.into()))? & libc::O_ACCMODE;
    if access == libc::O_WRONLY {
        let reason = "needs a readable standard input; this terminal is open only for writing";
        return Err(Error::Io { what: "--tty", source: io::Error::other(reason) });
    }
    Ok(size)
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

/// The user's terminal in raw mode. Dropping this restores the previous mode.
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    pub(crate) fn enter() -> io::Result<Self> {
        let entered = Self { before: tcgetattr(io::stdin())? };
        entered.set()?;
        Ok(entered)
    }

    fn set(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        cfmakeraw(&mut raw);
        Ok(tcsetattr(io::stdin(), SetArg::TCSANOW, &raw)?)
    }

    /// Enters raw mode again after a stop, and resizes the command's terminal. The shell used the terminal
    /// meanwhile: it set its own mode, and only it was told of a new size.
    ///
    /// # Errors
    /// Those of [`copy_size`].
    pub(crate) fn reenter(&self, terminal: impl AsFd) -> io::Result<()> {
        // The terminal may be gone.
        let _ = self.set();
        copy_size(terminal)
    }

    /// Restores the previous mode, until [`Raw::reenter`] or for good.
    pub(crate) fn restore(&self) {
        // If the terminal is gone, there is nothing to restore. TCSADRAIN would block if nobody reads the
        // terminal.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Gives the command's terminal the size of the user's terminal, unless that is gone.
///
/// # Errors
/// Those of [`Terminal::set_size`].
pub(crate) fn copy_size(terminal: impl AsFd) -> io::Result<()> {
    let size = Terminal::size(io::stdin());
    size.map_or(Ok(()), |(rows, columns)| Terminal::set_size(terminal, rows, columns))
}
