//! `kennel run`: one command with the caller's own descriptors, signals passed on, its status for ours.

use std::{
    ffi::OsStr,
    io::{self, IsTerminal},
    os::fd::{AsFd, OwnedFd},
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use kennel::{Child, Command, Ended, Error, Outcome, Outlets, Policy, Report, Sandbox, Session, Terminal};
use nix::sys::{
    resource::{Resource, getrlimit},
    signal::{Signal, raise},
};
use tokio::runtime::{Builder, Runtime};

use crate::{
    args::Run,
    overlay::{Choice, Settled},
    policy,
    raw::{Raw, fit},
    report,
    signals::{Signals, means_to_end},
    terminal::{self, Keyboard, Screen, Showing},
};

/// How long a thread that may block stays with nothing to do, where it can be had again.
pub(crate) const IDLE: Duration = Duration::from_secs(10);

/// Longer than any command.
const FOR_GOOD: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// What the runtime and one sandbox keep open at most.
const NEEDED_DESCRIPTORS: usize = 20;

/// Runs `kennel run`.
pub(crate) fn run(run: &Run) -> Result<ExitCode, Error> {
    let json = run.json.as_deref().map(report::create).transpose()?;
    let result = confine(run);
    let told = match (&json, &run.json) {
        (Some(file), Some(path)) => report::write(file, path, &report::object(&report_of(&result))),
        _ => Ok(()),
    };
    // Whatever failed at the end, what was refused and what is left is said.
    let (outcome, settled) = result?;
    report::end(&outcome, run.quiet);
    let settled = settled?;
    settled.say(run);
    told?;
    Ok(settled.exit_code().unwrap_or(outcome.exit_code()).into())
}

fn report_of(result: &Ran) -> Report {
    match result {
        Ok((outcome, Ok(settled))) => settled.told(Report::of_outcome(outcome)),
        Ok((outcome, Err(error))) => {
            let mut report = Report::of_outcome(outcome);
            report.exit_code = error.exit_code();
            report.failure = Some(error.failure());
            report
        }
        Err(error) => Report::failed(error),
    }
}

/// What the command runs in.
enum Ground {
    /// A sandbox, which has begun: nothing waits for the runtime where there is no overlay.
    Once(Sandbox),
    /// A session, and what is to become of its changes.
    Overlay(Choice),
}

/// How a command ended, and what became of its changes.
type Ran = Result<(Outcome, Result<Settled, Error>), Error>;

/// Runs the command.
fn confine(run: &Run) -> Ran {
    let policy = policy::from_flags(&run.policy)?;
    let choice = Choice::of(run, &policy)?;
    let program = run.command.first().ok_or(Error::NotFound { program: String::new() })?;
    let ground = match choice {
        Some(choice) => Ground::Overlay(choice),
        None => Ground::Once(Sandbox::eager(&policy)?),
    };
    let runtime = runtime(FOR_GOOD)?;
    let settled = runtime.block_on(async {
        match &ground {
            Ground::Once(sandbox) => {
                let ended = until_outcome(run, &policy, sandbox.command(program)).await;
                // Who looks when we are gone shall find no cgroup.
                sandbox.shutdown().await;
                Ok((ended?, Ok(Settled::default())))
            }
            Ground::Overlay(choice) => in_session(run, &policy, *choice, program).await,
        }
    });
    // A thread that waits for input nobody types may not hold up the exit. What is left of init is waited for, because in a
    // container it could be nobody's to take away; there is enough to do until it is gone.
    drop((ground, policy));
    runtime.shutdown_background();
    settled
}

/// Runs the command in a session, and settles its changes.
async fn in_session(run: &Run, policy: &Policy, choice: Choice, program: &OsStr) -> Ran {
    have_a_thread().await?;
    let session = Session::builder(policy).ready_workers(1).prepare().await?;
    let mut ended = until_outcome(run, policy, session.command(program)).await;
    let settled = match &mut ended {
        Ok(outcome) => choice.settle(&session, outcome).await,
        Err(_) => Ok(Settled::default()),
    };
    session.shutdown().await;
    Ok((ended?, settled))
}

/// Runs the command to its end.
async fn until_outcome(run: &Run, policy: &Policy, mut command: Command) -> Result<Outcome, Error> {
    command.args(run.command.iter().skip(1));
    if run.tty {
        return on_terminal(&mut command).await;
    }
    let counted = Counted {
        capped: policy.limits.output.is_some(),
        reported: run.json.is_some(),
        explained: policy.explain,
    };
    on_descriptors(counted, &mut command).await
}

/// One thread: the runtime only waits. Others, which may block, are let go when they were `idle` for so long.
pub(crate) fn runtime(idle: Duration) -> Result<Runtime, Error> {
    spare_descriptors().map_err(|source| Error::Io { what: "start the runtime", source })?;
    Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(idle)
        .build()
        .map_err(|source| Error::Io { what: "start the runtime", source })
}

/// Changes are committed, and programs loaded, on a thread that may block. It is had before anything runs: the runtime panics
/// where it cannot start one.
pub(crate) async fn have_a_thread() -> Result<(), Error> {
    let failed = |source| Error::Io { what: "start a thread", source };
    let _ = std::thread::Builder::new().spawn(|| ()).map_err(failed)?.join();
    let _ = tokio::task::spawn_blocking(|| ()).await;
    Ok(())
}

/// Why output passes through us at all.
#[derive(Clone, Copy)]
struct Counted {
    capped: bool,
    reported: bool,
    explained: bool,
}

impl Counted {
    /// A report is no reason to take a terminal from a command that would notice.
    fn needs_pipe(self, stream: &impl IsTerminal) -> bool {
        self.capped || (self.reported && !stream.is_terminal())
    }
}

/// The runtime panics where descriptors run out while it starts; where there could be too few, that is an error
/// before.
fn spare_descriptors() -> io::Result<()> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < 256 {
        let spare: io::Result<Vec<_>> =
            (0..NEEDED_DESCRIPTORS).map(|_| io::stdin().as_fd().try_clone_to_owned()).collect();
        drop(spare?);
    }
    Ok(())
}

