//! `kennel exec`: runs a command in a session; it starts often, so it needs no async runtime.

use std::{
    ffi::OsString,
    io::{self, Read},
    os::{fd::AsFd, unix::ffi::OsStringExt},
    process::ExitCode,
    time::{Duration, Instant},
};

use kennel::{
    Error, Pseudoterminal, Signal,
    client::{Call, Client, Event},
    report::ListenError,
};

use super::{
    detached,
    end::{self, End, Json},
};
use crate::{
    args::session::Exec,
    process::exit_status::{TIMED_OUT, of_signal},
    terminal::{
        relay::{Relay, Woken},
        user_terminal::UserTerminal,
    },
};

/// Extra time for the session to end the command and report that, after the command's own timeout.
const GRACE: Duration = Duration::from_secs(5);

/// Runs `kennel exec`.
pub(crate) fn exec(exec: &Exec) -> Result<ExitCode, Error> {
    if exec.detach {
        return detached::start(&exec.name, &call(exec, None)?, exec.log.as_deref());
    }
    let json = Json::create(exec.json.as_deref())?;
    end::finish(json.as_ref(), run(exec), exec.exit_code)
}

fn run(exec: &Exec) -> Result<End, Error> {
    let snippet = exec.shell.as_ref().map(|shell| snippet(exec, shell)).transpose()?;
    let user = match (&exec.shell, exec.tty) {
        (Some(_), _) => None,
        (None, true) => Some(UserTerminal::whole()?),
        (None, false) => UserTerminal::find([false; 3])?,
    };
    // Until the command is sent, ^C ends this program.
    let client = Client::connect(&exec.name)?;
    let mut relay = Relay::prepare(user, None)?;
    let call = match snippet {
        Some(snippet) => snippet,
        None => call(exec, relay.pseudoterminal()?)?,
    };
    client.start(&call, [io::stdin().as_fd(), io::stdout().as_fd(), io::stderr().as_fd()])?;
    let deadline =
        exec.timeout.and_then(|time| Instant::now().checked_add(time.duration())?.checked_add(grace(exec)));
    // Whether the session has read the call. From then on signals go to the command.
    let mut is_heard = false;
    loop {
        let woken = relay.wait(&client, deadline);
        let Woken { by_command, by_signal, by_keys } =
            woken.map_err(|source| Error::Io { what: "wait for the command", source })?;
        if by_command {
            match client.next()? {
                Event::Terminal(master) => relay.begin_and_read(master)?,
                Event::Stopped(signal) => relay.stopped(signal.number(), &client)?,
                Event::Ended { code, signal, message, report } => {
                    let signal = signal.map(Signal::number);
                    let shown = relay.show_rest(signal, code == TIMED_OUT);
                    relay.end(signal);
                    return Ok(End::reported(code, signal, message, report).with_output(shown));
                }
                _ => {}
            }
        }
        if by_keys {
            relay.take_keys();
        }
        if by_signal {
            is_heard |= !client.is_unheard();
            if let Some(number) = relay.pass_on(&client, is_heard)? {
                let message =
                    b"kennel: the session does not answer: its program is stopped or busy\n".to_vec();
                return Ok(End::reported(of_signal(number), Some(number), message, None));
            }
        }
        if !by_command && deadline.is_some_and(|time| Instant::now() >= time) {
            // Output shown so far stays on the screen.
            let _ = relay.show_rest(None, true);
            return Err(ListenError::Silent { name: exec.name.clone() }.into());
        }
    }
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
fn call(exec: &Exec, terminal: Option<Pseudoterminal>) -> Result<Call, Error> {
    let (program, arguments) =
        exec.command.split_first().ok_or(Error::NotFound { program: String::new() })?;
    let mut call = Call::new(program);
    call.args(arguments).report(exec.json.is_some()).quiet(exec.quiet).cold(exec.cold);
    if let Some(terminal) = terminal {
        call.pseudoterminal(terminal);
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
