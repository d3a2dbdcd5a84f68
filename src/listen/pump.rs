//! Output that must be counted or cut passes through here, from the command's pipe to the descriptor that the client
//! gave. That may be anything and may make its writer wait, so a thread of its own writes to it.

use std::{fs::File, io::Write, os::fd::OwnedFd, thread, time::Duration};

use tokio::{
    io::AsyncReadExt,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use crate::{Child, ChildOutput, Command, Ended, Outcome, Stdio};

/// Bytes that are read at once.
const PIECE: usize = 16 << 10;

/// How long output that nobody reads may hold up the answer after a timeout.
const PATIENCE: Duration = Duration::from_secs(1);

/// Gives the command its descriptors, and pipes in place of those whose output passes through us; answers those.
/// Stdout and stderr can be said to pass through whatever they are.
pub(super) fn pipes(
    command: &mut Command,
    [input, output, error]: [OwnedFd; 3],
    [out_does, error_does]: [bool; 2],
    passes_through: impl Fn(&OwnedFd) -> bool,
) -> [Option<OwnedFd>; 2] {
    let split = |fd: OwnedFd, does: bool| {
        if does || passes_through(&fd) { (Stdio::piped(), Some(fd)) } else { (Stdio::from(fd), None) }
    };
    let ((stdout, out), (stderr, err)) = (split(output, out_does), split(error, error_does));
    command.stdin(input).stdout(stdout).stderr(stderr);
    [out, err]
}

/// What copies the output of one command.
pub(super) struct Pumps([Option<Pump>; 2]);

/// One stream: its task, and what tells it that the command has ended.
struct Pump {
    task: JoinHandle<ChildOutput>,
    ended: oneshot::Sender<()>,
}

impl Pumps {
    pub(super) fn start(child: &mut Child, [out, err]: [Option<OwnedFd>; 2]) -> Self {
        let start = |(from, to)| {
            let (ended, end) = oneshot::channel();
            Pump { task: tokio::spawn(pump(from, to, end)), ended }
        };
        Self([child.stdout.take().zip(out).map(start), child.stderr.take().zip(err).map(start)])
    }

    /// Waits until everything is written, and enters how much it was.
    pub(super) async fn finish(self, outcome: &mut Outcome) {
        let Self([stdout, stderr]) = self;
        let all = async { (drained(stdout).await, drained(stderr).await) };
        let patience = if outcome.ended == Ended::TimedOut { PATIENCE } else { Duration::MAX };
        if let Ok((stdout, stderr)) = timeout(patience, all).await {
            outcome.count(stdout.as_ref(), stderr.as_ref());
        }
    }
}

async fn drained(pump: Option<Pump>) -> Option<ChildOutput> {
    let Pump { task, ended } = pump?;
    let _ = ended.send(());
    task.await.ok()
}

/// Copies all of `from` to `to`, or what is in it at the command's end: another command may have been given the pipe.
/// Answers `from`, which has counted, when everything is written. When `to` is closed, what the command says is lost, as
/// it would have been, but goes on being read.
async fn pump(mut from: ChildOutput, to: OwnedFd, mut end: oneshot::Receiver<()>) -> ChildOutput {
    let (sender, receiver) = mpsc::channel(4);
    let (done, written) = oneshot::channel();
    thread::spawn(move || {
        write(receiver, &mut File::from(to));
        let _ = done.send(());
    });
    let mut is_open = true;
    let mut piece = vec![0; PIECE];
    loop {
        let bytes = tokio::select! {
            biased;
            _ = &mut end => break,
            read = from.read(&mut piece) => match read {
                Ok(count @ 1..) => piece.get(..count).unwrap_or_default().to_vec(),
                _ => break,
            },
        };
        is_open = is_open && sender.send(bytes).await.is_ok();
    }
    let mut rest = Vec::new();
    // What cannot be read any more is lost.
    let _ = from.drain(&mut rest);
    if is_open && !rest.is_empty() {
        let _ = sender.send(rest).await;
    }
    drop(sender);
    // It is gone without a word when its descriptor was closed.
    let _ = written.await;
    from
}

fn write(mut pieces: mpsc::Receiver<Vec<u8>>, to: &mut File) {
    while let Some(piece) = pieces.blocking_recv() {
        if to.write_all(&piece).is_err() {
            return;
        }
    }
}
