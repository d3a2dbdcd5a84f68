//! The `kennel` command: parse, make a policy and a command of it, run, answer with an exit status.
//!
//! Low arguments (what was typed) are in `args`; everything after works on the library's own types.

mod args;
mod audit;
mod descriptor;
#[path = "../../report/escape.rs"]
mod escape;
mod exec;
mod flags;
mod manual;
mod op;
mod parse;
mod policy;
mod probe;
mod process;
mod report;
mod run;
mod session;
mod terminal;
mod window;

use std::{ffi::OsString, process::ExitCode};

use clap::error::ErrorKind;

use args::Verb;
use kennel::Error;
use nix::sys::signal::{SigSet, Signal};

/// Kennel itself failed; the command did not run, or its end is unknown.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    // Whoever may write no file gets an error that says so, not a death without a word. Commands begin with none blocked.
    let _ = SigSet::from(Signal::SIGXFSZ).thread_block();
    let typed: Vec<OsString> = std::env::args_os().collect();
    let done = match parse::parse(&typed) {
        Ok(arguments) => answer(arguments.verb),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            report::answered(error.print()).map(|()| ExitCode::SUCCESS)
        }
        // What the parser says of it does not say where.
        Err(error) if error.kind() == ErrorKind::InvalidUtf8 => Err(parse::not_text(&typed)),
        Err(error) => {
            // Nothing can be said where nothing can be written.
            let _ = error.print();
            Ok(FAILED.into())
        }
    };
    done.unwrap_or_else(|error| {
        report::error(&error);
        error.exit_code().into()
    })
}

fn answer(verb: Verb) -> Result<ExitCode, Error> {
    match verb {
        Verb::Run(run) => run::run(&run),
        Verb::Session { action } => session::session(&action),
        Verb::Exec(exec) => exec::exec(&exec),
        Verb::Op(op) => op::op(&op),
        Verb::Probe(probe) => probe::probe(&probe),
        Verb::Policy { action } => policy::policy(&action),
        Verb::Audit { action } => audit::audit(&action),
        Verb::Completions { shell } => manual::completions(shell),
        Verb::Man { command } => manual::page(&command),
    }
}
