//! The `Sandbox` trait of `entelix-core`: runs the commands, code and file accesses of an agent's tools in
//! one session. If the context of a call is cancelled or passes its deadline, the call ends and leaves no
//! process.

pub(crate) mod code;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entelix_core::context::ExecutionContext;
use entelix_core::sandbox::{CodeSpec, CommandOutput, CommandSpec, DirEntry, Sandbox};
use kennel::internal::limits_output;
use kennel::{Command, Error, Limits, Output, Session, Size, files::FileKind, report::Class};
use tokio::sync::OnceCell;

use crate::entelix::code::Interpreter;

/// Bytes kept of each output stream, if the policy sets no limit.
const OUTPUT: u64 = 16 << 20;

/// Runs an agent's tools in a [`Session`]: commands, code in four languages, files.
///
/// A tool may do what the session's policy grants. Working directories and files are paths in the sandbox;
/// relative ones start at the session's working directory. See [`Session::read`] and its neighbours for which
/// files are possible. Each command has its own `/tmp` and `HOME`, unless the policy shares them
/// ([`Policy::tmp`](kennel::Policy::tmp)).
///
/// - A command that fails is not an error: see its exit code, which is 128 + n after signal n. A missing
///   command or directory is `Error::InvalidRequest`.
/// - After a timeout, of the call or of the policy, the exit code is 124, and stderr ends with
///   `command timed out after {ms}ms`.
/// - If the context is cancelled or past its deadline, the call returns `Error::Cancelled` or
///   `Error::DeadlineExceeded`, and Kennel kills everything that the call started. It does the same when the
///   call is dropped.
/// - Kennel keeps 16 MiB of each output stream, or as much as the policy says. A line at the end says how
///   much it discarded.
/// - Code goes to its interpreter through a pipe, at any length, not in a file or argument. The code's stdin
///   is empty. Bash runs with `bash`, Python with `python3`, JavaScript with `node`. TypeScript runs with
///   `node` from version 22.6 on, which strips types and does not check them; otherwise with `tsx`,
///   `ts-node`, `deno` or `bun`. A policy with [`warm`](kennel::Policy::warm()) has Python started ahead.
///
/// A clone uses the same session.
///
/// ```
/// use entelix_core::{
///     context::ExecutionContext,
///     sandbox::{CommandSpec, Sandbox},
/// };
/// use kennel::{Policy, Profile, Session};
/// use kennel_adapters::entelix::KennelSandbox;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let workspace = std::env::temp_dir().join(format!("kennel-tool-{}", std::process::id()));
/// # std::fs::create_dir(&workspace)?;
/// let session = Session::prepare(&Policy::profile(Profile::RepoWrite, &workspace)).await?;
/// let (sandbox, ctx) = (KennelSandbox::new(session), ExecutionContext::new());
/// sandbox.write_file("greeting", b"hello", &ctx).await?;
/// let spec = CommandSpec::new(vec!["cat".to_owned(), "greeting".to_owned()]);
/// assert_eq!(sandbox.run_command(spec, &ctx).await?.stdout, b"hello");
/// # std::fs::remove_dir_all(workspace)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct KennelSandbox {
    session: Session,
    /// The interpreter for TypeScript, once found.
    typescript: Arc<OnceCell<Interpreter>>,
}

impl KennelSandbox {
    /// Runs commands in `session`. The caller may use the session too. It ends when the caller ends it, or
    /// with its last handle.
    #[must_use]
    pub fn new(session: Session) -> Self {
        Self { session, typescript: Arc::default() }
    }

    /// A command of the session, with an output limit so that its output fits in memory.
    fn command(&self, program: &str, timeout: Option<Duration>) -> Command {
        let mut command = self.session.command(program);
        if !limits_output(&self.session) {
            command.limits(Limits { output: Some(Size::from_bytes(OUTPUT)), ..Limits::default() });
        }
        if let Some(timeout) = timeout {
            command.timeout(timeout);
        }
        command
    }

    async fn run(&self, spec: CommandSpec) -> Result<CommandOutput, Error> {
        let mut words = spec.argv.into_iter();
        let mut command = self.command(&words.next().unwrap_or_default(), spec.timeout);
        command.args(words);
        for (name, value) in &spec.env {
            command.env(name, value);
        }
        if let Some(directory) = &spec.working_dir {
            command.current_dir(directory);
        }
        let output = match &spec.stdin {
            Some(input) => command.output_with_input(input).await,
            None => command.output().await,
        };
        output.map(command_output)
    }

