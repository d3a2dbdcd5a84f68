//! The user's own terminal while a command runs on another: what is typed and what is shown.

use std::{
    io::{self, IsTerminal},
    mem,
    os::fd::AsFd,
    sync::{
        Arc,
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

use crate::descriptor::{untaken, wait, write_all};

/// How much is written to our terminal at a time: what is shown is counted by it.
const PIECE: usize = 1024;

/// What failed where our stdout does not take what is to be shown.
const WRITING: &str = "write to stdout what the command wrote";

/// What the command wrote last is on its way for a moment after its end. Once that was waited for, who has more to say is
/// another, who was given the terminal: what he says at once is shown, and no more than that many times.
pub(crate) const LAST: Duration = Duration::from_millis(100);
pub(crate) const MOMENT: Duration = Duration::from_millis(10);
pub(crate) const MOST_LAST: u32 = 64;

/// Where nobody has the command's terminal open, how long until it is looked at again: a command may open it anew.
pub(crate) const AGAIN: Duration = Duration::from_millis(100);

/// How long our terminal may take nothing after the command's end, and for how many times of that.
const SILENCE: Duration = Duration::from_secs(1);
const STALLS: u32 = 5;

/// How long a stdout that is no terminal may hold up the end, once we are told to end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) fn no_thread(source: io::Error) -> Error {
    Error::Io { what: "start a thread", source }
}

/// What is typed, read by a thread of its own: a read of a terminal cannot be made to give up. The thread is had before the
/// command starts, which can use up all there are, and reads nothing before that.
pub(crate) struct Keyboard {
    begin: SyncSender<()>,
    typed: Receiver<Vec<u8>>,
}

impl Keyboard {
    /// # Errors
    /// No thread is to be had.
    pub(crate) fn ready() -> Result<Self, Error> {
        let (begin, begins) = sync_channel(1);
        let (sender, typed) = channel(16);
        let reads = move || {
            if begins.recv().is_ok() {
                read_into(&sender);
            }
        };
        thread::Builder::new().spawn(reads).map_err(no_thread)?;
        Ok(Self { begin, typed })
    }

    /// What is typed from now on.
    pub(crate) fn typed(self) -> Receiver<Vec<u8>> {
        // The thread waits for it.
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
            // Somebody who has the terminal too made it non-blocking.
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

/// Whether our terminal is, where a read of it gave nothing. In raw mode no key does that; but whoever has the terminal too
/// can set that reads do not wait, or another mode.
pub(crate) fn is_gone() -> bool {
    tcgetattr(io::stdin()).is_err()
}

/// Copies what is typed to the command. Ends when our terminal is gone.
pub(crate) async fn type_in(mut typed: Receiver<Vec<u8>>, mut to: Terminal) {
    while let Some(bytes) = typed.recv().await {
        // Where nobody has the command's terminal open now, somebody may open it again.
        let _ = to.write_all(&bytes).await;
    }
}

/// Our stdout, written by a thread of its own: a write to a terminal that nobody reads does not return.
pub(crate) struct Screen {
    bytes: Sender<Vec<u8>>,
    /// How many bytes were shown.
    shown: Arc<AtomicU64>,
    /// What came of it, when the thread has ended.
    end: oneshot::Receiver<io::Result<()>>,
}

impl Screen {
    /// To be called before anything runs that could want to be shown.
    ///
    /// # Errors
    /// No thread is to be had.
    pub(crate) fn open() -> Result<Self, Error> {
        let (bytes, receiver) = channel::<Vec<u8>>(4);
        let (ended, end) = oneshot::channel();
        let shown = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&shown);
        let writes = move || {
            let _ = ended.send(write_from(receiver, &count));
        };
        thread::Builder::new().spawn(writes).map_err(no_thread)?;
        Ok(Self { bytes, shown, end })
    }
}

fn write_from(mut receiver: Receiver<Vec<u8>>, shown: &AtomicU64) -> io::Result<()> {
    while let Some(bytes) = receiver.blocking_recv() {
        for piece in bytes.chunks(PIECE) {
            write_all(io::stdout(), piece)?;
            shown.fetch_add(piece.len() as u64, Relaxed);
        }
    }
    Ok(())
}

/// What the command writes, on its way to our stdout.
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

    /// Shows no more, and lets go of the command's terminal.
    pub(crate) fn abort(&self) {
        self.copying.abort();
    }

    /// Once the command has ended: waits until all is shown that it wrote. A terminal that takes nothing for some seconds is
    /// read by nobody; elsewhere this waits until a second after `hurry` is ready.
    ///
    /// # Errors
    /// Our stdout did not take all of it: `WouldBlock` where nobody reads it. That its reader has gone is none.
    pub(crate) async fn finish(self, hurry: impl Future<Output = ()>) -> io::Result<()> {
        let Self { mut copying, shown, ended } = self;
        let _ = ended.send(());
        let patience = async {
            if io::stdout().is_terminal() {
                stalled(&shown).await;
            } else {
                hurry.await;
                sleep(PATIENCE).await;
            }
        };
        let copied = tokio::select! {
            biased;
            copied = &mut copying => copied,
            () = patience => return Err(untaken()),
        };
        match copied {
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}

/// Waits until no more is shown.
async fn stalled(shown: &AtomicU64) {
    let mut stalls = 0;
    while stalls < STALLS {
        let before = shown.load(Relaxed);
        sleep(SILENCE).await;
        stalls = if shown.load(Relaxed) == before { stalls + 1 } else { 0 };
    }
}

/// Rows and columns of our terminal, which is standard input and can be read.
///
/// # Errors
/// It is none, or is open for writing only.
pub(crate) fn size() -> Result<(u16, u16), Error> {
    let size = Terminal::size(io::stdin()).map_err(absent)?;
    let access =
        fcntl(io::stdin(), FcntlArg::F_GETFL).map_err(|errno| absent(errno.into()))? & libc::O_ACCMODE;
    if access == libc::O_WRONLY {
        let reason = "needs a standard input that can be read; the terminal there is open for writing only";
        return Err(Error::Io { what: "--tty", source: io::Error::other(reason) });
    }
    Ok(size)
}

/// For `--tty`, where standard input is no terminal. `ENOTTY` would say so once more.
pub(crate) fn absent(source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::ENOTTY) => {
            Error::Io { what: "--tty", source: io::Error::other("needs a terminal as standard input") }
        }
        _ => Error::Io { what: "--tty needs a terminal as standard input", source },
    }
}

/// The error for what was not shown. That nobody takes it is none where the command `was_killed`: then that is what is told.
pub(crate) fn unwritten(shown: io::Result<()>, was_killed: bool) -> Option<Error> {
    let source = shown.err().filter(|error| !was_killed || error.kind() != io::ErrorKind::WouldBlock)?;
    Some(Error::Io { what: WRITING, source })
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
            // What is written no more is read all the same, or the command would wait for that.
            Ok(count @ 1..) => {
                let _ = to.bytes.send(buffer[..count].to_vec()).await;
            }
            // Nobody has it open now.
            _ if timeout(AGAIN, &mut end).await.is_ok() => break,
            _ => {}
        }
    }
    let mut waits = true;
    for _ in 0..MOST_LAST {
        let read = match timeout(MOMENT, from.read(&mut buffer)).await {
            Err(_) if mem::take(&mut waits) => timeout(LAST, from.read(&mut buffer)).await,
            read => read,
        };
        let Ok(Ok(count @ 1..)) = read else { break };
        let _ = to.bytes.send(buffer[..count].to_vec()).await;
    }
    drop(to.bytes);
    to.end.await.unwrap_or(Ok(()))
}

/// The user's terminal in raw mode; put back when this is dropped.
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

    /// Raw once more, and the command's terminal as large as it: whoever had it while we were stopped, a shell, has modes of
    /// his own, and was told of its size alone.
    ///
    /// # Errors
    /// Those of [`fit`].
    pub(crate) fn again(&self, terminal: impl AsFd) -> io::Result<()> {
        // It may be gone.
        let _ = self.set();
        fit(terminal)
    }

    /// Puts it back, for as long as we are stopped or for good.
    pub(crate) fn leave(&self) {
        // The terminal may be gone; then there is nothing to put back. It may not be read: then TCSADRAIN would not return.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Makes the command's terminal as large as ours, which may be gone.
///
/// # Errors
/// Those of [`Terminal::set_size`].
pub(crate) fn fit(terminal: impl AsFd) -> io::Result<()> {
    let size = Terminal::size(io::stdin());
    size.map_or(Ok(()), |(rows, columns)| Terminal::set_size(terminal, rows, columns))
}
