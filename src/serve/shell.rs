//! Serves a client that runs a snippet in a shell of the session. The client's signals interrupt the snippet,
//! and so does its end.

use std::pin::pin;

use tokio::sync::{Notify, oneshot};
use tokio::task::yield_now;

use crate::process::output::Kept;
use crate::report::Report;
use crate::report::enforcement::Scope;
use crate::report::error::Error;
use crate::report::escape::harmless;
use crate::report::outcome::Ended;
use crate::report::remedy::Remedy;
use crate::report::shell::{ShellOrigin, ShellReport};
use crate::serve::call::{CallStreams, CommandCall, MOST_COLLECTED, Order, is_ending, order};
use crate::serve::connection::{Connection, EndMessage, NextStep, Wishes};
use crate::session::Session;
use crate::session::shell::{ShellOutput, Snippet};
use crate::sys::signal::Signal;

/// How a snippet went.
struct Ran {
    /// `None` if it was stopped before its turn.
    result: Result<Option<ShellOutput>, Error>,
    /// The first signal of the client that ends commands.
    signal: Option<Signal>,
}

/// Runs the snippet and tells the client how it ended.
pub(crate) async fn run(
    connection: &Connection,
    session: &Session,
    call: CommandCall,
    streams: CallStreams,
) -> NextStep {
    let collects = matches!(streams, CallStreams::Collected(_));
    let (wants_report, is_quiet) = (call.wants_report || collects, call.is_quiet);
    let form = call.form(session);
    let Some((name, text, timeout)) = call.snippet() else {
        connection.refuse("the request is malformed, or from another version of Kennel");
        return NextStep::Nothing;
    };
    let mut snippet = session.shell_with_id(&name).snippet(text);
    if collects {
        snippet = snippet.output_cap(MOST_COLLECTED).unmarked();
    }
    if let Some(timeout) = timeout {
        snippet = snippet.timeout(timeout);
    }
    // `None`: the client has left, and the snippet was interrupted.
    let Some(Ran { result, signal }) = follow(connection, snippet, streams).await else {
        return NextStep::Nothing;
    };
    let by_signal = signal.map(Signal::number);
    let by_signal = by_signal.and_then(|number| Some((u8::try_from(128 + number).ok()?, Some(number))));
    match result {
        Ok(Some(output)) => {
            let mut lines = Vec::new();
            let mut end = (output.outcome.exit_code(), None);
            match by_signal.filter(|_| output.outcome.ended == Ended::Killed) {
                Some(killed) => end = killed,
                None => lines.extend(output.outcome.sentences(Scope::Session)),
            }
            lines.extend(words(&name, &output));
            if is_quiet {
                lines = output.outcome.lost().collect();
            }
            let report = wants_report.then(|| report(&output));
            let report = if collects { report.map(Report::with_weaker_enforcement) } else { report };
            let streams = collects.then(|| [output.stdout, output.stderr].map(Kept::from));
            let (code, signal) = end;
            let (code, signal) = (code.into(), signal_number(signal));
            connection.end(EndMessage { code, signal, lines, report, output: streams, form });
        }
        Ok(None) => {
            let (code, signal) = by_signal.unwrap_or_default();
            let (code, signal) = (code.into(), signal_number(signal));
            let output = collects.then(Default::default);
            connection.end(EndMessage { code, signal, output, ..EndMessage::default() });
        }
        Err(error) => {
            let is_over = matches!(error, Error::SessionEnded);
            let wishes = Wishes { wants_report, form, ..Wishes::default() };
            if collects {
                connection.collected(Err(error), &wishes);
            } else {
                connection.ended(&Err(error), &wishes);
            }
            if is_over {
                return NextStep::Stop(None);
            }
        }
    }
    NextStep::Nothing
}

/// Waits for the end of the snippet; `None` if the client leaves.
async fn follow(connection: &Connection, snippet: Snippet, streams: CallStreams) -> Option<Ran> {
    let (stop, stopped) = oneshot::channel::<()>();
    let mut stop = Some(stop);
    let hurry = Notify::new();
    let stopped = async { drop(stopped.await) };
    let mut ran = pin!(async {
        match streams {
            CallStreams::Given([_, stdout, stderr]) => {
                snippet.copy([stdout, stderr], stopped, hurry.notified()).await
            }
            CallStreams::Collected(_) => snippet.collect(stopped).await,
        }
    });
    let mut signal = None;
    loop {
        let packet = tokio::select! {
            biased;
            result = &mut ran => return Some(Ran { result, signal }),
            packet = connection.next() => packet?,
        };
        if let Order::Signal(given) = order(&packet)?
            && is_ending(given)
        {
            signal.get_or_insert(given);
            drop(stop.take());
            hurry.notify_one();
        }
        // Receiving packets that are there already never waits: let the runtime poll the snippet in between.
        yield_now().await;
    }
}

/// The signal, or 0, as an answer has it.
fn signal_number(signal: Option<i32>) -> u32 {
    signal.unwrap_or(0).unsigned_abs()
}

/// What people are told about the shell.
fn words(name: &str, output: &ShellOutput) -> Vec<Remedy> {
    let name = harmless(name);
    let replaced =
        format!("kennel: note: shell {name}: the earlier one has ended, this snippet ran in a new one");
    let ended = format!("kennel: note: shell {name} has ended: the next snippet runs in a new one");
    let replaced = (output.origin == ShellOrigin::Replacement).then_some(replaced);
    replaced.into_iter().chain(output.has_ended.then_some(ended)).map(Remedy::from).collect()
}

fn report(output: &ShellOutput) -> Report {
    let directory = output.directory.as_ref().map(|path| path.display().to_string());
    let shell = ShellReport { origin: output.origin, has_ended: output.has_ended, directory };
    Report { shell: Some(shell), ..Report::of_outcome(&output.outcome) }
}
