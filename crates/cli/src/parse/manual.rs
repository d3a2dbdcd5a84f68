//! `kennel completions` and `kennel man`: completions and manual pages, generated from the flags.

use std::{io, process::ExitCode};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use kennel::Error;

use super::{
    completions,
    environment::{ENVIRONMENT, FILES},
};
use crate::{args::Arguments, report};

/// Runs `kennel completions`.
pub(crate) fn completions(shell: Shell) -> Result<ExitCode, Error> {
    print(completions::of(shell).as_bytes())
}

/// Runs `kennel man`.
pub(crate) fn page(command: &[String]) -> Result<ExitCode, Error> {
    let mut whole = Arguments::command();
    // clap fills in the names and flags of subcommands when it builds the command.
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

/// Writes the page of a command, named `kennel exec`, for example: `kennel-exec` is another program.
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
    text.extend(list("ENVIRONMENT", &ENVIRONMENT).bytes());
    text.extend(list("FILES", &FILES).bytes());
    Ok(())
}

/// A section that lists names with what they mean.
fn list(heading: &str, names: &[(&str, &str)]) -> String {
    let entries =
        names.iter().map(|(name, text)| format!(".TP\n\\fB{}\\fR\n{}\n", escaped(name), escaped(text)));
    format!(".SH {heading}\n") + &entries.collect::<String>()
}

/// Lists the subcommands of a command.
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

/// Converts the help text after the flags, paragraph by paragraph. Examples keep their lines.
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

/// Escapes text for roff.
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
    report::print(text).map(|()| ExitCode::SUCCESS)
}

fn unwritten(source: io::Error) -> Error {
    Error::Io { what: "write to stdout", source }
}

#[cfg(test)]
mod tests {
    //! Checks docs/cli.md against the flags. The flags generate the text between `<!-- flags of kennel run
    //! -->` and `<!-- end -->`; people write the rest of the page.
    //!
    //! To update it after a change of flags: `KENNEL_WRITE=1 cargo test -p kennel-cli --lib manual`.

    use std::{env, fs, path::Path};

    use clap::{Arg, Command, CommandFactory};

    use crate::args::{Arguments, help};

    /// The page in the repository.
    const PAGE: &str = include_str!("../../../../docs/cli.md");

    #[test]
    fn page_has_the_flags_of_every_command() {
        let mut whole = Arguments::command();
        whole.build();
        let run = whole.find_subcommand("run").cloned().expect("a command");
        let mut page = PAGE.to_owned();
        for command in leaves(&whole) {
            let begin = format!("<!-- flags of {} -->\n", command.get_bin_name().unwrap_or_default());
            let (before, rest) =
                page.split_once(&begin).unwrap_or_else(|| panic!("docs/cli.md lacks {begin}"));
            let (_, after) = rest.split_once("<!-- end -->\n").expect("an end");
            page = format!("{before}{begin}{}<!-- end -->\n{after}", section(command.clone(), &run));
        }
        if env::var_os("KENNEL_WRITE").is_some() {
            fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md"), &page)
                .expect("written");
        } else {
            assert!(
                page == PAGE,
                "docs/cli.md is not current: KENNEL_WRITE=1 cargo test -p kennel-cli --lib manual"
            );
        }
    }

    /// The commands without subcommands. docs/connectors.md describes those of connectors, and
    /// docs/server.md and docs/fleet.md those of the server.
    fn leaves(of: &Command) -> Vec<&Command> {
        let is_listed = |name: &str| !matches!(name, "help" | "connector" | "serve" | "route" | "fleet");
        let shown = of.get_subcommands().filter(|inner| !inner.is_hide_set() && is_listed(inner.get_name()));
        let inner: Vec<_> = shown.flat_map(leaves).collect();
        if inner.is_empty() { vec![of] } else { inner }
    }

