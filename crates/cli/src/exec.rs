//! `kennel exec`: runs a command in a session; it starts often, so it needs no async runtime.

use std::{
    ffi::OsString,
    io::{self, Read},
    os::{fd::AsFd, unix::ffi::OsStringExt},
    process::ExitCode,
    time::{Duration, Instant},
};

use kennel::{
    Error,
    client::{Call, Client, Event},
    report::{ListenError, Report},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, poll},
    sys::{
        signal::{SigSet, Signal, raise},
        signalfd::{SfdFlags, SignalFd},
    },
};

use crate::{
    FAILED,
    args::Exec,
    descriptor, detached,
    job::{Job, Orders},
    process::{Ending, end, forwarded, is_ending},
    report,
    terminal::{self, HURRIED_PATIENCE, REOPEN_PAUSE, unwritten},
    typist::Typed,
    user_terminal::UserTerminal,
    window::Window,
};

/// The exit status of a command that reached its timeout.
const TIMED_OUT: u8 = 124;

/// Extra time for the session to end the command and report that, after the command's own timeout.
const GRACE: Duration = Duration::from_secs(5);

/// Runs `kennel exec`.
pub(crate) fn exec(exec: &Exec) -> Result<ExitCode, Error> {
    if exec.detach {
        return detached::start(&exec.name, &call(exec, None)?, exec.log.as_deref());
    }
    let json = exec.json.as_deref().map(report::create).transpose()?;
    let result = run(exec);
    let mut written = Ok(());
    if let (Some(file), Some(path)) = (&json, &exec.json) {
        let text = match &result {
            Ok(End { report: Some(text), .. }) => text.clone(),
            Ok(End { message, .. }) => report::object(&Report::failed(&refused_call(message))),
            Err(error) => report::object(&Report::failed(error)),
        };
        written = report::write(file, path, &text);
    }
    // Report an error of the command even if the JSON report could not be written.
    let End { code, signal, message, unwritten, .. } = result?;
    report::relay(&message, (FAILED..=127).contains(&code));
    if let Some(error) = &unwritten {
        report::error(error);
    }
    written?;
    Ok(end(code, signal.filter(|_| !exec.exit_code)))
}

/// The error for a call that the session refused without a report.
pub(crate) fn refused_call(message: &[u8]) -> Error {
    let text = String::from_utf8_lossy(message);
    let line = text.lines().next().unwrap_or_default();
    let message = line.strip_prefix("kennel: ").unwrap_or(line).to_owned();
    ListenError::Refused { message, hint: None }.into()
}

/// How a command ended.
struct End {
    code: u8,
    /// The signal that `code` stands for.
    signal: Option<i32>,
    message: Vec<u8>,
    report: Option<Vec<u8>>,
    /// Why some output on the command's own terminal was not shown.
    unwritten: Option<Error>,
}

impl End {
    /// The end as the session reports it.
    fn reported((code, signal): (u8, Option<i32>), message: Vec<u8>, report: Option<Vec<u8>>) -> Self {
        Self { code, signal, message, report, unwritten: None }
    }

    /// Adds what the session cannot know: whether all output on the command's terminal was shown.
    fn with_output(mut self, shown: io::Result<()>) -> Self {
        if shown.is_ok() {
            return self;
        }
        let was_killed = self.code == TIMED_OUT || self.signal.is_some();
        self.unwritten = unwritten(shown, was_killed);
        if !was_killed {
            self.code = FAILED;
        }
        let error = self.unwritten.as_ref();
        self.report = self.report.map(|text| report::correct_unshown(&text, self.code, error));
        self
    }
}

