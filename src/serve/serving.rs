//! Serves one client from its request to the end of its command. When the client leaves, its command is
//! killed.

use std::future::{Future, pending};
use std::io;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kennel_helper::client_wire::Answer;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::command::Command;
use crate::command::child::{Child, Stops};
use crate::command::outlet::OutputCopier;
use crate::policy::limits::Limits;
use crate::policy::units::Size;
use crate::process::output::{ChildOutput, CollectedOutput, Kept};
use crate::process::stdio::DefaultStdio;
use crate::report::error::Error;
use crate::report::outcome::Outcome;
use crate::report::remedy::SettingKey;
use crate::report::shortage::is_shortage;
use crate::serve::accept::{AllowedPeer, WaitingPlace};
use crate::serve::call::{
    CallStreams, ClientEnvironment, CommandCall, MOST_COLLECTED, Order, Request, is_ending, order,
};
use crate::serve::connection::{Connection, LINGER, NextStep, Wishes};
use crate::serve::{answering, detached, shell};
use crate::session::Session;
use crate::sys::closing::HeldFd;
use crate::sys::inode::is_one_file;
use crate::sys::packet::Packet;
use crate::sys::signal::Signal;

/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the end of a command waits until what its client gave is closed here.
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// Serves one client, which waits at its place until its request has arrived. Then its requests, one after
/// the other, if it keeps the connection.
pub(crate) async fn serve(
    connection: Connection,
    session: Session,
    environment: ClientEnvironment,
    allowed: Arc<AllowedPeer>,
    mut place: WaitingPlace,
) -> NextStep {
    let first = tokio::select! {
        // A request that has arrived is served.
        biased;
        first = timeout(REQUEST_TIMEOUT, connection.first()) => first,
        () = place.lost() => {
            connection.refuse("it sent nothing while many other clients came");
            return NextStep::Nothing;
        }
    };
    let Ok(first) = first else { return NextStep::Nothing };
    let Some(mut packet) = received(&connection, first).await else { return NextStep::Nothing };
    loop {
        place.leave();
        let request = Request::decode(packet);
        if matches!(request, Some(Request::Stop)) {
            return NextStep::Stop(Some(connection));
        }
        let keeps = request.as_ref().is_some_and(Request::keeps_connection);
        let next_step = answer(&connection, &session, environment, request).await;
        if !keeps || !matches!(next_step, NextStep::Nothing) {
            // Read signals that cross the answer: closing a socket with unread data makes the kernel discard
            // the answer.
            if timeout(LINGER, connection.wait_until_gone()).await.is_ok() {
                connection.close_later();
            }
            return next_step;
        }
        place.take();
        // The client opens another connection if this one is closed while it has no request here.
        let next = tokio::select! {
            biased;
            next = connection.first() => next,
            () = place.lost() => return NextStep::Nothing,
            () = session.closed() => return NextStep::Nothing,
        };
        let Some(next) = received(&connection, next).await else { return NextStep::Nothing };
        packet = next;
        // It may have entered a sandbox or become another user since.
        if let Err(reason) = allowed.check_again(connection.socket()) {
            match reason.shortage() {
                Some(error) => connection.refuse_for_shortage("check the client", &error),
                None => connection.refuse(&reason.to_string()),
            }
            return NextStep::Nothing;
        }
    }
}

/// The packet of a request; `None` if the client has left, or was told that this process could not receive
/// it.
async fn received(connection: &Connection, packet: io::Result<Packet>) -> Option<Packet> {
    match packet {
        Ok(packet) => (!packet.bytes.is_empty()).then_some(packet),
        Err(error) => {
            if error.raw_os_error().is_some_and(is_shortage) {
                connection.refuse_for_shortage("receive what the client sends", &error);
                let _ = timeout(LINGER, connection.wait_until_gone()).await;
            }
            None
        }
    }
}

/// Carries out a request and answers it.
async fn answer(
    connection: &Connection,
    session: &Session,
    environment: ClientEnvironment,
    request: Option<Request>,
) -> NextStep {
    let _using = request.as_ref().filter(|request| request.uses_session()).map(|_| session.begin_use());
    match request {
        Some(Request::Call(call, streams)) => run(connection, session, environment, *call, streams).await,
        Some(Request::Shell(call, streams)) => shell::run(connection, session, *call, streams).await,
        Some(Request::Detach(call, log)) => {
            detached::start(connection, session, environment, *call, log).await
        }
        Some(Request::About(id, question)) => {
            detached::answer(connection, session, id, question).await;
            NextStep::Nothing
        }
        Some(Request::Question(question)) => answering::answer(connection, session, question).await,
        Some(Request::Stop) => NextStep::Stop(None),
        None => {
            connection.refuse("the request is malformed, or from another version of Kennel");
            NextStep::Nothing
        }
    }
}

