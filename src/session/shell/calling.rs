//! One call: it runs in a task of its own, so that the shell is in order again however the caller goes on.

use std::ffi::{OsStr, OsString};
use std::future::pending;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedMutexGuard, oneshot, watch};
use tokio::time::Instant as Deadline;

use crate::command::call::CallEnd;
use crate::command::outlet::{OutputCopier, RunningCopies};
use crate::command::running::{flooded, until};
use crate::command::source::WorkerSource;
use crate::process::cause::{Cause, Flood};
use crate::process::output::{ChildOutput, Collected};
use crate::report::enforcement::Note;
use crate::report::error::Error;
use crate::report::outcome::Outcome;
use crate::report::shell::ShellOrigin;
use crate::session::shell::ShellState;
use crate::session::shell::keeper::{CallFiles, Keeper, Reports, call_pipe, left};
use crate::sys::packet;

/// When an interrupted snippet gets SIGINT once more: bash drops the signal if a command ends by itself at
/// that moment.
const REPEAT: Duration = Duration::from_secs(1);

/// How long a snippet may take to end after SIGINT; then what it has started is killed. After as long again,
/// the shell is.
const GRACE: Duration = Duration::from_secs(2);

/// When to ask an interrupted shell once more for its report: sh forgets what it has not read yet. Each wait
/// is twice as long as the one before, so that a slow shell catches up.
const FIRST_ASK: Duration = Duration::from_millis(50);

/// What the caller asks for.
pub(crate) struct Job {
    pub(crate) snippet: OsString,
    pub(crate) timeout: Option<Duration>,
    pub(crate) cap: Option<u64>,
    /// Whether a line follows output that a cap cut.
    pub(crate) is_marked: bool,
    /// Where the output goes; `None` collects it.
    pub(crate) copier: Option<OutputCopier>,
}

/// A call, before it runs.
pub(crate) struct Calling {
    pub(crate) session: Arc<dyn WorkerSource>,
    pub(crate) state: OwnedMutexGuard<ShellState>,
    pub(crate) interrupts: watch::Receiver<u64>,
    /// Ends when the caller has gone.
    pub(crate) caller: oneshot::Receiver<()>,
    pub(crate) job: Job,
}

/// A call that has ended.
pub(crate) struct Called {
    pub(crate) outcome: Outcome,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) origin: ShellOrigin,
    pub(crate) has_ended: bool,
    pub(crate) output: CallOutput,
}

/// What a call writes, on its way.
pub(crate) enum CallOutput {
    Collected(Box<[Collected; 2]>),
    Copying(RunningCopies),
}

impl CallOutput {
    fn new([stdout, stderr]: [ChildOutput; 2], copier: Option<OutputCopier>) -> Self {
        match copier {
            None => Self::Collected(Box::new([stdout, stderr].map(|stream| Collected::new(Some(stream))))),
            Some(copier) => Self::Copying(copier.copy_from([&mut Some(stdout), &mut Some(stderr)])),
        }
    }

    /// Reads once, if it is collected here.
    async fn read(&mut self) -> Result<(), Error> {
        let Self::Collected(streams) = self else { return pending().await };
        let [stdout, stderr] = &mut **streams;
        tokio::select! {
            read = stdout.read(), if stdout.is_open() => read,
            read = stderr.read(), if stderr.is_open() => read,
            else => pending().await,
        }
    }
}

impl Calling {
    /// Runs the call to its end.
    pub(crate) async fn run(mut self) -> Result<Called, Error> {
        let origin = self.ready().await?;
        let Some(mut keeper) = self.state.keeper.take() else { return Err(Error::Lost) };
        let driven = self.drive(&mut keeper, origin).await;
        // After an error nothing is known about the shell.
        if driven.as_ref().is_ok_and(|called| !called.has_ended) {
            self.state.keeper = Some(keeper);
        }
        driven
    }

    /// Has a shell that fits the host's files now: the one there is, or a new one.
    async fn ready(&mut self) -> Result<ShellOrigin, Error> {
        let generation = self.generation().await?;
        if let Some(mut keeper) = self.state.keeper.take() {
            // Shared mounts are mounted again under the shell.
            let is_current = self.session.is_shared() || keeper.generation == generation;
            if is_current && keeper.is_there() {
                self.state.keeper = Some(keeper);
                return Ok(ShellOrigin::Earlier);
            }
            // Its mounts may no longer protect what they were made for.
            let _ = keeper.child.kill().await;
        }
        self.state.keeper = Some(Keeper::start(&self.session, generation).await?);
        let is_first = !std::mem::replace(&mut self.state.has_had_one, true);
        Ok(if is_first { ShellOrigin::First } else { ShellOrigin::Replacement })
    }

    /// Checks the host's files, as before every command.
    async fn generation(&self) -> Result<u64, Error> {
        Ok(self.session.enter().await?.generation)
    }