fn run(exec: &Exec) -> Result<End, Error> {
    // Before signals are blocked: ^C ends this program while it reads the snippet.
    let snippet = exec.shell.as_ref().map(|shell| snippet(exec, shell)).transpose()?;
    let user = match (&exec.shell, exec.tty) {
        (Some(_), _) => None,
        (None, true) => Some(UserTerminal::whole()?),
        (None, false) => UserTerminal::find([false; 3])?,
    };
    // Before the thread for keys exists, which would take them otherwise.
    let signals = listen().map_err(|source| Error::Io { what: "listen for signals", source })?;
    let mut job = user.map(|user| Job::prepare(user, None)).transpose()?;
    let call = match snippet {
        Some(snippet) => snippet,
        None => call(exec, job.as_ref())?,
    };
    let client = Client::connect(&exec.name)?;
    client.start(&call, [io::stdin().as_fd(), io::stdout().as_fd(), io::stderr().as_fd()])?;
    let deadline =
        exec.timeout.and_then(|time| Instant::now().checked_add(time.duration())?.checked_add(grace(exec)));
    let mut window = None;
    let mut ending = Ending::default();
    // Whether the session has read the call. From then on signals go to the command.
    let mut is_read = false;
    loop {
        let woken = wait(&client, &signals, (job.as_ref(), window.as_mut()), deadline);
        let Woken { by_session, by_signal, by_keys } =
            woken.map_err(|source| Error::Io { what: "wait for the command", source })?;
        if by_session {
            match client.next()? {
                Event::Terminal(master) => {
                    if let Some(job) = &mut job {
                        job.begin(&master)?;
                        let screen = job.user().output().map_err(terminal::no_terminal)?;
                        window = Some(Window::open(master, screen, job.is_raw()));
                    }
                }
                Event::Stopped(number) => {
                    if let Some(job) = &mut job {
                        job.stopped(number, &client)?;
                        // All its own stops are over: SIGCONT discards those that no thread has taken.
                        job.forget_own_stop();
                    }
                }
                Event::Ended { code, signal, message, report } => {
                    let end = End::reported((code, signal), message, report);
                    let Some(window) = window else { return Ok(end) };
                    let mut job = job;
                    // If the output does not appear on a terminal, leave raw mode now, so that keys are
                    // signals again.
                    if !window.is_on_terminal() {
                        job.take().into_iter().for_each(|job| job.end(signal));
                    }
                    let is_over = code == TIMED_OUT || signal.is_some_and(|number| ending.has(number));
                    let shown = window.close(patience(&signals, is_over));
                    job.into_iter().for_each(|job| job.end(signal));
                    return Ok(end.with_output(shown));
                }
                _ => {}
            }
        }
        if by_keys && let Some(job) = &mut job {
            let event = job.next_event();
            if event == Some(Typed::Gone) {
                job.hang_up();
                window.iter_mut().for_each(Window::hang_up);
            }
            event.into_iter().for_each(|event| job.typed(event));
        }
        if by_signal {
            is_read |= !client.is_unheard();
            let unheard = forward(&client, is_read, &signals, job.as_mut(), &mut ending)?;
            if let Some((code, number)) =
                unheard.and_then(|number| Some((u8::try_from(128 + number).ok()?, number)))
            {
                let message =
                    b"kennel: the session does not answer: its program is stopped or busy\n".to_vec();
                return Ok(End::reported((code, Some(number)), message, None));
            }
        }
        if !by_session && deadline.is_some_and(|time| Instant::now() >= time) {
            // Output shown so far stays on the screen.
            let _ = window.map(|window| window.close(patience(&signals, true)));
            return Err(ListenError::Silent { name: exec.name.clone() }.into());
        }
    }
}

/// Returns how long [`Window::close`] may still wait for the reader of stdout. After a signal that ends this
/// program it allows one more second; the second starts now if `is_over`.
pub(crate) fn patience(signals: &SignalFd, is_over: bool) -> impl FnMut() -> Option<Duration> {
    let mut hurried = is_over.then(Instant::now);
    move || {
        if hurried.is_none() && ending_signal_arrived(signals) {
            hurried = Some(Instant::now());
        }
        match hurried {
            Some(since) => HURRIED_PATIENCE.checked_sub(since.elapsed()).map(|left| left.min(REOPEN_PAUSE)),
            None => Some(REOPEN_PAUSE),
        }
    }
}

/// Whether a signal arrived that ends this program. No command is left to receive it.
fn ending_signal_arrived(signals: &SignalFd) -> bool {
    while let Ok(Some(signal)) = signals.read_signal() {
        match signal.ssi_signo.cast_signed() {
            number if is_ending(number) => return true,
            libc::SIGTSTP => {
                let _ = raise(Signal::SIGSTOP);
            }
            _ => {}
        }
    }
    false
}

/// Extra time for the session, after the timeout. A snippet gets some to end by itself.
fn grace(exec: &Exec) -> Duration {
    if exec.shell.is_some() { 2 * GRACE } else { GRACE }
}