async fn run(
    connection: &Connection,
    session: &Session,
    environment: ClientEnvironment,
    mut call: CommandCall,
    streams: CallStreams,
) -> NextStep {
    let (wants_report, is_quiet, own_timeout) = (call.wants_report, call.is_quiet, call.timeout);
    let form = call.form(session);
    let collects = matches!(streams, CallStreams::Collected(_));
    let (open, mut closed) = mpsc::channel(1);
    let streams = streams.known_open(&open);
    drop(open);
    let result = match (call.command(session, environment), streams) {
        (Ok(command), CallStreams::Given(stdio)) => {
            let result = run_to_end(connection, session, call, stdio, command).await;
            result.map(|result| result.map(|outcome| (outcome, Default::default())))
        }
        (Ok(command), CallStreams::Collected(stdin)) => {
            collect(connection, session, call, stdin, command).await
        }
        (Err(error), _) => Some(Err(error)),
    };
    // `None`: the client has left, and the command was killed.
    let Some(mut result) = result else { return NextStep::Gone };
    // Who has seen the end may execute or lock the file to which the command wrote.
    let _ = timeout(CLOSE_PATIENCE, closed.recv()).await;
    // No setting of the session raises a timeout that the client has set.
    if let Ok((outcome, _)) = &mut result
        && own_timeout.is_some()
        && outcome.timeout == own_timeout
    {
        outcome.hints.retain(|hint| !hint.sets(SettingKey::Timeout));
    }
    // `session start` has told what the session was prepared with.
    let told = session.prepared();
    let told = told.compiled.enforcement.notes();
    let wishes = Wishes { told, is_quiet, wants_report, form };
    // The zygote was killed: the session cannot run anything any more.
    let is_over = matches!(result, Err(Error::SessionEnded));
    if collects {
        connection.collected(result, &wishes);
    } else {
        connection.ended(&result.map(|(outcome, _)| outcome), &wishes);
    }
    if is_over { NextStep::Stop(None) } else { NextStep::Nothing }
}

/// Runs the command; `None` if the client leaves meanwhile.
async fn run_to_end(
    connection: &Connection,
    session: &Session,
    call: CommandCall,
    stdio: [HeldFd; 3],
    mut command: Command,
) -> Option<Result<Outcome, Error>> {
    let copier = match connect(session, &call, stdio, &mut command) {
        Ok(copier) => copier,
        Err(error) => return Some(Err(error)),
    };
    let (mut child, mut passed) = match start(connection, command.spawn()).await? {
        Ok(started) => started,
        Err(error) => return Some(Err(error)),
    };
    if let Some(terminal) = child.terminal.take() {
        connection.answer(&Answer::Terminal {}, Some(terminal.as_fd()));
    }
    if call.is_unmarked {
        leave_unmarked(&mut child);
    }
    let copies = copier.copy(&mut child);
    let mut result =
        follow(connection, &mut child, &mut CollectedOutput::new(None, None), &mut passed).await?;
    if let Ok(outcome) = &mut result {
        let was_passed = |signal| is_ending(signal) && passed.contains(&signal);
        let is_ended = outcome.status.signal().and_then(Signal::new).is_some_and(was_passed);
        copies.finish(outcome, output_unwanted(connection, is_ended)).await;
    }
    Some(result)
}

/// Runs the command and collects its output; `None` if the client leaves meanwhile.
async fn collect(
    connection: &Connection,
    session: &Session,
    call: CommandCall,
    stdin: Option<HeldFd>,
    mut command: Command,
) -> Option<Result<(Outcome, [Kept; 2]), Error>> {
    command.hints(!call.is_quiet);
    // The answer has 32 bits for each length.
    let longest = Size::from_bytes(u32::MAX.into());
    let cap = match session.prepared().compiled.commands.limits.output {
        None => Some(Size::from_bytes(MOST_COLLECTED)),
        Some(cap) => (cap > longest).then_some(longest),
    };
    if cap.is_some() {
        command.limits(Limits { output: cap, ..Limits::default() });
    }
    if let Some(stdin) = stdin {
        command.stdin(stdin);
    }
    let (mut child, mut passed) = match start(connection, command.start(DefaultStdio::Collect)).await? {
        Ok(started) => started,
        Err(error) => return Some(Err(error)),
    };
    leave_unmarked(&mut child);
    let mut output = CollectedOutput::for_client(child.stdout.take(), child.stderr.take());
    let outcome = follow(connection, &mut child, &mut output, &mut passed).await?;
    Some(outcome.and_then(|outcome| output.end(outcome)))
}

/// Keeps Kennel's words out of output that a cap cuts. A program reads it, and the report says that it was
/// cut.
fn leave_unmarked(child: &mut Child) {
    child.stdout.iter_mut().chain(&mut child.stderr).for_each(ChildOutput::leave_unmarked);
}

