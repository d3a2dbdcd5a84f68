//! Builds and runs one command, in the shape of `tokio::process`. Sandboxes and sessions share it.

pub(crate) mod call;
pub(crate) mod child;
pub(crate) mod detached;
pub(crate) mod ending;
pub(crate) mod left_pipes;
pub(crate) mod one_shot;
pub(crate) mod outlet;
pub(crate) mod running;
pub(crate) mod source;
pub(crate) mod start;
pub(crate) mod tail;
pub(crate) mod terminal;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::command::child::Child;
use crate::command::one_shot::OneShots;
use crate::command::source::{SessionUser, WorkerSource};
use crate::launch::prepared::Prepared;
use crate::launch::restrict::Restriction;
use crate::plan::pseudoterminal::Pseudoterminal;
use crate::policy::limits::Limits;
use crate::process::stdio::{DefaultStdio, Stdio, StdioKind};
use crate::report::error::Error;
use crate::report::outcome::{Outcome, Output};
use crate::sys::closing::HeldFd;
use crate::sys::secret::Secret;

/// A command to run in a [`Sandbox`](crate::session::sandbox::Sandbox) or
/// [`Session`](crate::session::Session).
pub struct Command {
    source: CommandSource,
    program: OsString,
    /// `None`: the program as given.
    arg0: Option<OsString>,
    arguments: Vec<OsString>,
    /// Shared with the plan until it is changed.
    environment: Arc<BTreeMap<OsString, OsString>>,
    /// Variables for the next start only.
    secrets: Vec<(OsString, Secret)>,
    directory: Option<PathBuf>,
    streams: Streams,
    bounds: Bounds,
    kill_on_drop: bool,
    background: bool,
    fail_fast: bool,
    wants_hints: bool,
    is_warm: bool,
    user: SessionUser,
}

/// Where a command runs.
#[derive(Clone, Debug)]
pub(crate) enum CommandSource {
    /// In a sandbox of its own.
    OneShots(Arc<OneShots>),
    Session(Arc<dyn WorkerSource>),
}

impl CommandSource {
    /// The plan of the last start; before the first start, the plan it will use.
    fn prepared(&self) -> Arc<Prepared> {
        match self {
            Self::OneShots(one_shots) => one_shots.prepared(),
            Self::Session(session) => Arc::clone(session.prepared()),
        }
    }

    fn is_session(&self) -> bool {
        matches!(self, Self::Session(_))
    }

    /// Whether commands share their processes. Then background processes always live on.
    fn is_shared(&self) -> bool {
        matches!(self, Self::Session(session) if session.is_shared())
    }
}

/// The streams that the caller has set.
#[derive(Default)]
struct Streams {
    stdin: Option<StdioKind>,
    stdout: Option<StdioKind>,
    stderr: Option<StdioKind>,
    /// Rows and columns. A terminal replaces all three streams.
    terminal: Option<Pseudoterminal>,
    /// What a detached command writes goes there too.
    log_file: Option<HeldFd>,
}

/// How the caller bounds the command, beyond the policy.
#[derive(Clone, Default)]
struct Bounds {
    timeout: Option<Duration>,
    limits: Option<Limits>,
    /// Bytes of stdout and of stderr that Kennel keeps.
    output_caps: Option<[u64; 2]>,
    restrictions: Vec<Restriction>,
}

/// Shows only the names of variables: values may be secrets.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .field("variables", &self.environment.keys().collect::<Vec<_>>())
            .field("directory", &self.directory)
            .field("timeout", &self.bounds.timeout)
            .finish_non_exhaustive()
    }
}

