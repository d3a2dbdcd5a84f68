//! `kennel completions` and `kennel man`: what shells and readers know of the flags, from their definitions.

#[cfg(test)]
mod page;

use std::{io, process::ExitCode};

use clap::{Command, CommandFactory};
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
    write_page(found, &mut text).map_err(unwritten)?;
    print(&text)
}

/// Writes the page of a command under the name by which it is called: `kennel-exec` is another program.
fn write_page(mut command: Command, text: &mut Vec<u8>) -> io::Result<()> {
    let name = command.get_bin_name().unwrap_or("kennel").to_owned();
    let usage = command.render_usage().to_string();
    let help = command.get_after_help().map(ToString::to_string);
    let others = commands(&command);
    let usage = usage.trim_start_matches("Usage:").trim_start().to_owned();
    let man = Man::new(command.display_name(name).override_usage(usage));
    let man = man.source(concat!("kennel ", env!("CARGO_PKG_VERSION")));
    man.render_title(text)?;
    man.render_name_section(text)?;
    man.render_synopsis_section(text)?;
    man.render_description_section(text)?;
    man.render_options_section(text)?;
    text.extend(others.bytes());
    text.extend(help.map(|help| sections(&help)).unwrap_or_default().bytes());
    Ok(())
}

/// The commands of a command.
fn commands(of: &Command) -> String {
    let mut roff = String::new();
    for command in
        of.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        let name = escaped(command.get_bin_name().unwrap_or_default());
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let heading = if roff.is_empty() { ".SH COMMANDS\n" } else { "" };
        roff += &format!("{heading}.TP\n\\fB{name}\\fR\n{}\n", escaped(&about));
    }
    roff
}

/// What follows the flags in a help text, paragraph by paragraph. Examples keep their lines.
fn sections(help: &str) -> String {
    let mut roff = String::new();
    let mut last = "";
    for paragraph in help.split("\n\n") {
        let (heading, text) = if let Some(examples) = paragraph.strip_prefix("Examples:\n") {
            ("EXAMPLES", format!(".nf\n{}\n.fi\n", escaped(examples)))
        } else if let Some(status) = paragraph.strip_prefix("Exit status: ") {
            ("EXIT STATUS", format!("{}\n", escaped(status)))
        } else {
            ("NOTES", format!("{}\n", escaped(paragraph)))
        };
        roff += &if heading == last { ".PP\n".to_owned() } else { format!(".SH {heading}\n") };
        roff += &text;
        last = heading;
    }
    roff
}

/// Text that roff takes as it is.
fn escaped(text: &str) -> String {
    let line = |line: &str| {
        let guard = if line.starts_with('.') { "\\&" } else { "" };
        let plain =
            line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga");
        format!("{guard}{plain}")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn print(text: &[u8]) -> Result<ExitCode, Error> {
    report::answer(text).map(|()| ExitCode::SUCCESS)
}

fn unwritten(source: io::Error) -> Error {
    Error::Io { what: "write to stdout", source }
}
