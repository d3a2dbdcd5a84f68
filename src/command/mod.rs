//! A command, shaped like `tokio::process`: the same for sandbox, session and pool.

pub(crate) mod child;
pub(crate) mod ending;
pub(crate) mod explain;
pub(crate) mod outlet;
pub(crate) mod output;
pub(crate) mod running;
pub(crate) mod source;
pub(crate) mod start;
pub(crate) mod stdio;
pub(crate) mod terminal;
pub(crate) mod variables;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::command::child::Child;
use crate::command::source::WorkerSource;
use crate::command::stdio::{Stdio, StdioKind};
use crate::command::variables::Variables;
use crate::plan::restrict::Restriction;
use crate::policy::limits::Limits;
use crate::report::error::Error;
use crate::report::outcome::{Outcome, Output};
use crate::sys::secret::Secret;

/// A command to be run in a [`Sandbox`](crate::session::sandbox::Sandbox) or [`Session`](crate::session::Session).
pub struct Command {
    source: Arc<dyn WorkerSource>,
    program: OsString,
    arguments: Vec<OsString>,
    environment: Variables,
    directory: Option<PathBuf>,
    timeout: Option<Duration>,
    terminal: Option<(u16, u16)>,
    stdin: Option<StdioKind>,
    stdout: Option<StdioKind>,
    stderr: Option<StdioKind>,
    kill_on_drop: bool,
    background: bool,
    fail_fast: bool,
    limits: Option<Limits>,
    narrowings: Vec<Restriction>,
    called: Option<OsString>,
    secrets: Vec<(OsString, Secret)>,
    caps: Option<[u64; 2]>,
}

