//! `kennel session`: starts, lists and stops sessions. A session is a process that holds what its commands
//! share; each command is a child of its own `kennel exec`.

use std::{
    env,
    ffi::OsString,
    fmt,
    io::{self, Read},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use kennel::{
    Error,
    internal::{RecordedSession, escape::harmless, recorded_sessions},
    report::ListenError,
};
use serde::Serialize;

use super::{becomes_owner, holder, refuse};
use crate::{
    args::session::{SessionAction, Start},
    process::{descriptor::write_all, exit_status::FAILED},
    report,
    terminal::{
        progress,
        style::{self, Paint},
        table::age,
    },
};

/// Runs `kennel session`.
pub(super) fn session(action: &SessionAction) -> Result<ExitCode, Error> {
    match action {
        SessionAction::Start(start) => {
            refuse(&[
                ("--with-parent", start.with_parent),
                ("--idle", start.idle.is_some()),
                becomes_owner(&start.owner),
            ])?;
            if start.foreground { holder::foreground(start) } else { start_in_background(start) }
        }
        SessionAction::Host(start) => holder::background(start),
        SessionAction::List { json } => list(*json),
        SessionAction::Stop { name } => stop(name),
        SessionAction::Logs(_) => Err(super::command("session logs")),
        SessionAction::Kill { .. } => Err(super::command("session kill")),
        SessionAction::Wait { .. } => Err(super::command("session wait")),
        SessionAction::Snapshot(_) => Err(super::command("session snapshot")),
        SessionAction::Ps { .. } => Err(super::command("session ps")),
        SessionAction::Publish { .. } => Err(super::command("session publish")),
    }
}

/// Runs this program again with the same arguments, and waits until the session takes commands or reports why
/// not.
fn start_in_background(start: &Start) -> Result<ExitCode, Error> {
    let failed = |source| Error::Io { what: "start a process for the session", source };
    let mut arguments: Vec<OsString> = env::args_os().skip(1).collect();
    // No word before the verb can be `start`.
    if let Some(verb) = arguments.iter_mut().find(|word| *word == "start") {
        *verb = "host".into();
    }
    let mut holder = Command::new(env::current_exe().map_err(failed)?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    holder.stdout.iter().for_each(|pipe| progress::until_readable("preparing the session", pipe));
    let (file, said) = (read_all(holder.stdout.take()), read_all(holder.stderr.take()));
    report::relay(&said, file.is_empty());
    // With a path it takes commands; without one it is about to end.
    if file.is_empty() {
        let status = holder.wait().map_err(|source| Error::Io { what: "wait for the session", source })?;
        if said.is_empty() {
            report::say(format_args!("kennel: session {}: it ended during the start: {status}", start.name));
        }
        return Ok(FAILED.into());
    }
    if let Err(source) = write_all(io::stdout(), &file) {
        end(&start.name, holder);
        return Err(Error::Io { what: "the session was ended: print the path of its file", source });
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends a session whose path could not be printed, and waits until it is gone.
fn end(name: &str, mut holder: Child) {
    if RecordedSession::find(name).and_then(RecordedSession::stop).is_err() {
        let _ = holder.kill();
    }
    let _ = holder.wait();
}

fn read_all(stream: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // Keep what arrived before the error.
        let _ = stream.read_to_end(&mut bytes);
    }
    bytes
}

/// A line of `kennel session list`.
#[derive(Serialize)]
struct Line<'r> {
    name: &'r str,
    profile: &'static str,
    workspace: &'r Path,
    /// Seconds since it takes commands.
    age_s: u64,
    pid: i32,
    file: &'r Path,
}

impl<'r> Line<'r> {
    fn of(session: &'r RecordedSession) -> Self {
        let RecordedSession { record, name, path, .. } = session;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let profile = record.policy.profile.as_str();
        let age_s = now.saturating_sub(record.since);
        let workspace = &*record.policy.workspace;
        Self { name, profile, workspace, age_s, pid: record.process, file: path }
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, profile, workspace, age_s, pid, .. } = self;
        let workspace = harmless(&workspace.to_string_lossy());
        write!(f, "{name:<16} {profile:<10} {:>5} {pid:>7}  {workspace}", age(*age_s))
    }
}

fn list(json: bool) -> Result<ExitCode, Error> {
    let (mut sessions, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for name in recorded_sessions()? {
        match RecordedSession::find(&name) {
            Ok(session) => sessions.push(session),
            // It has ended.
            Err(Error::Listen(ListenError::NotRunning { .. })) => {}
            // List the others.
            Err(error) => {
                report::error(&error);
                code = FAILED.into();
            }
        }
    }
    let lines: Vec<Line<'_>> = sessions.iter().map(Line::of).collect();
    let text = if json {
        report::json(&lines)?
    } else {
        let header = format!("{:<16} {:<10} {:>5} {:>7}  WORKSPACE", "NAME", "PROFILE", "AGE", "PID");
        let header = Paint::stdout().paint(style::TITLE, &header);
        let lines = lines.iter().map(Line::to_string);
        std::iter::once(header).chain(lines).collect::<Vec<_>>().join("\n")
    };
    report::print(format!("{text}\n").as_bytes()).map(|()| code)
}

fn stop(name: &str) -> Result<ExitCode, Error> {
    match RecordedSession::find(name).and_then(RecordedSession::stop) {
        Err(Error::Listen(ListenError::NotRunning { .. })) => {
            report::say(format_args!("kennel: session {name}: no session of that name is running"));
            Ok(ExitCode::SUCCESS)
        }
        stopped => stopped.map(|()| ExitCode::SUCCESS),
    }
}
