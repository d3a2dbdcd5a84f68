//! One command on macOS, in the shape of `tokio::process`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::{Future, pending};
use std::path::{Path, PathBuf};
use std::process::Command as StdCommand;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::Resource;
use tokio::io::AsyncWriteExt;

use crate::macos::cell::{Cell, Confinement};
use crate::macos::child::Child;
use crate::policy::limits::Limits;
use crate::process::group::Group;
use crate::process::program::{check_words, executable, variable};
use crate::process::stdio::{DefaultStdio, Stdio, StdioKind, connect_all};
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::outcome::{Outcome, Output};
use crate::sys::own_session::own_session;

/// A command of a [`Sandbox`](crate::macos::session::Sandbox) or [`Session`](crate::macos::session::Session).
pub struct Command {
    cell: Arc<Cell>,
    program: OsString,
    arguments: Vec<OsString>,
    variables: BTreeMap<OsString, OsString>,
    /// Whether `variables` are all that it gets.
    is_bare: bool,
    directory: Option<PathBuf>,
    streams: [Option<StdioKind>; 3],
    timeout: Option<Duration>,
    limits: Option<Limits>,
}

/// Shows only the names of variables: values may be secrets.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .field("variables", &self.variables.keys().collect::<Vec<_>>())
            .field("directory", &self.directory)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Command {
    pub(crate) fn new(cell: &Arc<Cell>, program: &OsStr) -> Self {
        Self {
            program: program.to_owned(),
            arguments: Vec::new(),
            variables: cell.variables.clone(),
            is_bare: false,
            directory: None,
            streams: [None, None, None],
            timeout: None,
            limits: None,
            cell: Arc::clone(cell),
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
        self.variables.insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    /// Removes a variable from the command's environment.
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.variables.remove(name.as_ref());
        self
    }

    /// Removes every variable, including those that name the temporary directory and the proxy.
    pub fn env_clear(&mut self) -> &mut Self {
        self.variables.clear();
        self.is_bare = true;
        self
    }

    /// Sets the working directory. A relative path starts at the policy's directory.
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    /// Sets the wall time, after which Kennel kills the process group of the command. The policy's limit
    /// holds too; the shorter one counts.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets tighter limits for this command: CPU time, open files, file size, output and wall time. It cannot
    /// raise a limit of the policy.
    pub fn limits(&mut self, limits: Limits) -> &mut Self {
        self.limits = Some(limits);
        self
    }

    /// Sets standard input. Default: inherited; for [`output`](Self::output), `/dev/null`.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.streams[0] = Some(stdin.into().0);
        self
    }

    /// Sets standard output. Default: inherited; for [`output`](Self::output), collected.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.streams[1] = Some(stdout.into().0);
        self
    }

    /// Sets standard error. Default: inherited; for [`output`](Self::output), collected.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.streams[2] = Some(stderr.into().0);
        self
    }

    /// Starts the command. A start takes the given descriptors: a second start of the same `Command` uses the
    /// defaults instead.
    ///
    /// # Errors
    /// Everything that keeps the program from running.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn spawn(&mut self) -> Result<Child, Error> {
        self.start(DefaultStdio::Inherit).await
    }

    /// Runs the command to its end.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn). A command that fails is not an error: see [`Outcome::status`].
    ///
    /// # Panics
    /// As for `spawn`.
    pub async fn status(&mut self) -> Result<Outcome, Error> {
        self.start(DefaultStdio::Inherit).await?.wait().await
    }

    /// Runs the command to its end and collects its output. The future does not borrow the command.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn).
    ///
    /// # Panics
    /// As for `spawn`.
    pub fn output(&mut self) -> impl Future<Output = Result<Output, Error>> + Send + use<> {
        let mut command = self.for_one_start();
        async move { command.start(DefaultStdio::Collect).await?.wait_with_output().await }
    }

    /// Like [`output`](Self::output), with `input` as standard input.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn). A command that does not read all of its input is not an error.
    ///
    /// # Panics
    /// As for `spawn`.
    pub async fn output_with_input(&mut self, input: &[u8]) -> Result<Output, Error> {
        self.streams[0] = Some(StdioKind::Piped);
        let mut child = self.start(DefaultStdio::Collect).await?;
        let pipe = child.stdin.take();
        let write = async {
            if let Some(mut pipe) = pipe {
                // The command may close its input early. Its outcome tells whether that was a failure.
                let _ = pipe.write_all(input).await;
            }
            pending().await
        };
        tokio::select! {
            output = child.wait_with_output() => output,
            never = write => never,
        }
    }

    /// The same command with what a start uses up.
    fn for_one_start(&mut self) -> Self {
        Self {
            cell: Arc::clone(&self.cell),
            program: self.program.clone(),
            arguments: self.arguments.clone(),
            variables: self.variables.clone(),
            directory: self.directory.clone(),
            streams: std::mem::take(&mut self.streams),
            limits: self.limits.clone(),
            ..*self
        }
    }

    /// Checks everything before there is a process, and starts it.
    async fn start(&mut self, default: DefaultStdio) -> Result<Child, Error> {
        let cell = Arc::clone(&self.cell);
        self.check()?;
        let directory = match &self.directory {
            Some(directory) => cell.places.directory_at(directory)?,
            None => cell.places.directory.clone(),
        };
        let limits = self.tightened()?;
        let proxy = cell.proxy().await?;
        let Confinement { profile, variables, temporary } =
            cell.confinement(proxy.map(|proxy| proxy.port))?;
        let mut environment = if self.is_bare { BTreeMap::new() } else { variables };
        environment.append(&mut self.variables.clone());
        let path = environment.get(OsStr::new("PATH")).map(OsString::as_os_str);
        let program = self.program_at(&executable(&self.program, path, &directory))?;
        let mut command = StdCommand::new(&cell.sandbox_exec);
        command.arg("-p").arg(profile).arg(program).args(&self.arguments);
        command.current_dir(&directory).env_clear().envs(&environment);
        own_session(&mut command, resources(&limits));
        let [stdin, stdout, stderr] = std::mem::take(&mut self.streams);
        let [stdout, stderr] = [stdout, stderr].map(|kind| kind.unwrap_or_else(|| default.output()));
        let ends = connect_all([stdin.unwrap_or_else(|| default.stdin()), stdout, stderr], &mut command)?;
        let mut exec = cell.trail.begin(&self.program, &self.arguments, &directory)?;
        let group = match Group::start(&mut command, cell.sandbox_exec.as_os_str()) {
            Ok(group) => group,
            Err(error) => {
                exec.record_failure(&error);
                return Err(missing(&cell, error));
            }
        };
        // The command's ends of the pipes: what is left of them here would keep its output open.
        drop(command);
        let cursor = proxy.map(|proxy| proxy.denial_cursor());
        Child::new(&cell, group, ends, limits, exec, cursor, temporary)
    }

    /// # Errors
    /// A string that no process can have.
    fn check(&self) -> Result<(), Error> {
        check_words(&self.program, &self.arguments)?;
        self.variables.iter().try_for_each(|(name, value)| variable(name, value).map(drop))
    }

    /// The program, if there is one that can be executed.
    fn program_at(&self, path: &Path) -> Result<PathBuf, Error> {
        let program = || self.program.to_string_lossy().into_owned();
        if !path.is_file() {
            return Err(Error::NotFound { program: program() });
        }
        match nix::unistd::access(path, nix::unistd::AccessFlags::X_OK) {
            Ok(()) => Ok(path.to_owned()),
            Err(errno) => Err(Error::NotExecutable { program: program(), source: errno.into() }),
        }
    }

    /// The limits of the policy, and the tighter ones of the command.
    fn tightened(&self) -> Result<Limits, Error> {
        let policy = &self.cell.policy.limits;
        let own = self.limits.clone().unwrap_or_default();
        own.check()?;
        let timeouts = [policy.timeout, own.timeout, self.timeout.map(Into::into)];
        Ok(Limits {
            cpu_time: least([policy.cpu_time, own.cpu_time]),
            open_files: least([policy.open_files, own.open_files]),
            file_size: least([policy.file_size, own.file_size]),
            output: least([policy.output, own.output]),
            timeout: least(timeouts),
            output_ends: policy.output_ends || own.output_ends,
            ..Limits::default()
        })
    }
}

/// The smallest limit of those that are set.
fn least<T: Ord, const N: usize>(limits: [Option<T>; N]) -> Option<T> {
    limits.into_iter().flatten().min()
}

/// The limits that the kernel keeps for each process.
fn resources(limits: &Limits) -> Vec<(Resource, u64)> {
    let mut resources = vec![(Resource::RLIMIT_CORE, 0)];
    resources.extend(limits.cpu_time.map(|span| (Resource::RLIMIT_CPU, span.whole_seconds())));
    resources.extend(limits.open_files.map(|count| (Resource::RLIMIT_NOFILE, count)));
    resources.extend(limits.file_size.map(|size| (Resource::RLIMIT_FSIZE, size.bytes())));
    resources
}

/// The error of a start: the program is there, so what is missing is `sandbox-exec`.
fn missing(cell: &Cell, error: Error) -> Error {
    match error {
        Error::NoProgram { .. } => Error::Unavailable {
            protection: Protection::Root,
            reason: format!("{} is missing", cell.sandbox_exec.display()),
            remedy: None,
        },
        error => error,
    }
}
