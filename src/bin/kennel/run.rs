//! `kennel run`: one command with the caller's own descriptors, signals passed on, its status for ours.

use std::{
    ffi::OsStr,
    io::{self, IsTerminal},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use kennel::{
    Change, Child, Command, Committed, Ended, Error, Outcome, Outlets, Policy, PolicyError, Refusal, Report,
    Sandbox, Session, Terminal,
};
use nix::sys::signal::{Signal, raise};

use crate::{
    FAILED,
    args::Run,
    flags,
    process::{Signals, have_a_thread, means_to_end, runtime},
    report,
    terminal::{self, Keyboard, Raw, Screen, Showing, fit},
};

/// Longer than any command.
const FOR_GOOD: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

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
    let policy = flags::from_flags(&run.policy)?;
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

/// What the command line asks for.
#[derive(Clone, Copy)]
enum Choice {
    Diff,
    Commit,
    Discard {
        /// Whether a report lists them.
        is_told: bool,
    },
}

impl Choice {
    /// `None` where there is no overlay.
    fn of(run: &Run, policy: &Policy) -> Result<Option<Self>, Error> {
        let choice = match (run.commit, run.discard) {
            (true, _) => Self::Commit,
            (_, true) => Self::Discard { is_told: run.json.is_some() },
            _ => Self::Diff,
        };
        match (&policy.overlay, run.diff || run.commit || run.discard) {
            (Some(_), _) => Ok(Some(choice)),
            (None, false) => Ok(None),
            (None, true) => Err(PolicyError::Value {
                key: "overlay".to_owned(),
                value: String::new(),
                reason: "--diff, --commit and --discard need --overlay".to_owned(),
            }
            .into()),
        }
    }

    /// Does it, once the command has ended. What is to be looked at is told with the outcome.
    async fn settle(self, session: &Session, outcome: &mut Outcome) -> Result<Settled, Error> {
        let mut settled = Settled::default();
        match self {
            Self::Commit if has_succeeded(outcome) => match session.commit().await {
                Ok(mut committed) => {
                    outcome.denials.append(&mut committed.denials);
                    settled.committed = Some(committed);
                }
                Err(error) => {
                    // They are all there are.
                    if let Some(left) = session.leave_changes()? {
                        report::say(format_args!(
                            "kennel: what the command wrote is left in {}",
                            left.display()
                        ));
                    }
                    return Err(error);
                }
            },
            Self::Discard { is_told: false } => {}
            _ => {
                settled.changes = Some(session.changes().await?);
                settled.were_to_be_committed = matches!(self, Self::Commit);
            }
        }
        if settled.has_refused() {
            settled.left = session.leave_changes()?;
        }
        session.discard().await?;
        Ok(settled)
    }
}

/// Whether the command did, whatever became of its output.
fn has_succeeded(outcome: &Outcome) -> bool {
    outcome.status.success() && !outcome.is_left
}

/// What became of them.
#[derive(Default)]
struct Settled {
    /// What is dropped.
    changes: Option<Vec<Change>>,
    /// Whether that was not the aim, had the command succeeded.
    were_to_be_committed: bool,
    committed: Option<Committed>,
    /// Where those are that could not be committed.
    left: Option<PathBuf>,
}

impl Settled {
    fn has_refused(&self) -> bool {
        self.committed.as_ref().is_some_and(|committed| !committed.refused.is_empty())
    }

    /// The report with the changes in it, and our own status.
    fn told(&self, mut report: Report) -> Report {
        report.exit_code = self.exit_code().unwrap_or(report.exit_code);
        report.changes = self.changes.clone();
        if self.were_to_be_committed {
            let dropped = report.changes.replace(Vec::new()).unwrap_or_default();
            let refused = dropped.into_iter().map(|change| change.refused(Refusal::Unsuccessful));
            report.refused_changes = Some(refused.collect());
        }
        if let Some(Committed { applied, refused, .. }) = &self.committed {
            report.changes = Some(applied.clone());
            report.refused_changes = Some(refused.clone());
        }
        report
    }

    /// What people are told.
    fn say(&self, run: &Run) {
        let changes = self.changes.iter().flatten();
        if !run.discard {
            changes.for_each(report::say);
        }
        if self.were_to_be_committed {
            report::say(format_args!("kennel: nothing was committed, because the command failed"));
        }
        let refused = self.committed.iter().flat_map(|committed| &committed.refused);
        refused.for_each(|refused| {
            report::say(format_args!("kennel: not committed: {}: {}", refused.change, refused.refusal));
        });
        if let Some(left) = &self.left {
            report::say(format_args!("kennel: what the command wrote is left in {}", left.display()));
        }
    }

    /// The status where not everything could be committed.
    fn exit_code(&self) -> Option<u8> {
        self.has_refused().then_some(FAILED)
    }
}
