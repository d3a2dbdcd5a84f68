//! `kennel exec`: a command of a session, with the caller's own descriptors, signals passed on, its status for ours. No
//! runtime: it is started once for every command.

use std::{
    io,
    os::fd::AsFd,
    process::ExitCode,
    time::{Duration, Instant},
};

use kennel::{Call, Client, Error, Event, ListenError, Report};
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
    descriptor,
    process::{Ending, means_to_end, passed_on},
    report,
    terminal::{self, AGAIN, PATIENCE, unwritten},
    window::Window,
};

/// The status of a command whose time was up.
const TIMED_OUT: u8 = 124;

/// How much longer than the command's time to wait for the session, which is to end it and tell.
const GRACE: Duration = Duration::from_secs(5);

/// Runs `kennel exec`.
pub(crate) fn exec(exec: &Exec) -> Result<ExitCode, Error> {
    let json = exec.json.as_deref().map(report::create).transpose()?;
    let result = run(exec);
    let mut told = Ok(());
    if let (Some(file), Some(path)) = (&json, &exec.json) {
        let text = match &result {
            Ok(End { report: Some(text), .. }) => text.clone(),
            Ok(End { message, .. }) => report::object(&Report::failed(&turned_away(message))),
            Err(error) => report::object(&Report::failed(error)),
        };
        told = report::write(file, path, &text);
    }
    // What was refused is said also where the report could not be written.
    let End { code, message, unwritten, .. } = result?;
    report::pass(&message);
    if let Some(error) = &unwritten {
        report::error(error);
    }
    told?;
    Ok(code.into())
}

/// The error for a call that the session did not even make a report of.
fn turned_away(message: &[u8]) -> Error {
    let text = String::from_utf8_lossy(message);
    let line = text.lines().next().unwrap_or_default();
    let message = line.strip_prefix("kennel: ").unwrap_or(line).to_owned();
    ListenError::Refused { message }.into()
}

/// How a command ended.
struct End {
    code: u8,
    message: Vec<u8>,
    report: Option<Vec<u8>>,
    /// Why not all was shown that it wrote to a terminal of its own.
    unwritten: Option<Error>,
}

impl End {
    /// What the session told of it.
    fn told(code: u8, message: Vec<u8>, report: Option<Vec<u8>>) -> Self {
        Self { code, message, report, unwritten: None }
    }

    /// The same with what the session cannot know: what became of what it wrote to a terminal of its own.
    fn shown(mut self, shown: io::Result<()>) -> Self {
        if shown.is_ok() {
            return self;
        }
        // A command may exit with one of these by itself: that is no success either.
        let was_killed = matches!(self.code, TIMED_OUT | 129..);
        self.unwritten = unwritten(shown, was_killed);
        if !was_killed {
            self.code = FAILED;
        }
        let error = self.unwritten.as_ref();
        self.report = self.report.map(|text| report::unshown(&text, self.code, error));
        self
    }
}

fn run(exec: &Exec) -> Result<End, Error> {
    let size = exec.tty.then(terminal::size).transpose()?;
    let call = call(exec, size)?;
    let signals = listen().map_err(|source| Error::Io { what: "listen for signals", source })?;
    let client = Client::connect(&exec.name)?;
    client.start(&call, [io::stdin().as_fd(), io::stdout().as_fd(), io::stderr().as_fd()])?;
    let overdue =
        exec.timeout.and_then(|time| Instant::now().checked_add(time.duration())?.checked_add(GRACE));
    let mut window = None;
    let mut ending = Ending::default();
    // Whether the session has read what it was asked for, since when signals are the command's.
    let mut is_heard = false;
    loop {
        let woken = wait(&client, &signals, window.as_mut(), overdue);
        let [spoken, signalled] =
            woken.map_err(|source| Error::Io { what: "wait for the command", source })?;
        if spoken {
            match client.next()? {
                Event::Terminal(master) => window = Some(Window::open(master).map_err(terminal::absent)?),
                Event::Ended { code, message, report } => {
                    let end = End::told(code, message, report);
                    let Some(window) = window else { return Ok(end) };
                    let is_over = code == TIMED_OUT || ending.has(i32::from(code) - 128);
                    return Ok(end.shown(window.close(patience(&signals, is_over))));
                }
                _ => {}
            }
        }
        if signalled {
            is_heard |= !client.is_unheard();
            let unheard = pass_on((&client, is_heard), &signals, window.as_ref(), &mut ending)?;
            if let Some(number) = unheard.and_then(|number| u8::try_from(128 + number).ok()) {
                let message =
                    b"kennel: the session does not answer: its program is stopped or busy\n".to_vec();
                return Ok(End::told(number, message, None));
            }
        }
        if !spoken && overdue.is_some_and(|time| Instant::now() >= time) {
            // What was shown so far stays shown.
            let _ = window.map(|window| window.close(patience(&signals, true)));
            return Err(ListenError::Silent { name: exec.name.clone() }.into());
        }
    }
}