/// Names only: values of variables may be secrets.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .field("variables", &self.environment.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("directory", &self.directory)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Command {
    pub(crate) fn new(source: Arc<dyn WorkerSource>, program: &OsStr) -> Self {
        Self {
            program: program.to_owned(),
            arguments: Vec::new(),
            environment: Variables::of(source.prepared().compiled.environment.0.clone()),
            directory: None,
            timeout: None,
            terminal: None,
            stdin: None,
            stdout: None,
            stderr: None,
            kill_on_drop: true,
            background: false,
            fail_fast: false,
            limits: None,
            narrowings: Vec::new(),
            called: None,
            secrets: Vec::new(),
            caps: None,
            source,
        }
    }

    /// Adds an argument.
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(&mut self, arguments: impl IntoIterator<Item = A>) -> &mut Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets a variable of the command's environment.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.environment.set(name.as_ref(), value.as_ref());
        self
    }

    /// Removes a variable from the command's environment.
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.environment.remove(name.as_ref());
        self
    }

    /// Removes every variable, also those of the policy.
    pub fn env_clear(&mut self) -> &mut Self {
        self.environment = Variables::of(Vec::new());
        self
    }

    /// Replaces the whole environment. Each name must occur once.
    pub(crate) fn replace_environment(&mut self, variables: Vec<(OsString, OsString)>) {
        self.environment = Variables::of(variables);
    }

    /// The program's first argument, its own name.
    pub(crate) fn called(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.called = Some(name.as_ref().to_owned());
        self
    }

    /// Variables for the next start only: they are wiped as soon as they are handed over.
    pub(crate) fn secrets(&mut self, secrets: Vec<(OsString, Secret)>) -> &mut Self {
        self.secrets = secrets;
        self
    }

    /// How many bytes of stdout and stderr are kept, instead of the limit for both.
    pub(crate) fn output_caps(&mut self, caps: [u64; 2]) -> &mut Self {
        self.caps = Some(caps);
        self
    }

    /// Where the command starts, as a path in the sandbox; a relative one starts at the policy's directory.
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    /// The command's wall time; after it, every process of the command is killed. At most the policy's own. It begins when a
    /// worker has the command, and does not count waiting for one: whoever wants a bound of everything puts
    /// `tokio::time::timeout` around the call, and what is dropped then is gone.
    ///
    /// Under `tokio::time::pause` the clock runs ahead whenever the runtime has nothing to do but to wait for the command,
    /// and its time is up at once.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.timeout = Some(timeout);
        self
    }

    /// Runs the command on a pseudoterminal of its own, of the given size in characters, as its controlling
    /// terminal and standard descriptors; see [`Child::terminal`].
    pub fn terminal(&mut self, rows: u16, columns: u16) -> &mut Self {
        self.terminal = Some((rows, columns));
        self
    }

    /// Standard input. Default: inherited, for [`output`](Self::output) `/dev/null`.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.stdin = Some(stdin.into().0);
        self
    }

    /// Standard output. Default: inherited, for [`output`](Self::output) collected.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.stdout = Some(stdout.into().0);
        self
    }

    /// Standard error. Default: inherited, for [`output`](Self::output) collected.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.stderr = Some(stderr.into().0);
        self
    }

    /// Whether dropping the [`Child`] ends the sandbox. Default: true. With false it lives on in the background of
    /// the runtime, and ends with it; dropped outside of a runtime, it ends at once.
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Self {
        self.kill_on_drop = kill;
        self
    }

    /// Whether processes that the command leaves behind live on until the session ends, with the command's own namespaces
    /// and private places. Default: false, they are killed when it ends. Only in a session.
    pub fn background(&mut self, background: bool) -> &mut Self {
        self.background = background;
        self
    }

    /// Whether to fail with [`Error::Busy`] if no worker is ready. Default: false, one is made and waited for.
    pub fn fail_fast(&mut self, fail_fast: bool) -> &mut Self {
        self.fail_fast = fail_fast;
        self
    }

    /// Tighter limits for this command: memory, CPU time, open files, file size, output and wall time. Those of
    /// the policy cannot be raised.
    pub fn limits(&mut self, limits: Limits) -> &mut Self {
        self.limits = Some(limits);
        self
    }

    /// Makes a grant of the policy, named by its path in the sandbox, read-only for this command, with everything below it.
    pub fn read_only(&mut self, grant: impl Into<PathBuf>) -> &mut Self {
        self.narrowings.push(Restriction::ReadOnly(grant.into()));
        self
    }

    /// Hides a grant of the policy, named by its path in the sandbox, from this command.
    pub fn hide(&mut self, grant: impl Into<PathBuf>) -> &mut Self {
        self.narrowings.push(Restriction::Hide(grant.into()));
        self
    }

    /// Gives this command a network of its own, with nothing in it but loopback.
    pub fn no_network(&mut self) -> &mut Self {
        self.narrowings.push(Restriction::NoNetwork);
        self
    }

    /// Starts the command: returns once its program runs. Given descriptors are used up: a second start of the
    /// same `Command` uses the defaults instead.
    ///
    /// # Errors
    /// Everything that keeps the program from running; nothing of the sandbox is left then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn spawn(&mut self) -> Result<Child, Error> {
        let mut child = self.start(|| StdioKind::Inherit, || StdioKind::Inherit).await?;
        child.started().await?;
        Ok(child)
    }

    /// Runs the command to its end.
    ///
    /// # Errors
    /// Those of [`spawn`](Self::spawn). A command that fails is not an error: see [`Outcome::status`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn status(&mut self) -> Result<Outcome, Error> {
        self.start(|| StdioKind::Inherit, || StdioKind::Inherit).await?.outcome().await
    }

    /// Runs the command to its end and collects what it writes.
    ///
    /// # Errors
    /// Those of [`spawn`](Self::spawn).
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn output(&mut self) -> Result<Output, Error> {
        self.start(|| StdioKind::Null, || StdioKind::Piped).await?.wait_with_output().await
    }

    /// As [`output`](Self::output), with `input` as standard input.
    ///
    /// # Errors
    /// Those of [`spawn`](Self::spawn). A command that does not read all of its input is not an error.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn output_with_input(&mut self, input: &[u8]) -> Result<Output, Error> {
        self.stdin = Some(StdioKind::Piped);
        let mut child = self.start(|| StdioKind::Null, || StdioKind::Piped).await?;
        let pipe = child.stdin.take();
        let write = async {
            if let Some(mut pipe) = pipe {
                // The command may close its input early; what it makes of that is its outcome.
                let _ = pipe.write_all(input).await;
            }
            pending().await
        };
        // Somebody else may have its end of the pipe and never read from it: with the command the writing ends.
        tokio::select! {
            output = child.wait_with_output() => output,
            never = write => never,
        }
    }
}
