//! `kennel exec`: a command of a session, with the caller's own descriptors, signals passed on, its status for ours. No
//! runtime: it is started once for every command.

use std::{io, os::fd::AsFd, process::ExitCode};

use kennel::{Call, Client, Error, Event, ListenError, Report, Terminal};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal, raise},
        signalfd::{SfdFlags, SignalFd},
    },
};

use crate::{args::Exec, report, signals::passed_on, terminal::WRITING, window::Window};

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
    told?;
    match unwritten {
        Some(source) => Err(Error::Io { what: WRITING, source }),
        None => Ok(code.into()),
    }
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
    unwritten: Option<io::Error>,
}

fn run(exec: &Exec) -> Result<End, Error> {
    let size = exec.tty.then(|| Terminal::size(io::stdin()).map_err(no_terminal)).transpose()?;
    let call = call(exec, size)?;
    let signals = listen().map_err(|source| Error::Io { what: "listen for signals", source })?;
    let client = Client::connect(&exec.name)?;
    client.start(&call, [io::stdin().as_fd(), io::stdout().as_fd(), io::stderr().as_fd()])?;
    let mut window = None;
    loop {
        let woken = wait(&client, &signals, window.as_mut());
        let [spoken, signalled] =
            woken.map_err(|source| Error::Io { what: "wait for the command", source })?;
        if spoken {
            match client.next()? {
                Event::Terminal(master) => window = Some(Window::open(master).map_err(no_terminal)?),
                Event::Ended { code, message, report } => {
                    let unwritten = window.take().and_then(|window| window.close().err());
                    return Ok(End { code, message, report, unwritten });
                }
                _ => {}
            }
        }
        if signalled {
            pass_on(&client, &signals, window.as_ref())?;
        }
    }
}

fn no_terminal(source: io::Error) -> Error {
    Error::Io { what: "--tty needs a terminal as standard input", source }
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
    let signals =
        passed_on().chain([libc::SIGCONT]).map(Signal::try_from).collect::<nix::Result<SigSet>>()?;
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Sleeps until the session has spoken or a signal has come; shows and types meanwhile what there is.
fn wait(client: &Client, signals: &SignalFd, window: Option<&mut Window>) -> io::Result<[bool; 2]> {
    let stdin = io::stdin();
    let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds = vec![watched(client.as_fd()), watched(signals.as_fd())];
    if let Some(window) = &window {
        fds.extend(window.watched(&stdin));
    }
    retry(|| poll(&mut fds, PollTimeout::NONE))?;
    let happened = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    let happened: Vec<bool> = fds.iter().map(happened).collect();
    drop(fds);
    let (own, rest) = happened.split_first_chunk().unwrap_or((&[false; 2], &[]));
    if let Some(window) = window {
        window.carry(rest);
    }
    Ok(*own)
}

fn retry(mut call: impl FnMut() -> nix::Result<i32>) -> io::Result<()> {
    match call() {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn pass_on(client: &Client, signals: &SignalFd, window: Option<&Window>) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Io { what: "pass a signal on", source };
    while let Some(signal) = signals.read_signal().map_err(|errno| failed(errno.into()))? {
        let number = signal.ssi_signo.cast_signed();
        match (number, window) {
            (libc::SIGTSTP, _) => {
                client.signal(libc::SIGSTOP)?;
                // Stop as the shell expects of us; the SIGCONT that continues us is passed on like any other.
                raise(Signal::SIGSTOP).map_err(|errno| failed(errno.into()))?;
            }
            (libc::SIGWINCH, Some(window)) => window.resize().map_err(failed)?,
            _ => client.signal(number)?,
        }
    }
    Ok(())
}
