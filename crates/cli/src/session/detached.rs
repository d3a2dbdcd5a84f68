//! Commands that stay in a session: `kennel exec -d`, and `kennel session logs`, `kill` and `wait`.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    process::ExitCode,
};

use kennel::{
    Error, Signal,
    client::{Call, Client, Event},
    internal::inherited_descriptor,
    report::ListenError,
};
use nix::{
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::Mode,
};

use super::end::{self, End, Json};
use crate::{
    args::session::{Logs, Which},
    process::descriptor::write_all,
    report,
};

/// Starts a command that stays, and prints its number.
pub(crate) fn start(session: &str, call: &Call, log: Option<&Path>) -> Result<ExitCode, Error> {
    let client = Client::connect(session)?;
    let log = log.map(create_log).transpose()?;
    client.start_detached(call, log.as_ref().map(AsFd::as_fd))?;
    loop {
        match next(&client)? {
            Event::Detached(id) => {
                return report::print(format!("{id}\n").as_bytes()).map(|()| ExitCode::SUCCESS);
            }
            Event::Ended { code, message, .. } => return Ok(relay_end(code, &message)),
            _ => {}
        }
    }
}

/// Prints what a command wrote.
pub(crate) fn logs(logs: &Logs) -> Result<ExitCode, Error> {
    let client = Client::connect(&logs.which.name)?;
    client.logs(logs.which.id, logs.tail, logs.follow)?;
    loop {
        let written = match next(&client)? {
            Event::Output(2, bytes) => write_all(io::stderr(), &bytes),
            Event::Output(_, bytes) => write_all(io::stdout(), &bytes),
            Event::Dropped(count) => {
                let Which { id, .. } = logs.which;
                report::say(format_args!(
                    "kennel: note: command {id}: {count} bytes of its output are not kept"
                ));
                Ok(())
            }
            Event::Ended { code, message, .. } => return Ok(relay_end(code, &message)),
            _ => Ok(()),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            written => {
                written.map_err(|source| Error::Io { what: "write what the command wrote", source })?
            }
        }
    }
}

/// Sends a signal to a command.
pub(crate) fn kill(which: &Which, signal: Signal) -> Result<ExitCode, Error> {
    let client = Client::connect(&which.name)?;
    client.kill(which.id, signal)?;
    loop {
        if let Event::Ended { code, message, .. } = next(&client)? {
            return Ok(relay_end(code, &message));
        }
    }
}

/// Waits for the end of a command, and ends as it ended.
pub(crate) fn wait(which: &Which, exit_code: bool, json: Option<&Path>) -> Result<ExitCode, Error> {
    let json = Json::create(json)?;
    end::finish(json.as_ref(), wait_for(which, json.is_some()), exit_code)
}

fn wait_for(which: &Which, wants_report: bool) -> Result<End, Error> {
    let client = Client::connect(&which.name)?;
    client.wait_for(which.id, wants_report)?;
    loop {
        if let Event::Ended { code, signal, message, report } = next(&client)? {
            return Ok(End::reported(code, signal.map(Signal::number), message, report));
        }
    }
}

/// The next event. If the session is gone, the command has ended with it.
fn next(client: &Client) -> Result<Event, Error> {
    client.next().map_err(|error| match error {
        Error::Listen(ListenError::Gone { .. }) => Error::SessionEnded,
        error => error,
    })
}

/// Prints lines of the session, and passes its exit status on.
fn relay_end(code: u8, message: &[u8]) -> ExitCode {
    report::relay(message, code != 0);
    code.into()
}

/// Creates the log file, or empties it. Commands may have planted links on the way to it, so none is
/// followed. A path that names an inherited descriptor is that descriptor.
fn create_log(path: &Path) -> Result<OwnedFd, Error> {
    let opened = inherited_descriptor(path).unwrap_or_else(|| {
        let flags = OFlag::O_WRONLY
            | OFlag::O_APPEND
            | OFlag::O_CREAT
            | OFlag::O_NONBLOCK
            | OFlag::O_NOCTTY
            | OFlag::O_CLOEXEC;
        let how = OpenHow::new()
            .flags(flags)
            .mode(Mode::from_bits_truncate(0o666))
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        let file = File::from(openat2(AT_FDCWD, path, how)?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        file.set_len(0)?;
        Ok(file.into())
    });
    opened.map_err(|source| {
        let remedy = match source.raw_os_error() {
            Some(libc::ELOOP) => "pass its path without links (realpath): links on the way are not followed",
            _ => "pass a file to --log that can be created or written",
        };
        Error::Grant { what: "log file", path: path.to_owned(), source, remedy: Some(remedy.into()) }
    })
}