    async fn drive(&mut self, keeper: &mut Keeper, origin: ShellOrigin) -> Result<Called, Error> {
        let begun = Instant::now();
        let running = keeper.child.running().ok_or(Error::Lost)?;
        let mut exec = running.begin_call(&self.job.snippet, &keeper.directory)?;
        let running = keeper.child.running().ok_or(Error::Lost)?;
        let limits = &running.spec.limits;
        let policy_timeout = limits.timeout.map(|span| span.duration());
        let timeout = [policy_timeout, self.job.timeout].into_iter().flatten().min();
        let flood = limits.output_ends.then(Arc::<Flood>::default);
        let (stdout, to_stdout) = call_pipe()?;
        let (stderr, to_stderr) = call_pipe()?;
        let mut streams = running.call_streams([stdout, stderr], self.job.cap, flood.as_ref());
        if !self.job.is_marked {
            streams.iter_mut().flatten().for_each(ChildOutput::leave_unmarked);
        }
        let streams = streams.map_err(Error::io("open a pipe to a shell"))?;
        let mut output = CallOutput::new(streams, self.job.copier.take());
        let snippet = packet::memory_file(self.job.snippet.as_bytes());
        let snippet = snippet.map_err(Error::io("write a snippet to a memfd"))?;
        let (reports, to_reports) = Reports::new()?;
        let number = keeper.call(&CallFiles {
            snippet: snippet.as_fd(),
            stdout: to_stdout.as_fd(),
            stderr: to_stderr.as_fd(),
            report: to_reports.as_fd(),
        })?;
        drop((snippet, to_stdout, to_stderr, to_reports));
        let deadline = timeout.and_then(|timeout| Deadline::now().checked_add(timeout));
        let mut follow = Following {
            reports,
            first: number,
            awaited: number,
            status: None,
            cause: None,
            steps: None,
            remaining: None,
        };
        let end = follow.end(self, keeper, &mut output, deadline, flood.as_deref()).await?;
        let duration = begun.elapsed();
        let called = |outcome, directory, has_ended| Called { outcome, directory, origin, has_ended, output };
        match end {
            End::Shell(mut outcome) => {
                outcome.duration = duration;
                outcome.timeout = timeout;
                exec.record_outcome(&mut outcome);
                Ok(called(*outcome, None, true))
            }
            End::Snippet { code, directory, left } => {
                // The keeper holds the pipes no longer, so that they end with the last process that has them.
                keeper.release()?;
                keeper.status = code;
                if let Some(directory) = &directory {
                    keeper.directory.clone_from(directory);
                }
                let end = CallEnd { code, cause: follow.cause, duration, timeout };
                let running = keeper.child.running().ok_or(Error::Lost)?;
                if running.ended_with_session(ExitStatus::from_raw(i32::from(code) << 8)) {
                    return Err(Error::SessionEnded);
                }
                let mut outcome = running.call_outcome(&end, &mut exec);
                outcome.enforcement.add_notes(left_note(left));
                Ok(called(outcome, directory, false))
            }
        }
    }
}

/// How a call ended.
enum End {
    /// The shell goes on: `$?`, the directory, and after an interrupt how many of the processes that the
    /// snippet has started are left.
    Snippet { code: u8, directory: Option<PathBuf>, left: u32 },
    /// The shell is gone.
    Shell(Box<Outcome>),
}

/// The state of a running call.
struct Following {
    reports: Reports,
    /// The first report of this call.
    first: u64,
    /// The last report that was asked for. With it the call is over: the shell then has no line left that
    /// writes to the pipe, which would give it SIGPIPE.
    awaited: u64,
    /// The status of the first report.
    status: Option<u8>,
    /// Why Kennel interrupted it.
    cause: Option<Cause>,
    steps: Option<Steps>,
    /// What is left of an interrupted snippet; `None` before it is interrupted.
    remaining: Option<Left>,
}

/// What is left of an interrupted snippet, as its keeper tells.
#[derive(Default)]
struct Left {
    /// How many answers are to come.
    awaited: u32,
    /// The last answer.
    count: u32,
    /// Whether everything that the snippet has started was killed.
    is_killed: bool,
    /// Whether the keeper was asked after the snippet had ended.
    is_last: bool,
}

/// The note about processes that are left of an interrupted snippet.
fn left_note(left: u32) -> Option<Note> {
    let text = match left {
        0 => return None,
        1 => "1 process that the interrupted snippet started still runs".to_owned(),
        _ => format!("{left} processes that the interrupted snippet started still run"),
    };
    Some(Note::new("shell", &text, Some("kill them, or end the shell, which ends them too".into())))
}

/// What follows an interrupt.
struct Steps {
    next: Option<Deadline>,
    interval: Duration,
    repeat: Option<Deadline>,
    /// When to kill what the snippet has started, and then the shell.
    kills: [Option<Deadline>; 2],
}

impl Steps {
    /// When the first of them is due.
    fn due(&self) -> Option<Deadline> {
        let Self { next, repeat, kills: [started, shell], .. } = self;
        [next, repeat, started, shell].into_iter().flatten().min().copied()
    }
}

