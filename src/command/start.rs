//! Starts a command: from the policy to a worker that runs it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::audit::trail::Trail;
use crate::command::call::SHELL;
use crate::command::child::Child;
use crate::command::running::{CommandLog, CommandSpec, HandedOver, Running};
use crate::command::source::{Entered, ReadyWorker, Turn, Workers};
use crate::command::stdio::{Connected, StdioKind};
use crate::command::{Command, stdio};
use crate::explain::Explainer;
use crate::explain::context::{self, ExplainContext};
use crate::launch::prepared;
use crate::launch::prepared::Prepared;
use crate::plan::compile::Compiled;
use crate::plan::limits::tightened::{Tightened, tightened};
use crate::policy::units::Size;
use crate::report::error::{Error, STREAMS};
use crate::request::{RequestBuf, RequestFields};
use crate::restrict;
use crate::sys::closing;

/// What a standard stream is if the caller does not say.
#[derive(Clone, Copy)]
pub(crate) enum DefaultStdio {
    /// All three are inherited.
    Inherit,
    /// No input; both outputs go to pipes.
    Collect,
}

impl DefaultStdio {
    fn stdin(self) -> StdioKind {
        match self {
            Self::Inherit => StdioKind::Inherit,
            Self::Collect => StdioKind::Null,
        }
    }

    fn output(self) -> StdioKind {
        match self {
            Self::Inherit => StdioKind::Inherit,
            Self::Collect => StdioKind::Piped,
        }
    }
}

/// What a worker gets.
struct Ordered<'a> {
    prepared: &'a Prepared,
    trail: &'a Arc<Trail>,
    spec: &'a CommandSpec,
    request: &'a RequestBuf,
    stdio: [BorrowedFd<'a>; 3],
}

impl Command {
    /// Starts the command and returns once a worker has it. The program may not run yet.
    pub(crate) async fn start(&mut self, defaults: DefaultStdio) -> Result<Child, Error> {
        let Turn { prepared, workers, entered } = Arc::clone(&self.source).turn().await?;
        let (request, spec) = self.request(&prepared)?;
        let streams = self.connect(&spec, defaults)?;
        let trail = workers.trail();
        let mut log = self.open_log(&trail, workers.span(), &spec)?;
        let stdio = streams.each_ref().map(|stream| stream.command_end.as_fd());
        let ordered = Ordered { prepared: &prepared, trail: &trail, spec: &spec, request: &request, stdio };
        let handed_over = self.hand_over(&workers, entered, ordered).await;
        let handed_over = handed_over.inspect_err(|error| log.exec.record_failure(error))?;
        tracing::debug!(parent: &log.span, "handed over");
        // Wipes the environment, which may hold secrets.
        drop(request);
        let [stdin, stdout, stderr] = streams.map(|stream| (stream.command_end, stream.caller_end));
        closing::together([stdin.0, stdout.0, stderr.0]);
        let running = Running::new(handed_over, prepared, spec, log)?;
        Child::new(running, [stdin.1, stdout.1, stderr.1], self.kill_on_drop)
    }

    /// Checks the command against the policy. Returns what the worker receives and what this side remembers.
    fn request(&mut self, prepared: &Prepared) -> Result<(RequestBuf, CommandSpec), Error> {
        self.check_background()?;
        let compiled = &prepared.compiled;
        let directory = match &self.directory {
            Some(directory) => compiled.directory.join(directory),
            None => compiled.directory.clone(),
        };
        let limits = self.tightened_limits(compiled)?;
        let request = self.encode(&directory, &limits.steps)?;
        Ok((request, self.spec(compiled, directory, limits)?))
    }

    fn check_background(&self) -> Result<(), Error> {
        if !self.background || self.source.detached().is_some() {
            return Ok(());
        }
        Err(self.refused("background", "a command outside of a session leaves nothing behind".to_owned()))
    }

    /// The limits of the policy, lowered by those of the command.
    fn tightened_limits(&self, compiled: &Compiled) -> Result<Tightened, Error> {
        let mut limits =
            tightened(&compiled.limits, &compiled.groups, compiled.descriptors, self.bounds.limits.as_ref())?;
        // A restricted command has a fresh worker, which has just set the modes. A grant may be read-only by
        // now.
        if self.bounds.restrictions.is_empty() {
            limits.steps.extend_from_slice(&compiled.shared_modes.bytes);
        }
        Ok(limits)
    }

    /// Encodes what the worker receives. Takes the secrets out of the command: they are wiped when this
    /// returns, and also if it fails.
    fn encode(&mut self, directory: &Path, limit_steps: &[u8]) -> Result<RequestBuf, Error> {
        let secrets = std::mem::take(&mut self.secrets);
        RequestBuf::new(&RequestFields {
            program: &self.program,
            called: self.arg0.as_deref(),
            arguments: &self.arguments,
            environment: &self.environment,
            secrets: &secrets,
            directory,
            terminal: self.streams.terminal.as_ref(),
            background: self.background || self.source.is_shared(),
            limits: limit_steps,
        })
    }

