//! What a command writes, copied to our own stdout and stderr where it has to be counted or cut.

use std::{io, os::fd::AsFd, time::Duration};

use kennel::ChildOutput;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::JoinHandle,
};

/// How much is copied at a time.
const PIECE: usize = 64 << 10;

/// A stream of the command on its way to ours.
pub(crate) struct Pump(JoinHandle<Pumped>);

/// What came of it.
#[derive(Default)]
pub(crate) struct Pumped {
    /// The stream at its end; `None` where we stopped reading.
    pub(crate) stream: Option<ChildOutput>,
    /// Why not all of it was written.
    pub(crate) failed: Option<io::Error>,
}

impl Pump {
    pub(crate) fn to_stdout(stream: ChildOutput) -> Self {
        Self::start(stream, io::stdout(), tokio::io::stdout())
    }

    pub(crate) fn to_stderr(stream: ChildOutput) -> Self {
        Self::start(stream, io::stderr(), tokio::io::stderr())
    }

    fn start(
        mut from: ChildOutput,
        ours: impl AsFd + Send + Sync + 'static,
        plain: impl AsyncWrite + Unpin + Send + 'static,
    ) -> Self {
        Self(tokio::spawn(async move {
            let copied = match Waiting::for_it(ours) {
                Some(mut waiting) => waiting.copy(&mut from).await,
                None => copy(&mut from, plain).await,
            };
            match copied {
                Ok(()) => Pumped { stream: Some(from), failed: None },
                // Nobody reads any more: the command is told by SIGPIPE, as it would be without us.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Pumped::default(),
                // It cannot be told; it ends as it likes, and we say what became of its words.
                Err(error) => {
                    let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
                    Pumped { stream: Some(from), failed: Some(error) }
                }
            }
        }))
    }

    /// Waits until all of a stream is copied, if there is one, and no longer than `patience`.
    pub(crate) async fn drained(pump: Option<Self>, patience: Option<Duration>) -> Pumped {
        let Some(Self(pump)) = pump else { return Pumped::default() };
        let pumped = match patience {
            Some(patience) => tokio::time::timeout(patience, pump).await.ok(),
            None => Some(pump.await),
        };
        pumped.and_then(Result::ok).unwrap_or_default()
    }
}

async fn copy(from: &mut ChildOutput, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    tokio::io::copy(from, &mut to).await?;
    to.flush().await
}

/// A descriptor that somebody who has it too made non-blocking: a full pipe is an error there, which means to wait.
struct Waiting<D>(D);

impl<D: AsFd> Waiting<D> {
    /// `None` where writing blocks.
    fn for_it(ours: D) -> Option<Self> {
        let flags = OFlag::from_bits_retain(fcntl(ours.as_fd(), FcntlArg::F_GETFL).ok()?);
        flags.contains(OFlag::O_NONBLOCK).then_some(Self(ours))
    }

    async fn copy(&mut self, from: &mut ChildOutput) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let count = from.read(&mut piece).await?;
            let mut left = piece.get(..count).unwrap_or_default();
            if left.is_empty() {
                return Ok(());
            }
            while !left.is_empty() {
                let written = self.write(left).await?;
                left = left.get(written..).unwrap_or_default();
            }
        }
    }

    async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match nix::unistd::write(&self.0, bytes) {
                Err(Errno::EAGAIN) => {
                    let ours = self.0.as_fd().try_clone_to_owned()?;
                    let room =
                        move || poll(&mut [PollFd::new(ours.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE);
                    let _ = tokio::task::spawn_blocking(room).await;
                }
                Err(Errno::EINTR) => {}
                written => return Ok(written?),
            }
        }
    }
}
