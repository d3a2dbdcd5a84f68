//! One command in one request: its files go in before it, its output, its files and its report come out.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use kennel::report::Report;
use kennel::{Error, Signal};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::blobs::Blobs;
use crate::sandboxes::Sandboxes;
use crate::sandboxes::output::{End, Piece, Reader, Stream};
use crate::sandboxes::process::{Process, Start};
use crate::sandboxes::sandbox::Sandbox;
use crate::v1::content::{Content, FileContent};
use crate::wire::failure::Failure;

/// Seconds of a command whose request names none.
pub(crate) const USUAL_SECONDS: f64 = 60.0;

/// Bytes of each stream that an answer has, if the template's policy has no `limits.output`.
const USUAL_OUTPUT: u64 = 16 << 20;

/// Bytes of all files of an answer.
const MOST_FILES: u64 = 64 << 20;

/// A command, and what it works on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunRequest {
    /// The program and its arguments.
    #[schema(min_items = 1, example = json!(["sh", "-c", "wc -l < in.txt > out.txt"]))]
    argv: Vec<String>,
    /// What it reads. Without it, its stdin is `/dev/null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stdin: Option<Content>,
    /// Variables, beside those of the template.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Where it begins. A relative path begins in the sandbox's own directory, which is also the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    /// Seconds until it is killed. Default: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<f64>,
    /// Files that are written before it starts. Directories above them are made.
    #[serde(default)]
    files: Vec<FileContent>,
    /// Files that are read after its end. Those that are not there are not in the answer.
    #[serde(default)]
    outputs: Vec<String>,
}

/// What became of a command.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ran {
    /// The object of `kennel run --json`: how it ended, what it used, what was refused.
    #[schema(value_type = Object)]
    report: Box<Report>,
    stdout: Content,
    stderr: Content,
    /// Those of `outputs` that are there.
    files: Vec<FileContent>,
}

impl RunRequest {
    /// The time that the command has.
    pub(crate) fn time(&self) -> Result<Duration, Failure> {
        let seconds = self.timeout.unwrap_or(USUAL_SECONDS);
        Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|time| !time.is_zero())
            .ok_or_else(|| Failure::bad(format!("timeout: {seconds}: seconds above 0 are expected")))
    }

    /// Runs it. If the caller goes away, the command is killed.
    pub(crate) async fn run(
        self,
        host: &Arc<Sandboxes>,
        sandbox: &Arc<Sandbox>,
        blobs: &Blobs,
    ) -> Result<Ran, Failure> {
        let time = self.time()?;
        let Some((program, arguments)) = self.argv.split_first().filter(|(program, _)| !program.is_empty())
        else {
            return Err(Failure::bad("argv: a program is expected"));
        };
        let stdin = self.stdin.map(|stdin| stdin.bytes("stdin", blobs)).transpose()?;
        for (number, file) in self.files.into_iter().enumerate() {
            file.write(&format!("files[{number}]"), &sandbox.session()?, blobs).await?;
        }
        let start = Start {
            program: program.clone(),
            arguments: arguments.to_vec(),
            variables: self.env,
            directory: self.cwd,
            tag: None,
            stdin: stdin.is_some(),
            terminal: None,
            timeout: Some(time),
        };
        let most = sandbox.output_limit().unwrap_or(USUAL_OUTPUT);
        let (mut out, mut err) = (Kept::new(most), Kept::new(most));
        let report = match host.start(sandbox, start).await? {
            Ok(process) => {
                let process = KilledOnDrop(process);
                let mut reader = process.0.output.reader();
                let end = tokio::select! {
                    end = collect(&mut reader, &mut out, &mut err) => end,
                    never = feed(&process.0, stdin) => never,
                };
                if end == End::Lost {
                    return Err(Failure::gone(sandbox.over()));
                }
                process.0.report().ok_or_else(|| Failure::gone(sandbox.over()))?
            }
            Err(error @ (Error::SessionEnded | Error::Lost)) => {
                return Err(sandbox
                    .over()
                    .map_or_else(|| error.into(), |reason| Failure::gone(Some(reason))));
            }
            Err(error) => Report::failed(&error),
        };
        let files = read_all(&self.outputs, sandbox).await?;
        Ok(Ran::new(report, out, err, files))
    }
}

impl Ran {
    fn new(mut report: Report, out: Kept, err: Kept, files: Vec<FileContent>) -> Self {
        report.truncated |= out.is_cut() || err.is_cut();
        Self { report: Box::new(report), stdout: out.bytes.into(), stderr: err.bytes.into(), files }
    }
}

/// What is kept of a stream.
struct Kept {
    bytes: Vec<u8>,
    most: u64,
    /// All bytes of the stream.
    written: u64,
}

impl Kept {
    fn new(most: u64) -> Self {
        Self { bytes: Vec::new(), most, written: 0 }
    }

    fn add(&mut self, piece: &[u8]) {
        let room = self.most.saturating_sub(self.bytes.len() as u64);
        let some = piece.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.bytes.extend_from_slice(piece.get(..some).unwrap_or_default());
        self.written += piece.len() as u64;
    }

    fn is_cut(&self) -> bool {
        self.written > self.bytes.len() as u64
    }
}

/// Reads until the end.
async fn collect(reader: &mut Reader, out: &mut Kept, err: &mut Kept) -> End {
    loop {
        match reader.next().await {
            Piece::Data(Stream::Stderr, bytes) => err.add(&bytes),
            Piece::Data(_, bytes) => out.add(&bytes),
            Piece::End(end) => return end,
        }
    }
}

/// Writes all of its input and closes it. Never returns: the end of the command decides.
async fn feed(process: &Process, stdin: Option<Vec<u8>>) -> End {
    if let Some(stdin) = stdin {
        // It may not want to read.
        let _ = process.write(&stdin).await;
        let _ = process.close_input().await;
    }
    pending().await
}

/// The files that are there.
async fn read_all(paths: &[String], sandbox: &Sandbox) -> Result<Vec<FileContent>, Failure> {
    let (mut files, mut left) = (Vec::new(), MOST_FILES);
    for path in paths {
        if let Some(file) = FileContent::read(path, &sandbox.session()?, left).await? {
            left = left.saturating_sub(file.length());
            files.push(file);
        }
    }
    Ok(files)
}

/// A command that nobody waits for any more is killed.
struct KilledOnDrop(Arc<Process>);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        if !self.0.has_ended() {
            self.0.signal(Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_kept_up_to_its_limit() {
        let mut kept = Kept::new(5);
        kept.add(b"abc");
        assert!(!kept.is_cut());
        kept.add(b"def");
        kept.add(b"ghi");
        assert_eq!((kept.bytes.as_slice(), kept.written, kept.is_cut()), (&b"abcde"[..], 9, true));
    }

    #[test]
    fn times_are_seconds_above_zero() {
        let time = |timeout: &str| {
            let request: RunRequest =
                serde_json::from_str(&format!(r#"{{"argv": ["true"], "timeout": {timeout}}}"#))
                    .expect(timeout);
            request.time().map_err(|failure| failure.message)
        };
        assert_eq!(time("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(time("null"), Ok(Duration::from_secs(60)));
        for wrong in ["0", "-1", "1e300", "0.0000000001"] {
            time(wrong).expect_err(wrong);
        }
    }
}
