//! The tables of docs/cli.md, written from the flags. Everything between a comment `<!-- flags of kennel run -->` and
//! `<!-- end -->` is generated; the rest of the page is written by hand.
//!
//! After a change of flags: `KENNEL_WRITE=1 cargo test --bin kennel manual`.

use std::{env, fs, path::Path};

use clap::{Arg, Command, CommandFactory};

use crate::args::Arguments;

/// The page as it is.
const PAGE: &str = include_str!("../../../../docs/cli.md");

#[test]
fn page_has_the_flags_of_every_command() {
    let mut whole = Arguments::command();
    whole.build();
    let run = whole.find_subcommand("run").cloned().expect("a command");
    let mut page = PAGE.to_owned();
    for command in leaves(&whole) {
        let begin = format!("<!-- flags of {} -->\n", command.get_bin_name().unwrap_or_default());
        let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("docs/cli.md lacks {begin}"));
        let (_, after) = rest.split_once("<!-- end -->\n").expect("an end");
        page = format!("{before}{begin}{}<!-- end -->\n{after}", section(command.clone(), &run));
    }
    if env::var_os("KENNEL_WRITE").is_some() {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md"), &page).expect("written");
    } else {
        assert!(page == PAGE, "docs/cli.md is not current: KENNEL_WRITE=1 cargo test --bin kennel manual");
    }
}

/// The commands that do something, not those that only have others.
fn leaves(of: &Command) -> Vec<&Command> {
    let shown = of.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
    let inner: Vec<_> = shown.flat_map(leaves).collect();
    if inner.is_empty() { vec![of] } else { inner }
}

/// What a command does, how it is called, and its flags. Those that `run` has too are only mentioned if they are many.
fn section(mut command: Command, run: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let mut text = format!("{about}.\n\n```text\n{}\n```\n\n", usage.trim_start_matches("Usage: "));
    let all = shown(&command);
    let same = |one: &&Arg, other: &&Arg| one.get_long().is_some() && one.get_long() == other.get_long();
    let (shared, own): (Vec<&Arg>, Vec<&Arg>) = all.iter().partition(|argument| {
        command.get_name() != "run" && shown(run).iter().any(|run| same(run, argument))
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
        let lacks = shown(run).into_iter().filter(|run| !all.iter().any(|argument| same(run, argument)));
        let lacks: Vec<_> = lacks.filter_map(|run| Some(format!("`--{}`", run.get_long()?))).collect();
        text +=
            &format!("It takes the flags of [`kennel run`](#kennel-run) except {}.\n\n", lacks.join(", "));
    }
    text
}

/// The arguments of a command that a reader is told of.
fn shown(command: &Command) -> Vec<&Arg> {
    command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set() && argument.get_id() != "help")
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
    let mut help = escaped(&argument.get_help().map(ToString::to_string).unwrap_or_default()) + ".";
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

/// Text in which Markdown sees no marks but backticks.
fn escaped(text: &str) -> String {
    let pieces = text.replace('|', "\\|");
    let pieces = pieces.split('`').enumerate();
    let pieces = pieces.map(|(at, piece)| match at % 2 {
        0 => piece.replace('*', "\\*").replace('<', "\\<"),
        _ => piece.to_owned(),
    });
    pieces.collect::<Vec<_>>().join("`")
}
