//! Starts a command: from the policy to a worker that runs it.

use std::ffi::OsString;
use std::io;
use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::audit::trail::Trail;
use crate::command::call::SHELL;
use crate::command::child::Child;
use crate::command::one_shot::start_worker;
use crate::command::running::hand_over::{HandedOver, Taker};
use crate::command::running::{CommandLog, CommandSpec, Owner, RefusalLogs, Running};
use crate::command::source::{Membership, ReadyWorker, SessionUser, Ticket, WarmCall, Warmth, WorkerSource};
use crate::command::{Command, CommandSource};
use crate::explain::Explainer;
use crate::explain::context::{self, ExplainContext};
use crate::launch::cgroup::leaf::Leaf;
use crate::launch::prepared;
use crate::launch::prepared::Prepared;
use crate::launch::request::{RequestBuf, RequestFields};
use crate::launch::restrict;
use crate::plan::compile::Compiled;
use crate::plan::limits::tightened::{Tightened, tightened};
use crate::policy::limits::Limits;
use crate::policy::units::Size;
use crate::process::stdio;
use crate::process::stdio::{Connected, DefaultStdio, StdioKind};
use crate::report::error::{Error, STREAMS};
use crate::report::outcome::Start;
use crate::sys::closing;

/// A command that is ready for a worker.
struct Order {
    prepared: Arc<Prepared>,
    trail: Arc<Trail>,
    request: RequestBuf,
    spec: CommandSpec,
    streams: [Connected; 3],
    log: CommandLog,
}

impl Command {
    /// Starts the command and returns once a worker has it. The program may not run yet.
    pub(crate) async fn start(&mut self, defaults: DefaultStdio) -> Result<Child, Error> {
        match self.source.clone() {
            CommandSource::OneShots(one_shots) => {
                let prepared = one_shots.renew()?;
                let trail = prepared.trail();
                let order = self.order(prepared, trail, tracing::Span::current().id(), defaults)?;
                let handed_over = self.start_one_shot(&order).await;
                self.follow(order, handed_over)
            }
            CommandSource::Session(session) => {
                let ticket = session.enter().await?;
                let (prepared, trail) = (Arc::clone(session.prepared()), Arc::clone(session.trail()));
                let order = self.order(prepared, trail, session.span(), defaults)?;
                let handed_over = self.take_interpreter_or_worker(&session, ticket, &order).await;
                self.follow(order, handed_over)
            }
        }
    }

    /// Checks the command, and opens its streams and its log.
    fn order(
        &mut self,
        prepared: Arc<Prepared>,
        trail: Arc<Trail>,
        parent: Option<tracing::Id>,
        defaults: DefaultStdio,
    ) -> Result<Order, Error> {
        let (request, spec) = self.request(&prepared)?;
        let streams = self.connect(&spec, defaults)?;
        let log = self.open_log(&trail, parent, &spec)?;
        Ok(Order { prepared, trail, request, spec, streams, log })
    }