impl Command {
    pub(crate) fn new(source: CommandSource, program: &OsStr) -> Self {
        Self {
            program: program.to_owned(),
            arg0: None,
            arguments: Vec::new(),
            environment: Arc::clone(&source.prepared().compiled.commands.environment.0),
            secrets: Vec::new(),
            directory: None,
            streams: Streams::default(),
            bounds: Bounds::default(),
            kill_on_drop: true,
            background: false,
            fail_fast: false,
            wants_hints: false,
            is_warm: true,
            user: SessionUser::Command,
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
        Arc::make_mut(&mut self.environment).insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    /// Removes a variable from the command's environment.
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        Arc::make_mut(&mut self.environment).remove(name.as_ref());
        self
    }

    /// Removes every variable, including those of the policy.
    pub fn env_clear(&mut self) -> &mut Self {
        self.environment = Arc::default();
        self
    }

    /// Replaces the whole environment.
    pub(crate) fn replace_environment(&mut self, variables: BTreeMap<OsString, OsString>) {
        self.environment = Arc::new(variables);
    }

    /// Makes this the keeper of a shell. The limits on time and output hold for each call of the shell, not
    /// for the keeper.
    pub(crate) fn keeper(&mut self) -> &mut Self {
        self.user = SessionUser::Keeper;
        self
    }

    /// Makes this an interpreter that waits for a command. The limits on time and output hold for that.
    pub(crate) fn interpreter(&mut self) -> &mut Self {
        (self.user, self.is_warm) = (SessionUser::Interpreter, false);
        self
    }

    /// Sets `argv[0]`. Default: the program as given.
    pub(crate) fn arg0(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.arg0 = Some(name.as_ref().to_owned());
        self
    }

    /// Sets variables for the next start only. Kennel wipes them as soon as the worker has them.
    pub(crate) fn secrets(&mut self, secrets: Vec<(OsString, Secret)>) -> &mut Self {
        self.secrets = secrets;
        self
    }

    /// Sets how many bytes of stdout and of stderr Kennel keeps, instead of one limit for both.
    pub(crate) fn output_caps(&mut self, caps: [u64; 2]) -> &mut Self {
        self.bounds.output_caps = Some(caps);
        self
    }

    /// Sets the working directory, as a path in the sandbox. A relative path starts at the policy's
    /// directory.
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    /// Sets the wall time of the command. When it is over, Kennel kills every process of the command. The
    /// policy's limit holds too; the shorter one counts. The time begins when a worker has the command.
    /// Waiting for a worker does not count. To limit the whole call, put `tokio::time::timeout` around it;
    /// dropping the call ends the command.
    ///
    /// Under `tokio::time::pause`, tokio moves the clock forward while the runtime only waits for the
    /// command. The command then times out at once.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.bounds.timeout = Some(timeout);
        self
    }

    /// Runs the command on its own pseudoterminal, with the given size in characters. The pseudoterminal is
    /// the controlling terminal and all three standard streams; see [`Child::terminal`].
    pub fn terminal(&mut self, rows: u16, columns: u16) -> &mut Self {
        self.pseudoterminal(Pseudoterminal::new(rows, columns))
    }

    /// Runs the command on a pseudoterminal that is not, or not only, all three standard streams.
    pub fn pseudoterminal(&mut self, terminal: Pseudoterminal) -> &mut Self {
        self.streams.terminal = Some(terminal);
        self
    }