/// How much longer to wait, before this is asked again, for who reads what the command wrote: until a second after we are
/// told to end, or now where its time was up or such a signal ended it.
fn patience(signals: &SignalFd, is_over: bool) -> impl FnMut() -> Option<Duration> {
    let mut hurried = is_over.then(Instant::now);
    move || {
        if hurried.is_none() && are_told_to_end(signals) {
            hurried = Some(Instant::now());
        }
        match hurried {
            Some(since) => PATIENCE.checked_sub(since.elapsed()).map(|left| left.min(AGAIN)),
            None => Some(AGAIN),
        }
    }
}

/// Whether a signal has come that means to end us, when there is no command left to pass it on to.
fn are_told_to_end(signals: &SignalFd) -> bool {
    while let Ok(Some(signal)) = signals.read_signal() {
        match signal.ssi_signo.cast_signed() {
            number if means_to_end(number) => return true,
            libc::SIGTSTP => {
                let _ = raise(Signal::SIGSTOP);
            }
            _ => {}
        }
    }
    false
}

/// What was typed, as a call. Of our own environment nothing goes along: the session has its own.
fn call(exec: &Exec, size: Option<(u16, u16)>) -> Result<Call, Error> {
    let (program, arguments) =
        exec.command.split_first().ok_or(Error::NotFound { program: String::new() })?;
    let mut call = Call::new(program);
    call.args(arguments).report(exec.json.is_some());
    if let Some((rows, columns)) = size {
        call.terminal(rows, columns);
        // It is our terminal that the command draws on, not the one that the session was started from.
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

/// From now on every signal is the command's, but what is ignored here.
fn listen() -> io::Result<SignalFd> {
    let signals = passed_on().map(Signal::try_from).collect::<nix::Result<SigSet>>()?;
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Sleeps until the session has spoken or a signal has come, or it is that time; shows and types meanwhile what there is.
fn wait(
    client: &Client,
    signals: &SignalFd,
    window: Option<&mut Window>,
    until: Option<Instant>,
) -> io::Result<[bool; 2]> {
    let stdin = io::stdin();
    let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds = vec![watched(client.as_fd()), watched(signals.as_fd())];
    if let Some(window) = &window {
        fds.extend(window.watched(&stdin));
    }
    let left = until.map(|time| time.saturating_duration_since(Instant::now()));
    let patience = window.as_ref().and_then(|window| window.patience());
    match poll(&mut fds, descriptor::until(patience.into_iter().chain(left).min())) {
        // Nothing has happened yet: whoever calls looks again.
        Err(Errno::EINTR) => {}
        polled => drop(polled?),
    }
    let happened = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    let happened: Vec<bool> = fds.iter().map(happened).collect();
    drop(fds);
    let (own, rest) = happened.split_first_chunk().unwrap_or((&[false; 2], &[]));
    if let Some(window) = window {
        window.carry(rest);
    }
    Ok(*own)
}

/// Passes on what has come; answers the signal that is to end us, where the session has not even heard of the command.
fn pass_on(
    (client, is_heard): (&Client, bool),
    signals: &SignalFd,
    window: Option<&Window>,
    ending: &mut Ending,
) -> Result<Option<i32>, Error> {
    let failed = |source: io::Error| Error::Io { what: "pass a signal on", source };
    while let Some(signal) = signals.read_signal().map_err(|errno| failed(errno.into()))? {
        let number = signal.ssi_signo.cast_signed();
        ending.note(number);
        if means_to_end(number) && !is_heard {
            return Ok(Some(number));
        }
        match (number, window) {
            (libc::SIGTSTP, _) => {
                client.signal(libc::SIGSTOP)?;
                window.into_iter().for_each(Window::leave);
                // Stop as the shell expects of us; the SIGCONT that continues us is passed on like any other.
                raise(Signal::SIGSTOP).map_err(|errno| failed(errno.into()))?;
            }
            (libc::SIGCONT, Some(window)) => {
                window.again().map_err(failed)?;
                client.signal(number)?;
            }
            (libc::SIGWINCH, Some(window)) => window.resize().map_err(failed)?,
            _ => client.signal(number)?,
        }
    }
    Ok(None)
}
