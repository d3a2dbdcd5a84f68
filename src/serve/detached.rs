//! Serves clients that start a command that stays, or ask about one.

use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use kennel_helper::client_wire::Answer;

use crate::command::detached::ring::LogPiece;
use crate::command::detached::{Detached, LogReader};
use crate::report::enforcement::Note;
use crate::report::error::Error;
use crate::report::outcome::Outcome;
use crate::report::remedy::Wording;
use crate::serve::call::{ClientEnvironment, CommandCall};
use crate::serve::connection::{Connection, Form, NextStep, Wishes, status};
use crate::serve::question::{AboutDetached, SentDetached, SentState};
use crate::session::Session;
use crate::sys::closing::HeldFd;
use crate::sys::path_text::PathText;
use crate::sys::signal::Signal;

/// The longest name of a program in a list, in bytes. Of a longer one, the list has the first part.
const LONGEST_PROGRAM: usize = 4096;

/// Starts a command that stays. If the client leaves before it runs, it does not stay.
pub(crate) async fn start(
    connection: &Connection,
    session: &Session,
    environment: ClientEnvironment,
    mut call: CommandCall,
    log: Option<HeldFd>,
) -> NextStep {
    let form = call.form(session);
    let started = match call.command(session, environment) {
        Ok(mut command) => {
            if let Some(log) = log {
                command.held_log_file(log);
            }
            unless_left(connection, command.detach()).await
        }
        Err(error) => Some(Err(error)),
    };
    match started {
        Some(Ok(detached)) => connection.answer(&Answer::Detached { id: detached.id() }, None),
        Some(Err(error)) => {
            let has_ended = matches!(error, Error::SessionEnded);
            connection.ended(&Err(error), &Wishes { form, ..Wishes::default() });
            if has_ended {
                return NextStep::Stop(None);
            }
        }
        None => {}
    }
    NextStep::Nothing
}

/// Answers a question about the command with this number.
pub(crate) async fn answer(connection: &Connection, session: &Session, id: u32, question: AboutDetached) {
    let Some(command) = session.detached_command(id) else {
        let reason =
            "no detached command has this number; of those that ended, the session remembers the last 64";
        return connection.refuse(&format!("command {id}: {reason}"));
    };
    match question {
        AboutDetached::Logs { follows, lines } => {
            let reader = if follows { command.follow() } else { command.logs() };
            let reader = lines.into_iter().fold(reader, LogReader::tail);
            logs(connection, &command, reader).await;
        }
        AboutDetached::Kill { signal } => kill(connection, &command, signal),
        AboutDetached::Wait { wants_report, wants_data } => {
            if let Some(result) = unless_left(connection, command.wait()).await {
                let told = session.prepared();
                let told = told.compiled.enforcement.notes();
                let form = Form::of(session, wants_data);
                connection.ended(&result, &Wishes { told, is_quiet: false, wants_report, form });
            }
        }
    }
}

/// Sends the output as fast as the client reads it. A client that lags gets what is still kept then.
async fn logs(connection: &Connection, command: &Detached, mut reader: LogReader) {
    let sender = match connection.patient() {
        Ok(sender) => sender,
        Err(error) => return connection.refuse_for_shortage("send the output", &error),
    };
    let send_all = async {
        while let Some(piece) = reader.next().await {
            let answer = match &piece {
                LogPiece::Stdout(bytes) => Answer::Output { stream: 1, bytes },
                LogPiece::Stderr(bytes) => Answer::Output { stream: 2, bytes },
                LogPiece::Dropped(count) => Answer::Dropped { count: *count },
            };
            sender.send(&answer).await?;
        }
        let note = |why: String| {
            Note::new("log file", &format!("it lacks output: {why}"), None).line(Wording::default()) + "\n"
        };
        let message = command.unwritten().map(note).unwrap_or_default();
        sender.send(&Answer::Ended { code: 0, signal: 0, report: 0, message: message.as_bytes() }).await
    };
    if let Some(Err(error)) = unless_left(connection, send_all).await {
        tracing::debug!(%error, "a client did not receive the output");
    }
}

fn kill(connection: &Connection, command: &Detached, signal: Signal) {
    command.signal(signal);
    let message = match command.try_wait() {
        Some(_) => format!("kennel: command {}: it has ended\n", command.id()),
        None => String::new(),
    };
    connection.answer(&Answer::Ended { code: 0, signal: 0, report: 0, message: message.as_bytes() }, None);
}

/// Lists the commands that stay.
pub(crate) fn list(session: &Session) -> Vec<SentDetached> {
    session.detached().iter().map(|command| known(command, command.try_wait().as_ref())).collect()
}

fn known(command: &Detached, end: Option<&Result<Outcome, Error>>) -> SentDetached {
    let (code, signal) = end.map_or((0, 0), status);
    let program = command.program().as_bytes();
    let program = program.get(..LONGEST_PROGRAM).unwrap_or(program);
    SentDetached {
        id: command.id(),
        program: PathText(OsStr::from_bytes(program).into()),
        started_ms: milliseconds(command.started()),
        state: match end {
            None => SentState::Running,
            Some(Ok(_)) => SentState::Ended,
            Some(Err(_)) => SentState::Lost,
        },
        code,
        signal,
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).ok().and_then(|since| u64::try_from(since.as_millis()).ok()).unwrap_or(0)
}

/// Waits for `act`; `None` if the client leaves meanwhile or sends anything more.
pub(crate) async fn unless_left<T>(connection: &Connection, act: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = act => Some(done),
        _ = connection.next() => None,
    }
}
