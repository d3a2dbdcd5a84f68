//! Turns the words of a command line into [`Arguments`], and says what they can be: help, advice,
//! completions, manual pages. It must not act on what it parses.

mod advice;
mod completions;
mod environment;
pub(crate) mod manual;
mod short_help;

use std::ffi::OsString;

use clap::{
    Args, Command, CommandFactory, FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind},
};
use kennel::Error;

use crate::{
    args::{Arguments, Verb, run::Run, session::Exec},
    terminal::style::When,
};
use advice::with_advice;
use short_help::shortened;

const NOT_UTF8: &str = "is not UTF-8";

/// Parses a command line, the program's name first.
///
/// # Errors
/// Words that the parser does not understand, and requests for help or the version.
pub(crate) fn parse(typed: &[OsString]) -> Result<Arguments, clap::Error> {
    let words = typed.get(1..).unwrap_or_default();
    // `run` and `exec` start very often, and `--version` is how programs see whether Kennel is there.
    // Building the flags of all commands takes as long as starting a process, so build only those of this
    // command, and none where there is no flag.
    let verb = match words.first().and_then(|verb| verb.to_str()) {
        Some("run") => match command_alone(words.get(1..).unwrap_or_default()) {
            Some(command) => Some(Verb::Run(Run { command, ..Run::default() })),
            None => parse_one::<Run>(words).map(Verb::Run),
        },
        Some("exec") if lacks_name(words) => {
            return Err(Arguments::command().error(ErrorKind::MissingRequiredArgument, NO_NAME));
        }
        Some("exec") => match (name(words.get(1)), command_alone(words.get(2..).unwrap_or_default())) {
            (Some(name), Some(command)) => Some(Verb::Exec(Exec { name, command, ..Exec::default() })),
            _ => parse_one::<Exec>(words).map(Verb::Exec),
        },
        Some("--version" | "-V") => {
            let version = Command::new("kennel").version(env!("CARGO_PKG_VERSION"));
            match version.try_get_matches_from(typed) {
                Err(said) if said.kind() == ErrorKind::DisplayVersion => return Err(said),
                _ => None,
            }
        }
        _ => None,
    };
    match verb {
        Some(verb) => Ok(Arguments { color: None, verb }),
        // The full parser writes every error and every help text.
        None => parse_all(typed).map_err(|error| with_advice(error, typed)),
    }
}

/// The command, if it comes without a flag before it: `make -j 4`, or `-- make`.
fn command_alone(words: &[OsString]) -> Option<Vec<OsString>> {
    let command = match words.first()?.as_encoded_bytes() {
        b"--" => words.get(1..)?,
        // What becomes of a `--` in the middle is the parser's.
        [] | [b'-', ..] => return None,
        _ if words.iter().any(|word| word == "--") => return None,
        _ => words,
    };
    (!command.is_empty()).then(|| command.to_vec())
}

/// The name of a session, if the word is no flag.
fn name(word: Option<&OsString>) -> Option<String> {
    let name = word?.to_str()?;
    (!name.is_empty() && !name.starts_with('-')).then(|| name.to_owned())
}

const NO_NAME: &str = "the name of the session is missing before `--`, as in: kennel exec NAME -- make test\n\n\
                       `kennel session list` lists sessions";

/// Whether a `--` comes before the name of the session: `kennel exec -- make`. The first word of the command
/// would be the name.
fn lacks_name(words: &[OsString]) -> bool {
    let Some(at) = words.iter().position(|word| word == "--") else { return false };
    // Mostly the name is the first word.
    if words.get(1).is_none_or(|word| !word.as_encoded_bytes().starts_with(b"-")) {
        return false;
    }
    let before =
        Exec::augment_args(Command::new("exec")).try_get_matches_from(words.get(..at).unwrap_or_default());
    let missing = before.as_ref().err().and_then(|error| error.get(ContextKind::InvalidArg));
    matches!(missing, Some(ContextValue::Strings(missing)) if missing.iter().any(|name| name == "<NAME>"))
}

/// Parses any command line, with the short help for `-h`.
fn parse_all(typed: &[OsString]) -> Result<Arguments, clap::Error> {
    let is_short = typed.iter().take_while(|word| *word != "--").any(|word| word == "-h");
    let command = Arguments::command();
    let mut command = if is_short { shortened(command) } else { command };
    let matches = command.try_get_matches_from_mut(typed)?;
    Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// `--color` among words that do not parse.
pub(crate) fn color(typed: &[OsString]) -> Option<When> {
    let mut words = typed.iter().take_while(|word| *word != "--").filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--color") {
            Some("") => words.next(),
            Some(value) => value.strip_prefix('='),
            None => None,
        };
        if value.is_some() {
            return value?.parse().ok();
        }
    }
    None
}