    async fn entries(&self, path: &str) -> Result<Vec<DirEntry>, Error> {
        let mut entries = Vec::new();
        for entry in self.session.list(path).await? {
            let (kind, size) = match entry.kind {
                // A dangling link is not a directory, and has no size.
                FileKind::Link => {
                    let led_to = self.session.stat(Path::new(path).join(&entry.name)).await.ok();
                    led_to.map_or((FileKind::Link, None), |info| (info.kind, Some(info.size)))
                }
                kind => (kind, Some(entry.size)),
            };
            entries.push(DirEntry {
                name: entry.name.to_string_lossy().into_owned(),
                is_dir: kind == FileKind::Directory,
                size_bytes: size.filter(|_| kind == FileKind::File),
            });
        }
        Ok(entries)
    }
}

#[async_trait]
impl Sandbox for KennelSandbox {
    /// `kennel`.
    fn backend(&self) -> &str {
        "kennel"
    }

    async fn run_command(
        &self,
        spec: CommandSpec,
        ctx: &ExecutionContext,
    ) -> entelix_core::Result<CommandOutput> {
        if spec.argv.is_empty() {
            return Err(entelix_core::Error::invalid_request("argv is empty"));
        }
        within(ctx, async { self.run(spec).await.map_err(failed) }).await
    }

    async fn run_code(&self, spec: CodeSpec, ctx: &ExecutionContext) -> entelix_core::Result<CommandOutput> {
        within(ctx, self.interpret(spec)).await
    }

    async fn read_file(&self, path: &str, ctx: &ExecutionContext) -> entelix_core::Result<Vec<u8>> {
        within(ctx, async { self.session.read(path).await.map_err(failed) }).await
    }

    async fn write_file(&self, path: &str, bytes: &[u8], ctx: &ExecutionContext) -> entelix_core::Result<()> {
        within(ctx, async { self.session.write(path, bytes).await.map_err(failed) }).await
    }

    async fn list_dir(&self, path: &str, ctx: &ExecutionContext) -> entelix_core::Result<Vec<DirEntry>> {
        within(ctx, async { self.entries(path).await.map_err(failed) }).await
    }
}

/// Runs `work` until it ends or its context does. Starts nothing if the context has already ended.
async fn within<T>(
    ctx: &ExecutionContext,
    work: impl Future<Output = entelix_core::Result<T>>,
) -> entelix_core::Result<T> {
    let deadline = async {
        match ctx.deadline() {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = ctx.cancellation().cancelled() => Err(entelix_core::Error::Cancelled),
        () = deadline => Err(entelix_core::Error::DeadlineExceeded),
        done = work => done,
    }
}

/// Converts the output of a command to the trait's type.
fn command_output(output: Output) -> CommandOutput {
    let mut stderr = output.stderr;
    if let Some(failure) = output.outcome.failure().filter(|failure| failure.class == Class::Timeout) {
        if stderr.last().is_some_and(|last| *last != b'\n') {
            stderr.push(b'\n');
        }
        stderr.extend_from_slice(format!("{}\n", failure.message).as_bytes());
    }
    CommandOutput {
        exit_code: output.outcome.exit_code().into(),
        stdout: output.stdout,
        stderr,
        duration_ms: u64::try_from(output.outcome.duration.as_millis()).unwrap_or(u64::MAX),
    }
}

// Errors. The trait's crate shows `InvalidRequest` to the model, which can try something else. `Config` is
// for the operator.

/// Converts an error of Kennel to the trait's error.
pub(crate) fn failed(error: Error) -> entelix_core::Error {
    let words = error.chain();
    match error {
        Error::NotFound { .. }
        | Error::NoInterpreter { .. }
        | Error::NotExecutable { .. }
        | Error::Command { .. }
        | Error::File { .. } => entelix_core::Error::invalid_request(words),
        _ => match error.remedy() {
            Some(remedy) => entelix_core::Error::config(format!("{words}; hint: {remedy}")),
            None => entelix_core::Error::config(words),
        },
    }
}
