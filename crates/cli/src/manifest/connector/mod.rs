//! `kennel connector`: checks, runs and compiles WebAssembly connectors.

mod check;
mod compile;
mod input;
mod run;
mod runtime;

use std::process::ExitCode;

use kennel::Error;

use crate::args::manifest::Action;

/// Runs `kennel connector`.
pub(crate) fn connector(action: &Action) -> Result<ExitCode, Error> {
    match action {
        Action::Check(check) => check::check(check),
        Action::Run(run) => run::run(run),
        Action::Compile(compile) => compile::compile(compile),
    }
}