impl Following {
    /// Waits for the end, and interrupts the snippet if there is a reason.
    async fn end(
        &mut self,
        calling: &mut Calling,
        keeper: &mut Keeper,
        output: &mut CallOutput,
        deadline: Option<Deadline>,
        flood: Option<&Flood>,
    ) -> Result<End, Error> {
        let Calling { caller, interrupts, .. } = calling;
        // Status and directory in the awaited report.
        let mut done = None;
        loop {
            let is_free = self.cause.is_none();
            let cause = tokio::select! {
                biased;
                () = until(deadline), if is_free => Some(Cause::TimedOut),
                // The sender is only ever dropped.
                _ = &mut *caller, if is_free => Some(Cause::Killed),
                changed = interrupts.changed(), if is_free => match changed {
                    Ok(()) => Some(Cause::Killed),
                    Err(_) => pending().await,
                },
                cause = flooded(flood), if is_free => Some(cause),
                () = until(self.steps.as_ref().and_then(Steps::due)) => {
                    self.step(keeper)?;
                    None
                }
                report = self.reports.next() => {
                    if (self.first..=self.awaited).contains(&report.number) {
                        let status = *self.status.get_or_insert(report.status);
                        if report.number == self.awaited {
                            done = Some((status, report.directory));
                        }
                    }
                    None
                }
                count = left(&keeper.control), if self.remaining.as_ref().is_some_and(|left| left.awaited > 0) => {
                    self.answered(count, keeper)?;
                    None
                }
                outcome = keeper.child.wait() => return Ok(End::Shell(Box::new(outcome?))),
                read = output.read() => {
                    read?;
                    None
                }
            };
            if let Some((code, directory)) = done.take_if(|_| self.is_over()) {
                let left = self.remaining.as_ref().map_or(0, |left| left.count);
                return Ok(End::Snippet { code, directory, left });
            }
            if let Some(left) = self.remaining.as_mut().filter(|left| done.is_some() && !left.is_last) {
                (left.is_last, left.awaited) = (true, left.awaited + 1);
                keeper.count_started()?;
                // Another report would be written to a closed pipe. A keeper that does not answer ends with
                // its shell.
                if let Some(Steps { next, repeat, kills: [started, _], .. }) = &mut self.steps {
                    (*next, *repeat, *started) = (None, None, None);
                }
            }
            if let Some(cause) = cause {
                self.cause = Some(cause);
                self.remaining = Some(Left::default());
                keeper.interrupt()?;
                // Its number is new: with this report the signal has arrived for sure.
                self.awaited = keeper.ask()?;
                let now = Deadline::now();
                let kills = [Some(now + GRACE), Some(now + 2 * GRACE)];
                self.steps = Some(Steps {
                    next: Some(now + FIRST_ASK),
                    interval: FIRST_ASK,
                    repeat: Some(now + REPEAT),
                    kills,
                });
            }
        }
    }

    /// Whether nothing more is to be known after the last report.
    fn is_over(&self) -> bool {
        self.remaining.as_ref().is_none_or(|left| left.is_last && left.awaited == 0)
    }

    /// Takes an answer of the keeper. What it could not kill is killed with the shell.
    fn answered(&mut self, count: u32, keeper: &mut Keeper) -> Result<(), Error> {
        let Some(left) = &mut self.remaining else { return Ok(()) };
        (left.awaited, left.count) = (left.awaited.saturating_sub(1), count);
        if left.is_killed && count > 0 {
            return self.kill_shell(keeper);
        }
        Ok(())
    }

    fn kill_shell(&self, keeper: &mut Keeper) -> Result<(), Error> {
        let cause = self.cause.unwrap_or(Cause::Killed);
        let running = keeper.child.running().ok_or(Error::Lost)?;
        running.kill(cause).map_err(Error::io("order the end of a shell"))
    }

    /// What is due towards the end of an interrupted snippet.
    fn step(&mut self, keeper: &mut Keeper) -> Result<(), Error> {
        let Some(steps) = &mut self.steps else { return Ok(()) };
        let now = Deadline::now();
        let is_due = |time: &mut Option<Deadline>| time.take_if(|time| *time <= now).is_some();
        let [started, shell] = &mut steps.kills;
        if is_due(shell) {
            steps.next = None;
            return self.kill_shell(keeper);
        }
        let must_die = is_due(started);
        if must_die {
            if let Some(left) = &mut self.remaining {
                (left.is_killed, left.awaited) = (true, left.awaited + 1);
            }
            keeper.kill_started()?;
        }
        if is_due(&mut steps.repeat) || must_die {
            keeper.interrupt()?;
            // Else the signal may come when the shell reads the next snippet, and take it and its report
            // away.
            self.awaited = keeper.ask()?;
        }
        if is_due(&mut steps.next) {
            steps.interval *= 2;
            steps.next = Some(now + steps.interval);
            self.awaited = keeper.ask()?;
        }
        Ok(())
    }
}

/// Refuses what a shell cannot read.
///
/// # Errors
/// A NUL byte.
pub(crate) fn check(snippet: &OsStr) -> Result<(), Error> {
    if !snippet.as_bytes().contains(&0) {
        return Ok(());
    }
    let value = snippet.to_string_lossy().chars().take(80).collect();
    Err(Error::Command { what: "snippet", value, reason: "contains a NUL byte".to_owned() })
}
