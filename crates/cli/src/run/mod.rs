//! `kennel run`: runs one command, passes signals on, and settles its changes with `--overlay`. Nothing of it
//! stays when the command has ended.

mod ask;
mod learn;
mod streams;

use std::{ffi::OsString, os::unix::process::ExitStatusExt, process::ExitCode, time::Duration};

use kennel::{
    Error, Outcome, Policy, Sandbox, Session,
    image::{ImageConfig, ImageError, Store},
    report::{PolicyError, Report},
};

use crate::{
    args::run::Run,
    changes::settle::{Choice, Settled},
    image::missing,
    owner,
    policy::flags,
    process::{exit_status::end, runtime, start_blocking_thread},
    report,
    terminal::progress,
};
use ask::Prompt;
use learn::Learning;
use streams::until_outcome;

/// Longer than any command runs.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Runs `kennel run`.
pub(crate) fn run(run: &Run) -> Result<ExitCode, Error> {
    let asked = owner::Request { takes_keys: run.tty || run.ask, ..owner::Request::of(&run.policy) };
    if let Some(code) = owner::choose(&run.owner, asked)? {
        return Ok(code);
    }
    let json = run.json.as_deref().map(report::create).transpose()?;
    let result = confine(run);
    let written = match (&json, &run.json) {
        (Some(file), Some(path)) => report::write(file, path, &report::object(&report_of(&result))),
        _ => Ok(()),
    };
    // Print denials and degraded protections even if a later step failed.
    let Finished { outcome, settled, learned } = result?;
    report::end(&outcome, run.quiet);
    let settled = settled?;
    settled.print(run);
    learned?.iter().for_each(report::say);
    written?;
    let signal = outcome.status.signal().filter(|_| !run.exit_code);
    Ok(end(settled.exit_code().unwrap_or(outcome.exit_code()), signal))
}

fn report_of(result: &Result<Finished, Error>) -> Report {
    match result {
        Ok(Finished { outcome, settled: Ok(settled), learned: Ok(_) }) => {
            settled.add_to(Report::of_outcome(outcome))
        }
        Ok(Finished { outcome, settled: Err(error), .. } | Finished { outcome, learned: Err(error), .. }) => {
            let mut report = Report::of_outcome(outcome);
            report.exit_code = error.exit_code();
            report.failure = Some(error.failure());
            report
        }
        Err(error) => Report::failed(error),
    }
}

/// Where the command runs.
enum Confinement {
    /// A sandbox that has already started to prepare: without changes on a disk nothing has to wait for the
    /// runtime.
    Sandbox(Sandbox),
    /// A session, and with an overlay what to do with its changes.
    Session(Option<Choice>),
}

/// How the command ended, and what became of its changes.
struct Finished {
    outcome: Outcome,
    settled: Result<Settled, Error>,
    /// With `--learn`: what to say about the file that was written.
    learned: Result<Option<String>, Error>,
}