    /// Describes a command: what it does, its usage, its flags. If it shares many flags with `run`, the text
    /// only refers to them.
    fn section(mut command: Command, run: &Command) -> String {
        let about =
            command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
        let about = about.trim_end_matches('.').to_owned();
        let usage = command.render_usage().to_string();
        let mut text = format!("{about}.\n\n```text\n{}\n```\n\n", usage.trim_start_matches("Usage: "));
        let all = arguments(&command);
        let same = |one: &&Arg, other: &&Arg| one.get_long().is_some() && one.get_long() == other.get_long();
        let (shared, own): (Vec<&Arg>, Vec<&Arg>) = all.iter().partition(|argument| {
            command.get_name() != "run" && arguments(run).iter().any(|run| same(run, argument))
        });
        let are_many = shared.len() > 20;
        let mut headings: Vec<Option<&str>> = Vec::new();
        let listed = if are_many { own } else { all.clone() };
        for argument in &listed {
            if !headings.contains(&argument.get_help_heading()) {
                headings.push(argument.get_help_heading());
            }
        }
        for heading in headings {
            let rows = listed.iter().filter(|argument| argument.get_help_heading() == heading);
            text += &format!("| {} | |\n| --- | --- |\n", heading.unwrap_or("Flag"));
            text += &rows.map(|argument| row(argument)).collect::<String>();
            text += "\n";
        }
        if are_many {
            let lacks =
                arguments(run).into_iter().filter(|run| !all.iter().any(|argument| same(run, argument)));
            let lacks: Vec<_> = lacks.filter_map(|run| Some(format!("`--{}`", run.get_long()?))).collect();
            text += &format!(
                "It takes the flags of [`kennel run`](#kennel-run) except {}.\n\n",
                lacks.join(", ")
            );
        }
        text
    }

    #[test]
    fn the_help_of_sessions_names_each_flag_of_run_that_start_does_not_take() {
        let mut whole = Arguments::command();
        whole.build();
        let flags = |path: &[&str]| -> Vec<String> {
            let command =
                path.iter().fold(&whole, |command, name| command.find_subcommand(name).expect(name));
            arguments(command).iter().filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect()
        };
        let (run, start) = (flags(&["run"]), flags(&["session", "start"]));
        let text =
            help::SESSION.split("except ").nth(1).and_then(|rest| rest.split(". ").next()).expect("except");
        let named: Vec<&str> = text.split([',', ' ']).filter(|word| word.starts_with("--")).collect();
        let lacks: Vec<_> = run.iter().filter(|flag| !start.contains(flag)).collect();
        assert_eq!(named, lacks, "in this order");
        assert!(start.contains(&"--policy".to_owned()));
    }

    /// The arguments of a command that help shows, without those of all commands.
    fn arguments(command: &Command) -> Vec<&Arg> {
        command
            .get_arguments()
            .filter(|argument| {
                !argument.is_hide_set() && !argument.is_global_set() && argument.get_id() != "help"
            })
            .collect()
    }

    /// A row of a table.
    fn row(argument: &Arg) -> String {
        let takes_value = argument.get_action().takes_values();
        let value = argument.get_value_names().and_then(<[_]>::first).filter(|_| takes_value);
        let short = argument.get_short().map(|short| format!("-{short},"));
        let long = argument.get_long().map(|long| format!("--{long}"));
        let name =
            [short, long, value.map(ToString::to_string)].into_iter().flatten().collect::<Vec<_>>().join(" ");
        let help =
            argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
        let help = marked(&help.replace("\n\n", " "));
        let end = if help.ends_with('.') { "" } else { "." };
        let mut help = help + end;
        if takes_value {
            for default in argument.get_default_values() {
                help += &format!(" Default: `{}`.", default.to_string_lossy());
            }
            let words: Vec<_> =
                argument.get_possible_values().iter().map(|word| format!("`{}`", word.get_name())).collect();
            if !words.is_empty() {
                help += &format!(" One of {}.", words.join(", "));
            }
        }
        format!("| `{name}` | {help} |\n")
    }

    /// Escapes text for Markdown, except inside backticks.
    fn marked(text: &str) -> String {
        let pieces = text.replace('|', "\\|");
        let pieces = pieces.split('`').enumerate();
        let pieces = pieces.map(|(at, piece)| match at % 2 {
            0 => piece.replace('*', "\\*").replace('<', "\\<"),
            _ => piece.to_owned(),
        });
        pieces.collect::<Vec<_>>().join("`")
    }
}