/// Sets the command's standard descriptors: the client's own, or pipes if Kennel counts, limits or reads its
/// output.
fn connect(
    session: &Session,
    call: &CommandCall,
    stdio: [HeldFd; 3],
    command: &mut Command,
) -> Result<OutputCopier, Error> {
    let is_own = |number| call.terminal.as_ref().is_some_and(|terminal| terminal.is_stream(number));
    let (owns_stdout, owns_stderr) = (is_own(1), is_own(2));
    let [stdin, stdout, stderr] = stdio;
    let is_cut = session.prepared().compiled.commands.limits.output.is_some();
    // Output to a terminal is not counted, even for a report: the command would notice a pipe. Two pipes for
    // one file would mix up what the command writes.
    let counts = call.wants_report && !is_one_file(&stdout, &stderr);
    let is_counted = |fd: &HeldFd| is_cut || (counts && !fd.as_fd().is_terminal());
    // The client prints hints on its stderr.
    let explains = session.prepared().compiled.commands.explains;
    command.hints(!call.is_quiet && (explains || owns_stderr || stderr.as_fd().is_terminal()));
    command.stdin(stdin);
    let stdout = if !owns_stdout && is_counted(&stdout) {
        Some(stdout)
    } else {
        command.stdout(stdout);
        None
    };
    let stderr = if !owns_stderr && is_counted(&stderr) {
        Some(stderr)
    } else {
        command.stderr(stderr);
        None
    };
    OutputCopier::connect(command, stdout, stderr)
}

/// Waits until the client needs no more output: it leaves, or it sends a signal that ends commands. Returns
/// at once if such a signal has ended the command.
async fn output_unwanted(connection: &Connection, is_ended: bool) {
    if is_ended {
        return;
    }
    while let Some(order) = connection.next().await.as_ref().and_then(order) {
        if matches!(order, Order::Signal(number) if is_ending(number)) {
            return;
        }
        yield_now().await;
    }
}

/// Starts the command; `None` if the client leaves meanwhile. Signals that arrive early are sent once it
/// runs. Returns them too.
async fn start(
    connection: &Connection,
    spawn: impl Future<Output = Result<Child, Error>>,
) -> Option<Result<(Child, Vec<Signal>), Error>> {
    let mut early = Vec::new();
    let mut spawn = pin!(spawn);
    let child = loop {
        tokio::select! {
            biased;
            child = &mut spawn => break child,
            packet = connection.next() => {
                // Who has the terminal is ordered anew when the client gets it.
                if let Order::Signal(number) = order(&packet?)? {
                    note(&mut early, number);
                }
            }
        }
        // Receiving packets that are there already never waits: let the runtime poll the start in between.
        yield_now().await;
    };
    if let Ok(child) = &child {
        early.iter().for_each(|&signal| pass_on(child, signal));
    }
    Some(child.map(|child| (child, early)))
}

/// Notes a signal once, like a pending signal.
fn note(signals: &mut Vec<Signal>, signal: Signal) {
    if !signals.contains(&signal) {
        signals.push(signal);
    }
}

/// Waits for the command's end and passes signals on; `None` if the client leaves. It adds each signal to
/// `passed` for good: a later SIGCONT, such as timeout(1) sends after SIGTERM, does not undo it.
async fn follow(
    connection: &Connection,
    child: &mut Child,
    output: &mut CollectedOutput,
    passed: &mut Vec<Signal>,
) -> Option<Result<Outcome, Error>> {
    let mut stops = child.stops();
    loop {
        let packet = tokio::select! {
            biased;
            outcome = child.wait() => return Some(outcome),
            read = output.read(), if output.is_open() => {
                if let Err(error) = read {
                    return Some(Err(error));
                }
                continue;
            }
            signal = next_stop(&mut stops) => {
                connection.answer(&Answer::Stopped { signal: signal.unsigned() }, None);
                continue;
            }
            packet = connection.next() => packet?,
        };
        match order(&packet)? {
            Order::Signal(number) => {
                pass_on(child, number);
                note(passed, number);
            }
            Order::Foreground(has) => {
                if let Err(error) = child.foreground(has) {
                    tracing::debug!(%error, "could not order the foreground");
                }
            }
        }
        yield_now().await;
    }
}

/// The next signal that stops the command.
async fn next_stop(stops: &mut Stops) -> Signal {
    match stops.next().await {
        Some(signal) => signal,
        None => pending().await,
    }
}

/// Sends a signal to the command. It is no error if the command has ended.
fn pass_on(child: &Child, signal: Signal) {
    if let Err(error) = child.signal(signal) {
        tracing::debug!(%error, %signal, "could not send a signal to the command");
    }
}
