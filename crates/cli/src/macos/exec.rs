//! `kennel exec`: runs a command of a session as a child of this process. It ends with the session.

use std::{env, process::ExitCode};

use kennel::{Error, Outcome, internal::RecordedSession};
use tokio::sync::oneshot;

use super::{
    refuse,
    relay::{self, Json},
};
use crate::{
    args::session::Exec,
    process::{self, start_thread, thread_error},
};

/// Variables of the session that no command sets, beside those of its proxy.
const KEPT: [&str; 4] = ["HOME", "TMPDIR", "TMP", "TEMP"];

/// Runs `kennel exec`.
pub(super) fn exec(exec: &Exec) -> Result<ExitCode, Error> {
    refuse(&[
        ("--detach", exec.detach),
        ("--log", exec.log.is_some()),
        ("--tty", exec.tty),
        ("--shell", exec.shell.is_some()),
    ])?;
    let json = Json::create(exec.json.as_deref())?;
    relay::finish(&json, run(exec), exec.exit_code, exec.quiet)
}

fn run(exec: &Exec) -> Result<Outcome, Error> {
    let Some((program, arguments)) = exec.command.split_first() else {
        return Err(Error::NotFound { program: String::new() });
    };
    let RecordedSession { record, life, .. } = RecordedSession::find(&exec.name)?;
    let counts = record.policy.limits.output.is_some();
    let session = record.session()?;
    let mut command = session.command(program);
    command.args(arguments);
    for (name, value) in &exec.setenv {
        check_variable(name)?;
        command.env(name, value);
    }
    if let Some(given) = &exec.cwd {
        let here = env::current_dir();
        let here = here.map_err(|source| Error::Io { what: "find the current directory", source })?;
        command.current_dir(here.join(given));
    }
    if let Some(timeout) = exec.timeout {
        command.timeout(timeout.duration());
    }
    let runtime = process::runtime(process::IDLE_THREAD)?;
    let ended = runtime.block_on(async {
        let (tell, session_ended) = oneshot::channel();
        start_thread(move || tell.send(life.ended())).map_err(thread_error)?;
        tokio::select! {
            ended = relay::to_its_end(&mut command, counts) => ended,
            // Dropping the command kills it.
            Ok(_) = session_ended => Err(Error::SessionEnded),
        }
    });
    runtime.shutdown_background();
    ended
}

/// # Errors
/// The session keeps the variable.
fn check_variable(name: &str) -> Result<(), Error> {
    if !KEPT.contains(&name) && !name.to_ascii_lowercase().ends_with("_proxy") {
        return Ok(());
    }
    let reason = "the session keeps it as it is".to_owned();
    Err(Error::Command { what: "environment variable", value: name.to_owned(), reason })
}