    /// Sets standard input. Default: inherited; for [`output`](Self::output), `/dev/null`.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.streams.stdin = Some(stdin.into().0);
        self
    }

    /// Sets standard output. Default: inherited; for [`output`](Self::output), collected.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.streams.stdout = Some(stdout.into().0);
        self
    }

    /// Sets standard error. Default: inherited; for [`output`](Self::output), collected.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.streams.stderr = Some(stderr.into().0);
        self
    }

    /// Whether dropping the [`Child`] kills the command. Default: true. With false, a task of the runtime
    /// follows the command to its end, and the command ends with the runtime. If the child is dropped outside
    /// of a runtime, the command ends at once.
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Self {
        self.kill_on_drop = kill;
        self
    }

    /// Whether processes that the command leaves behind live on until the session ends. They keep the
    /// namespaces and the private directories of the command. Default: false, Kennel kills them when the
    /// command ends. Only in a session. With
    /// [`Isolation::Session`](crate::policy::profile::Isolation::Session) they always live on.
    pub fn background(&mut self, background: bool) -> &mut Self {
        self.background = background;
        self
    }

    /// Whether to fail with [`Error::Busy`] if no worker is ready. Default: false, the command waits for a
    /// new worker.
    pub fn fail_fast(&mut self, fail_fast: bool) -> &mut Self {
        self.fail_fast = fail_fast;
        self
    }

    /// Whether an interpreter that has started already may become the command, if the policy names it
    /// ([`Policy::warm`](field@crate::policy::Policy::warm)). Default: true. With false, the program is
    /// executed. [`Outcome::start`] says which it was.
    pub fn warm(&mut self, warm: bool) -> &mut Self {
        self.is_warm = warm;
        self
    }

    /// Whether [`Outcome::hints`] says what of the sandbox's doing may have made the command fail. Default:
    /// false. Kennel looks at the program and the arguments, and at the last lines of stderr or of a terminal
    /// that pass through it. It tells whether a path of the arguments exists outside, so the one who reads
    /// the hints must be the one who chose the arguments.
    pub fn hints(&mut self, hints: bool) -> &mut Self {
        self.wants_hints = hints;
        self
    }

    /// Sets tighter limits for this command: memory, CPU time, open files, file size, output and wall time.
    /// It cannot raise a limit of the policy.
    pub fn limits(&mut self, limits: Limits) -> &mut Self {
        self.bounds.limits = Some(limits);
        self
    }

    /// Makes a grant of the policy and everything below it read-only for this command. Name it by its path in
    /// the sandbox.
    pub fn read_only(&mut self, grant: impl Into<PathBuf>) -> &mut Self {
        self.bounds.restrictions.push(Restriction::ReadOnly(grant.into()));
        self
    }

    /// Hides a grant of the policy from this command. Name it by its path in the sandbox.
    pub fn hide(&mut self, grant: impl Into<PathBuf>) -> &mut Self {
        self.bounds.restrictions.push(Restriction::Hide(grant.into()));
        self
    }

    /// Gives this command its own network with only a loopback interface.
    pub fn no_network(&mut self) -> &mut Self {
        self.bounds.restrictions.push(Restriction::NoNetwork);
        self
    }

    /// Starts the command and returns once its program runs. A start takes the given descriptors: a second
    /// start of the same `Command` uses the defaults instead.
    ///
    /// # Errors
    /// Everything that keeps the program from running. Nothing of the sandbox is left then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn spawn(&mut self) -> Result<Child, Error> {
        let mut child = self.start(DefaultStdio::Inherit).await?;
        child.started().await?;
        Ok(child)
    }

    /// Runs the command to its end.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn). A command that fails is not an error: see [`Outcome::status`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn status(&mut self) -> Result<Outcome, Error> {
        self.start(DefaultStdio::Inherit).await?.outcome().await
    }

    /// Runs the command to its end and collects its output. The future does not borrow the command: futures
    /// of several can be collected, and run at the same time.
    ///
    /// ```no_run
    /// # async fn example(session: kennel::Session) -> Result<(), kennel::Error> {
    /// let runs: Vec<_> = (0..10).map(|n| session.command("echo").arg(n.to_string()).output()).collect();
    /// for run in runs {
    ///     print!("{}", String::from_utf8_lossy(&run.await?.stdout));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn).
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub fn output(&mut self) -> impl Future<Output = Result<Output, Error>> + Send + use<> {
        let mut command = self.for_one_start();
        async move { command.start(DefaultStdio::Collect).await?.wait_with_output().await }
    }

    /// The same command with what a start uses up: descriptors of the caller, and secrets.
    fn for_one_start(&mut self) -> Self {
        let streams =
            Streams { terminal: self.streams.terminal.clone(), ..std::mem::take(&mut self.streams) };
        self.streams.terminal.clone_from(&streams.terminal);
        Self {
            source: self.source.clone(),
            program: self.program.clone(),
            arg0: self.arg0.clone(),
            arguments: self.arguments.clone(),
            environment: Arc::clone(&self.environment),
            secrets: std::mem::take(&mut self.secrets),
            directory: self.directory.clone(),
            streams,
            bounds: self.bounds.clone(),
            ..*self
        }
    }

    /// Like [`output`](Self::output), with `input` as standard input.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn). A command that does not read all of its input is not an error.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn output_with_input(&mut self, input: &[u8]) -> Result<Output, Error> {
        self.streams.stdin = Some(StdioKind::Piped);
        let mut child = self.start(DefaultStdio::Collect).await?;
        let pipe = child.stdin.take();
        let write = async {
            if let Some(mut pipe) = pipe {
                // The command may close its input early. Its outcome tells whether that was a failure.
                let _ = pipe.write_all(input).await;
            }
            pending().await
        };
        // Another process may hold the reading end and never read. The writing ends with the command.
        tokio::select! {
            output = child.wait_with_output() => output,
            never = write => never,
        }
    }
}
