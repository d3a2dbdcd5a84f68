//! Which room runs a command of `kennel` on Linux. `macos/mod.rs` has the same names.

use std::process::ExitCode;

use kennel::Error;

#[cfg(feature = "wasm")]
use crate::manifest::connector;
use crate::{
    args::{Verb, session::SessionAction},
    changes::review,
    config,
    host::{audit, cache, probe},
    manifest::op,
    parse::manual,
    policy,
    process::beside,
    run,
    session::{self, exec},
};

/// Runs one command of `kennel`. Its file turns the arguments into types of the library.
pub(crate) fn dispatch(verb: Verb) -> Result<ExitCode, Error> {
    match verb {
        Verb::Run(run) => run::run(&run),
        Verb::Session { action } => session::session(&action),
        Verb::Exec(exec) => exec::exec(&exec),
        Verb::Diff(diff) => review::diff(&diff),
        Verb::Commit(part) => review::commit(&part),
        Verb::Discard(part) => review::discard(&part),
        Verb::Op(op) => op::op(&op),
        Verb::Connector { .. } => beside::execute(&beside::CONNECTOR),
        Verb::Image { .. } => beside::execute(&beside::IMAGE),
        Verb::Probe(probe) => probe::probe(&probe),
        Verb::Policy { action } => policy::policy(&action),
        Verb::Cache { action } => cache::cache(&action),
        Verb::Init(init) => config::init::init(&init),
        Verb::Trust(trust) => config::trust::trust(&trust),
        Verb::Audit { action } => audit::audit(&action),
        Verb::Completions { shell } => manual::completions(shell),
        Verb::Mcp(_) => beside::execute(&beside::MCP),
        Verb::Serve { words } => beside::execute_with(&beside::SERVER, "serve", &words),
        Verb::Route { words } => beside::execute_with(&beside::SERVER, "route", &words),
        Verb::Fleet { words } => beside::execute_with(&beside::SERVER, "fleet", &words),
        Verb::Man { command } => manual::page(&command),
    }
}

/// Runs `kennel mcp`, in the executable `kennel-mcp`.
pub(crate) fn mcp(verb: Verb) -> Result<ExitCode, Error> {
    match verb {
        Verb::Mcp(arguments) => crate::mcp::mcp(&arguments),
        _ => Err(beside::wrong_words("mcp")),
    }
}

/// Runs `kennel image` and what else writes to the store of images, in the executable `kennel-image`.
pub(crate) fn image(verb: Verb) -> Result<ExitCode, Error> {
    match verb {
        Verb::Image { action } => crate::image::image(&action),
        Verb::Session { action: SessionAction::Snapshot(arguments) } => {
            crate::image::snapshot::snapshot(&arguments)
        }
        _ => Err(beside::wrong_words("image")),
    }
}

/// Runs `kennel connector`, in the executable `kennel-connector`.
#[cfg(feature = "wasm")]
pub(crate) fn connector(verb: Verb) -> Result<ExitCode, Error> {
    match verb {
        Verb::Connector { action } => connector::connector(&action),
        _ => Err(beside::wrong_words("connector")),
    }
}
