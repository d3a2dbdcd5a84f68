//! `kennel run`: runs one command, passes signals on, and settles its changes with `--overlay`.

use std::{
    ffi::OsStr,
    future::pending,
    io::{self, IsTerminal},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use kennel::{
    Child, Command, Ended, Error, Outcome, Policy, Sandbox, Session,
    internal::{Outlets, is_one_file},
    report::Report,
};
use nix::sys::signal::{Signal, raise};
use tokio::{io::AsyncReadExt, net::unix::pipe, sync::mpsc::UnboundedReceiver};

use crate::{
    args::Run,
    ask::{self, Desk},
    flags,
    job::Job,
    learn::Learning,
    owner,
    process::{Signals, end, is_ending, runtime, start_blocking_thread},
    progress, report,
    settle::{Choice, Settled},
    terminal::{self, Screen, Showing},
    typist::Typed,
    user_terminal::{self, UserTerminal},
};

/// Longer than any command runs.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Runs `kennel run`.
pub(crate) fn run(run: &Run) -> Result<ExitCode, Error> {
    let asked = owner::Request { takes_keys: run.tty || run.ask, ..owner::Request::of(&run.policy) };
    if let Some(code) = owner::choose(&run.owner, asked)? {
        return Ok(code);
    }
    let json = run.json.as_deref().map(report::create).transpose()?;
    let result = confine(run);
    let written = match (&json, &run.json) {
        (Some(file), Some(path)) => report::write(file, path, &report::object(&report_of(&result))),
        _ => Ok(()),
    };
    // Print denials and degraded protections even if a later step failed.
    let Finished { outcome, settled, learned } = result?;
    report::end(&outcome, run.quiet);
    let settled = settled?;
    settled.print(run);
    learned?.iter().for_each(report::say);
    written?;
    let signal = outcome.status.signal().filter(|_| !run.exit_code);
    Ok(end(settled.exit_code().unwrap_or(outcome.exit_code()), signal))
}

fn report_of(result: &Result<Finished, Error>) -> Report {
    match result {
        Ok(Finished { outcome, settled: Ok(settled), learned: Ok(_) }) => {
            settled.add_to(Report::of_outcome(outcome))
        }
        Ok(Finished { outcome, settled: Err(error), .. } | Finished { outcome, learned: Err(error), .. }) => {
            let mut report = Report::of_outcome(outcome);
            report.exit_code = error.exit_code();
            report.failure = Some(error.failure());
            report
        }
        Err(error) => Report::failed(error),
    }
}

/// Where the command runs.
enum Confinement {
    /// A sandbox that has already started to prepare: without an overlay nothing has to wait for the runtime.
    Sandbox(Sandbox),
    /// A session with an overlay, and what to do with its changes.
    Session(Choice),
}

/// How the command ended, and what became of its changes.
struct Finished {
    outcome: Outcome,
    settled: Result<Settled, Error>,
    /// With `--learn`: what to say about the file that was written.
    learned: Result<Option<String>, Error>,
}

/// Runs the command in a sandbox or a session.
fn confine(run: &Run) -> Result<Finished, Error> {
    let mut policy = flags::from_flags(&run.policy)?;
    policy.notes.extend(flags::notes(&run.policy));
    let file = run.learn.as_deref();
    let learning = file.map(|file| Learning::begin(file, run, &mut policy)).transpose()?;
    let desk = run.ask.then(|| Desk::open(&run.policy, &mut policy)).transpose()?;
    let choice = Choice::of(run, &mut policy)?;
    let program = run.command.first().ok_or(Error::NotFound { program: String::new() })?;
    let mut confinement = match (choice, &desk) {
        (Some(choice), _) => Confinement::Session(choice),
        (None, desk) => {
            let sandbox = Sandbox::eager(&policy)?;
            Confinement::Sandbox(match (desk, &learning) {
                (Some(desk), _) => sandbox.on_request(ask::LONGEST, desk.callback()),
                (None, Some(learning)) => sandbox.on_request(ask::LONGEST, learning.callback()),
                (None, None) => sandbox,
            })
        }
    };
    let runtime = runtime(FOREVER)?;
    let mut finished = runtime.block_on(async {
        match &mut confinement {
            Confinement::Sandbox(sandbox) => {
                let ended = until_outcome(run, &policy, desk.as_ref(), sandbox.command(program)).await;
                // Remove the cgroup before this process ends.
                sandbox.shutdown().await;
                Ok(Finished { outcome: ended?, settled: Ok(Settled::default()), learned: Ok(None) })
            }
            Confinement::Session(choice) => {
                let deciders = (desk.as_ref(), learning.as_ref());
                in_session(run, &policy, deciders, choice, program).await
            }
        }
    });
    // Dropping the sandbox waits until its init is reaped: in a container no other process may reap it. Do
    // not wait for a thread that still reads input.
    drop((confinement, policy));
    runtime.shutdown_background();
    desk.iter().for_each(Desk::settle);
    if let (Some(learning), Ok(finished)) = (learning, &mut finished) {
        finished.learned = learning.write(&finished.outcome).map(Some);
    }
    finished
}

/// Runs the command in a session and settles its changes.
async fn in_session(
    run: &Run,
    policy: &Policy,
    (desk, learning): (Option<&Desk>, Option<&Learning>),
    choice: &mut Choice,
    program: &OsStr,
) -> Result<Finished, Error> {
    start_blocking_thread().await?;
    let prepare = async |policy: &Policy| {
        let mut builder = Session::builder(policy).ready_workers(1);
        if let Some(desk) = desk {
            builder = builder.on_request(ask::LONGEST, desk.callback());
        } else if let Some(learning) = learning {
            builder = builder.on_request(ask::LONGEST, learning.callback());
        }
        progress::shown("preparing the sandbox", builder.prepare()).await
    };
    let session = choice.prepare(policy, prepare).await?;
    let mut ended = until_outcome(run, policy, desk, session.command(program)).await;
    let settled = match &mut ended {
        Ok(outcome) => progress::shown("looking at the changes", choice.settle(&session, outcome)).await,
        Err(_) => None,
    };
    session.shutdown().await;
    // Kept changes are committed when nothing uses them any more.
    drop(session);
    let settled = settled.unwrap_or_else(|| choice.settle_kept(ended.as_mut().ok()));
    Ok(Finished { outcome: ended?, settled, learned: Ok(None) })
}

/// Runs the command to its end.
async fn until_outcome(
    run: &Run,
    policy: &Policy,
    desk: Option<&Desk>,
    mut command: Command,
) -> Result<Outcome, Error> {
    command.args(run.command.iter().skip(1));
    command.hints(!run.quiet && (policy.explain || io::stderr().is_terminal()));
    let reasons = PipeReasons { capped: policy.limits.output.is_some(), reported: run.json.is_some() };
    let takes_keys = run.tty || run.ask;
    // A terminal of the command's own replaces all three descriptors.
    let piped = if takes_keys { [false; 3] } else { reasons.piped() };
    let terminal = if takes_keys { Some(UserTerminal::whole()?) } else { UserTerminal::find(piped)? };
    let [_, reads_stdout, reads_stderr] = piped;
    let outlets = Outlets::new(
        &mut command,
        reads_stdout.then(|| duplicate(&io::stdout())).transpose()?,
        reads_stderr.then(|| duplicate(&io::stderr())).transpose()?,
    )?;
    match terminal {
        Some(terminal) => on_terminal(terminal, desk, outlets, &mut command).await,
        None => on_descriptors(outlets, &mut command).await,
    }
}

/// Reasons why output passes through Kennel.
#[derive(Clone, Copy)]
struct PipeReasons {
    capped: bool,
    reported: bool,
}

impl PipeReasons {
    /// Which standard descriptors of the command are pipes to Kennel.
    fn piped(self) -> [bool; 3] {
        [false, self.needs_pipe(&io::stdout()), self.needs_pipe(&io::stderr())]
    }

    /// A report alone does not replace a terminal with a pipe: the command would notice. Nor one file for
    /// both streams: two pipes would mix up what the command writes.
    fn needs_pipe(self, stream: &impl IsTerminal) -> bool {
        self.capped || (self.reported && !stream.is_terminal() && !is_one_file(io::stdout(), io::stderr()))
    }
}

/// Gives the command this process's own descriptors, of which none is a terminal.
async fn on_descriptors(outlets: Outlets, command: &mut Command) -> Result<Outcome, Error> {
    let mut signals = Signals::to_forward()?;
    let mut child = command.spawn().await?;
    report::chosen(&child.published());
    let copying = outlets.copy(&mut child);
    let mut outcome = until_end(&mut child, &mut signals).await?;
    let hurry = wait_for_ending_signal(outcome.status, &mut signals);
    copying.finish(&mut outcome, hurry).await;
    Ok(outcome)
}

fn duplicate(stream: &impl AsFd) -> Result<OwnedFd, Error> {
    let copied = stream.as_fd().try_clone_to_owned();
    copied.map_err(|source| Error::Io { what: "copy a standard descriptor", source })
}

/// Waits for a signal that ends this program, now that no command is left. Returns at once if such a signal
/// ended the command.
async fn wait_for_ending_signal(status: ExitStatus, signals: &mut Signals) {
    if signals.killed(status) {
        return;
    }
    loop {
        match signals.next().await {
            number if is_ending(number) => return,
            libc::SIGTSTP => drop(raise(Signal::SIGSTOP)),
            _ => {}
        }
    }
}

/// Gives the command its own terminal and copies between that and the user's terminal.
async fn on_terminal(
    terminal: UserTerminal,
    desk: Option<&Desk>,
    outlets: Outlets,
    command: &mut Command,
) -> Result<Outcome, Error> {
    let mut job = Job::prepare(terminal, desk.map(Desk::without_answers))?;
    let output = job.user().output().map_err(user_terminal::failed)?;
    let screen = Screen::open(output, job.is_raw())?;
    let mut signals = Signals::to_forward()?;
    let mut child = command.pseudoterminal(job.user().pseudoterminal()?).spawn().await?;
    report::chosen(&child.published());
    let copying = outlets.copy(&mut child);
    let Some(terminal) = child.terminal.clone() else { return child.wait().await };
    job.begin(&terminal)?;
    let showing = Showing::start(terminal, screen);
    let outcome = follow(&mut child, &mut signals, &mut job, &showing).await;
    desk.into_iter().for_each(Desk::close);
    let mut outcome = show_the_rest(showing, job, outcome, &mut signals).await?;
    let (truncated, unwritten) = (outcome.truncated, outcome.unwritten.take());
    let hurry = wait_for_ending_signal(outcome.status, &mut signals);
    copying.finish(&mut outcome, hurry).await;
    outcome.truncated |= truncated;
    outcome.unwritten = unwritten.or(outcome.unwritten);
    child.terminal.iter().for_each(|terminal| outcome.explain(terminal));
    Ok(outcome)
}

/// What happens while a command runs on a terminal.
enum Event {
    Ended(Box<Result<Outcome, Error>>),
    /// This program received a signal.
    Received(i32),
    /// A signal stopped the command.
    Stopped(i32),
    Typed(Typed),
}

/// Waits for the end of the command. Meanwhile it stops and continues with the command.
async fn follow(
    child: &mut Child,
    signals: &mut Signals,
    job: &mut Job,
    showing: &Showing,
) -> Result<Outcome, Error> {
    let mut stops = child.stops.take();
    let mut typed = TypedEvents::of(job)?;
    loop {
        let event = tokio::select! {
            biased;
            outcome = child.wait() => Event::Ended(Box::new(outcome)),
            number = signals.next() => Event::Received(number),
            Some(number) = next_stop(&mut stops) => Event::Stopped(number),
            event = typed.next() => Event::Typed(event),
        };
        match event {
            Event::Ended(outcome) => return *outcome,
            Event::Received(number) => job.received(number, child)?,
            Event::Stopped(number) => job.stopped(number, child)?,
            Event::Typed(Typed::Gone) => {
                // Closing the last master descriptor hangs up the command.
                showing.abort();
                child.terminal = None;
                job.hang_up();
            }
            Event::Typed(event) => job.typed(event),
        }
    }
}

async fn next_stop(stops: &mut Option<UnboundedReceiver<i32>>) -> Option<i32> {
    match stops {
        Some(stops) => stops.recv().await,
        None => None,
    }
}

/// What the thread for keys tells.
struct TypedEvents(Option<pipe::Receiver>);

impl TypedEvents {
    fn of(job: &Job) -> Result<Self, Error> {
        let copy = || pipe::Receiver::from_owned_fd(job.typist.events().try_clone()?);
        copy().map(|events| Self(Some(events))).map_err(user_terminal::failed)
    }

    async fn next(&mut self) -> Typed {
        if let Some(events) = &mut self.0 {
            if let Ok(byte) = events.read_u8().await {
                return Typed::of_byte(byte);
            }
            self.0 = None;
        }
        pending().await
    }
}

/// Shows the output that is still in transit, and records whether all of it was shown.
async fn show_the_rest(
    showing: Showing,
    job: Job,
    outcome: Result<Outcome, Error>,
    signals: &mut Signals,
) -> Result<Outcome, Error> {
    // If the output does not appear on a terminal, leave raw mode now, so that keys are signals again.
    let signal = outcome.as_ref().ok().and_then(|outcome| outcome.status.signal());
    let mut job = Some(job);
    if !showing.is_on_terminal() {
        job.take().into_iter().for_each(|job| job.end(signal));
    }
    let hurry = async {
        match &outcome {
            Ok(outcome) if outcome.ended != Ended::TimedOut => {
                wait_for_ending_signal(outcome.status, signals).await
            }
            _ => {}
        }
    };
    let shown = showing.finish(hurry).await;
    job.into_iter().for_each(|job| job.end(signal));
    let mut outcome = outcome?;
    let was_killed = matches!(outcome.ended, Ended::TimedOut | Ended::Signaled);
    outcome.truncated |= shown.is_err();
    outcome.unwritten = terminal::unwritten(shown, was_killed).map(|error| error.chain());
    Ok(outcome)
}

/// Waits for the end of the command and passes signals on.
async fn until_end(child: &mut Child, signals: &mut Signals) -> Result<Outcome, Error> {
    loop {
        let number = tokio::select! {
            outcome = child.wait() => return outcome,
            number = signals.next() => number,
        };
        forward(child, number).map_err(|source| Error::Io { what: "pass a signal on", source })?;
    }
}

fn forward(child: &Child, number: i32) -> io::Result<()> {
    if number == libc::SIGTSTP {
        child.signal(libc::SIGSTOP)?;
        // Stop as the shell expects. The SIGCONT that resumes this process is passed on like any other
        // signal.
        return Ok(raise(Signal::SIGSTOP)?);
    }
    child.signal(number)
}
