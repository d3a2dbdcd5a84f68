//! `kennel run`: runs one command, passes signals on, and settles its changes with `--overlay`.

use std::{
    ffi::OsStr,
    io::{self, IsTerminal},
    os::fd::{AsFd, OwnedFd},
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use kennel::{Child, Command, Ended, Error, Outcome, Outlets, Policy, Report, Sandbox, Session, Terminal};
use nix::sys::signal::{Signal, raise};

use crate::{
    args::Run,
    ask::{self, Desk},
    flags, owner,
    process::{Signals, is_ending, runtime, start_blocking_thread},
    report,
    settle::{Choice, Settled},
    terminal::{self, Keyboard, Raw, Screen, Showing, copy_size},
};

/// Longer than any command runs.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Runs `kennel run`.
pub(crate) fn run(run: &Run) -> Result<ExitCode, Error> {
    if run.as_owner {
        owner::become_owner(run.policy.workspace.as_deref())?;
    }
    let json = run.json.as_deref().map(report::create).transpose()?;
    let result = confine(run);
    let written = match (&json, &run.json) {
        (Some(file), Some(path)) => report::write(file, path, &report::object(&report_of(&result))),
        _ => Ok(()),
    };
    // Print denials and degraded protections even if a later step failed.
    let Finished { outcome, settled } = result?;
    report::end(&outcome, run.quiet);
    let settled = settled?;
    settled.print(run);
    written?;
    Ok(settled.exit_code().unwrap_or(outcome.exit_code()).into())
}

fn report_of(result: &Result<Finished, Error>) -> Report {
    match result {
        Ok(Finished { outcome, settled: Ok(settled) }) => settled.add_to(Report::of_outcome(outcome)),
        Ok(Finished { outcome, settled: Err(error) }) => {
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
}

/// Runs the command in a sandbox or a session.
fn confine(run: &Run) -> Result<Finished, Error> {
    let mut policy = flags::from_flags(&run.policy)?;
    let desk = run.ask.then(|| Desk::open(&run.policy, &mut policy)).transpose()?;
    let choice = Choice::of(run, &mut policy)?;
    let program = run.command.first().ok_or(Error::NotFound { program: String::new() })?;
    let mut confinement = match (choice, &desk) {
        (Some(choice), _) => Confinement::Session(choice),
        (None, None) => Confinement::Sandbox(Sandbox::eager(&policy)?),
        (None, Some(desk)) => {
            Confinement::Sandbox(Sandbox::eager(&policy)?.on_request(ask::LONGEST, desk.callback()))
        }
    };
    let runtime = runtime(FOREVER)?;
    let finished = runtime.block_on(async {
        match &mut confinement {
            Confinement::Sandbox(sandbox) => {
                let ended = until_outcome(run, &policy, desk.as_ref(), sandbox.command(program)).await;
                // Remove the cgroup before this process ends.
                sandbox.shutdown().await;
                Ok(Finished { outcome: ended?, settled: Ok(Settled::default()) })
            }
            Confinement::Session(choice) => in_session(run, &policy, desk.as_ref(), choice, program).await,
        }
    });
    // Dropping the sandbox waits until its init is reaped: in a container no other process may reap it. Do not
    // wait for a thread that still reads input.
    drop((confinement, policy));
    runtime.shutdown_background();
    desk.iter().for_each(Desk::settle);
    finished
}

/// Runs the command in a session and settles its changes.
async fn in_session(
    run: &Run,
    policy: &Policy,
    desk: Option<&Desk>,
    choice: &mut Choice,
    program: &OsStr,
) -> Result<Finished, Error> {
    start_blocking_thread().await?;
    let prepare = async |policy: &Policy| {
        let mut builder = Session::builder(policy).ready_workers(1);
        if let Some(desk) = desk {
            builder = builder.on_request(ask::LONGEST, desk.callback());
        }
        builder.prepare().await
    };
    let session = choice.prepare(policy, prepare).await?;
    let mut ended = until_outcome(run, policy, desk, session.command(program)).await;
    let settled = match &mut ended {
        Ok(outcome) => choice.settle(&session, outcome).await,
        Err(_) => None,
    };
    session.shutdown().await;
    // Kept changes are committed when nothing uses them any more.
    drop(session);
    let settled = settled.unwrap_or_else(|| choice.settle_kept(ended.as_mut().ok()));
    Ok(Finished { outcome: ended?, settled })
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
    if run.tty || run.ask {
        return on_terminal(&mut command, desk).await;
    }
    let reasons = PipeReasons {
        capped: policy.limits.output.is_some(),
        reported: run.json.is_some(),
        explained: policy.explain,
    };
    on_descriptors(reasons, &mut command).await
}

/// Reasons why output passes through Kennel.
#[derive(Clone, Copy)]
struct PipeReasons {
    capped: bool,
    reported: bool,
    explained: bool,
}

impl PipeReasons {
    /// A report alone does not replace a terminal with a pipe: the command would notice.
    fn needs_pipe(self, stream: &impl IsTerminal) -> bool {
        self.capped || (self.reported && !stream.is_terminal())
    }
}

/// Gives the command this process's own descriptors. Kennel reads output only if it counts or limits it.
async fn on_descriptors(reasons: PipeReasons, command: &mut Command) -> Result<Outcome, Error> {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let reads_stderr = reasons.explained || reasons.needs_pipe(&stderr);
    let outlets = Outlets::new(
        command,
        reasons.needs_pipe(&stdout).then(|| duplicate(&stdout)).transpose()?,
        reads_stderr.then(|| duplicate(&stderr)).transpose()?,
    )?;
    let mut signals = Signals::to_forward()?;
    let mut child = command.spawn().await?;
    let copying = outlets.copy(&mut child);
    let mut outcome = until_end(&mut child, &mut signals, None).await?;
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
async fn on_terminal(command: &mut Command, desk: Option<&Desk>) -> Result<Outcome, Error> {
    let (rows, columns) = terminal::size()?;
    let screen = Screen::open()?;
    let keyboard = Keyboard::start()?;
    let mut signals = Signals::to_forward()?;
    let mut child = command.terminal(rows, columns).spawn().await?;
    let Some(terminal) = child.terminal.clone() else { return child.wait().await };
    let raw = Raw::enter().map_err(terminal::no_terminal)?;
    let typed = match desk {
        Some(desk) => desk.without_answers(keyboard.typed()),
        None => keyboard.typed(),
    };
    let mut typing = tokio::spawn(terminal::type_in(typed, terminal.clone()));
    let showing = Showing::start(terminal.clone(), screen);
    let ended = tokio::select! {
        outcome = until_end(&mut child, &mut signals, Some(Tty { terminal: &terminal, raw: &raw })) => Some(outcome),
        _ = &mut typing => None,
    };
    let outcome = match ended {
        Some(outcome) => outcome,
        None => {
            // The user's terminal is gone. Closing the last master descriptor hangs up the command.
            showing.abort();
            child.terminal = None;
            drop(terminal);
            until_end(&mut child, &mut signals, None).await
        }
    };
    typing.abort();
    desk.into_iter().for_each(Desk::close);
    let mut outcome = show_the_rest(showing, raw, outcome, &mut signals).await?;
    child.terminal.iter().for_each(|terminal| outcome.explain(terminal));
    Ok(outcome)
}

/// Shows the output that is still in transit, and records whether all of it was shown.
async fn show_the_rest(
    showing: Showing,
    raw: Raw,
    outcome: Result<Outcome, Error>,
    signals: &mut Signals,
) -> Result<Outcome, Error> {
    // If stdout is not a terminal, leave raw mode now, so that keys are signals again.
    let raw = Some(raw).filter(|_| io::stdout().is_terminal());
    let hurry = async {
        match &outcome {
            Ok(outcome) if outcome.ended != Ended::TimedOut => {
                wait_for_ending_signal(outcome.status, signals).await
            }
            _ => {}
        }
    };
    let shown = showing.finish(hurry).await;
    drop(raw);
    let mut outcome = outcome?;
    let was_killed = matches!(outcome.ended, Ended::TimedOut | Ended::Signaled);
    outcome.truncated |= shown.is_err();
    outcome.unwritten = terminal::unwritten(shown, was_killed).map(|error| error.chain());
    Ok(outcome)
}

/// The terminals of `--tty`.
#[derive(Clone, Copy)]
struct Tty<'t> {
    /// The command's terminal.
    terminal: &'t Terminal,
    /// The user's terminal.
    raw: &'t Raw,
}

/// Waits for the end of the command and passes signals on.
async fn until_end(child: &mut Child, signals: &mut Signals, tty: Option<Tty<'_>>) -> Result<Outcome, Error> {
    loop {
        let number = tokio::select! {
            outcome = child.wait() => return outcome,
            number = signals.next() => number,
        };
        forward(child, number, tty).map_err(|source| Error::Io { what: "pass a signal on", source })?;
    }
}

fn forward(child: &Child, number: i32, tty: Option<Tty<'_>>) -> io::Result<()> {
    match (number, tty) {
        (libc::SIGTSTP, _) => {
            child.signal(libc::SIGSTOP)?;
            tty.into_iter().for_each(|tty| tty.raw.restore());
            // Stop as the shell expects. The SIGCONT that resumes this process is passed on like any other
            // signal.
            return Ok(raise(Signal::SIGSTOP)?);
        }
        (libc::SIGCONT, Some(tty)) => tty.raw.reenter(tty.terminal)?,
        (libc::SIGWINCH, Some(tty)) => return copy_size(tty.terminal),
        _ => {}
    }
    child.signal(number)
}