/// The command gets our own descriptors. Output is read by us only where it must be counted or cut.
async fn on_descriptors(counted: Counted, command: &mut Command) -> Result<Outcome, Error> {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let reads_stderr = counted.explained || counted.needs_pipe(&stderr);
    let outlets = Outlets::new(
        command,
        counted.needs_pipe(&stdout).then(|| own(&stdout)).transpose()?,
        reads_stderr.then(|| own(&stderr)).transpose()?,
    )?;
    let mut signals = Signals::to_pass_on()?;
    let mut child = command.spawn().await?;
    let copying = outlets.copy(&mut child);
    let mut outcome = until_end(&mut child, &mut signals, None).await?;
    let hurry = told_to_end(outcome.status, &mut signals);
    copying.finish(&mut outcome, hurry).await;
    Ok(outcome)
}

fn own(stream: &impl AsFd) -> Result<OwnedFd, Error> {
    let copied = stream.as_fd().try_clone_to_owned();
    copied.map_err(|source| Error::Io { what: "copy a standard descriptor", source })
}

/// Waits for a signal that means to end us, when there is no command left to pass it on to; not where the command was ended by
/// one.
async fn told_to_end(status: ExitStatus, signals: &mut Signals) {
    if signals.have_ended(status) {
        return;
    }
    loop {
        match signals.next().await {
            number if means_to_end(number) => return,
            libc::SIGTSTP => drop(raise(Signal::SIGSTOP)),
            _ => {}
        }
    }
}

/// The command gets a terminal of its own; ours becomes a window onto it.
async fn on_terminal(command: &mut Command) -> Result<Outcome, Error> {
    let (rows, columns) = terminal::size()?;
    let screen = Screen::open()?;
    let keyboard = Keyboard::ready()?;
    let mut signals = Signals::to_pass_on()?;
    let mut child = command.terminal(rows, columns).spawn().await?;
    let Some(terminal) = child.terminal.clone() else { return child.wait().await };
    let raw = Raw::enter().map_err(terminal::absent)?;
    let mut typing = tokio::spawn(terminal::type_in(keyboard.typed(), terminal.clone()));
    let showing = Showing::start(terminal.clone(), screen);
    let ended = tokio::select! {
        outcome = until_end(&mut child, &mut signals, Some((&terminal, &raw))) => Some(outcome),
        _ = &mut typing => None,
    };
    let outcome = match ended {
        Some(outcome) => outcome,
        None => {
            // Ours is gone: the command is hung up when nobody holds its master any more.
            showing.abort();
            child.terminal = None;
            drop(terminal);
            until_end(&mut child, &mut signals, None).await
        }
    };
    typing.abort();
    show_the_rest(showing, raw, outcome, &mut signals).await
}

/// Shows what the command wrote last, which is still on its way, and enters what became of that.
async fn show_the_rest(
    showing: Showing,
    raw: Raw,
    outcome: Result<Outcome, Error>,
    signals: &mut Signals,
) -> Result<Outcome, Error> {
    // Where it is shown elsewhere, ours need not be raw any more, and its keys are signals again.
    let raw = Some(raw).filter(|_| io::stdout().is_terminal());
    let hurry = async {
        match &outcome {
            Ok(outcome) if outcome.ended != Ended::TimedOut => told_to_end(outcome.status, signals).await,
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

/// Waits for the end, passing signals on meanwhile.
async fn until_end(
    child: &mut Child,
    signals: &mut Signals,
    window: Option<(&Terminal, &Raw)>,
) -> Result<Outcome, Error> {
    loop {
        let number = tokio::select! {
            outcome = child.wait() => return outcome,
            number = signals.next() => number,
        };
        pass_on(child, number, window).map_err(|source| Error::Io { what: "pass a signal on", source })?;
    }
}

fn pass_on(child: &Child, number: i32, window: Option<(&Terminal, &Raw)>) -> io::Result<()> {
    match (number, window) {
        (libc::SIGTSTP, _) => {
            child.signal(libc::SIGSTOP)?;
            window.into_iter().for_each(|(_, raw)| raw.leave());
            // Stop as the shell expects of us; the SIGCONT that continues us is passed on like any other.
            return Ok(raise(Signal::SIGSTOP)?);
        }
        (libc::SIGCONT, Some((terminal, raw))) => raw.again(terminal)?,
        (libc::SIGWINCH, Some((terminal, _))) => return fit(terminal),
        _ => {}
    }
    child.signal(number)
}
