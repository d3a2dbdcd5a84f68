//! The standard streams of the command of `kennel run`: descriptors of this process, pipes, or a terminal of
//! its own. And its run between the beginning and the end.

use std::{
    future::pending,
    io::{self, IsTerminal},
    mem,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
};

use kennel::{
    Child, Command, Ended, Error, Outcome, Policy, Terminal,
    internal::{OutputCopier, is_one_file},
};
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    time::{sleep, timeout},
};

use super::ask::Prompt;
use crate::{
    args::run::Run,
    report,
    terminal::{
        job::Job,
        relay::{FIRST_READ, MAX_LAST_READS, NEXT_READ, REOPEN_PAUSE, Relay, unwritten},
        screen::Screen,
        typist::Typed,
        user_terminal::{self, UserTerminal},
    },
};

/// Runs the command to its end.
pub(super) async fn until_outcome(
    run: &Run,
    policy: &Policy,
    prompt: Option<&Prompt>,
    mut command: Command,
) -> Result<Outcome, Error> {
    command.hints(!run.quiet && (policy.explain || io::stderr().is_terminal()));
    let reasons = PipeReasons { capped: policy.limits.output.is_some(), reported: run.json.is_some() };
    let takes_keys = run.tty || run.ask;
    // A terminal of the command's own replaces all three descriptors.
    let piped = if takes_keys { [false; 3] } else { reasons.piped() };
    let terminal = if takes_keys { Some(UserTerminal::whole()?) } else { UserTerminal::find(piped)? };
    let [_, reads_stdout, reads_stderr] = piped;
    let copier = OutputCopier::new(
        &mut command,
        reads_stdout.then(|| duplicate(&io::stdout())).transpose()?,
        reads_stderr.then(|| duplicate(&io::stderr())).transpose()?,
    )?;
    relayed(terminal, prompt, copier, &mut command).await
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

fn duplicate(stream: &impl AsFd) -> Result<OwnedFd, Error> {
    let copied = stream.as_fd().try_clone_to_owned();
    copied.map_err(|source| Error::Io { what: "copy a standard descriptor", source })
}

/// Runs the command with its terminal, if it gets one.
async fn relayed(
    user: Option<UserTerminal>,
    prompt: Option<&Prompt>,
    copier: OutputCopier,
    command: &mut Command,
) -> Result<Outcome, Error> {
    let mut relay = Relay::prepare(user, prompt.map(Prompt::without_answers))?.in_runtime()?;
    if let Some(terminal) = relay.pseudoterminal()? {
        command.pseudoterminal(terminal);
    }
    let mut child = command.spawn().await?;
    report::chosen(&child.published());
    let copies = copier.copy(&mut child);
    let mut terminal = child.terminal.clone();
    if let Some(terminal) = &terminal {
        relay.begin(terminal)?;
    }
    let outcome = until_end(&mut child, &mut relay, &mut terminal).await;
    prompt.into_iter().for_each(Prompt::close);
    let shown = show_rest(&mut relay, terminal, &outcome).await;
    let mut outcome = outcome?;
    let hurry = relay.signals.ending(outcome.status);
    copies.finish(&mut outcome, hurry).await;
    outcome.truncated |= shown.is_err();
    let was_killed = matches!(outcome.ended, Ended::TimedOut | Ended::Signaled);
    let unwritten = unwritten(shown, was_killed).map(|error| error.chain());
    outcome.unwritten = unwritten.or(outcome.unwritten);
    child.terminal.iter().for_each(|terminal| outcome.explain(terminal));
    Ok(outcome)
}

/// Waits for the end of the command. Meanwhile it copies, passes signals on, and stops and continues with the
/// command.
async fn until_end(
    child: &mut Child,
    relay: &mut Relay,
    terminal: &mut Option<Terminal>,
) -> Result<Outcome, Error> {
    let mut stops = child.stops();
    let mut keys = Keys::of(relay)?;
    let mut bytes = [0; 8192];
    loop {
        let (signals, screen) = relay.parts();
        tokio::select! {
            biased;
            outcome = child.wait() => return outcome,
            number = signals.next() => relay.received(number, child)?,
            Some(signal) = stops.next() => relay.stopped(signal.number(), child)?,
            event = keys.next() => {
                relay.typed(event);
                if event == Typed::Gone {
                    // Closing the last master descriptor hangs up the command.
                    (*terminal, child.terminal) = (None, None);
                }
            }
            count = output(terminal.as_mut(), &mut bytes, screen.as_deref()) => {
                if let (_, Some(screen)) = relay.parts() {
                    screen.show(bytes.get(..count).unwrap_or_default());
                }
            }
        }
    }
}

/// What the thread for keys tells.
struct Keys(Option<pipe::Receiver>);

impl Keys {
    fn of(relay: &Relay) -> Result<Self, Error> {
        let events = relay.job().and_then(Job::events);
        let receiver = events.map(|events| pipe::Receiver::from_owned_fd(events.try_clone()?));
        receiver.transpose().map(Self).map_err(user_terminal::failed)
    }

    async fn next(&mut self) -> Typed {
        let Some(events) = &mut self.0 else { return pending().await };
        let event = events.read_u8().await.map_or(Typed::Gone, Typed::of_byte);
        if event == Typed::Gone {
            self.0 = None;
        }
        event
    }
}

/// Reads output once the screen has taken what was read before. Returns nothing if the screen may take more
/// of that.
async fn output(from: Option<&mut Terminal>, bytes: &mut [u8], to: Option<&Screen>) -> usize {
    match (from, to) {
        (_, Some(screen)) if !screen.has_room() => {
            screen.has_changed().await;
            0
        }
        (Some(from), Some(_)) => loop {
            if let Ok(count @ 1..) = from.read(bytes).await {
                return count;
            }
            // No process has the terminal open now.
            sleep(REOPEN_PAUSE).await;
        },
        _ => pending().await,
    }
}

/// Shows the output that is still in transit, now that the command has ended, and restores the user's
/// terminal.
///
/// # Errors
/// Those of [`Screen::result`].
async fn show_rest(
    relay: &mut Relay,
    terminal: Option<Terminal>,
    outcome: &Result<Outcome, Error>,
) -> io::Result<()> {
    let ended = outcome.as_ref().ok();
    let signal = ended.and_then(|outcome| outcome.status.signal());
    relay.command_ended(signal);
    let (signals, screen) = relay.parts();
    let is_over =
        ended.is_none_or(|outcome| outcome.ended == Ended::TimedOut || signals.killed(outcome.status));
    let mut shown = Ok(());
    if let (Some(screen), Some(mut terminal)) = (screen, terminal) {
        let mut patience = signals.patience(is_over);
        let (mut bytes, mut waits) = ([0; 8192], true);
        screen.drain(&mut patience);
        for _ in 0..MAX_LAST_READS {
            let read = match timeout(NEXT_READ, terminal.read(&mut bytes)).await {
                Err(_) if mem::take(&mut waits) => timeout(FIRST_READ, terminal.read(&mut bytes)).await,
                read => read,
            };
            let Ok(Ok(count @ 1..)) = read else { break };
            screen.show(bytes.get(..count).unwrap_or_default());
            screen.drain(&mut patience);
        }
        shown = screen.result();
    }
    relay.end(signal);
    shown
}
