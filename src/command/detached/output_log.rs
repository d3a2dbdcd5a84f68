//! Reads what a detached command writes: into its ring, and into its log file if it has one.

use std::future::pending;

use tokio::io::AsyncReadExt;
use tokio::sync::watch;

use crate::command::detached::CommandRecord;
use crate::command::detached::log_copy::LogCopy;
use crate::command::detached::ring::OutputStream;
use crate::process::output::ChildOutput;
use crate::report::outcome::Outcome;

/// Bytes of one read.
const PIECE: usize = 16 << 10;

/// The output of one command, on its way to whoever reads it.
pub(crate) struct OutputLog {
    record: watch::Sender<CommandRecord>,
    stdout: Source,
    stderr: Source,
    copy: LogCopy,
}

impl OutputLog {
    pub(crate) fn new(
        record: watch::Sender<CommandRecord>,
        stdout: Option<ChildOutput>,
        stderr: Option<ChildOutput>,
        copy: LogCopy,
    ) -> Self {
        let (stdout, stderr) = (Source::new(stdout), Source::new(stderr));
        Self { record, stdout, stderr, copy }
    }

    /// Whether a process may still write to it.
    pub(crate) fn is_open(&self) -> bool {
        self.stdout.is_open || self.stderr.is_open
    }

    /// Takes one step: reads a piece, or hands one to the log file. If the caller drops the future, nothing
    /// is lost.
    pub(crate) async fn advance(&mut self) {
        let Self { stdout, stderr, copy, record } = self;
        let is_free = copy.is_free();
        let (stream, bytes) = tokio::select! {
            failed = copy.advance() => return lacks(record, failed),
            bytes = stdout.read(), if is_free => (OutputStream::Stdout, bytes),
            bytes = stderr.read(), if is_free => (OutputStream::Stderr, bytes),
        };
        keep(record, copy, stream, bytes);
    }

    /// Takes what the pipes hold now. A process may hold them open, and write on.
    pub(crate) fn drain(&mut self) {
        for (stream, source) in
            [(OutputStream::Stdout, &mut self.stdout), (OutputStream::Stderr, &mut self.stderr)]
        {
            keep(&self.record, &mut self.copy, stream, &source.drain());
        }
    }

    /// Waits a moment until the log file has everything.
    pub(crate) async fn finish(&mut self) {
        lacks(&self.record, self.copy.finish().await);
    }

    /// Adds to an outcome what the streams tell.
    pub(crate) fn count(&self, outcome: &mut Outcome) {
        outcome.count(self.stdout.output.as_ref(), self.stderr.output.as_ref());
    }
}

fn keep(record: &watch::Sender<CommandRecord>, copy: &mut LogCopy, stream: OutputStream, bytes: &[u8]) {
    if !bytes.is_empty() {
        record.send_modify(|record| record.ring.append(stream, bytes));
        copy.add(bytes);
    }
}

/// Notes why the log file lacks output. The first reason counts.
fn lacks(record: &watch::Sender<CommandRecord>, why: Option<String>) {
    if let Some(why) = why {
        record.send_modify(|record| {
            record.unwritten.get_or_insert(why);
        });
    }
}

/// A stream of the command and whether it may carry more.
struct Source {
    output: Option<ChildOutput>,
    is_open: bool,
    piece: Vec<u8>,
}

impl Source {
    fn new(output: Option<ChildOutput>) -> Self {
        Self { is_open: output.is_some(), output, piece: vec![0; PIECE] }
    }

    /// Reads once; forever if there is nothing more to come.
    async fn read(&mut self) -> &[u8] {
        let Some(output) = self.output.as_mut().filter(|_| self.is_open) else { return pending().await };
        // A stream that cannot be read is over.
        let count = output.read(&mut self.piece).await.unwrap_or(0);
        self.is_open = count > 0;
        self.piece.get(..count).unwrap_or_default()
    }

    /// What is in the pipe now.
    fn drain(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(output) = self.output.as_mut().filter(|_| self.is_open) {
            self.is_open = !output.drain(&mut bytes).unwrap_or(true);
        }
        bytes
    }
}