    fn spec(&self, compiled: &Compiled, directory: PathBuf, limits: Tightened) -> Result<CommandSpec, Error> {
        let Tightened { limits, settings, entries, .. } = limits;
        let policy_timeout = limits.timeout.map(|span| span.duration());
        let output = limits.output.map(Size::bytes);
        let is_asked = compiled.explains || self.wants_hints;
        let typed = std::iter::once(&self.program).chain(&self.arguments).map(OsString::as_os_str);
        let context = Explainer::of(compiled).filter(|_| is_asked).map(|explainer| ExplainContext {
            explainer,
            directory: directory.clone(),
            limits: limits.clone(),
            restrictions: self.bounds.restrictions.clone(),
            words: context::words(typed),
        });
        Ok(CommandSpec {
            program: self.program.clone(),
            directory,
            timeout: [policy_timeout, self.bounds.timeout]
                .into_iter()
                .flatten()
                .min()
                .filter(|_| !self.is_keeper),
            output_caps: self.bounds.output_caps.map_or([output; 2], |caps| caps.map(Some)),
            limits,
            cgroup_settings: settings,
            limit_entries: entries,
            own_steps: restrict::steps(&compiled.grants, &self.bounds.restrictions)?,
            context: context.map(Arc::new),
            explains: compiled.explains,
            wants_hints: self.wants_hints,
        })
    }

    /// Opens the standard streams and takes the caller's descriptors out of the command.
    fn connect(&mut self, spec: &CommandSpec, defaults: DefaultStdio) -> Result<[Connected; 3], Error> {
        if spec.limits.output_ends && !self.is_keeper {
            self.check_output_is_counted(defaults)?;
        }
        let [input, output, error] = STREAMS.map(Error::io);
        let terminal = self.streams.terminal.as_ref();
        // What the command's own terminal replaces never leaves this program.
        let is_replaced = |number| terminal.is_some_and(|terminal| terminal.is_stream(number));
        let kind = |number, own: Option<StdioKind>, default| match own {
            _ if is_replaced(number) => StdioKind::Null,
            own => own.unwrap_or(default),
        };
        let stdin = kind(0, self.streams.stdin.take(), defaults.stdin());
        let stdout = kind(1, self.streams.stdout.take(), defaults.output());
        let stderr = kind(2, self.streams.stderr.take(), defaults.output());
        Ok([
            stdio::connect(stdin, io::stdin(), true).map_err(input)?,
            stdio::connect(stdout, io::stdout(), false).map_err(output)?,
            stdio::connect(stderr, io::stderr(), false).map_err(error)?,
        ])
    }

    /// Refuses output that does not pass through Kennel: `output_ends` needs somebody who counts the bytes.
    fn check_output_is_counted(&self, defaults: DefaultStdio) -> Result<(), Error> {
        let is_on_terminal =
            |number| self.streams.terminal.as_ref().is_some_and(|terminal| terminal.is_stream(number));
        let is_counted = |number, kind: &Option<StdioKind>| {
            let kind = kind.as_ref();
            !is_on_terminal(number)
                && matches!(kind.unwrap_or(&defaults.output()), StdioKind::Piped | StdioKind::Null)
        };
        if is_counted(1, &self.streams.stdout) && is_counted(2, &self.streams.stderr) {
            return Ok(());
        }
        let is_terminal = is_on_terminal(1) || is_on_terminal(2);
        let destination = if is_terminal { "a terminal" } else { "a descriptor of the caller" };
        let reason = format!(
            "goes to {destination}, where Kennel cannot count it, but limits.output_ends ends a command that \
                 writes too much: connect pipes, or leave output_ends out"
        );
        Err(self.refused("output", reason))
    }

    fn open_log(
        &self,
        trail: &Arc<Trail>,
        parent: Option<tracing::Id>,
        spec: &CommandSpec,
    ) -> Result<CommandLog, Error> {
        // Nothing enters this span: a span may not be held across an await.
        let span = tracing::debug_span!(parent: parent, "exec", program = ?self.program);
        let exec = match self.is_keeper {
            true => trail.begin(SHELL.as_ref(), &[], &spec.directory)?,
            false => trail.begin(&self.program, &self.arguments, &spec.directory)?,
        };
        Ok(CommandLog { exec, span })
    }

    /// Gives the request to a worker. If the worker was killed before that, it takes another one.
    async fn hand_over(
        &self,
        workers: &Arc<dyn Workers>,
        mut entered: Option<Entered>,
        Ordered { prepared, trail, spec, request, stdio }: Ordered<'_>,
    ) -> Result<HandedOver, Error> {
        loop {
            let own_steps = spec.own_steps.as_ref();
            let worker = workers.worker(prepared, trail, entered.take(), own_steps, self.fail_fast).await?;
            self.set_cgroup_limits(&worker, spec)?;
            let started_at = Instant::now();
            match prepared::send_request(&worker.inside, request, stdio) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe && workers.has_others()? => {}
                // If the only worker is gone, waiting for the command reports how it ended.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    return Err(Error::io("hand the command over")(error));
                }
                _ => {
                    let membership = Arc::clone(workers).join(self.is_keeper);
                    return Ok(HandedOver { worker, membership, started_at });
                }
            }
        }
    }

    /// Sets the limits of this command on its cgroup and starts the measurement, however long the worker has
    /// waited.
    fn set_cgroup_limits(&self, worker: &ReadyWorker, spec: &CommandSpec) -> Result<(), Error> {
        match worker.inside.leaf() {
            Some(leaf) => {
                leaf.begin();
                leaf.tighten(&spec.cgroup_settings)
            }
            None if spec.cgroup_settings.is_empty() => Ok(()),
            None => {
                let reason = "commands of this session share one cgroup: limit the session, or use isolation = \"command\"";
                Err(self.refused("limits", reason.to_owned()))
            }
        }
    }

    /// The error of a command that asks for what it cannot have.
    pub(crate) fn refused(&self, what: &'static str, reason: String) -> Error {
        Error::Command { what, value: self.program.to_string_lossy().into_owned(), reason }
    }
}