/// Runs the command in a sandbox or a session.
fn confine(run: &Run) -> Result<Finished, Error> {
    let mut policy = flags::from_flags(&run.policy)?;
    missing::pull(&policy, &run.pull)?;
    policy.notes.extend(flags::notes(&run.policy));
    let file = run.learn.as_deref();
    let learning = file.map(|file| Learning::begin(file, run, &mut policy)).transpose()?;
    let prompt = run.ask.then(|| Prompt::open(&run.policy, &mut policy)).transpose()?;
    let choice = Choice::of(run, &mut policy)?;
    let words = words(run, &policy)?;
    let call @ (program, arguments) = words.split_first().ok_or_else(no_command)?;
    let mut confinement = match (choice, &prompt) {
        (choice, _) if choice.is_some() || policy.image_upper.is_some() => Confinement::Session(choice),
        (_, prompt) => {
            let sandbox = Sandbox::eager(&policy)?;
            Confinement::Sandbox(match (prompt, &learning) {
                (Some(prompt), _) => sandbox.on_request(ask::LONGEST, prompt.callback()),
                (None, Some(learning)) => sandbox.on_request(ask::LONGEST, learning.callback()),
                (None, None) => sandbox,
            })
        }
    };
    let runtime = runtime(FOREVER)?;
    let mut finished = runtime.block_on(async {
        match &mut confinement {
            Confinement::Sandbox(sandbox) => {
                let mut command = sandbox.command(program);
                command.args(arguments);
                let ended = until_outcome(run, &policy, prompt.as_ref(), command).await;
                // Remove the cgroup before this process ends.
                sandbox.shutdown().await;
                Ok(Finished { outcome: ended?, settled: Ok(Settled::default()), learned: Ok(None) })
            }
            Confinement::Session(choice) => {
                in_session(run, &policy, prompt.as_ref(), learning.as_ref(), choice.as_mut(), call).await
            }
        }
    });
    // Dropping the sandbox waits until its init is reaped: in a container no other process may reap it. Do
    // not wait for a thread that still reads input.
    drop((confinement, policy));
    runtime.shutdown_background();
    prompt.iter().for_each(Prompt::settle);
    if let (Some(learning), Ok(finished)) = (learning, &mut finished) {
        finished.learned = learning.write(&finished.outcome).map(Some);
    }
    finished
}

/// The program and its arguments. With an image, its entry point comes first, and its default arguments where
/// none are given.
fn words(run: &Run, policy: &Policy) -> Result<Vec<OsString>, Error> {
    let after = |first: Vec<OsString>| first.into_iter().chain(run.command.iter().cloned()).collect();
    let Some(name) = policy.image.as_ref().filter(|_| run.entrypoint.is_none()) else {
        return Ok(after(run.entrypoint.iter().cloned().collect()));
    };
    let image = Store::open_default()?.find(&name.parse()?)?;
    let ImageConfig { entrypoint, cmd, .. } =
        image.ok_or_else(|| ImageError::NotFound { name: name.clone() })?.config;
    let mut words = entrypoint;
    if run.command.is_empty() {
        words.extend(cmd);
    }
    Ok(after(words.into_iter().map(OsString::from).collect()))
}

/// The error for a run without a program.
fn no_command() -> Error {
    let reason = "no program is given, and no image names one: write it after the flags";
    PolicyError::Value { key: "command".to_owned(), value: String::new(), reason: reason.to_owned() }.into()
}

/// Runs the command in a session and settles its changes.
async fn in_session(
    run: &Run,
    policy: &Policy,
    prompt: Option<&Prompt>,
    learning: Option<&Learning>,
    mut choice: Option<&mut Choice>,
    (program, arguments): (&OsString, &[OsString]),
) -> Result<Finished, Error> {
    start_blocking_thread().await?;
    let prepare = async |policy: &Policy| {
        let mut builder = Session::builder(policy).ready_workers(1);
        if let Some(prompt) = prompt {
            builder = builder.on_request(ask::LONGEST, prompt.callback());
        } else if let Some(learning) = learning {
            builder = builder.on_request(ask::LONGEST, learning.callback());
        }
        progress::awaiting("preparing the sandbox", builder.prepare()).await
    };
    let session = match &mut choice {
        Some(choice) => choice.prepare(policy, prepare).await?,
        None => prepare(policy).await?,
    };
    let mut command = session.command(program);
    command.args(arguments);
    let mut ended = until_outcome(run, policy, prompt, command).await;
    let Some(choice) = choice else {
        session.shutdown().await;
        return Ok(Finished { outcome: ended?, settled: Ok(Settled::default()), learned: Ok(None) });
    };
    let settled = match &mut ended {
        Ok(outcome) => progress::awaiting("looking at the changes", choice.settle(&session, outcome)).await,
        Err(_) => None,
    };
    session.shutdown().await;
    // Kept changes are committed when nothing uses them any more.
    drop(session);
    let settled = settled.unwrap_or_else(|| choice.settle_kept(ended.as_mut().ok()));
    Ok(Finished { outcome: ended?, settled, learned: Ok(None) })
}
