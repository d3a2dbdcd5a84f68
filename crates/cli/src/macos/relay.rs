//! A command from its start to its end: signals pass to it, and its output through Kennel if it is limited.

use std::{fs::File, io, os::unix::process::ExitStatusExt, path::Path, process::ExitCode};

use kennel::{ChildOutput, Command, Error, Outcome, Signal, Stdio, report::Report};
use nix::sys::signal::{self, raise};
use tokio::{io::AsyncReadExt, task::spawn_blocking};

use crate::{
    process::{descriptor::write_all, exit_status::end, signals::Signals},
    report,
};

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// Runs a command to its end. With `counts`, its output passes through this process, which counts it.
pub(super) async fn to_its_end(command: &mut Command, counts: bool) -> Result<Outcome, Error> {
    let mut signals = Signals::to_forward()?.in_runtime()?;
    if counts {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let mut child = command.spawn().await?;
    let stdout = tokio::spawn(copied(child.stdout.take(), |bytes| write_all(io::stdout(), bytes)));
    let stderr = tokio::spawn(copied(child.stderr.take(), |bytes| write_all(io::stderr(), bytes)));
    let outcome = loop {
        let number = tokio::select! {
            outcome = child.wait() => break outcome?,
            number = signals.next() => number,
        };
        // The command is in a session of its own, where nobody would continue it, so the kernel would discard
        // SIGTSTP.
        let stops = number == libc::SIGTSTP;
        if let Some(passed) = Signal::new(if stops { libc::SIGSTOP } else { number }) {
            child.signal(passed).map_err(|source| Error::Io { what: "pass a signal on", source })?;
        }
        if stops {
            let _ = raise(signal::Signal::SIGSTOP);
        }
    };
    let copied = async { (stdout.await, stderr.await) };
    let copied = tokio::select! {
        (stdout, stderr) = copied => [stdout, stderr].into_iter().flatten().collect::<io::Result<Vec<()>>>(),
        () = signals.ending(outcome.status) => Ok(Vec::new()),
    };
    match copied {
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::Io { what: "write the output of the command", source })
        }
        _ => Ok(outcome),
    }
}

/// Writes what a command writes, until both are done or nobody reads it. Then the command gets SIGPIPE.
async fn copied(from: Option<ChildOutput>, write: fn(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let Some(mut from) = from else { return Ok(()) };
    let mut piece = vec![0; PIECE];
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return Ok(());
        }
        let done =
            spawn_blocking(move || write(piece.get(..count).unwrap_or_default()).map(|()| piece)).await;
        piece = done.map_err(io::Error::other)??;
    }
}

/// The file of `--json`.
pub(super) struct Json<'p>(Option<(File, &'p Path)>);

impl<'p> Json<'p> {
    /// Creates it before anything runs.
    ///
    /// # Errors
    /// Those of [`report::create`].
    pub(super) fn create(path: Option<&'p Path>) -> Result<Self, Error> {
        path.map(|path| Ok((report::create(path)?, path))).transpose().map(Self)
    }
}

/// Writes the report, prints remarks, and ends as the command ended: by its signal, unless that is to become
/// an `exit_code`.
///
/// # Errors
/// The command did not run, or the report cannot be written.
pub(super) fn finish(
    json: &Json<'_>,
    ended: Result<Outcome, Error>,
    exit_code: bool,
    is_quiet: bool,
) -> Result<ExitCode, Error> {
    let object = match &ended {
        Ok(outcome) => Report::of_outcome(outcome),
        Err(error) => Report::failed(error),
    };
    let written = json.0.as_ref().map(|(file, path)| report::write(file, path, &report::object(&object)));
    let outcome = ended?;
    report::end(&outcome, is_quiet);
    written.transpose()?;
    let signal = outcome.status.signal().filter(|_| !exit_code);
    Ok(end(outcome.exit_code(), signal))
}
