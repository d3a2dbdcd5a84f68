//! Advice for command lines that the parser does not understand: what the user probably meant, ready to type.

use std::{borrow::Cow, env, ffi::OsString, os::unix::fs::PermissionsExt, path::Path};

use clap::{
    Args, Command, Error,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::args::run::Run;
use kennel::internal::escape::harmless;

/// Replaces or adds tips. `typed` is the whole command line, the program's name first.
pub(crate) fn with_advice(mut error: Error, typed: &[OsString]) -> Error {
    let words = typed.get(1..).unwrap_or_default();
    let tips = match error.kind() {
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand if is_about_first(&error, words) => {
            instead_of_run(&error, words)
        }
        ErrorKind::UnknownArgument if takes_command(&error) => {
            // clap suggests passing the flag after `--`, but that would run a command of that name.
            suggestions(&error).filter(|tip| !tip.contains("as a value")).map(StyledStr::from).collect()
        }
        ErrorKind::MissingRequiredArgument if lacks_command(&error) => {
            let before =
                words.iter().take_while(|word| *word != "--").map(quoted).collect::<Vec<_>>().join(" ");
            vec![StyledStr::from(format!("name the command, as in: kennel {before} make test"))]
        }
        _ => return error,
    };
    error.remove(ContextKind::Suggested);
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

/// The tips for a command or a flag of `kennel run` that directly follows `kennel`.
fn instead_of_run(error: &Error, words: &[OsString]) -> Vec<StyledStr> {
    let after_dashes = words.first().is_some_and(|word| *word == "--");
    let meant = if after_dashes { &words[1..] } else { words };
    let similar: Vec<String> = suggestions(error).filter(|tip| !tip.contains("as a value")).collect();
    let is_similar =
        !after_dashes && (!similar.is_empty() || error.get(ContextKind::SuggestedSubcommand).is_some());
    let first = meant.first().cloned().unwrap_or_default();
    let first = first.to_string_lossy();
    let is_run = if first.starts_with('-') {
        meant.len() > 1 && is_flag_of_run(&first)
    } else {
        !is_similar || is_program(&first)
    };
    let mut tips = Vec::new();
    if is_run && !meant.is_empty() {
        let line = meant.iter().map(quoted).collect::<Vec<_>>().join(" ");
        tips.push(StyledStr::from(format!("to run a command, write: kennel run {line}")));
    }
    if !after_dashes {
        tips.extend(similar.into_iter().map(StyledStr::from));
    }
    tips
}

/// Whether the first word is the one that the parser does not know.
fn is_about_first(error: &Error, words: &[OsString]) -> bool {
    let first = words.iter().find(|word| *word != "--").map(|word| word.to_string_lossy().into_owned());
    let kinds = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    let mut named = kinds.iter().filter_map(|kind| match error.get(*kind)? {
        ContextValue::String(word) => Some(word),
        _ => None,
    });
    named.any(|word| {
        first.as_ref().is_some_and(|first| first == word || first.starts_with(&format!("{word}=")))
    })
}

/// Whether the usage ends with a command.
fn takes_command(error: &Error) -> bool {
    let is_there = |usage: &str| usage.contains("<CMD>") || usage.contains("[CMD]");
    matches!(error.get(ContextKind::Usage), Some(usage) if is_there(&usage.to_string()))
}

fn lacks_command(error: &Error) -> bool {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.iter().eq(["<CMD>..."]),
        _ => false,
    }
}

/// The tips of the parser.
fn suggestions(error: &Error) -> impl Iterator<Item = String> + use<> {
    let tips = match error.get(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    };
    tips.into_iter()
}

fn is_flag_of_run(word: &str) -> bool {
    let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
    let run = Run::augment_args(Command::new("run"));
    run.get_arguments().any(|flag| {
        flag.get_long() == Some(name) || flag.get_short().is_some_and(|short| name == short.to_string())
    })
}

/// Whether a program of that name is on PATH, or at that path.
fn is_program(word: &str) -> bool {
    let is_executable = |path: &Path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if word.contains('/') {
        return is_executable(Path::new(word));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| is_executable(&directory.join(word)))
}

/// A word as a shell reads it.
fn quoted(word: &OsString) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=:@%+,~".contains(c);
    let word: Cow<'_, str> = match word.is_empty() || !word.chars().all(is_plain) {
        true => format!("'{}'", word.replace('\'', r"'\''")).into(),
        false => word,
    };
    harmless(&word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;

    fn error_text(line: &[&str]) -> String {
        let typed: Vec<OsString> = ["kennel"].iter().chain(line).map(Into::into).collect();
        parse(&typed).expect_err("no arguments").to_string()
    }

    #[test]
    fn a_command_without_run_gets_it() {
        for (line, tip) in [
            (&["ls", "-la"][..], "write: kennel run ls -la\n"),
            (&["--", "ls", "-la"], "write: kennel run ls -la\n"),
            (&["--", "run", "ls"], "write: kennel run run ls\n"),
            (&["--ro", "/x", "ls"], "write: kennel run --ro /x ls\n"),
            (&["--net=none", "ls"], "write: kennel run --net=none ls\n"),
            (&["-q", "ls"], "write: kennel run -q ls\n"),
            (&["sh", "-c", "echo 'a'"], r"write: kennel run sh -c 'echo '\''a'\'''"),
            (&["sh", "a\u{1b}b"], r"write: kennel run sh 'a\u{1b}b'"),
        ] {
            assert!(error_text(line).contains(tip), "{line:?}: {}", error_text(line));
        }
    }

    #[test]
    fn a_misspelt_word_gets_the_right_one_only() {
        for (line, tip) in [
            (&["sesion", "list"][..], "similar subcommand exists: 'session'"),
            (&["policy", "shw"], "similar subcommand exists: 'show'"),
            (&["run", "--pas", "x"], "similar argument exists: '--pass-env'"),
            (&["--versio"], "similar argument exists: '--version'"),
        ] {
            let said = error_text(line);
            assert!(
                said.contains(tip)
                    && !said.contains("write: kennel run ")
                    && said.matches("tip:").count() == 1,
                "{line:?}: {said}"
            );
        }
        for line in
            [&["run", "--bogus", "--", "ls"][..], &["exec", "a1", "--bogus", "ls"], &["--bogus", "ls"]]
        {
            assert!(!error_text(line).contains("tip:"), "{line:?}: {}", error_text(line));
        }
    }

    #[test]
    fn a_missing_command_is_shown_where_it_goes() {
        for (line, tip) in [
            (&["run"][..], "as in: kennel run make test\n"),
            (&["run", "--net", "none", "--"], "as in: kennel run --net none make test\n"),
            (&["exec", "a1"], "as in: kennel exec a1 make test\n"),
        ] {
            assert!(error_text(line).contains(tip), "{line:?}: {}", error_text(line));
        }
    }
}