/// Builds the call of a snippet, which is the only word or comes from stdin.
fn snippet(exec: &Exec, shell: &str) -> Result<Call, Error> {
    let text = match &*exec.command {
        [text] => text.clone(),
        [] => {
            let mut bytes = Vec::new();
            let read = io::stdin().read_to_end(&mut bytes);
            read.map_err(|source| Error::Io { what: "read the snippet from stdin", source })?;
            OsString::from_vec(bytes)
        }
        [first, ..] => {
            let reason = "is not the only word: put the snippet in quotes".to_owned();
            return Err(Error::Command {
                what: "snippet",
                value: first.to_string_lossy().into_owned(),
                reason,
            });
        }
    };
    let mut call = Call::snippet(shell, text);
    call.report(exec.json.is_some()).quiet(exec.quiet);
    if let Some(timeout) = exec.timeout {
        call.timeout(timeout.duration());
    }
    Ok(call)
}

/// Builds the call from the arguments. Nothing of this environment goes along: the session has its own.
fn call(exec: &Exec, job: Option<&Job>) -> Result<Call, Error> {
    let (program, arguments) =
        exec.command.split_first().ok_or(Error::NotFound { program: String::new() })?;
    let mut call = Call::new(program);
    call.args(arguments).report(exec.json.is_some()).quiet(exec.quiet);
    if let Some(job) = job {
        call.pseudoterminal(job.user().pseudoterminal()?);
        // The command draws on this terminal, not on the one that started the session.
        if let Some(kind) = std::env::var_os("TERM") {
            call.env("TERM", kind);
        }
    }
    for (name, value) in &exec.setenv {
        call.env(name, value);
    }
    if let Some(directory) = &exec.cwd {
        let absolute = std::path::absolute(directory);
        call.current_dir(
            absolute.map_err(|source| Error::Io { what: "find the working directory", source })?,
        );
    }
    if let Some(timeout) = exec.timeout {
        call.timeout(timeout.duration());
    }
    Ok(call)
}

/// Blocks the signals that go to the command and returns a descriptor for them; ignored signals stay ignored.
pub(crate) fn listen() -> io::Result<SignalFd> {
    let signals = forwarded().map(Signal::try_from).collect::<nix::Result<SigSet>>()?;
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// What ended a [`wait`]; nothing if the time was up or only output moved.
pub(crate) struct Woken {
    pub(crate) by_session: bool,
    pub(crate) by_signal: bool,
    pub(crate) by_keys: bool,
}

/// Sleeps until the session answers, a signal arrives, the user types or the time `until` comes; copies
/// output meanwhile.
pub(crate) fn wait(
    session: &impl AsFd,
    signals: &SignalFd,
    (job, window): (Option<&Job>, Option<&mut Window>),
    until: Option<Instant>,
) -> io::Result<Woken> {
    let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds = vec![watched(session.as_fd()), watched(signals.as_fd())];
    fds.extend(job.and_then(Job::events).map(|events| watched(events.as_fd())));
    let own = fds.len();
    fds.extend(window.as_ref().into_iter().flat_map(|window| window.watched()));
    let left = until.map(|time| time.saturating_duration_since(Instant::now()));
    let patience = window.as_ref().and_then(|window| window.patience());
    match poll(&mut fds, descriptor::poll_timeout(patience.into_iter().chain(left).min())) {
        // No descriptor is ready yet; the caller polls again.
        Err(Errno::EINTR) => {}
        polled => drop(polled?),
    }
    let happened = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    let mut happened = fds.iter().take(own).map(happened).collect::<Vec<bool>>().into_iter();
    drop(fds);
    if let Some(window) = window {
        window.copy();
    }
    let mut next = || happened.next().unwrap_or(false);
    Ok(Woken { by_session: next(), by_signal: next(), by_keys: next() })
}

/// Passes pending signals on. Returns the signal that ends this program if the session has not read the call
/// yet.
pub(crate) fn forward(
    command: &impl Orders,
    is_read: bool,
    signals: &SignalFd,
    mut job: Option<&mut Job>,
    ending: &mut Ending,
) -> Result<Option<i32>, Error> {
    let failed = |source: io::Error| Error::Io { what: "pass a signal on", source };
    while let Some(signal) = signals.read_signal().map_err(|errno| failed(errno.into()))? {
        let number = signal.ssi_signo.cast_signed();
        ending.note(number);
        if is_ending(number) && !is_read {
            return Ok(Some(number));
        }
        match (number, &mut job) {
            (_, Some(job)) => {
                job.received(number, command)?;
                job.forget_own_stop();
            }
            (libc::SIGTSTP, None) => {
                command.signal(libc::SIGSTOP)?;
                // Stop as the shell expects. The SIGCONT that resumes this process is passed on like any
                // other signal.
                raise(Signal::SIGSTOP).map_err(|errno| failed(errno.into()))?;
            }
            (_, None) => command.signal(number)?,
        }
    }
    Ok(None)
}
