//! The `kennel` command: flags become a policy and a command, Kennel runs it, and its end becomes an exit
//! status. This library has the code of `kennel`, `kennel-mcp` and `kennel-connector`, and nothing for other
//! programs.
//!
//! It reads top to bottom. `parse` turns words into `args`, which are plain types. The room of each command
//! turns `args` into types of the library and runs them. `report` writes every message.
//!
//! A room imports only rooms that come before it: `process`, `terminal`, `report`, `args`, `parse`, `owner`,
//! `changes`, `config`, `policy`, `host`, `manifest`, `session`, `run`, `mcp`.

mod args;
mod changes;
mod config;
mod host;
mod manifest;
mod mcp;
mod owner;
mod parse;
mod policy;
mod process;
mod report;
mod run;
mod session;
mod terminal;

use std::{ffi::OsString, io, process::ExitCode};

use anstream::adapter::strip_str;
use clap::error::ErrorKind;
use kennel::{Error, internal::escape::harmless};
use nix::sys::signal::{SigSet, Signal};

use args::Verb;
use changes::review;
use host::{audit, cache, probe};
#[cfg(feature = "wasm")]
use manifest::connector;
use manifest::op;
use parse::manual;
use process::{beside, descriptor, exit_status::FAILED};
use session::exec;
use terminal::{
    style::{Paint, When},
    table,
};

/// The whole of `kennel`.
pub fn kennel() -> ExitCode {
    start(dispatch)
}

/// The whole of `kennel-mcp`, which takes the words of `kennel mcp`.
pub fn mcp() -> ExitCode {
    start(|verb| match verb {
        Verb::Mcp(arguments) => mcp::mcp(&arguments),
        _ => Err(beside::wrong_words("mcp")),
    })
}

/// The whole of `kennel-connector`, which takes the words of `kennel connector`.
#[cfg(feature = "wasm")]
pub fn connector() -> ExitCode {
    start(|verb| match verb {
        Verb::Connector { action } => connector::connector(&action),
        _ => Err(beside::wrong_words("connector")),
    })
}

fn start(dispatch: impl FnOnce(Verb) -> Result<ExitCode, Error>) -> ExitCode {
    // A write beyond RLIMIT_FSIZE then fails with an error instead of killing this process. Commands start
    // with no signal blocked.
    let _ = SigSet::from(Signal::SIGXFSZ).thread_block();
    let words: Vec<OsString> = std::env::args_os().collect();
    let done = match parse::parse(&words) {
        Ok(arguments) => {
            arguments.color.into_iter().for_each(When::apply);
            dispatch(arguments.verb)
        }
        Err(error) => {
            parse::color(&words).into_iter().for_each(When::apply);
            help_or_usage_error(&error, &words)
        }
    };
    done.unwrap_or_else(|error| {
        report::error(&error);
        error.exit_code().into()
    })
}

/// Runs one command of `kennel`. Its file turns the arguments into types of the library.
fn dispatch(verb: Verb) -> Result<ExitCode, Error> {
    match verb {
        Verb::Run(run) => run::run(&run),
        Verb::Session { action } => session::session(&action),
        Verb::Exec(exec) => exec::exec(&exec),
        Verb::Diff(diff) => review::diff(&diff),
        Verb::Commit(part) => review::commit(&part),
        Verb::Discard(part) => review::discard(&part),
        Verb::Op(op) => op::op(&op),
        Verb::Connector { .. } => beside::execute(&beside::CONNECTOR),
        Verb::Probe(probe) => probe::probe(&probe),
        Verb::Policy { action } => policy::policy(&action),
        Verb::Cache { action } => cache::cache(&action),
        Verb::Init(init) => config::init::init(&init),
        Verb::Trust(trust) => config::trust::trust(&trust),
        Verb::Audit { action } => audit::audit(&action),
        Verb::Completions { shell } => manual::completions(shell),
        Verb::Mcp(_) => beside::execute(&beside::MCP),
        Verb::Man { command } => manual::page(&command),
    }
}

/// Prints what the parser says instead of arguments: help, the version, or what is wrong with the words.
fn help_or_usage_error(said: &clap::Error, words: &[OsString]) -> Result<ExitCode, Error> {
    match said.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            report::print(text(said, &[], Paint::stdout()).as_bytes()).map(|()| ExitCode::SUCCESS)
        }
        // The parser does not say which argument is not UTF-8.
        ErrorKind::InvalidUtf8 => Err(parse::not_utf8(words)),
        _ => {
            // If stderr is closed, there is no way to report that.
            let _ = descriptor::write_all(io::stderr(), text(said, words, Paint::stderr()).as_bytes());
            Ok(FAILED.into())
        }
    }
}

/// What the parser says. It quotes words as they are, and anybody can choose the name of a file.
fn text(said: &clap::Error, words: &[OsString], paint: Paint) -> String {
    let mut text = said.render().ansi().to_string();
    for word in words.iter().map(|word| word.to_string_lossy()) {
        let value = word.split_once('=').map(|(_, value)| value);
        for quoted in [Some(&*word), value].into_iter().flatten() {
            let shown = harmless(quoted);
            if shown != quoted {
                text = text.replace(quoted, &shown);
            }
        }
    }
    if !paint.is_on() {
        text = strip_str(&text).to_string();
    }
    // The parser wraps paragraphs, but no usage and no examples, and it indents empty lines.
    table::fit(&text)
}
