//! `kennel session` and `kennel exec`: sessions in a process of their own, and the commands in them. No
//! command runs in this process.

mod detached;
mod end;
pub(crate) mod exec;
pub(crate) mod host;
mod list;
mod ps;

use std::{
    env,
    ffi::OsString,
    io::{self, Read},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
};

use kennel::{Error, client::Client, report::ListenError};

use crate::{
    args::session::{SessionAction, Start},
    owner,
    process::{beside, descriptor::write_all, exit_status::FAILED},
    report,
    terminal::progress,
};

/// Runs `kennel session`.
pub(crate) fn session(action: &SessionAction) -> Result<ExitCode, Error> {
    if let SessionAction::Start(start) = action {
        let asked =
            owner::Request { ends_with_parent: start.with_parent, ..owner::Request::of(&start.policy) };
        if let Some(code) = owner::choose(&start.owner, asked)? {
            return Ok(code);
        }
    }
    match action {
        SessionAction::Start(start) if !start.foreground => start_in_background(start),
        SessionAction::Start(start) => host::foreground(start),
        SessionAction::Host(start) => host::background(start),
        SessionAction::Logs(logs) => detached::logs(logs),
        SessionAction::Kill { which, signal } => detached::kill(which, *signal),
        SessionAction::Wait { which, exit_code, json } => detached::wait(which, *exit_code, json.as_deref()),
        SessionAction::Ps { name, all, json } => ps::ps(name, *all, *json),
        SessionAction::List { json } => list::list(*json),
        SessionAction::Publish { name, ports } => publish(name, ports),
        // It writes to the store of images.
        SessionAction::Snapshot(_) => beside::execute(&beside::IMAGE),
        SessionAction::Stop { name } => stop(name),
    }
}

/// Runs this program again with the same arguments, and waits until the session takes commands or reports why
/// not.
fn start_in_background(start: &Start) -> Result<ExitCode, Error> {
    // Do not prepare a session whose name is taken.
    match Client::connect(&start.name) {
        Ok(_) => return Err(ListenError::Running { name: start.name.clone() }.into()),
        Err(Error::Listen(ListenError::NotRunning { .. })) => {}
        Err(error) => return Err(error),
    }
    let mut arguments: Vec<OsString> = env::args_os().skip(1).collect();
    // No word before the verb can be `start`.
    if let Some(verb) = arguments.iter_mut().find(|word| *word == "start") {
        *verb = "host".into();
    }
    let mut host = Command::new("/proc/self/exe")
        .args(arguments)
        // If the host lacks /dev/null, the sandbox reports that.
        .stdin(if Path::new("/dev/null").exists() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| Error::Io { what: "start a process for the session", source })?;
    drop(host.stdin.take());
    host.stdout.iter().for_each(|pipe| progress::until_readable("preparing the session", pipe));
    let (socket, said) = (read_all(host.stdout.take()), read_all(host.stderr.take()));
    report::relay(&said, socket.is_empty());
    if let Err(source) = write_all(io::stdout(), &socket) {
        end(&start.name, host);
        return Err(Error::Io { what: "the session was ended: print the path of its socket", source });
    }
    // The new process closed both pipes. With a socket path it takes commands; without one it is about to
    // end.
    if socket.is_empty() {
        let status = host.wait().map_err(|source| Error::Io { what: "wait for the session", source })?;
        if said.is_empty() {
            report::say(format_args!("kennel: session {}: it ended during the start: {status}", start.name));
        }
        return Ok(FAILED.into());
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends the session if its socket path could not be printed, and waits until it is gone.
fn end(name: &str, mut host: Child) {
    let ours = Client::connect(name).ok().filter(|client| u32::try_from(client.process()) == Ok(host.id()));
    if ours.is_none_or(|session| session.stop().is_err()) {
        let _ = host.kill();
    }
    let _ = host.wait();
}

fn read_all(stream: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // Keep what arrived before the error.
        let _ = stream.read_to_end(&mut bytes);
    }
    bytes
}

/// Publishes ports of a running session, and prints where they are.
fn publish(name: &str, ports: &[String]) -> Result<ExitCode, Error> {
    for port in ports {
        let published = Client::connect(name)?.publish(port)?;
        published.note().iter().for_each(report::note);
        report::print(format!("{published}\n").as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn stop(name: &str) -> Result<ExitCode, Error> {
    match Client::connect(name).and_then(Client::stop) {
        Err(Error::Listen(ListenError::NotRunning { .. })) => {
            report::say(format_args!("kennel: session {name}: no session of that name is running"));
            Ok(ExitCode::SUCCESS)
        }
        stopped => stopped.map(|()| ExitCode::SUCCESS),
    }
}
