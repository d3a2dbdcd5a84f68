//! Serves a client that runs a snippet in a shell of the session. The client's signals interrupt the snippet, and so does its end.

use std::os::fd::OwnedFd;
use std::pin::pin;

use tokio::sync::{Notify, oneshot};
use tokio::task::yield_now;

use crate::report::Report;
use crate::report::enforcement::FlagsOf;
use crate::report::error::Error;
use crate::report::escape::harmless;
use crate::report::outcome::Ended;
use crate::report::shell::{ShellOrigin, ShellReport};
use crate::serve::call::Call;
use crate::serve::connection::{Connection, Wishes};
use crate::serve::serving::{NextStep, Order, is_ending, order};
use crate::session::Session;
use crate::session::shell::{ShellOutput, Snippet};

/// How a snippet went.
struct Ran {
    /// `None` if it was stopped before its turn.
    result: Result<Option<ShellOutput>, Error>,
    /// The first signal of the client that ends commands.
    signal: Option<i32>,
}

/// Runs the snippet and tells the client how it ended.
pub(crate) async fn run(
    connection: &Connection,
    session: &Session,
    call: Call,
    [_, stdout, stderr]: [OwnedFd; 3],
) -> NextStep {
    let (wants_report, is_quiet) = (call.wants_report, call.is_quiet);
    let Some((name, text, timeout)) = call.snippet() else {
        connection.refuse("the request is malformed, or from another version of Kennel");
        return NextStep::Nothing;
    };
    let mut snippet = session.shell_with_id(&name).snippet(text);
    if let Some(timeout) = timeout {
        snippet = snippet.timeout(timeout);
    }
    // `None`: the client has left, and the snippet was interrupted.
    let Some(Ran { result, signal }) = follow(connection, snippet, [stdout, stderr]).await else {
        return NextStep::Nothing;
    };
    let by_signal = signal.and_then(|number| Some((u8::try_from(128 + number).ok()?, Some(number))));
    match result {
        Ok(Some(output)) => {
            let mut lines = Vec::new();
            let mut end = (output.exit_code(), None);
            match by_signal.filter(|_| output.ended == Ended::Killed) {
                Some(killed) => end = killed,
                None => lines.extend(output.lines(FlagsOf::Session)),
            }
            lines.extend(words(&name, &output));
            if is_quiet {
                lines = output.lost().map(|why| format!("kennel: {why}")).collect();
            }
            let report = wants_report.then(|| report(&output));
            connection.snippet_ended(end, &lines, report.as_ref());
        }
        Ok(None) => connection.snippet_ended(by_signal.unwrap_or_default(), &[], None),
        Err(error) => {
            let is_over = matches!(error, Error::SessionEnded);
            connection.ended(&Err(error), &Wishes { wants_report, ..Wishes::default() });
            if is_over {
                return NextStep::Stop(None);
            }
        }
    }
    NextStep::Nothing
}

/// Waits for the end of the snippet; `None` if the client leaves.
async fn follow(connection: &Connection, snippet: Snippet, output: [OwnedFd; 2]) -> Option<Ran> {
    let (stop, stopped) = oneshot::channel::<()>();
    let mut stop = Some(stop);
    let hurry = Notify::new();
    let stopped = async { drop(stopped.await) };
    let mut ran = pin!(snippet.copy(output, stopped, hurry.notified()));
    let mut signal = None;
    loop {
        let packet = tokio::select! {
            biased;
            result = &mut ran => return Some(Ran { result, signal }),
            packet = connection.next() => packet?,
        };
        if let Order::Signal(number) = order(&packet)?
            && is_ending(number)
        {
            signal.get_or_insert(number);
            drop(stop.take());
            hurry.notify_one();
        }
        // Receiving packets that are there already never waits: let the runtime poll the snippet in between.
        yield_now().await;
    }
}

/// What people are told about the shell.
fn words(name: &str, output: &ShellOutput) -> Vec<String> {
    let name = harmless(name);
    let replaced =
        format!("kennel: note: shell {name}: the earlier one has ended, this snippet ran in a new one");
    let ended = format!("kennel: note: shell {name} has ended: the next snippet runs in a new one");
    let replaced = (output.origin == ShellOrigin::Replacement).then_some(replaced);
    replaced.into_iter().chain(output.has_ended.then_some(ended)).collect()
}

fn report(output: &ShellOutput) -> Report {
    let directory = output.directory.as_ref().map(|path| path.display().to_string());
    let shell = ShellReport { origin: output.origin, has_ended: output.has_ended, directory };
    Report { shell: Some(shell), ..Report::of_outcome(output) }
}