    /// Follows a command that a worker has.
    fn follow(&self, order: Order, handed_over: Result<HandedOver, Error>) -> Result<Child, Error> {
        let Order { prepared, request, spec, streams, mut log, .. } = order;
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
            Some(directory) => compiled.commands.directory.join(directory),
            None => compiled.commands.directory.clone(),
        };
        let limits = self.tightened_limits(compiled)?;
        let request = self.encode(&directory, &limits.steps)?;
        Ok((request, self.spec(compiled, directory, limits)?))
    }

    fn check_background(&self) -> Result<(), Error> {
        if !self.background || self.source.is_session() {
            return Ok(());
        }
        Err(self.refused("background", "a command outside of a session leaves nothing behind".to_owned()))
    }

    /// The limits of the policy, lowered by those of the command.
    fn tightened_limits(&self, compiled: &Compiled) -> Result<Tightened, Error> {
        let mut limits = tightened(
            &compiled.commands.limits,
            &compiled.groups,
            compiled.commands.descriptors,
            self.bounds.limits.as_ref(),
        )?;
        // A restricted command has a fresh worker, which has just set the modes. A grant may be read-only by
        // now.
        if self.bounds.restrictions.is_empty() {
            limits.steps.extend_from_slice(&compiled.steps.shared_modes.bytes);
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
        let is_asked = compiled.commands.explains || self.wants_hints;
        let typed = std::iter::once(&self.program).chain(&self.arguments).map(OsString::as_os_str);
        let context = Explainer::of(compiled).filter(|_| is_asked).map(|explainer| ExplainContext {
            explainer,
            directory: directory.clone(),
            limits: limits.clone(),
            restrictions: self.bounds.restrictions.clone(),
            words: Vec::new(),
            unread: None,
        });
        // With `explain`, what the command tries is a fact.
        let watches = self.wants_hints && !compiled.commands.explains;
        let context = context.map(|context| context.typed(context::words(typed), watches));
        Ok(CommandSpec {
            program: self.program.clone(),
            directory,
            timeout: [policy_timeout, self.bounds.timeout]
                .into_iter()
                .flatten()
                .min()
                .filter(|_| self.user == SessionUser::Command),
            output_caps: self.bounds.output_caps.map_or([output; 2], |caps| caps.map(Some)),
            limits,
            cgroup_settings: settings,
            limit_entries: entries,
            own_steps: restrict::steps(&compiled.view, &self.bounds.restrictions)?,
            context: context.map(Arc::new),
            explains: compiled.commands.explains,
            wants_hints: self.wants_hints,
        })
    }

    /// Opens the standard streams and takes the caller's descriptors out of the command.
    fn connect(&mut self, spec: &CommandSpec, defaults: DefaultStdio) -> Result<[Connected; 3], Error> {
        if spec.limits.output_ends && self.user == SessionUser::Command {
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
        let exec = match self.user {
            SessionUser::Keeper => trail.begin(SHELL.as_ref(), &[], &spec.directory)?,
            SessionUser::Interpreter => trail.begin(&self.program, &[], &spec.directory)?,
            SessionUser::Command => trail.begin(&self.program, &self.arguments, &spec.directory)?,
        };
        Ok(CommandLog { exec, span })
    }

    /// Starts a sandbox for the command, and gives it the request.
    async fn start_one_shot(&self, order: &Order) -> Result<HandedOver, Error> {
        let own_steps = order.spec.own_steps.clone();
        let (worker, network) = start_worker(&order.prepared, &order.trail, own_steps).await?;
        let started_at = self.begin(worker.init.leaf(), order)?;
        let owner = Owner::OneShot(network);
        let refusals = RefusalLogs { proxy: owner.renew_proxy() };
        match order.send_to(&worker) {
            // If it is gone, waiting for the command reports how it ended.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(not_sent(error)),
            _ => {
                let to = Taker::Worker(Box::new(worker), Start::default());
                Ok(HandedOver { to, owner, refusals, started_at })
            }
        }
    }

    /// Gives the command to an interpreter of the session that waits for it, or to a worker.
    async fn take_interpreter_or_worker(
        &self,
        session: &Arc<dyn WorkerSource>,
        ticket: Ticket,
        order: &Order,
    ) -> Result<HandedOver, Error> {
        let mut start = Start::default();
        if self.is_warm && session.has_interpreters() {
            let generation = ticket.generation;
            let call = WarmCall { request: &order.request, generation, unfit: self.unfit(order) };
            match session.warm(call).await {
                Warmth::Other => {}
                Warmth::Executed(reason) => start = Start::Executed { reason: Some(reason) },
                Warmth::Warm(interpreter) => {
                    let refusals = RefusalLogs { proxy: session.renew_proxy() };
                    let started_at = self.begin(interpreter.init.leaf(), order)?;
                    match order.send_to_interpreter(&interpreter.link) {
                        Ok(()) => {
                            let owner = Owner::Session(Membership::new(Arc::clone(session), self.user));
                            let to = Taker::Interpreter(interpreter);
                            return Ok(HandedOver { to, owner, refusals, started_at });
                        }
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                            let reason = "the interpreter was killed".to_owned();
                            start = Start::Executed { reason: Some(reason) };
                        }
                        Err(error) => return Err(not_sent(error)),
                    }
                }
            }
        }
        self.take_worker(session, ticket, order, start).await
    }

    /// Why the command is executed, whatever waits for it.
    fn unfit(&self, order: &Order) -> Option<&'static str> {
        let [input, ..] = &order.streams;
        match () {
            () if input.command_end.as_fd().is_terminal() => Some("its input is a terminal"),
            () if self.streams.terminal.is_some() => Some("it has a terminal of its own"),
            () if self.bounds.limits.as_ref().is_some_and(is_kept_inside) => Some("it has limits of its own"),
            () if !self.bounds.restrictions.is_empty() => Some("it sees less than the policy grants"),
            () if self.background && !self.source.is_shared() => Some("it may leave processes behind"),
            () if self.arg0.is_some() => Some("it has a name of its own"),
            () => None,
        }
    }

    /// Gives the request to a worker of the session. If the worker was killed before that, it takes another
    /// one.
    async fn take_worker(
        &self,
        session: &Arc<dyn WorkerSource>,
        mut ticket: Ticket,
        order: &Order,
        start: Start,
    ) -> Result<HandedOver, Error> {
        loop {
            let own_steps = order.spec.own_steps.as_ref();
            let worker = session.worker(ticket, own_steps, self.fail_fast).await?;
            let started_at = self.begin(worker.init.leaf(), order)?;
            let refusals = RefusalLogs { proxy: session.renew_proxy() };
            match order.send_to(&worker) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) => return Err(not_sent(error)),
                Ok(()) => {
                    let owner = Owner::Session(Membership::new(Arc::clone(session), self.user));
                    let to = Taker::Worker(Box::new(worker), start);
                    return Ok(HandedOver { to, owner, refusals, started_at });
                }
            }
            drop(worker);
            ticket = session.enter().await?;
        }
    }

    /// The last step before the request. The command's time begins.
    fn begin(&self, leaf: Option<&Leaf>, order: &Order) -> Result<Instant, Error> {
        self.set_cgroup_limits(leaf, &order.spec)?;
        Ok(Instant::now())
    }

    /// Sets the limits of this command on its cgroup and starts the measurement, however long the worker has
    /// waited.
    fn set_cgroup_limits(&self, leaf: Option<&Leaf>, spec: &CommandSpec) -> Result<(), Error> {
        match leaf {
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

impl Order {
    fn send_to(&self, worker: &ReadyWorker) -> io::Result<()> {
        let stdio = self.streams.each_ref().map(|stream| stream.command_end.as_fd());
        prepared::send_request(&worker.init, &self.request, stdio)
    }

    fn send_to_interpreter(&self, link: &OwnedFd) -> io::Result<()> {
        let stdio = self.streams.each_ref().map(|stream| stream.command_end.as_fd());
        prepared::send_to_interpreter(link, &self.request, stdio)
    }
}

/// Whether a limit is one that the kernel keeps, from the start of a program on. Kennel keeps the others.
fn is_kept_inside(limits: &Limits) -> bool {
    let outside = Limits { output: None, output_ends: false, timeout: None, ..limits.clone() };
    outside != Limits::default()
}

fn not_sent(error: io::Error) -> Error {
    Error::io("hand the command over")(error)
}
