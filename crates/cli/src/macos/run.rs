//! `kennel run`: runs one command and passes signals on.

use std::{process::ExitCode, time::Duration};

use kennel::{Error, Outcome, Sandbox};

use super::{
    becomes_owner, refuse,
    relay::{self, Json},
};
use crate::{args::run::Run, policy::flags, process::runtime};

/// Longer than any command runs.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Runs `kennel run`.
pub(super) fn run(run: &Run) -> Result<ExitCode, Error> {
    refuse(&[
        ("--diff", run.diff),
        ("--commit", run.commit),
        ("--discard", run.discard),
        ("--ask", run.ask),
        ("--learn", run.learn.is_some()),
        ("--tty", run.tty),
        becomes_owner(&run.owner),
    ])?;
    let json = Json::create(run.json.as_deref())?;
    relay::finish(&json, confine(run), run.exit_code, run.quiet)
}

fn confine(run: &Run) -> Result<Outcome, Error> {
    let mut policy = flags::from_flags(&run.policy)?;
    policy.notes.extend(flags::notes(&run.policy));
    let Some((program, arguments)) = run.command.split_first() else {
        return Err(Error::NotFound { program: String::new() });
    };
    let sandbox = Sandbox::new(&policy)?;
    let runtime = runtime(FOREVER)?;
    let mut command = sandbox.command(program);
    command.args(arguments);
    let ended = runtime.block_on(relay::to_its_end(&mut command, policy.limits.output.is_some()));
    // Do not wait for a thread that still writes output.
    runtime.shutdown_background();
    ended
}