/// The error for the first argument of Kennel's own that must be UTF-8 and is not.
pub(crate) fn not_utf8(typed: &[OsString]) -> Error {
    let own: Vec<&OsString> = typed.iter().take_while(|argument| *argument != "--").collect();
    let at = own.iter().position(|argument| argument.to_str().is_none());
    let value =
        at.and_then(|at| own.get(at)).map_or_else(String::new, |value| value.to_string_lossy().into_owned());
    // The argument contains its flag, or follows it.
    let flag = match (value.strip_prefix("--"), at) {
        (Some(_), _) => value.split('=').next(),
        (None, Some(at)) => at.checked_sub(1).and_then(|before| own.get(before)?.to_str()),
        (None, None) => None,
    };
    let has_policy = own.get(1).is_some_and(|verb| *verb != "exec");
    let remedy = match flag {
        Some("--ro" | "--rw" | "--tmpfs") => "; grant a parent directory instead",
        Some("--setenv") if has_policy => "; set the variable for `kennel` and pass it with --pass-env",
        _ => "",
    };
    Error::Command { what: "argument", value, reason: format!("{NOT_UTF8}{remedy}") }
}

/// Parses the arguments of one command, its name first. Returns `None` for anything that needs the full
/// parser.
fn parse_one<A: Args>(words: &[OsString]) -> Option<A> {
    let matches = A::augment_args(Command::new("kennel")).try_get_matches_from(words).ok()?;
    A::from_arg_matches(&matches).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_that_is_not_utf8_gets_the_remedy_of_its_flag() {
        use std::os::unix::ffi::OsStringExt;
        for (line, words) in [
            ("run --ro /a\u{1} true", "parent directory instead"),
            ("run --rw=/a\u{1} true", "parent directory instead"),
            ("run --setenv A=\u{1} -- true", "pass it with --pass-env"),
            ("session start --name a --setenv=A=\u{1}", "pass it with --pass-env"),
            ("exec a --setenv A=\u{1} -- true", "is not UTF-8"),
            ("op m.toml say --arg a=\u{1}", "is not UTF-8"),
            ("run --allow \u{1}:1 true", "is not UTF-8"),
            ("run --hostname=\u{1} true", "is not UTF-8"),
            ("op m.toml \u{1}", "is not UTF-8"),
        ] {
            // No UTF-8 text contains the byte 0xff.
            let word = |word: &str| word.bytes().map(|byte| if byte == 1 { 0xff } else { byte }).collect();
            let typed: Vec<_> =
                ["kennel"].into_iter().chain(line.split(' ')).map(word).map(OsString::from_vec).collect();
            let error = not_utf8(&typed).to_string();
            assert!(error.contains('\u{fffd}') && error.ends_with(words), "{line:?}: {error}");
        }
    }

    #[test]
    fn parsing_one_command_equals_the_full_parser() {
        let lines = [
            "run true",
            "run -- make -j 4 --help",
            "run -q --profile read-only --ro /a:/b --rw /c --setenv A=B --timeout 3s --json out -- sh -c run",
            "run --overlay --commit --max-output 1M --output-ends --memory 1G -- run --version",
            "exec a1 true",
            "exec a1 --cwd src --setenv A=B --timeout 30s -- exec --tty",
            "run",
            "run --",
            "run --help",
            "run -h",
            "run -V",
            "run --version",
            "run --absent true",
            "run --timeout never true",
            "run --profile nope true",
            "run --net proxy --env inherit --tmp session -- true",
            "run --diff --commit true",
            "run run run",
            "run ls -la",
            "run -- -x",
            "run -- -- x",
            "run -- --",
            "run a -- b",
            "run a --",
            "exec a1 -- -- x",
            "exec a1 b -- c",
            "exec a1 --",
            "run --net none make -j 4 --net host -- -q",
            "run make --help",
            "run --color always true",
            "exec a1 --cwd src cargo test --timeout 3s",
            "exec a1 -it -q bash -it",
            "exec a1 -i -t --quiet -- true",
            "exec a1 -d -q true",
            "exec",
            "exec --help",
            "exec a1",
            "help run",
            "running",
            "--version",
            "",
        ];
        for line in lines {
            let typed: Vec<OsString> =
                ["kennel"].into_iter().chain(line.split_whitespace()).map(Into::into).collect();
            let told = |result: Result<Arguments, clap::Error>| match result {
                Ok(arguments) => format!("{arguments:?}"),
                Err(error) => format!("{:?}: {error}", error.kind()),
            };
            let whole = parse_all(&typed).map_err(|error| with_advice(error, &typed));
            assert_eq!(told(parse(&typed)), told(whole), "{line}");
        }
        assert!(parse(&[]).is_err());
    }

    #[test]
    fn a_command_without_the_name_of_a_session_is_told_so() {
        let parsed = |line: &str| {
            let typed: Vec<OsString> =
                ["kennel"].into_iter().chain(line.split(' ')).map(Into::into).collect();
            parse(&typed)
        };
        for line in ["exec -- make test", "exec --timeout 3s -- make", "exec -it -- bash -c true", "exec --"]
        {
            let said = parsed(line).expect_err(line).to_string();
            assert!(
                said.contains("the name of the session is missing") && said.contains("kennel exec NAME -- "),
                "{said}"
            );
        }
        for line in [
            "exec a1 -- make",
            "exec --timeout 3s a1 -- make",
            "exec -q a1 grep -- x",
            "exec a1 --cwd x -- y",
        ] {
            assert!(parsed(line).is_ok(), "{line}");
        }
    }
}
