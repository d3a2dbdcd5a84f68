//! `kennel completions` and `kennel man`: what shells and readers know of the flags, from their definitions.

use std::{io, process::ExitCode};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use kennel::Error;

use crate::{args::Arguments, report};

/// Runs `kennel completions`.
pub(crate) fn completions(shell: Shell) -> Result<ExitCode, Error> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "kennel", &mut text);
    print(&text)
}

/// Runs `kennel man`.
pub(crate) fn page(command: &[String]) -> Result<ExitCode, Error> {
    let mut whole = Arguments::command();
    // Names and flags of commands are known once it is built.
    whole.build();
    let mut found = whole;
    for name in command {
        let inner = found.find_subcommand(name).filter(|inner| !inner.is_hide_set()).cloned();
        found = inner.ok_or_else(|| Error::Command {
            what: "command",
            value: name.clone(),
            reason: "no such command; see kennel --help".to_owned(),
        })?;
    }
    let mut text = Vec::new();
    Man::new(found).render(&mut text).map_err(unwritten)?;
    print(&text)
}

fn print(text: &[u8]) -> Result<ExitCode, Error> {
    report::answer(text).map(|()| ExitCode::SUCCESS)
}

fn unwritten(source: io::Error) -> Error {
    Error::Io { what: "write to stdout", source }
}
