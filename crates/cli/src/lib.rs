//! The `kennel` command: flags become a policy and a command, Kennel runs it, and its end becomes an exit
//! status. This library has the code of `kennel`, `kennel-mcp`, `kennel-image` and `kennel-connector`, and
//! nothing for other programs.
//!
//! It reads top to bottom. `parse` turns words into `args`, which are plain types. The room of each command
//! turns `args` into types of the library and runs them. `report` writes every message.
//!
//! A room imports only rooms that come before it: `process`, `terminal`, `report`, `args`, `parse`, `owner`,
//! `changes`, `config`, `policy`, `host`, `image`, `manifest`, `session`, `run`, `mcp`. On macOS, `macos` is
//! in the place of `owner` and of the last five. `linux` and `macos` choose the room of each command.

// Only Linux's rooms use some of what the others have.
#![cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "for Linux's rooms"))]

mod args;
mod changes;
mod config;
mod host;
#[cfg(target_os = "linux")]
mod image;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "linux")]
mod manifest;
#[cfg(target_os = "linux")]
mod mcp;
#[cfg(target_os = "linux")]
mod owner;
mod parse;
mod policy;
mod process;
mod report;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod session;
mod terminal;

use std::{ffi::OsString, io, process::ExitCode};

use anstream::adapter::strip_str;
use clap::error::ErrorKind;
use kennel::{Error, internal::escape::harmless};
use nix::sys::signal::{SigSet, Signal};

use args::Verb;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "macos")]
use macos as system;
use process::{descriptor, exit_status::FAILED};
use terminal::{
    style::{Paint, When},
    table,
};

/// The whole of `kennel`.
pub fn kennel() -> ExitCode {
    start(system::dispatch)
}

/// The whole of `kennel-mcp`, which takes the words of `kennel mcp`.
pub fn mcp() -> ExitCode {
    start(system::mcp)
}

/// The whole of `kennel-image`, which takes the words of `kennel image`.
pub fn image() -> ExitCode {
    start(system::image)
}

/// The whole of `kennel-connector`, which takes the words of `kennel connector`.
#[cfg(feature = "wasm")]
pub fn connector() -> ExitCode {
    start(system::connector)
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
