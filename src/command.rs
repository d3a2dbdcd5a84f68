//! A sandbox and its commands, shaped like `tokio::process`.

use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    Child, Enforcement, Error, Outcome, Output, Policy, Stdio,
    caller::Caller,
    compile::{
        self, Compiled,
        request::{RequestBuf, Wanted},
    },
    host::Host,
    running::Running,
    start::{self, Images},
    stdio::{self, Connected, Kind},
};

/// A policy made ready for this host: every command of it runs in a fresh sandbox of its own.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::Error> {
/// use kennel::{Policy, Profile, Sandbox};
///
/// let sandbox = Sandbox::new(&Policy::profile(Profile::ReadOnly, "."))?;
/// let outcome = sandbox.command("ls").arg("-l").status().await?;
/// assert!(outcome.status.success());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Sandbox {
    prepared: Arc<Prepared>,
}

#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) compiled: Compiled,
    images: Images,
}

impl Sandbox {
    /// Checks the policy against this host and compiles it. Starts nothing.
    ///
    /// # Errors
    /// A policy that contradicts itself, a path that cannot be granted, a required protection that this host
    /// does not have.
    pub fn new(policy: &Policy) -> Result<Self, Error> {
        Self::on(policy, &Host::detect(), &Caller::current())
    }

    fn on(policy: &Policy, host: &Host, caller: &Caller) -> Result<Self, Error> {
        let compiled = compile::compile(policy, host, caller)?;
        Ok(Self { prepared: Arc::new(Prepared { compiled, images: Images::new()? }) })
    }

    /// A command to run in this sandbox. A `program` without a slash is looked for in the command's PATH, inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command {
            prepared: Arc::clone(&self.prepared),
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: self.prepared.compiled.environment.0.clone(),
            directory: None,
            timeout: self.prepared.compiled.limits.timeout.map(|span| span.duration()),
            terminal: None,
            stdin: None,
            stdout: None,
            stderr: None,
            kill_on_drop: true,
        }
    }

    /// What will be in force if every step of the start succeeds.
    #[must_use]
    pub fn enforcement(&self) -> &Enforcement {
        &self.prepared.compiled.enforcement
    }
}

/// A command to be run in a [`Sandbox`].
pub struct Command {
    prepared: Arc<Prepared>,
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    timeout: Option<Duration>,
    terminal: Option<(u16, u16)>,
    stdin: Option<Kind>,
    stdout: Option<Kind>,
    stderr: Option<Kind>,
    kill_on_drop: bool,
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
        self.env_remove(name.as_ref());
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Removes a variable from the command's environment.
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.environment.retain(|(other, _)| other != name.as_ref());
        self
    }

    /// Removes every variable, also those of the policy.
    pub fn env_clear(&mut self) -> &mut Self {
        self.environment.clear();
        self
    }

    /// Where the command starts, as a path in the sandbox; a relative one is taken from the policy's directory.
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    /// The command's wall time; when it is up, everything in the sandbox is killed.
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
    /// the runtime, and ends with it.
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Self {
        self.kill_on_drop = kill;
        self
    }

    /// Starts the command: returns once its program runs. Given descriptors are used up: a second start of the
    /// same `Command` has the defaults in their place.
    ///
    /// # Errors
    /// Everything that keeps the program from running; nothing of the sandbox is left then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub async fn spawn(&mut self) -> Result<Child, Error> {
        let mut child = self.start(|| Kind::Inherit, || Kind::Inherit)?;
        child.started().await?;
        Ok(child)
    }

    /// Runs the command to its end.
    ///
    /// # Errors
    /// Those of [`spawn`](Self::spawn). A command that fails is no error: see [`Outcome::status`].
    pub async fn status(&mut self) -> Result<Outcome, Error> {
        self.start(|| Kind::Inherit, || Kind::Inherit)?.wait().await
    }

    /// Runs the command to its end and collects what it writes.
    ///
    /// # Errors
    /// Those of [`spawn`](Self::spawn).
    pub async fn output(&mut self) -> Result<Output, Error> {
        self.start(|| Kind::Null, || Kind::Piped)?.wait_with_output().await
    }

    /// As [`output`](Self::output), with `input` as standard input.
    ///
    /// # Errors
    /// Those of [`spawn`](Self::spawn). A command that does not read all of its input is no error.
    pub async fn output_with_input(&mut self, input: &[u8]) -> Result<Output, Error> {
        self.stdin = Some(Kind::Piped);
        let mut child = self.start(|| Kind::Null, || Kind::Piped)?;
        let pipe = child.stdin.take();
        let write = async {
            if let Some(mut pipe) = pipe {
                // The command may close its input early; what it makes of that is its outcome.
                let _ = pipe.write_all(input).await;
            }
        };
        let (output, ()) = tokio::join!(child.wait_with_output(), write);
        output
    }

    fn start(&mut self, stdin: fn() -> Kind, out: fn() -> Kind) -> Result<Child, Error> {
        let prepared = Arc::clone(&self.prepared);
        let compiled = &prepared.compiled;
        let directory = match &self.directory {
            Some(directory) => compiled.directory.join(directory),
            None => compiled.directory.clone(),
        };
        let request = RequestBuf::new(&Wanted {
            program: &self.program,
            arguments: &self.arguments,
            environment: &self.environment,
            directory: &directory,
            terminal: self.terminal,
        })?;
        let open = Error::io("open a standard descriptor");
        let [input, output, error] = self.connect(stdin, out).map_err(open)?;
        let theirs = [input.theirs.as_fd(), output.theirs.as_fd(), error.theirs.as_fd()];
        tracing::debug!(program = ?self.program, "start");
        let inside = start::start(&prepared.images, compiled, &request, theirs)?;
        let running = Running::new(inside, prepared, (self.program.clone(), directory), self.timeout)?;
        let mut child = Child::new(running, self.kill_on_drop);
        child.connect([input.ours, output.ours, error.ours])?;
        Ok(child)
    }

    fn connect(&mut self, stdin: fn() -> Kind, out: fn() -> Kind) -> io::Result<[Connected; 3]> {
        Ok([
            stdio::connect(self.stdin.take().unwrap_or_else(stdin), io::stdin(), true)?,
            stdio::connect(self.stdout.take().unwrap_or_else(out), io::stdout(), false)?,
            stdio::connect(self.stderr.take().unwrap_or_else(out), io::stderr(), false)?,
        ])
    }
}

/// Reads a stream to its end.
pub(crate) async fn collect(stream: Option<&mut crate::ChildOutput>) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.read_to_end(&mut bytes).await.map_err(Error::io("read the command's output"))?;
    }
    Ok(bytes)
}
