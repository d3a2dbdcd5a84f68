//! The commands of `kennel` on macOS: which room runs each, and those that run commands. What needs Linux is
//! refused by its name, and never ignored.

mod exec;
mod holder;
mod relay;
mod run;
mod session;

use std::process::ExitCode;

use kennel::{Error, report::PolicyError};

use crate::{
    args::{Verb, owner::AsOwner},
    config,
    host::{audit, probe},
    parse::manual,
    policy,
};

/// Why something is refused.
const LINUX: &str = "it needs Linux";

/// Runs one command of `kennel`.
pub(crate) fn dispatch(verb: Verb) -> Result<ExitCode, Error> {
    match verb {
        Verb::Run(run) => run::run(&run),
        Verb::Session { action } => session::session(&action),
        Verb::Exec(exec) => exec::exec(&exec),
        Verb::Probe(probe) => probe::probe(&probe),
        Verb::Policy { action } => policy::policy(&action),
        Verb::Init(init) => config::init::init(&init),
        Verb::Trust(trust) => config::trust::trust(&trust),
        Verb::Audit { action } => audit::audit(&action),
        Verb::Completions { shell } => manual::completions(shell),
        Verb::Man { command } => manual::page(&command),
        Verb::Diff(_) => Err(command("diff")),
        Verb::Commit(_) => Err(command("commit")),
        Verb::Discard(_) => Err(command("discard")),
        Verb::Op(_) => Err(command("op")),
        Verb::Connector { .. } => Err(command("connector")),
        Verb::Cache { .. } => Err(command("cache")),
        Verb::Image { .. } => Err(command("image")),
        Verb::Mcp(_) => Err(command("mcp")),
        Verb::Serve { .. } => Err(command("serve")),
        Verb::Route { .. } => Err(command("route")),
        Verb::Fleet { .. } => Err(command("fleet")),
    }
}

/// Refuses `kennel-mcp`.
pub(crate) fn mcp(_verb: Verb) -> Result<ExitCode, Error> {
    Err(command("mcp"))
}

/// Refuses `kennel-image`.
pub(crate) fn image(_verb: Verb) -> Result<ExitCode, Error> {
    Err(command("image"))
}

/// Refuses `kennel-connector`.
#[cfg(feature = "wasm")]
pub(crate) fn connector(_verb: Verb) -> Result<ExitCode, Error> {
    Err(command("connector"))
}

/// The error for a command that macOS does not have.
fn command(name: &str) -> Error {
    Error::Command { what: "kennel", value: name.to_owned(), reason: LINUX.to_owned() }
}

/// Refuses the first flag that is set and that macOS does not have.
fn refuse(flags: &[(&str, bool)]) -> Result<(), Error> {
    match flags.iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((flag, _)) => {
            let (key, reason) = ((*flag).to_owned(), LINUX.to_owned());
            Err(PolicyError::Value { key, value: String::new(), reason }.into())
        }
    }
}

fn becomes_owner(owner: &AsOwner) -> (&'static str, bool) {
    ("--as-owner", owner.as_owner || owner.owner_step.is_some())
}
